//! A run's view in words: the rows and lines that `status`, `show` and the overview have in common.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use piton_core::agent::Rung;
use piton_core::event::{Cause, Conversation, Omission, Priority, Report, Stage, Truth};
use piton_core::ids::Handle;
use piton_core::time::{Millis, timestamp};
use piton_core::view::{
    AttemptView, AwaitedLock, ItemState, QuestionView, RunStatus, RunView, StepKind, StepStatus,
    StepView, WorkAtRisk,
};
use piton_engine::git::worktree::TreeProblem;
use piton_engine::merge::{Merge, Way};
use piton_engine::run::condition::{Condition, MadeFrom};

use crate::by_hand;
use crate::hints;
use crate::remedy::command;
use crate::start::from_here;
use crate::text::{
    TEXT_SHOWN, ago, bold, clipped, count, dim, due, green, plain, red, span, yellow,
};

/// The longest title in a table.
pub(crate) const TITLE_MAX: usize = 48;
/// The longest text of a report that is shown in full.
pub(crate) const REPORT_MAX: usize = 200;
/// The most steps that are named in a line.
const NAMES_SHOWN: usize = 3;
/// The most files that are named in a line.
const FILES_SHOWN: usize = 10;

/// How many characters of each handle name its run and no other.
pub(crate) type Prefixes = BTreeMap<Handle, usize>;

/// A run's status with its data, in one phrase.
pub(crate) fn run_phrase(view: &RunView, now: Millis) -> String {
    match &view.status {
        RunStatus::Open => match to_claim(view).as_slice() {
            [] if view.worker => "between steps".to_owned(),
            [] => "paused: no worker is running".to_owned(),
            steps => format!("{} can be claimed", named(steps)),
        },
        RunStatus::Running if open_questions(view).next().is_some() => {
            let asked = open_questions(view).map(|asked| {
                format!("asks {}: {}", asked.question, clipped(&asked.text, REPORT_MAX))
            });
            asked.collect::<Vec<_>>().join("; ")
        }
        RunStatus::Lapsed { step, since } => {
            let step = view.steps.iter().find(|view| view.step == *step);
            let by = step.and_then(|step| step.attempts.last());
            let by = by.map(|attempt| match &attempt.worktree {
                Some(worktree) => format!("by {}", plain(worktree)),
                None => format!("on {}", plain(&attempt.host)),
            });
            let (by, id) = (by.unwrap_or_default(), step.map(|step| step.step.to_string()));
            format!(
                "step {} is claimed {by}, whose lease was over {}: no sign of work",
                id.unwrap_or_default(),
                ago(*since, now)
            )
        }
        RunStatus::Running => match active(view) {
            Some(step) => {
                let phrase = format!("step {} {}", step.step, step_phrase(step, now));
                match is_unattended(view) {
                    true => format!("{phrase}; no worker is running: nothing else starts"),
                    false => phrase,
                }
            }
            None => "between steps".to_owned(),
        },
        RunStatus::Parked { account, until } => {
            let unattended = if view.worker { "" } else { "; no worker is running" };
            format!("account {account} has met its limit; goes on {}{unattended}", due(*until, now))
        }
        RunStatus::Waiting { question, id: Some(id), .. } => {
            format!("{id}: {}", clipped(question, REPORT_MAX))
        }
        RunStatus::Waiting { question, .. } => plain(question),
        RunStatus::Interrupted { step, cause, at } => {
            format!("step {step} {} {}", cause_words(*cause), ago(*at, now))
        }
        RunStatus::Failed { step, why } => format!("step {step} {}", plain(&why.to_string())),
        RunStatus::Completed => match &view.merged {
            Some(merged) => format!("merged into {} {}", merged.into, ago(merged.at, now)),
            None if has_landed(view) => format!("on branch {}", view.branch),
            None => "nothing landed".to_owned(),
        },
        RunStatus::Abandoned { at, keep_until: Some(until) } => {
            let left = until.since(now);
            format!("{}, in the attic for {}", ago(*at, now), crate::text::span(left))
        }
        RunStatus::Abandoned { at, keep_until: None } => ago(*at, now),
        RunStatus::Stopped { cause, at } => format!("{} {}", cause_words(*cause), ago(*at, now)),
    }
}

