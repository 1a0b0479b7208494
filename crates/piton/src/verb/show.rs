//! `piton show`: everything about one run, or one step of it: attempts, what is kept, what to do next.

use piton_core::time::{Millis, timestamp};
use piton_core::view::{AttemptView, GoodCommit, KnownAs, StepView};
use piton_engine::Access;
use piton_engine::config::{Settings, show};
use piton_engine::git::shell::word;
use piton_engine::project::Project;
use piton_engine::run::condition;
use piton_engine::run::observe::{Depth, look, look_into_folders};
use piton_engine::run::runs;
use serde_json::json;

use crate::describe::{
    changed_meanwhile, checklist, condition_lines, conversation, lease, mark, omission, outputs,
    question_lines, reported, run_head, step_phrase, waived,
};
use crate::error::Problem;
use crate::loops;
use crate::next::tell_next;
use crate::text::{bold, count, dim, now, plain, span};
use crate::ui::Ui;
use crate::verb::{self, Answer, json as to_json, next_commands, step_of};

/// Show everything about a run or a step
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton show                    the only unfinished run, else the newest
  piton show calm-otter
  piton show calm-otter jwt         one step of it")]
pub(crate) struct Args {
    /// The run: its handle or the beginning of it, or its plan [default: the unfinished one]
    run: Option<String>,

    /// Only this step
    step: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let project = verb::project()?;
    let log = verb::run_of(&project, Access::Look, args.run.as_deref())?;
    let mut view = look(&project, &log, Depth::Refs)?;
    let next = next_commands(&project, &view);
    let now = now();
    // It is about the whole run, whatever is shown of it.
    let head = run_head(&view, &runs::unique_prefixes(log.store())?, now);
    if let Some(text) = &args.step {
        let step = step_of(&log, text)?;
        view.steps.retain(|shown| shown.step == step);
    }
    look_into_folders(&project, &mut view);
    let settings = runs::settings_of(&log)?;
    let conditions = condition::of_run(&project, &log)?;
    let root = &settings.worktree_root;
    let worktrees = project.worktrees(root, &log.run().opened.handle);
    let tree_of = |step: &StepView| project.tree_of(root, log.run(), &step.step);
    for line in head {
        ui.line(line)?;
    }
    ui.line("")?;
    let inputs: Vec<String> =
        view.inputs.iter().map(|(name, value)| format!("{name}={}", word(value))).collect();
    let facts = [
        ("run", view.run.to_string()),
        ("plan", format!("{} ({})", plain(&view.plan_path), view.plan.short())),
        ("base", view.base.to_string()),
        ("branch", view.branch.clone()),
        ("worktrees", worktrees.display().to_string()),
        ("inputs", plain(&inputs.join(" "))),
        ("settings", told(&settings)),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        ui.line(format!("  {name:<9} {value}"))?;
    }
    for step in &view.steps {
        ui.line("")?;
        for line in step_lines(&project, step, now) {
            ui.line(line)?;
        }
        if let Some(tree) = tree_of(step) {
            ui.line(format!("    worktree {}", tree.display()))?;
        }
        let own = conditions.iter().filter(|(of, _)| *of == step.step);
        for line in own.flat_map(|(_, conditions)| condition_lines(conditions)) {
            ui.line(format!("    {line}"))?;
        }
    }
    for of in view.loops.iter().filter(|_| args.step.is_none()) {
        ui.line("")?;
        for line in loops::history(of, now) {
            ui.line(line)?;
        }
    }
    tell_next(ui, &next)?;
    let data = json!({
        "run": view,
        "worktree": piton_engine::git::repo::names::text(&worktrees),
        "worktrees": verb::conditions(&conditions),
        "settings": to_json(&settings),
        "next": next,
    });
    Ok(Answer::new(data))
}

fn told(settings: &Settings) -> String {
    format!(
        "lease {}, grace {}, snapshot every {}",
        show(settings.lease),
        show(settings.grace),
        show(settings.snapshot_every)
    )
}

