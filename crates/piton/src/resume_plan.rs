//! What a resume would do, in words: a line a step for those who look, a few lines for those who are asked.

use std::time::Duration;

use piton_core::event::Entry;
use piton_core::ids::StepRef;
use piton_core::limits::CONTINUE_PERCENT_MIN;
use piton_core::plan::Work as StepWork;
use piton_core::recover::{Action, Because, Recovery};
use piton_core::resume_view::ResumeView;
use piton_core::run::Run;
use serde_json::{Value, json};

use crate::describe::cause_words;
use crate::text::{clipped, due, now, plain, span, table};

/// The longest question that is shown in full among what would be done.
const QUESTION_SHOWN: usize = 200;
/// The most steps that are named where the same is done about several.
const NAMES_MAX: usize = 4;
/// How wide what a person is asked about may be: a row of it.
const ROW_MAX: usize = 66;

/// What is done about a step: a word, and the rest of the sentence.
struct Phrase {
    word: &'static str,
    rest: String,
}

/// What is done about a step, in words.
pub(crate) fn describe(run: &Run, recovery: &Recovery) -> String {
    let done = done(run, recovery);
    match recovery.action {
        Action::Bury { .. } => format!("{BURIED}, then {done}"),
        _ => done,
    }
}

/// What comes first about a step whose attempt is dead.
pub(crate) const BURIED: &str = "record that its attempt is dead, keep what it left";

/// The same without what comes first.
pub(crate) fn done(run: &Run, recovery: &Recovery) -> String {
    let Phrase { word, rest } = said(run, recovery);
    format!("{word}{rest}")
}

/// What is found and done, the same steps together, and what it costs.
pub(crate) fn summary(run: &Run, plan: &ResumeView) -> Vec<String> {
    const ORDER: [&str; 9] =
        ["skip", "adopt", "continue", "restart", "finish", "start", "ask", "wait", "leave"];
    let mut rows: Vec<(&str, String, Vec<&StepRef>)> = Vec::new();
    for recovery in &plan.steps {
        let Phrase { word, rest } = said(run, recovery);
        let why = rest.trim_start_matches([':', ' ']).to_owned();
        match rows.iter_mut().find(|row| (row.0, &row.1) == (word, &why)) {
            Some((_, _, steps)) => steps.push(&recovery.step),
            None => rows.push((word, why, vec![&recovery.step])),
        }
    }
    rows.sort_by_key(|(word, _, _)| ORDER.iter().position(|known| known == word));
    let row = |(word, why, steps): &(&str, String, Vec<&StepRef>)| {
        let text = if why.is_empty() { named(steps) } else { format!("{}: {why}", named(steps)) };
        vec![format!("  {word}"), clipped(&text, ROW_MAX)]
    };
    let dead = |recovery: &&Recovery| matches!(recovery.action, Action::Bury { .. });
    let dead: Vec<&StepRef> = plan.steps.iter().filter(dead).map(|row| &row.step).collect();
    let found = (!dead.is_empty()).then(|| {
        let text = format!("{}: its attempt is dead; what it left is kept", named(&dead));
        vec!["  found".to_owned(), clipped(&text, ROW_MAX)]
    });
    let rows = rows.iter().map(row);
    table(&found.into_iter().chain(rows).chain(costs(plan)).collect::<Vec<_>>())
}

/// What is lost, and how long the rest takes.
pub(crate) fn costs(plan: &ResumeView) -> [Vec<String>; 2] {
    let lost = match &plan.lost {
        None => "unknown: no history".to_owned(),
        Some(lost) if lost.time.is_zero() => "nothing".to_owned(),
        Some(lost) => {
            format!("about {} of work ({} %)", span(lost.time), lost.percent)
        }
    };
    let left = match plan.left {
        None => "unknown: no history".to_owned(),
        Some(left) => format!("about {}", span(left)),
    };
    [vec!["  lost".to_owned(), lost], vec!["  left".to_owned(), left]]
}

/// The same for `--json`.
pub(crate) fn to_json(run: &Run, plan: &ResumeView) -> Value {
    let step = |recovery: &Recovery| {
        json!({
            "step": recovery.step.step,
            "iteration": recovery.step.iteration,
            "action": word_for(&recovery.action),
            "text": describe(run, recovery),
        })
    };
    let steps: Vec<Value> = plan.steps.iter().map(step).collect();
    let unknown = || json!("unknown");
    let seconds = |time: Duration| json!(time.as_secs());
    let lost = plan.lost.map_or_else(
        unknown,
        |lost| json!({ "seconds": seconds(lost.time), "percent": lost.percent }),
    );
    let left = plan.left.map_or_else(unknown, |left| json!({ "seconds": seconds(left) }));
    json!({ "steps": steps, "lost": lost, "left": left })
}