/// What ended an attempt.
pub(crate) fn cause_words(cause: Cause) -> &'static str {
    match cause {
        Cause::UserInterrupt => "stopped by you",
        Cause::Termination => "terminated",
        Cause::HangUp => "hung up",
        Cause::ProcessKill => "killed",
        Cause::OutOfMemory => "killed for lack of memory",
        Cause::Reboot => "cut off by a reboot",
        Cause::HostLost => "lost with its host",
        Cause::DiskFull => "cut off by a full disk",
        Cause::Obstacle => "cannot go on",
        Cause::Unknown => "cut off, cause unknown",
    }
}

/// Whether a step has brought a commit onto the run's branch.
pub(crate) fn has_landed(view: &RunView) -> bool {
    let landed =
        |step: &StepView| matches!(step.status, StepStatus::Completed { commit: Some(_), .. });
    view.steps.iter().any(landed)
}

/// Whether what is being worked on is all that will be: other steps need a worker.
pub(crate) fn is_unattended(view: &RunView) -> bool {
    let waits = |step: &StepView| {
        step.kind != StepKind::ByHand
            && matches!(step.status, StepStatus::Pending | StepStatus::Blocked { .. })
    };
    !view.worker && view.steps.iter().any(waits)
}

/// The steps that can be claimed, where nothing else can be started.
fn to_claim(view: &RunView) -> Vec<String> {
    let ready = |step: &&StepView| step.status == StepStatus::Pending && !step.held_back;
    let ready: Vec<&StepView> = view.steps.iter().filter(ready).collect();
    match ready.iter().all(|step| step.kind == StepKind::ByHand) {
        true => ready.iter().map(|step| step.step.to_string()).collect(),
        false => Vec::new(),
    }
}

/// The first of many names.
fn named(names: &[String]) -> String {
    match names.split_at_checked(NAMES_SHOWN) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("{} and {} more", first.join(", "), rest.len())
        }
        _ => names.join(", "),
    }
}

/// The step that something happens in.
fn active(view: &RunView) -> Option<&StepView> {
    view.steps.iter().find(|step| step.is_at_work())
}

/// A run's status in colour.
pub(crate) fn run_word(status: &RunStatus) -> String {
    let word = status.word();
    match status {
        RunStatus::Completed => green(word),
        RunStatus::Failed { .. } => red(word),
        RunStatus::Waiting { .. }
        | RunStatus::Parked { .. }
        | RunStatus::Lapsed { .. }
        | RunStatus::Interrupted { .. }
        | RunStatus::Stopped { .. } => yellow(word),
        RunStatus::Abandoned { .. } => dim(word),
        RunStatus::Open | RunStatus::Running => word.to_owned(),
    }
}

/// One row of the list of finished runs.
pub(crate) fn run_row(view: &RunView, prefixes: &Prefixes, now: Millis) -> Vec<String> {
    vec![
        name(&view.handle, prefixes),
        run_word(&view.status),
        format!("{}/{}", view.completed, view.total),
        run_phrase(view, now),
    ]
}

/// A handle, of which as much stands out as is enough to type.
fn name(handle: &Handle, prefixes: &Prefixes) -> String {
    let all = handle.as_str();
    let enough = prefixes.get(handle).copied().unwrap_or(all.len());
    let (enough, rest) = all.split_at(enough);
    format!("{}{}", bold(enough), dim(rest))
}

/// The head of one run: what it is and where it stands.
pub(crate) fn run_head(view: &RunView, prefixes: &Prefixes, now: Millis) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{}  {}  {}",
            name(&view.handle, prefixes),
            run_word(&view.status),
            run_phrase(view, now)
        ),
        dim(&format!(
            "  {} · {} · started {} · active {}",
            plain(&view.plan_path),
            completed_of(view.completed, view.skipped, view.total),
            ago(view.opened_at, now),
            ago(view.active_at, now)
        )),
    ];
    let risk = |step: &&StepView| match &step.at_risk {
        Some(WorkAtRisk::Known(risk)) => risk.seconds,
        _ => 0,
    };
    if let Some(step) = view.steps.iter().max_by_key(risk).filter(|step| risk(step) > 0) {
        let last = span(Duration::from_secs(risk(&step)));
        lines.push(format!("  work not saved yet: the last {last} of {}", step.step));
    }
    for change in &view.changed_by_hand {
        let message = by_hand::message(&view.plan_path, change);
        lines.push(format!("  {}", yellow(&message)));
        lines.push(format!("    {}", by_hand::command(&view.handle, change)));
    }
    lines
}

