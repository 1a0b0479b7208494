//! The brief that the next attempt's agent is handed: what happened, what is there, what to check.
//! It says only what piton knows; nothing in it is guessed.

use std::fmt::Write as _;

use crate::event::{About, Entry, Mark, Report};
use crate::ids::{QuestionId, StepId, StepRef};
use crate::limits::OUTPUTS_TOLD_MAX;
use crate::plan::PlanStep;
use crate::run::{Ending, GivenOutput, Run, Step};
use crate::time::timestamp;

/// What git says about the tree that an agent goes on in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeFacts {
    /// Subjects of the commits since the step's base, oldest first.
    pub commits: Vec<String>,
    /// Paths that differ from the last commit.
    pub uncommitted: Vec<String>,
    /// What git was left in the middle of, and how it is gone on with or given up.
    pub underway: Option<String>,
}

/// For an agent that is started again within its attempt.
pub const SERVER_WAS_BUSY: &str = "Note from piton, which runs this step:\n\
     - Your last turn ended because the model's server did not answer. Go on where you were.\n\
     Check what is already done before repeating it.\n";

const LISTED: usize = 40;

/// What an attempt's agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    /// The answers in it that no attempt was told before.
    pub answers: Vec<QuestionId>,
}

/// The prompt for an attempt: the plan's own words, what piton offers, what other steps published, then
/// the brief where one is due.
pub fn prompt(run: &Run, step: &StepRef, entry: Entry, facts: &TreeFacts) -> Option<Prompt> {
    let (plan, before) = run.step(step)?;
    let mut text = plan.work.prompt()?.trim_end().to_owned();
    let _ = write!(text, "\n\n---\n{}", offers(plan));
    in_loop(&mut text, run, step);
    given(&mut text, &run.given_outputs(step));
    if let Some(brief) = brief((plan, before), entry, facts) {
        let _ = write!(text, "\n---\n{brief}");
    }
    let answers = before.unread_answers().map(|question| question.id).collect();
    Some(Prompt { text, answers })
}

/// What an agent can call while it works.
fn offers(plan: &PlanStep) -> String {
    let mut text = String::from(
        "piton runs this step and keeps its work. These commands work here:\n\
         - `piton checkpoint --note 'what is done, what is next'`: a later attempt reads it.\n\
         - `piton ask 'QUESTION' --wait`: asks a person, and prints the answer.\n\
         - `piton output set NAME < FILE`: publishes JSON for other steps.\n",
    );
    for name in &plan.outputs {
        let must = plan.require.get(name);
        let must = must.map(|bound| format!(", a number {bound}")).unwrap_or_default();
        let _ = writeln!(text, "  Publish `{name}`{must} before you end.");
    }
    text
}