fn step_lines(project: &Project, step: &StepView, now: Millis) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {}  {}  {}",
        mark(step),
        bold(&step.step.to_string()),
        step.status.word(),
        step_phrase(step, now)
    )];
    if step.title != step.step.to_string() {
        lines.push(format!("    {}", plain(&step.title)));
    }
    if !step.needs.is_empty() {
        let needs: Vec<String> = step.needs.iter().map(ToString::to_string).collect();
        lines.push(format!("    needs {}", needs.join(", ")));
    }
    lines.extend(step.notes.iter().map(|note| format!("    before this run: {}", plain(note))));
    for (number, attempt) in step.attempts.iter().enumerate() {
        let own = attempt_lines(step, number + 1, attempt, now).into_iter();
        lines.extend(own.map(|line| format!("    {line}")));
        for left_out in &attempt.not_landed {
            lines.push(format!("      not landed: {}", omission(left_out)));
        }
        for moved in &attempt.moved_out {
            let (path, place) = (plain(&moved.path), plain(&moved.place));
            lines.push(format!("      moved out of the worktree: {path} (it is {place})"));
        }
        if let Some(with) = &attempt.conversation {
            lines.push(format!("      {}", conversation(with)));
        }
        if let Some(why) = &attempt.unkept {
            lines.push(format!("      its last work is in no snapshot: {}", plain(why)));
        }
        if let Some(changes) = &attempt.checkout_changed {
            let files = changed_meanwhile(&changes.files, changes.more);
            lines.push(format!("      meanwhile in your checkout, by whom is unknown: {files}"));
        }
    }
    // Before its first attempt it has begun nowhere.
    if !step.attempts.is_empty() {
        lines.push(format!("    {}", good_line(&step.last_good_commit)));
    }
    lines.extend(step.report.iter().flat_map(reported).map(|line| format!("    {line}")));
    lines.extend(outputs(step, now).into_iter().map(|line| format!("    {line}")));
    let asked = step.questions.iter().flat_map(question_lines);
    lines.extend(asked.map(|line| format!("    {line}")));
    lines.extend(waived(step).into_iter().map(|line| format!("    {line}")));
    lines.extend(checklist(step).into_iter().map(|line| format!("    {line}")));
    if let Some(last) = step.attempts.last().filter(|attempt| attempt.worktree.is_none()) {
        lines.push(dim(&format!("    {}", project.folder(last.attempt).path().display())));
    }
    if let Some(snapshot) = &step.snapshot {
        let changed = count(snapshot.changed, "changed file");
        lines.push(format!("    snapshot {}", snapshot.refname));
        lines.push(format!("      {changed}, {}", timestamp(snapshot.at)));
        for left_out in &snapshot.omitted {
            lines.push(format!(
                "      left out {}: {}",
                plain(&left_out.path),
                plain(&left_out.why)
            ));
        }
    }
    lines
}

/// An attempt: how it ended, then who made it and when, then what it left.
fn attempt_lines(
    step: &StepView,
    number: usize,
    attempt: &AttemptView,
    now: Millis,
) -> Vec<String> {
    let entry = to_json(attempt.entry);
    let entry = entry.as_str().unwrap_or_default();
    let took = span(attempt.to.unwrap_or(now).since(attempt.from));
    let who = attempt.worktree.as_ref().map_or("a keeper".to_owned(), |path| plain(path));
    let pid = attempt.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    let lease = match attempt.to {
        None => format!(", {}", lease(step, attempt, now)),
        Some(_) => String::new(),
    };
    let state = plain(&attempt.state);
    let mut lines = vec![
        format!("attempt {number} ({entry}, fence {}) {state}{lease}", attempt.fence),
        format!("  from {}, {took}", timestamp(attempt.from)),
        format!("  by {who} on {}{pid}", plain(&attempt.host)),
    ];
    if let (Some(head), n @ 1..) = (&attempt.head, attempt.commits) {
        lines.push(format!("  {} up to {}", count(n, "commit"), head.short()));
    }
    lines
}

/// How much is known about a commit is always said with it.
fn good_line(good: &GoodCommit) -> String {
    let known = match good.known_as {
        KnownAs::Completed => "the step was completed with it",
        KnownAs::Verified => "verified by piton",
        KnownAs::Snapshot => "checked out at the last snapshot, not verified",
        KnownAs::Base => "where it began",
    };
    format!("last good commit {} ({known})", good.commit.short())
}