/// How far a run has come.
pub(crate) fn completed_of(completed: usize, left_out: usize, total: usize) -> String {
    format!("{completed} of {total} steps completed{}", skipped(left_out))
}

/// The steps of a completed run.
pub(crate) fn steps_done(view: &RunView) -> String {
    format!("{}{}", count(view.total as u64, "step"), skipped(view.skipped))
}

fn skipped(steps: usize) -> String {
    match steps {
        0 => String::new(),
        n => format!(", {n} skipped"),
    }
}

/// One row of a run's steps.
pub(crate) fn step_row(step: &StepView, now: Millis) -> Vec<String> {
    vec![
        format!("{} {}", mark(step), step.step),
        format!("{}{}", step.status.word(), phrase_behind(step, now)),
    ]
}

/// A step's status data as it follows the status.
fn phrase_behind(step: &StepView, now: Millis) -> String {
    let joined = match &step.status {
        StepStatus::Waiting { .. }
        | StepStatus::Running { .. }
        | StepStatus::Failed { .. }
        | StepStatus::Landing { .. } => " ",
        _ => ", ",
    };
    format!("{joined}{}", step_phrase(step, now))
}

/// A sign beside the word, never instead of it. What piton verified does not look like what was claimed.
pub(crate) fn mark(step: &StepView) -> String {
    match &step.status {
        _ if is_asking(step) => yellow("?"),
        StepStatus::Completed { .. } if step.truth == Truth::Verified => green("✓"),
        StepStatus::Completed { .. } => yellow("~"),
        StepStatus::Failed { .. } => red("✗"),
        StepStatus::Interrupted { .. } | StepStatus::Parked { .. } => yellow("⏸"),
        StepStatus::Waiting { .. } => yellow("?"),
        StepStatus::Claimed { .. }
        | StepStatus::Running { .. }
        | StepStatus::Verified { .. }
        | StepStatus::Landing { .. } => "●".to_owned(),
        StepStatus::Pending | StepStatus::Blocked { .. } => dim("○"),
        StepStatus::Skipped { .. } => dim("–"),
    }
}

/// Whether somebody has to answer before it can be completed.
pub(crate) fn is_asking(step: &StepView) -> bool {
    !step.is_done() && step.questions.iter().any(QuestionView::is_open)
}

/// A step's status data in words.
pub(crate) fn step_phrase(step: &StepView, now: Millis) -> String {
    let phrase = status_phrase(step, now);
    match (&step.status, step.stop_requested, step.held_back) {
        (_, true, _) => format!("{phrase}, asked to stop"),
        (StepStatus::Pending | StepStatus::Parked { .. }, _, true) => {
            "stopped on request, until resumed".to_owned()
        }
        (StepStatus::Blocked { .. } | StepStatus::Failed { .. }, _, true) => {
            format!("{phrase}, stopped on request")
        }
        _ => phrase,
    }
}