/// What the steps before have published: as much as fits.
fn given(text: &mut String, outputs: &[GivenOutput<'_>]) {
    if outputs.is_empty() {
        return;
    }
    text.push_str("Published by other steps:\n");
    let mut left = OUTPUTS_TOLD_MAX;
    for GivenOutput { of, name, published } in outputs {
        let json = published.value.as_json().filter(|json| json.len() <= left);
        let _ = match json {
            Some(json) if json.contains('\n') => {
                writeln!(text, "- {of}:{name} =\n{}", indented(json))
            }
            Some(json) => writeln!(text, "- {of}:{name} = {json}"),
            None => {
                let bytes = published.value.bytes();
                writeln!(text, "- {of}:{name}: {bytes} bytes, `piton output get {of}:{name}`")
            }
        };
        left -= json.map_or(0, str::len);
    }
}

/// Which iteration of its loop it is, and how the last one ended.
fn in_loop(text: &mut String, run: &Run, step: &StepRef) {
    let Some((id, plan, state)) = run.loop_of(&step.step) else { return };
    let names: Vec<&str> = plan.steps.iter().map(StepId::as_str).collect();
    let (iteration, max) = (step.iteration, run.bound(plan, state));
    let names = names.join(", ");
    let _ = writeln!(
        text,
        "This is iteration {iteration} of at most {max} of the loop {id} ({names})."
    );
    let before = iteration.saturating_sub(1);
    let last = plan.steps.last().map(|last| StepRef { step: last.clone(), iteration: before });
    let seen = last.and_then(|last| run.step(&last)).and_then(|(_, last)| last.iteration.as_ref());
    if let Some((check, seen)) = seen.and_then(|seen| Some((seen.until.as_ref()?, seen))) {
        let _ =
            writeln!(text, "The last iteration ended with `{}`: {}.", check.command, check.exit);
        if !seen.tail.trim().is_empty() {
            let _ = writeln!(text, "The end of its output:\n{}", indented(seen.tail.trim_end()));
        }
    }
}

fn brief((plan, before): (&PlanStep, &Step), entry: Entry, facts: &TreeFacts) -> Option<String> {
    let mut text = String::from("Note from piton, which runs this step:\n");
    for note in &before.notes {
        let _ = writeln!(text, "- Before this run: {note}");
    }
    let Some(last) = before.history.last() else {
        answered(&mut text, before);
        let is_known = !before.notes.is_empty() || before.unread_answers().next().is_some();
        text.push_str("Check what is already done before repeating it.\n");
        return is_known.then_some(text);
    };
    match &last.ending {
        Ending::Interrupted { cause, at } => {
            let at = timestamp(*at);
            let _ = writeln!(text, "- An earlier attempt was interrupted ({cause}) at {at}.");
        }
        Ending::Failed(why) => {
            let _ = writeln!(text, "- An earlier attempt failed: {why}.");
            if let Some(tail) = tail_of(why) {
                let _ = writeln!(text, "  The end of its output:\n{}", indented(tail));
            }
        }
        Ending::Displaced => text.push_str("- An earlier attempt was lost with its host.\n"),
        Ending::Released => text.push_str("- An earlier attempt gave the step back.\n"),
        Ending::Limited { .. } => {
            text.push_str("- An earlier attempt met a limit of its account, which is over now.\n");
        }
        Ending::Suspended => text.push_str("- An earlier attempt asked, and ended to wait.\n"),
        Ending::Found => return None,
        Ending::Completed if before.questions.iter().all(|asked| asked.answer().is_none()) => {
            return None;
        }
        Ending::Completed => {}
    }
    answered(&mut text, before);
    match entry {
        Entry::Continue => continued(&mut text, before, facts),
        Entry::Fresh if last.ending == Ending::Suspended && before.changed == 0 => {
            text.push_str("- It left no changes; the tree is at the step's start.\n");
        }
        // What it was completed with is on the run's branch.
        Entry::Fresh if last.ending == Ending::Completed => {}
        Entry::Fresh | Entry::Verify | Entry::Land => {
            let kept = before.snapshot.as_ref().map(|kept| &kept.snapshot);
            let kept = kept.filter(|snapshot| snapshot.changed > 0);
            let at = kept.map(|snapshot| format!(", kept as {}", snapshot.refname));
            let at = at.unwrap_or_default();
            let _ = writeln!(
                text,
                "- Its changes were set aside{at}; the tree is at the step's start again."
            );
        }
    }
    parts(&mut text, plan, before);
    reported(&mut text, &before.report, entry);
    text.push_str("Check what is already done before repeating it.\n");
    Some(text)
}

/// Every answer, also those that an attempt was told before: it may have died of what it was told. How
/// it goes on after an interruption is told by what it finds.
fn answered(text: &mut String, before: &Step) {
    // What was asked about a commit is worth knowing; whether to go on was answered by going on.
    let tells = |about: Option<&About>| matches!(about, None | Some(About::Conflict(_)));
    for question in before.questions.iter().filter(|asked| tells(asked.about.as_deref())) {
        let Some(answer) = question.answer() else { continue };
        let _ = writeln!(text, "- Asked:\n{}", indented(&question.text));
        let _ = writeln!(text, "  Answered by a person:\n{}", indented(answer));
    }
}

/// What is done and what is open of the step's substeps and items.
fn parts(text: &mut String, plan: &PlanStep, before: &Step) {
    let checklist = &before.checklist;
    let (done, open): (Vec<_>, Vec<_>) =
        plan.substeps.iter().partition(|substep| checklist.completed.contains(&substep.id));
    for (title, substeps) in [("Substeps done", done), ("Substeps open", open)] {
        let rows = substeps.iter().map(|substep| format!("{}: {}", substep.id, substep.title));
        named(text, title, &rows.collect::<Vec<_>>());
    }
    let (mut done, mut open, mut deferred) = (Vec::new(), Vec::new(), Vec::new());
    for item in checklist.items(plan) {
        let row = format!("{}: {}", item.item, item.text);
        match item.mark {
            Some(Mark::Done) => done.push(row),
            Some(Mark::Deferred { reason }) => deferred.push(format!("{row} ({reason})")),
            None => open.push(row),
        }
    }
    named(text, "Items done", &done);
    named(text, "Items open", &open);
    named(text, "Items deferred", &deferred);
}

/// What earlier holders said of their work, in their own words. A conversation is about the tree that it
/// was held in: who begins again is told that it is not this one.
fn reported(text: &mut String, report: &Report, entry: Entry) {
    let mut told = report.describe();
    for (name, _) in told.iter_mut().filter(|(name, _)| *name == "session") {
        if entry == Entry::Fresh {
            *name = "session, about another tree than this";
        }
    }
    if told.is_empty() {
        return;
    }
    text.push_str("- Reported by the earlier attempt, not checked:\n");
    for (name, value) in told {
        let mut lines = value.lines();
        let _ = writeln!(text, "  - {name}: {}", lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(text, "    {line}");
        }
    }
}

/// As [`listed`]; where there is nothing, nothing is said.
fn named(text: &mut String, title: &str, rows: &[String]) {
    if !rows.is_empty() {
        listed(text, title, rows);
    }
}

fn continued(text: &mut String, before: &Step, facts: &TreeFacts) {
    text.push_str(match before.goes_on_in_tree() {
        true => "- A person took the step up again, perhaps after changes to the tree. Go on from there.\n",
        false => "- The tree is as that attempt left it. Go on from there.\n",
    });
    listed(text, "Commits so far", &facts.commits);
    listed(text, "Uncommitted files", &facts.uncommitted);
    if let Some(underway) = &facts.underway {
        let _ = writeln!(text, "- Git is in the middle of {underway}.");
    }
}

fn listed(text: &mut String, title: &str, rows: &[String]) {
    if rows.is_empty() {
        let _ = writeln!(text, "- {title}: none.");
        return;
    }
    let _ = writeln!(text, "- {title}:");
    for row in rows.iter().take(LISTED) {
        let _ = writeln!(text, "  - {row}");
    }
    if rows.len() > LISTED {
        let _ = writeln!(text, "  - and {} more", rows.len() - LISTED);
    }
}

fn tail_of(why: &crate::event::Failure) -> Option<&str> {
    use crate::event::Failure;
    match why {
        Failure::Exit { tail, .. } | Failure::Verify { tail, .. } | Failure::Setup { tail, .. } => {
            Some(tail.trim_end())
        }
        Failure::Landing { .. }
        | Failure::Timeout { .. }
        | Failure::Hang { .. }
        | Failure::Reported { .. }
        | Failure::Output { .. }
        | Failure::Unfinished { .. } => None,
    }
    .filter(|tail| !tail.is_empty())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}
