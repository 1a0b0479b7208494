//! The page of a run, as `piton`, `status` and `watch` show it: what needs a person first, what goes on by itself
//! next, and the rest counted.

use piton_core::event::Truth;
use piton_core::time::Millis;
use piton_core::view::{GroupView, ItemState, RunView, StepStatus, StepView};

use crate::describe::{Prefixes, REPORT_MAX, TITLE_MAX, is_asking, run_head, step_row};
use crate::loops;
use crate::text::{ago, clipped, dim, green, plain, table, yellow};

/// The most steps that need attention of one run among several.
const STEPS_SHOWN: usize = 5;
/// A plan of no more steps is shown with each of them.
const SMALL_PLAN: usize = 10;
/// How long the bar of a group is.
const BAR: usize = 20;
/// The longest title of a group beside its bar.
const GROUP_MAX: usize = 24;

/// How much of a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One of several.
    Brief,
    Full,
}

/// How a run stands, what needs attention first: questions, failures, interruptions, what is at work. The rest
/// is counted.
pub(crate) fn run_page(
    view: &RunView,
    prefixes: &Prefixes,
    extent: Extent,
    now: Millis,
) -> Vec<String> {
    let mut lines = run_head(view, prefixes, now);
    lines.extend(loops::lines(view));
    if extent == Extent::Full && !view.groups.is_empty() {
        lines.push(String::new());
        lines.extend(group_rows(&view.groups));
    }
    let mut urgent: Vec<&StepView> =
        view.steps.iter().filter(|step| attention(step).is_some()).collect();
    urgent.sort_by_key(|step| attention(step));
    let is_small = extent == Extent::Full && view.total <= SMALL_PLAN;
    let rest: Vec<&StepView> = view.steps.iter().filter(|step| attention(step).is_none()).collect();
    let (shown, more) = match extent {
        Extent::Full => (urgent.as_slice(), 0),
        Extent::Brief => {
            let shown = urgent.len().min(STEPS_SHOWN);
            (&urgent[..shown], urgent.len() - shown)
        }
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for step in shown {
        rows.push(step_row(step, now));
        if extent == Extent::Full {
            let details = step_details(step, now).into_iter();
            rows.extend(details.map(|line| vec![String::new(), dim(&line)]));
        }
    }
    if is_small {
        rows.extend(rest.iter().map(|step| step_row(step, now)));
    }
    if extent == Extent::Full && !rows.is_empty() {
        lines.push(String::new());
    }
    lines.extend(table(&rows));
    let more = (more > 0).then(|| format!("{more} more that need attention"));
    let rest = if is_small { Vec::new() } else { counted(&rest) };
    let counted: Vec<String> = more.into_iter().chain(rest).collect();
    if !counted.is_empty() {
        lines.push(dim(&format!("  {}", counted.join(" · "))));
    }
    lines
}

/// What comes first: lower is more urgent; nothing for what can be counted.
fn attention(step: &StepView) -> Option<u8> {
    match &step.status {
        StepStatus::Waiting { .. } => Some(0),
        _ if is_asking(step) => Some(0),
        StepStatus::Failed { .. } => Some(1),
        StepStatus::Interrupted { .. } | StepStatus::Parked { .. } => Some(2),
        _ if step.held_back => Some(2),
        _ if step.is_at_work() => Some(3),
        _ => None,
    }
}

/// Steps that need nothing, by what they are.
fn counted(steps: &[&StepView]) -> Vec<String> {
    let count = |is: &dyn Fn(&StepView) -> bool| steps.iter().filter(|step| is(step)).count();
    let verified = |step: &StepView| step.is_completed() && step.truth == Truth::Verified;
    let kinds = [
        (count(&|step| step.status == StepStatus::Pending), "ready"),
        (count(&|step| matches!(step.status, StepStatus::Blocked { .. })), "blocked"),
        (count(&verified), "verified"),
        (count(&|step| step.is_completed() && !verified(step)), "done, unverified"),
        (count(&StepView::is_skipped), "skipped"),
    ];
    kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect()
}

fn group_rows(groups: &[GroupView]) -> Vec<String> {
    let row = |group: &GroupView| {
        let parts =
            [(group.running, "running"), (group.waiting, "waiting"), (group.skipped, "skipped")];
        let parts = parts.iter().filter(|(n, _)| *n > 0);
        let parts: Vec<String> = parts.map(|(n, kind)| format!("{n} {kind}")).collect();
        vec![
            format!("  {}", clipped(&group.title, GROUP_MAX)),
            bar(group.completed + group.skipped, group.running, group.total),
            format!("{}/{}", group.completed, group.total),
            dim(&parts.join(", ")),
        ]
    };
    table(&groups.iter().map(row).collect::<Vec<_>>())
}

/// What is done, what runs, and what is left.
pub(crate) fn bar(done: usize, running: usize, total: usize) -> String {
    let of = total.max(1);
    // Full means done: what is left has a cell of its own.
    let most = if done < total { BAR - 1 } else { BAR };
    let cells = (done * BAR / of).min(most);
    let at_work = (running * BAR).div_ceil(of).min(BAR - cells);
    let left = BAR - cells - at_work;
    let (done, running, left) = ("█".repeat(cells), "▒".repeat(at_work), "░".repeat(left));
    format!("{}{}{}", green(&done), yellow(&running), dim(&left))
}

/// How far a step has come, as its holders said and as the log has it: lines below its row.
fn step_details(step: &StepView, now: Millis) -> Vec<String> {
    let report = step.report.clone().unwrap_or_default();
    let files = &report.files;
    let done = files.iter().filter(|file| file.done == Some(true)).count();
    let at = files.iter().rev().find(|file| file.done != Some(true));
    let at = at.map(|file| match file.line {
        Some(line) => format!("{}:{line}", plain(&file.path)),
        None => plain(&file.path),
    });
    let said = [
        report.progress.map(|percent| format!("{percent} %")),
        report.confidence.as_ref().map(|text| format!("confidence {}", plain(text))),
        (!files.is_empty()).then(|| format!("{done}/{} files done", files.len())),
        at.map(|at| format!("at {at}")),
        report.eta.as_ref().map(|text| format!("eta {}", clipped(text, TITLE_MAX))),
    ];
    let sections = [
        report.done.as_ref().map(|text| format!("section done {}", clipped(text, TITLE_MAX))),
        report.next.as_ref().map(|text| format!("next {}", clipped(text, TITLE_MAX))),
    ];
    let task = [report.task.as_ref().map(|text| format!("task {}", clipped(text, REPORT_MAX)))];
    let reported = [&said[..], &sections, &task].concat();
    let parts =
        |done: usize, all: usize, what: &str| (all > 0).then(|| format!("{done}/{all} {what}"));
    let substeps = step.substeps.iter().filter(|substep| substep.completed).count();
    let items = step.items.iter().filter(|item| item.state != ItemState::Open).count();
    let beat = step.attempts.last().filter(|attempt| attempt.to.is_none());
    let titled = step.title != step.step.to_string();
    let known = [
        titled.then(|| clipped(&step.title, TITLE_MAX)),
        parts(substeps, step.substeps.len(), "substeps"),
        parts(items, step.items.len(), "items"),
        (!step.attempts.is_empty()).then(|| format!("attempt {}", step.attempts.len())),
        beat.map(|attempt| format!("heartbeat {}", ago(attempt.heartbeat_at, now))),
    ];
    let line =
        |parts: &[Option<String>]| -> Vec<String> { parts.iter().flatten().cloned().collect() };
    let (reported, known) = (line(&reported), line(&known));
    let reported = (!reported.is_empty()).then(|| format!("reported: {}", reported.join(" · ")));
    reported.into_iter().chain((!known.is_empty()).then(|| known.join(" · "))).collect()
}