fn status_phrase(step: &StepView, now: Millis) -> String {
    match &step.status {
        StepStatus::Pending => match (&step.awaits_lock, &step.awaits_tree) {
            (Some(AwaitedLock { lock, by }), _) => {
                let by: Vec<String> = by.iter().map(ToString::to_string).collect();
                format!("waits for lock {lock}, which {} has", by.join(", "))
            }
            (None, Some(by)) => {
                format!("ready, once {by} is not worked on in its worktree any more")
            }
            (None, None) => format!("ready since {}", ago(step.since, now)),
        },
        StepStatus::Blocked { waits_for } => {
            let names: Vec<String> = waits_for.iter().map(ToString::to_string).collect();
            format!("waits for {} since {}", named(&names), ago(step.since, now))
        }
        StepStatus::Claimed { .. } => match holder(step, now) {
            Some(holder) => holder,
            None => "being prepared".to_owned(),
        },
        StepStatus::Running { .. } => {
            let by = holder(step, now).map(|holder| format!(", {holder}")).unwrap_or_default();
            let asked = step.questions.iter().find(|question| question.is_open());
            let asked = asked.map(|asked| {
                format!(", asks {}: {}", asked.question, clipped(&asked.text, TITLE_MAX))
            });
            let (asked, risk) = (asked.unwrap_or_default(), at_risk(step, now));
            let waits = step.awaits_output.as_ref();
            let waits = waits.map(|awaited| {
                format!(", waits for {} since {}", awaited.output, ago(awaited.since, now))
            });
            let waits = waits.unwrap_or_default();
            format!("for {}{by}{waits}{asked}{risk}", running_for(step, now))
        }
        StepStatus::Verified { .. } => {
            let open = step.questions.iter().find(|question| question.is_open());
            match (open, holder(step, now)) {
                (Some(asked), _) => format!("not landed, for the answer to {}", asked.question),
                (None, Some(holder)) => format!("to be landed {holder}"),
                (None, None) => "landing comes next".to_owned(),
            }
        }
        StepStatus::Landing { .. } => "on the run's branch".to_owned(),
        StepStatus::Interrupted { cause, at, left_at, evidence, .. } => {
            let (left, saved) = (left(*left_at), saved(step, (*left_at, now)));
            let (cause, when) = (cause_words(*cause), ago(*at, now));
            let evidence = clipped(evidence, TITLE_MAX);
            let evidence = if evidence.is_empty() { evidence } else { format!(" ({evidence})") };
            format!("{cause} {when}{evidence}{left}{saved}{}", answered(step))
        }
        StepStatus::Parked { account, probe: Some(probe), .. } => {
            format!("until {probe} shows that the limit of account {account} is over")
        }
        StepStatus::Parked { account, until, probe: None } => {
            format!("account {account} has met its limit; goes on {}", due(*until, now))
        }
        StepStatus::Waiting { question, text } => {
            let since = ago(step.since, now);
            format!("for the answer to {question}, asked {since}: {}", clipped(text, TITLE_MAX))
        }
        StepStatus::Failed { why, retries_left } => {
            let left = match retries_left {
                0 => "no retries left".to_owned(),
                1 => "1 retry left".to_owned(),
                n => format!("{n} retries left"),
            };
            format!("{}: {} ({left})", ago(step.since, now), plain(&why.to_string()))
        }
        StepStatus::Completed { commit: Some(commit), .. } => {
            format!("{} {}{}", truth(step.truth), commit.short(), took(step))
        }
        StepStatus::Completed { commit: None, .. }
            if step.attempts.last().is_some_and(|attempt| attempt.state == "found") =>
        {
            "found done, not run".to_owned()
        }
        StepStatus::Completed { commit: None, .. }
            if step.attempts.iter().all(|attempt| attempt.state != "completed") =>
        {
            "found done in the plan file".to_owned()
        }
        StepStatus::Completed { commit: None, .. } => {
            format!("claimed by its holder, without a commit{}", took(step))
        }
        StepStatus::Skipped { reason, at } => {
            format!("{}, {}", clipped(reason, TITLE_MAX), ago(*at, now))
        }
    }
}

/// What was said about how the step goes on, and was not followed yet.
fn answered(step: &StepView) -> String {
    let unread = step.questions.iter().rev().find(|asked| asked.state == "answered");
    let answer = unread.and_then(|asked| asked.answer.as_deref());
    answer.map(|answer| format!("; answered: {}", clipped(answer, TITLE_MAX))).unwrap_or_default()
}

/// Who holds a step from outside, and until when they are believed.
fn holder(step: &StepView, now: Millis) -> Option<String> {
    let attempt = step.attempts.last().filter(|attempt| attempt.to.is_none())?;
    let worktree = plain(attempt.worktree.as_deref()?);
    Some(format!("by {worktree}, {}", lease(step, attempt, now)))
}

/// Until when a claim is believed, or since when it is not.
pub(crate) fn lease(step: &StepView, attempt: &AttemptView, now: Millis) -> String {
    let lapsed = || format!("lease lapsed {}", ago(attempt.lease_expires, now));
    match (attempt.lease_lapsed, step.stop_requested) {
        (true, false) => format!("{}: claimable by others", lapsed()),
        // Nobody gets what was stopped.
        (true, true) => lapsed(),
        (false, _) => format!("lease until {}", timestamp(attempt.lease_expires)),
    }
}

/// What a step was completed in spite of, and why.
pub(crate) fn waived(step: &StepView) -> Vec<String> {
    let StepStatus::Completed { waived: Some(waived), .. } = &step.status else {
        return Vec::new();
    };
    let substeps = waived.substeps.iter().map(|substep| format!("substep {substep}"));
    let items = waived.items.iter().map(|item| format!("item {item}"));
    let questions = waived.questions.iter().map(|question| format!("question {question}"));
    let outputs = waived.outputs.iter().map(|output| format!("output {output}"));
    let open: Vec<String> = substeps.chain(items).chain(questions).chain(outputs).collect();
    let reason = plain(&waived.reason);
    vec![format!("completed by force in spite of {}: {reason}", open.join(", "))]
}