fn named(steps: &[&StepRef]) -> String {
    let names: Vec<String> = steps.iter().take(NAMES_MAX).map(ToString::to_string).collect();
    match steps.len().saturating_sub(NAMES_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn word_for(action: &Action) -> &'static str {
    match action {
        Action::Skip => "skip",
        Action::Adopt { .. } => "adopt",
        Action::Bury { .. } => "bury",
        Action::Expire { .. } => "expire",
        Action::Start { .. } => "enter",
        Action::AwaitLease { .. } => "await_lease",
        Action::AwaitNeeds | Action::AwaitFailed { .. } => "await_needs",
        Action::AwaitTree { .. } => "await_tree",
        Action::AwaitJobs { .. } => "await_jobs",
        Action::AwaitLock { .. } => "await_lock",
        Action::AwaitLimit { .. } => "await_limit",
        Action::AwaitHolder => "await_holder",
        Action::LeaveOut => "leave_out",
        Action::StayStopped => "stay_stopped",
        Action::StayFailed => "stay_failed",
        Action::AwaitAnswer { .. } => "await_answer",
        Action::Ask { .. } => "ask",
    }
}

fn said(run: &Run, recovery: &Recovery) -> Phrase {
    let say = |word, rest: &str| Phrase { word, rest: rest.to_owned() };
    match recovery.outcome() {
        Action::Skip => say("skip", ": done"),
        Action::Adopt { .. } | Action::Bury { .. } => say("adopt", ": its attempt is alive"),
        Action::Expire { .. } => say("ask", " how it goes on: its holder is lost"),
        Action::Start { entry, because } => {
            let why = reason(run, (&recovery.step, *entry), because);
            let (word, how) = match (entry, because) {
                (Entry::Fresh, Because::NeedsMet) => ("start", ""),
                (Entry::Fresh, _) => ("restart", " from its base"),
                (Entry::Continue, _) => ("continue", " in its tree"),
                (Entry::Verify, _) => ("finish", ": verify and land; its agent had ended"),
                (Entry::Land, _) => ("finish", ": land; it was verified"),
            };
            Phrase { word, rest: format!("{how}{why}") }
        }
        Action::AwaitLease { .. } => say("wait", ": another holder has it until its lease is over"),
        Action::AwaitNeeds => {
            let index = run.index_of(&recovery.step);
            let needs = index.map(|index| run.unmet(index)).unwrap_or_default();
            let needs: Vec<String> = needs.iter().map(ToString::to_string).collect();
            Phrase { word: "wait", rest: format!(": needs {}", needs.join(", ")) }
        }
        Action::AwaitFailed { by } => Phrase { word: "wait", rest: format!(": {by} has failed") },
        Action::AwaitTree { by } => {
            Phrase { word: "wait", rest: format!(": {by} works in the worktree first") }
        }
        Action::AwaitJobs { jobs } => {
            Phrase { word: "wait", rest: format!(": at most {jobs} at once") }
        }
        Action::AwaitLock { lock, by } => {
            let by: Vec<String> = by.iter().map(ToString::to_string).collect();
            Phrase { word: "wait", rest: format!(" for lock {lock}, which {} has", by.join(", ")) }
        }
        Action::AwaitLimit { account, probe: Some(probe), .. } => Phrase {
            word: "wait",
            rest: format!(" until {probe} shows that the limit of account {account} is over"),
        },
        Action::AwaitLimit { account, until, probe: None } => Phrase {
            word: "wait",
            rest: format!(": the limit of account {account} is over {}", due(*until, now())),
        },
        Action::AwaitHolder => say("wait", " until it is claimed: piton starts nothing for it"),
        Action::LeaveOut => say("leave", " it: not among the chosen steps"),
        Action::StayStopped => say("leave", " it stopped"),
        Action::StayFailed => say("leave", " it failed: no retries left"),
        Action::AwaitAnswer { question, text } => match recovery.action {
            // There is no such question yet.
            Action::Bury { .. } => say("ask", " how it goes on"),
            _ => {
                let text = clipped(text, QUESTION_SHOWN);
                Phrase { word: "ask", rest: format!(" again: {question} {text}") }
            }
        },
        Action::Ask { question } => Phrase { word: "ask", rest: format!(": {}", plain(question)) },
    }
}

fn reason(run: &Run, (step, entry): (&StepRef, Entry), because: &Because) -> String {
    match because {
        Because::NeedsMet => String::new(),
        Because::Interrupted(cause) => {
            format!(" ({}{})", cause_words(*cause), too_little(run, step, entry))
        }
        Because::Failed(why) => format!(" (retry: it {})", plain(&why.to_string())),
        Because::Answered => " (as was answered)".to_owned(),
        Because::LimitOver => " (its limit should be over)".to_owned(),
        Because::HolderLost => " (its host was lost)".to_owned(),
        Because::Reset => " (begun again)".to_owned(),
    }
}

/// What was reported of a step that begins again all the same.
fn too_little(run: &Run, step: &StepRef, entry: Entry) -> String {
    let Some((plan, state)) = run.step(step) else { return String::new() };
    let is_agent = matches!(plan.work, StepWork::Agent { .. }) && entry == Entry::Fresh;
    let enough = run.terms.threshold.unwrap_or(CONTINUE_PERCENT_MIN);
    match state.report.progress.filter(|percent| is_agent && *percent < enough) {
        Some(percent) => format!(", {percent} % done"),
        None => String::new(),
    }
}