/// What a step published, and what it has yet to publish.
pub(crate) fn outputs(step: &StepView, now: Millis) -> Vec<String> {
    let set = step.outputs.iter().map(|output| {
        let value = match &output.value {
            Some(value) => format!("= {}", clipped(&value.to_string(), REPORT_MAX)),
            None => format!("of {} bytes", output.bytes),
        };
        let by = step.attempts.iter().position(|attempt| attempt.fence == output.fence);
        let by = by.map(|at| format!(" by attempt {}", at + 1)).unwrap_or_default();
        format!("output {} {value}, set{by} {}", output.output, ago(output.at, now))
    });
    let open = step.unpublished.iter().map(|name| format!("output {name}: not published"));
    set.chain(open).collect()
}

/// What a worktree was found in, what is done about it, and what a person can type: lines below a step.
pub(crate) fn condition_lines(conditions: &[Condition]) -> Vec<String> {
    let mut lines = Vec::new();
    for condition in conditions {
        let found = plain(&condition.problem.to_string());
        let found = format!("{found}: `piton resume` {}", done_about(condition));
        lines.push(if condition.is_fine() { found } else { yellow(&found) });
        let next = condition.remedy.as_ref().map(command);
        lines.extend(next.map(|next| dim(&format!("  {}", plain(&next)))));
    }
    lines
}

/// What going on with the run does about a condition.
pub(crate) fn done_about(condition: &Condition) -> String {
    let text = match &condition.problem {
        TreeProblem::Missing { .. } => {
            return match &condition.from {
                Some(MadeFrom::Snapshot(name)) => {
                    format!("makes it again from its last snapshot {}", plain(name))
                }
                Some(MadeFrom::Commits) => "makes it again from the commits on its branch".into(),
                Some(MadeFrom::Base) | None => {
                    "makes it again from the step's base; there is no snapshot of it".into()
                }
            };
        }
        TreeProblem::BranchDeleted { was, .. } => {
            let at = was.as_ref().map_or("its last snapshot", |was| was.short());
            return format!("makes it again at {at} and goes on in the files as they are");
        }
        TreeProblem::InProgress(begun) => {
            let (on, back) = begun.operation.ways_out();
            return format!(
                "leaves it so for an attempt that continues, and tells it to go on with `{on}` or give it up with `{back}`; one that starts over keeps its commits below refs/piton/aside"
            );
        }
        TreeProblem::Moved { .. } => {
            "keeps the files from there and goes on with them at the old place; what was moved stays as it is"
        }
        TreeProblem::HalfMade => "finishes it; nothing of it is only there",
        TreeProblem::Foreign { listed: true, .. } => {
            "leaves it alone and asks; if the files are the step's work: `git worktree repair`"
        }
        TreeProblem::Foreign { listed: false, .. } => "leaves it alone and asks",
        TreeProblem::Unlinked { .. } => "mends that and goes on in it",
        TreeProblem::Damaged { .. } => {
            "writes them anew, moves the damaged ones aside and goes on in the files as they are"
        }
        TreeProblem::BranchMoved { .. } => {
            "follows where it was only moved on and nothing is uncommitted; else it is put back, and what it was moved to is kept by a ref below refs/piton"
        }
        TreeProblem::BranchElsewhere { .. } => "moves no branch that is in use, and asks",
        TreeProblem::OffBranch { .. } => {
            "goes on from there; the step's branch is put there when it is done"
        }
        TreeProblem::LockLeft { holder: Some(_), .. } => "waits for it, then asks",
        TreeProblem::LockLeft { holder: None, .. } => {
            "moves it to .git/piton/aside once it has not changed for a while"
        }
        TreeProblem::Locked { .. } => "works in it, and leaves the lock",
    };
    text.to_owned()
}

/// An agent's conversation, and how an attempt came to it.
pub(crate) fn conversation(with: &Conversation) -> String {
    let how = match with.rung {
        Rung::Resume => "continued",
        Rung::Fork => "continued as a copy",
        Rung::Start => "new",
    };
    format!("conversation of {}: {} ({how})", with.agent, plain(&with.session))
}

/// Files of the user's checkout that changed while a step ran.
pub(crate) fn changed_meanwhile(files: &[String], more: u64) -> String {
    let named = files.iter().take(FILES_SHOWN).map(|file| plain(file));
    let more = more + files.len().saturating_sub(FILES_SHOWN) as u64;
    let more = (more > 0).then(|| format!("and {more} more"));
    named.chain(more).collect::<Vec<_>>().join(", ")
}

/// A path that was left out, and why.
pub(crate) fn omission(left_out: &Omission) -> String {
    format!("{} ({})", plain(&left_out.path), plain(&left_out.why))
}

/// What holders said about their work, in their words; empty where they said nothing.
pub(crate) fn reported(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let head = [
        report.progress.map(|percent| format!("{percent} %")),
        report.confidence.as_ref().map(|text| format!("confidence {}", plain(text))),
        report.eta.as_ref().map(|text| format!("eta {}", short(text))),
        report.task.as_ref().map(|text| format!("task {}", short(text))),
        report.note.as_ref().map(|text| format!("note {}", short(text))),
    ];
    let head: Vec<String> = head.into_iter().flatten().collect();
    if !head.is_empty() {
        lines.push(format!("reported: {}", head.join(", ")));
    }
    let more = [
        ("done", &report.done),
        ("next", &report.next),
        ("session", &report.session),
        ("data", &report.data),
    ];
    for (name, text) in more {
        if let Some(text) = text {
            lines.push(format!("reported {name}: {}", clipped(text, REPORT_MAX)));
        }
    }
    lines.extend(
        report.files.iter().map(|file| format!("reported file: {}", plain(&file.to_string()))),
    );
    lines
}

/// All lines of a text in one, cut where nobody would read on.
fn short(text: &str) -> String {
    clipped(&plain(text), TEXT_SHOWN)
}

/// The questions of a run that wait for an answer.
pub(crate) fn open_questions(view: &RunView) -> impl Iterator<Item = &QuestionView> {
    let all = view.steps.iter().flat_map(|step| &step.questions);
    all.filter(|question| question.is_open())
}

/// A question with its choices, and what became of it.
pub(crate) fn question_lines(question: &QuestionView) -> Vec<String> {
    let mut text = question.text.lines().map(plain);
    let first = text.next().unwrap_or_default();
    let mut lines = vec![format!("{}  {first}", bold(&question.question.to_string()))];
    lines.extend(text.map(|line| format!("  {line}")));
    let choices = question.choices.iter().enumerate();
    lines.extend(choices.map(|(n, choice)| format!("  {}. {}", n + 1, plain(choice))));
    match &question.answer {
        Some(answer) => lines.push(format!("  {}: {}", question.state, plain(answer))),
        None if question.is_open() => {}
        None => lines.push(format!("  {}", question.state)),
    }
    lines
}

/// What to type to answer a question; nothing where nobody waits.
pub(crate) fn answer_commands(view: &RunView, question: &QuestionView) -> Vec<String> {
    match question.is_open() {
        true => hints::answers(view.handle.as_str(), question.question, &question.choices),
        false => Vec::new(),
    }
}

/// The substeps and items of a step, each with its mark.
pub(crate) fn checklist(step: &StepView) -> Vec<String> {
    let substeps = step.substeps.iter().map(|substep| {
        let mark = if substep.completed { green("✓") } else { dim("○") };
        format!("{mark} substep {}  {}", substep.substep, plain(&substep.title))
    });
    let items = step.items.iter().map(|item| {
        let (mark, why) = match &item.state {
            ItemState::Open => (dim("○"), String::new()),
            ItemState::Done => (green("✓"), String::new()),
            ItemState::Deferred { reason } => {
                (yellow("–"), format!(" (deferred: {})", plain(reason)))
            }
        };
        let priority = item.priority.map(|priority| format!(" [{}]", priority_word(priority)));
        let text = plain(&item.text);
        format!("{mark} item {}{}  {text}{why}", item.item, priority.unwrap_or_default())
    });
    substeps.chain(items).collect()
}

pub(crate) fn priority_word(priority: Priority) -> &'static str {
    match priority {
        Priority::Critical => "critical",
        Priority::Important => "important",
        Priority::Minor => "minor",
    }
}

/// "Claimed by the agent" never looks like "verified by piton".
pub(crate) fn truth(truth: Truth) -> &'static str {
    match truth {
        Truth::Verified => "verified by piton",
        Truth::Claimed => "claimed by the agent, not verified",
        Truth::Unknown => "unknown",
    }
}

fn left(stage: Stage) -> &'static str {
    match stage {
        Stage::Unstarted => ", before its agent started",
        Stage::Agent => "",
        Stage::Verify => ", after its agent had ended",
        Stage::Land => ", after it was verified",
    }
}

fn running_for(step: &StepView, now: Millis) -> String {
    let from = step.attempts.last().map_or(now, |attempt| attempt.from);
    span(now.since(from))
}

/// What is saved of a step at work, and what is not.
pub(crate) fn at_risk(step: &StepView, now: Millis) -> String {
    let saved = |at| {
        let kept = step.snapshot.as_ref();
        kept.map(|kept| format!(", {} saved {}", count(kept.changed, "changed file"), ago(at, now)))
    };
    match &step.at_risk {
        None => step.snapshot.as_ref().and_then(|kept| saved(kept.at)).unwrap_or_default(),
        Some(WorkAtRisk::Unknown(_)) => ", saved: unknown".to_owned(),
        Some(WorkAtRisk::Known(risk)) => {
            let unsaved = (risk.seconds > 0 || risk.failing.is_some()).then(|| {
                let since = span(Duration::from_secs(risk.seconds));
                format!(", not saved yet: the last {since}")
            });
            let interval = match risk.interval_ms {
                Some(ms) if risk.stretched => {
                    let every = span(Duration::from_millis(ms));
                    format!(", a snapshot every {every} because its tree is large")
                }
                _ => String::new(),
            };
            let failing = risk.failing.as_ref();
            let failing =
                failing.map(|why| format!(", snapshots fail: {}", clipped(why, REPORT_MAX)));
            let saved = match risk.failing {
                Some(_) => unsaved,
                None => saved(risk.saved_at).or(unsaved),
            };
            let saved = saved.unwrap_or_default();
            format!("{saved}{interval}{}", failing.unwrap_or_default())
        }
    }
}

/// What was saved of interrupted work, and when.
fn saved(step: &StepView, (left_at, now): (Stage, Millis)) -> String {
    match &step.snapshot {
        // Its agent had ended: what there was is committed, or in the worktree as it was left.
        None if left_at != Stage::Agent => String::new(),
        None if step.at_risk.is_some() => "; no snapshot yet".to_owned(),
        // Recorded: its tree was looked at then.
        None => "; saved: nothing".to_owned(),
        Some(kept) => {
            let when = ago(kept.at, now);
            format!("; saved: {}, {when}", count(kept.changed, "changed file"))
        }
    }
}

fn took(step: &StepView) -> String {
    let total: Option<Duration> =
        step.attempts.iter().map(|attempt| Some(attempt.to?.since(attempt.from))).sum();
    match (total, step.attempts.len()) {
        (Some(total), 1) => format!(" in {}", span(total)),
        (Some(total), n) => format!(" in {} over {n} attempts", span(total)),
        (None, _) => String::new(),
    }
}

/// What was asked of a merge, as far as the words depend on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct MergeWords {
    pub(crate) squash: bool,
    pub(crate) dry_run: bool,
}

/// What a merge did, or would do.
pub(crate) fn merge_line(handle: &str, done: &Merge, asked: MergeWords) -> String {
    let (handle, into) = (bold(handle), bold(&done.into));
    let would = if asked.dry_run { "would be " } else { "" };
    let updated = if asked.dry_run { "would be updated" } else { "was updated" };
    let along = match &done.checkout {
        Some(place) if from_here(place) == Path::new(".") => {
            format!("; your working tree {updated}")
        }
        Some(place) => format!("; the working tree {} {updated}", from_here(place).display()),
        None => format!("; it is not checked out: `git switch {}` shows it", done.into),
    };
    match &done.way {
        Way::NothingLanded => format!("{handle}: nothing to merge: no step has landed anything"),
        Way::Nothing => format!("{handle}: already merged into {into}"),
        Way::FastForward => {
            format!("{handle}: {into} {would}moved forward to {}{along}", done.tip.short())
        }
        Way::Commit(commit) => {
            let what = if asked.squash { "one commit" } else { "a merge commit" };
            let id = commit.as_ref().map(|id| format!(" {}", id.short())).unwrap_or_default();
            format!("{handle}: {would}merged into {into} by {what}{id}{along}")
        }
    }
}

#[cfg(test)]
mod tests {
    use piton_core::ids::Oid;
    use piton_engine::git::worktree::{InProgress, Operation};

    use super::*;

    /// Every condition, as it is told below a step.
    #[test]
    fn conditions_say_what_was_found_and_what_is_done_about_it() {
        let place = || "/w/1".into();
        let branch = || "piton/calm-otter/step/a".to_owned();
        let oid = |digit: &str| Oid::new(digit.repeat(40)).expect("an id");
        let lock =
            |holder| TreeProblem::LockLeft { lock: "/g/index.lock".into(), holder, age: Some(3) };
        let foreign = |listed| TreeProblem::Foreign {
            place: place(),
            why: "it is not a folder".to_owned(),
            listed,
        };
        let problems = [
            TreeProblem::Missing { place: place() },
            TreeProblem::Moved { to: "/w/2".into() },
            TreeProblem::HalfMade,
            foreign(false),
            foreign(true),
            TreeProblem::Unlinked { place: place() },
            TreeProblem::Damaged {
                place: place(),
                why: "its HEAD is nothing that git knows".to_owned(),
            },
            TreeProblem::BranchDeleted { branch: branch(), was: Some(oid("a")) },
            TreeProblem::BranchMoved { branch: branch(), was: oid("a"), now: oid("b") },
            TreeProblem::BranchElsewhere { branch: branch(), place: "/w/2".into(), missing: false },
            TreeProblem::BranchElsewhere { branch: branch(), place: "/w/2".into(), missing: true },
            TreeProblem::OffBranch { on: Some("mine".to_owned()), at: None },
            TreeProblem::OffBranch { on: None, at: Some(oid("a")) },
            TreeProblem::InProgress(InProgress { operation: Operation::Rebase, at: Some((1, 3)) }),
            lock(None),
            lock(Some(17)),
            TreeProblem::Locked { reason: "on a stick".to_owned() },
        ];
        let told = problems.map(|problem| {
            let from = Some(MadeFrom::Snapshot("refs/piton/1".to_owned()));
            let condition = Condition { problem, from, remedy: None };
            format!("{}: {}", condition.problem, done_about(&condition))
        });
        insta::assert_snapshot!(told.join("\n"), @r"
        its worktree /w/1 is gone: makes it again from its last snapshot refs/piton/1
        its worktree was moved to /w/2: keeps the files from there and goes on with them at the old place; what was moved stays as it is
        its worktree is half made or half restored: finishes it; nothing of it is only there
        /w/1 is not its worktree (it is not a folder): leaves it alone and asks
        /w/1 is not its worktree (it is not a folder): leaves it alone and asks; if the files are the step's work: `git worktree repair`
        /w/1 and the repository do not name each other: one of them was moved, or its .git file is damaged: mends that and goes on in it
        git cannot use /w/1: its HEAD is nothing that git knows: writes them anew, moves the damaged ones aside and goes on in the files as they are
        its branch piton/calm-otter/step/a was deleted: makes it again at aaaaaaaaaa and goes on in the files as they are
        its branch was moved: piton/calm-otter/step/a from aaaaaaaaaa to bbbbbbbbbb; the files are still those of the former: follows where it was only moved on and nothing is uncommitted; else it is put back, and what it was moved to is kept by a ref below refs/piton
        its branch piton/calm-otter/step/a is checked out in /w/2: moves no branch that is in use, and asks
        its worktree is gone, and its branch piton/calm-otter/step/a is checked out in /w/2: moves no branch that is in use, and asks
        HEAD is not on its branch, but on mine: goes on from there; the step's branch is put there when it is done
        HEAD is not on its branch, but detached at aaaaaaaaaa: goes on from there; the step's branch is put there when it is done
        git is in the middle of a rebase (at 1 of 3): leaves it so for an attempt that continues, and tells it to go on with `git rebase --continue` or give it up with `git rebase --abort`; one that starts over keeps its commits below refs/piton/aside
        git's lock /g/index.lock is there, 3 s old; no process has it open: moves it to .git/piton/aside once it has not changed for a while
        git's lock /g/index.lock is there, 3 s old; process 17 has it open: waits for it, then asks
        it is locked (git worktree lock): on a stick: works in it, and leaves the lock
        ");
    }
}
