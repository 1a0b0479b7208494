//! Live progress: what a worker tells, as people follow it. On a terminal one line per active step
//! moves in place and finished steps stay above; elsewhere every change is one plain line that begins
//! with `step ID:`, quiet and greppable.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use piton_core::event::{
    Cause, CheckoutChanges, Claimed, Entry, Event, Fact, Failure, Haste, Holder, Interruption,
    Limited, Omission, Truth, Under,
};
use piton_core::ids::StepRef;
use piton_core::run::{Phase, Run};
use piton_core::time::Millis;
use piton_engine::folder::{Folder, RiskRecord};
use piton_engine::git::snapshot::moved_out;
use piton_engine::project::Project;
use piton_engine::run::snapshot_history::place_for;
use piton_engine::worker::Notice;

use crate::describe::{changed_meanwhile, done_about, omission};
use crate::error::Kind;
use crate::hints;
use crate::loops;
use crate::page::bar;
use crate::text::{
    self, ago, bold, clipped, count, dim, due, green, now, plain, red, span, yellow,
};
use crate::ui::Ui;

/// How often the moving lines are brought up to date.
const REFRESH: Duration = Duration::from_millis(250);
/// How much of a transcript's end is read for its last line.
const TAIL_BYTES: u64 = 4 * 1024;
/// The most lines of a failure's output that are shown.
const FAILURE_LINES: usize = 12;

/// Shows what a worker tells.
pub(crate) struct Progress<'a> {
    ui: &'a Ui,
    project: &'a Project,
    lines: Arc<Mutex<BTreeMap<StepRef, Line>>>,
    refresher: Option<Refresher>,
    /// The last moving line: how far the whole run is.
    whole: Option<ProgressBar>,
}

/// A moving line.
struct Line {
    bar: ProgressBar,
    folder: Folder,
    stage: &'static str,
    kept: Option<(Millis, u64)>,
}

/// The thread that brings moving lines up to date; ends when it is dropped.
struct Refresher {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl<'a> Progress<'a> {
    pub(crate) fn start(ui: &'a Ui, project: &'a Project) -> Progress<'a> {
        let lines = Arc::default();
        let refresher = ui.is_live().then(|| refresh(Arc::clone(&lines)));
        Progress { ui, project, lines, refresher, whole: None }
    }

    /// Takes the moving lines away.
    pub(crate) fn end(mut self) {
        if let Some(Refresher { stop, thread }) = self.refresher.take() {
            drop(stop);
            let _panicked = thread.join();
        }
        for line in std::mem::take(&mut *held(&self.lines)).into_values() {
            line.bar.finish_and_clear();
        }
        if let Some(whole) = &self.whole {
            whole.finish_and_clear();
        }
    }

    pub(crate) fn hear(&mut self, run: &Run, notice: Notice) {
        self.count(run);
        match notice {
            Notice::Adopted { step, .. } => {
                self.begin(run, &step, "running");
                self.say(&step, "●", "alive, watching it");
            }
            Notice::Awaits { step, by } => self.awaits(run, &step, &by),
            Notice::Swept { step, ended, survivors } => self.swept(&step, &ended, &survivors),
            Notice::Found { step, condition } => {
                let found = plain(&condition.problem.to_string());
                self.say(&step, "●", &format!("{found}: piton {}", done_about(&condition)));
            }
            Notice::Warning(message) => self.ui.warn(Kind::Noticed, plain(&message), None),
        }
    }

    /// Brings the line of the whole run up to date.
    fn count(&mut self, run: &Run) {
        if !self.ui.is_live() {
            return;
        }
        let whole = self.whole.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} · {elapsed}");
            let bar = ProgressBar::new_spinner()
                .with_elapsed(now().since(run.opened_at))
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            let bar = self.ui.live().add(bar);
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        let total = run.plan().steps.len();
        let done = total - run.count_remaining();
        let running = run.held().count();
        let bar = bar(done, running, total);
        let text = format!("{} {bar} {done}/{total} done, {running} at work", run.opened.handle);
        whole.set_message(self.ui.painted(&text));
    }

    pub(crate) fn event(&mut self, run: &Run, event: &Event) {
        self.count(run);
        match event {
            Event::Found(_) => {}
            Event::Claimed(claimed) => self.claimed(run, claimed),
            Event::Under(Under { step, .. }, Fact::Started { .. }) => {
                let (number, entry) = attempt(run, step);
                self.stage(step, "running");
                let how = match entry {
                    Some(Entry::Continue) => "continued where it was left",
                    _ => "fresh",
                };
                self.say(step, "●", &format!("started (attempt {number}, {how})"));
                self.moved_out(run, step);
            }
            Event::Under(Under { step, .. }, Fact::Checkpointed { snapshot, .. }) => {
                if let (Some(line), Some(kept)) = (held(&self.lines).get_mut(step), snapshot) {
                    line.kept = Some((now(), kept.changed));
                }
            }
            Event::Under(Under { step, .. }, Fact::Released { .. }) => {
                self.finish(step, "○", "given back")
            }
            Event::Reset { step, .. } => self.say(step, "○", "pending again"),
            Event::Retried { step, .. } => self.say(step, "○", "is tried again"),
            Event::Skipped { step, reason, .. } => {
                self.say(step, "–", &format!("skipped: {}", clipped(reason, 200)));
            }
            Event::Under(Under { step, .. }, Fact::SubstepCompleted { substep, .. }) => {
                self.say(step, "●", &format!("substep {substep} completed"));
            }
            Event::Under(Under { step, .. }, Fact::ItemAdded { text, .. }) => {
                self.say(step, "●", &format!("found missing: {}", clipped(text, 200)));
            }
            Event::Under(Under { step, .. }, Fact::OutputSet { name, .. }) => {
                self.say(step, "●", &format!("published {name}"));
            }
            Event::Under(Under { step, .. }, Fact::OutputAwaited { output, .. }) => {
                self.say(step, "●", &format!("waits for {output}"));
            }
            Event::Under(Under { step, .. }, Fact::Asked { text, choices, .. }) => {
                self.asked(run, step, text, choices)
            }
            Event::Answered { step, question, answer, .. } => {
                self.say(step, "●", &format!("{question} was answered: {}", clipped(answer, 200)));
            }
            Event::Under(_, Fact::AnswersApplied { .. }) => {}
            Event::Under(Under { step, .. }, Fact::Suspended { .. }) => {
                let kept = kept(run, step);
                self.finish(step, &yellow("?"), &format!("waits for an answer{kept}"));
            }
            Event::Under(Under { step, .. }, Fact::Limited(limited)) => {
                let Limited { account, until, text, .. } = limited;
                let until = until.map(|until| format!("; goes on {}", due(until, now())));
                let text = format!(
                    "parked: account {account}: {}{}{}",
                    clipped(text, 120),
                    until.unwrap_or_default(),
                    kept(run, step)
                );
                self.finish(step, &yellow("⏸"), &text);
            }
            Event::Under(Under { step, .. }, Fact::LimitLifted { account }) => {
                self.say(step, "●", &format!("the limit of account {account} is over"));
            }
            Event::Under(_, Fact::ItemsMarked { .. } | Fact::Conversed(_)) => {}
            Event::Under(
                Under { step, .. },
                Fact::CheckoutChanged(CheckoutChanges { files, more, .. }),
            ) => {
                let files = changed_meanwhile(files, *more);
                let message =
                    format!("step {step}: files of your checkout changed while it ran: {files}");
                let hint = "piton does not know who it was; `git status` shows them";
                self.ui.warn(Kind::Noticed, message, Some(hint.to_owned()));
            }
            Event::Under(Under { step, .. }, Fact::Unkept { why }) => {
                let message =
                    format!("step {step}: its last work is in no snapshot: {}", plain(why));
                let hint = "its worktree has it, and the next attempt goes on there";
                self.ui.warn(Kind::Noticed, message, Some(hint.to_owned()));
            }
            Event::Under(Under { step, .. }, Fact::Verified { truth, check, omitted, .. }) => {
                self.stage(step, "landing");
                self.say(step, "●", &verified(*truth, check.is_some()));
                self.not_landing(run, step, omitted);
            }
            Event::Under(Under { step, .. }, Fact::FoundDone { check }) => {
                let text = match check {
                    Some(check) => format!("found done: `{}` passed", clipped(&check.command, 200)),
                    None => "found done: its plan is there".to_owned(),
                };
                self.finish(step, &green("✓"), &text);
            }
            Event::Under(Under { step, .. }, Fact::Completed { .. }) => {
                let took = took(run, step).map(|took| format!(" in {}", span(took)));
                let text = format!("completed{}", took.unwrap_or_default());
                self.finish(step, &green("✓"), &text);
                if let Some(turned) = loops::turned(run, step) {
                    self.ui.talk(turned);
                }
            }
            Event::Under(Under { step, .. }, Fact::Failed { why, .. }) => {
                self.failed(run, step, why)
            }
            Event::Under(Under { step, .. }, Fact::Interrupted(Interruption { cause, .. })) => {
                let kept = kept(run, step);
                self.finish(step, &yellow("⏸"), &format!("{}{kept}", stopped_by(*cause)));
            }
            Event::Under(Under { step, .. }, Fact::LandingIntended(_)) => {
                self.stage(step, "landing")
            }
            Event::PlanAccepted { .. } => self.ui.talk("goes on with a changed plan"),
            Event::Abandoned { .. } => self.ui.talk("the run was abandoned"),
            Event::RunOpened(_)
            | Event::StopRequested { .. }
            | Event::Reopened { .. }
            | Event::MergeIntended(_)
            | Event::Merged { .. }
            | Event::Resumed { .. } => {}
        }
    }

    /// Only entries that start no agent are told here; the others when it starts.
    fn claimed(&mut self, run: &Run, claimed: &Claimed) {
        let step = &claimed.step;
        let (number, _) = attempt(run, step);
        match claimed.entry {
            Entry::Fresh | Entry::Continue => self.begin(run, step, "preparing"),
            Entry::Verify => {
                self.begin(run, step, "verifying");
                let text = format!("verifying (attempt {number}; the agent had ended)");
                self.say(step, "●", &text);
            }
            Entry::Land => {
                self.begin(run, step, "landing");
                self.say(step, "●", &format!("landing (attempt {number}; it was verified)"));
            }
        }
    }

    /// What is done without something that was made is told, and where that is.
    fn not_landing(&self, run: &Run, step: &StepRef, omitted: &[Omission]) {
        if omitted.is_empty() {
            return;
        }
        let what = omitted.iter().map(omission).collect::<Vec<_>>().join(", ");
        let kept = run.step(step).and_then(|(_, state)| state.snapshot.as_ref());
        let hint = kept.map(|kept| {
            let (run, name) = (&run.opened.handle, &kept.snapshot.refname);
            let to = place_for(run, step);
            format!(
                "their files are kept in {name}; `piton snapshot restore {run}/{step} --to {to}` brings them back"
            )
        });
        self.ui.warn(Kind::Noticed, format!("step {step}: not landed: {what}"), hint);
    }

    /// What no snapshot can hold, and was moved out of the worktree when it was reset for this attempt.
    fn moved_out(&self, run: &Run, step: &StepRef) {
        let held = run.step(step).and_then(|(_, state)| state.attempt());
        let Some(attempt) = held else { return };
        for moved in moved_out(&self.project.folder(attempt.id).omitted()) {
            let moved = moved.shown();
            let what = format!("{} was moved out of the worktree", plain(&moved.path));
            let hint = format!("no snapshot can hold it; it is {}", plain(&moved.place));
            self.ui.warn(Kind::Noticed, format!("step {step}: {what}"), Some(hint));
        }
    }

    fn failed(&mut self, run: &Run, step: &StepRef, why: &Failure) {
        let left = run.step(step).map_or(0, |(plan, state)| state.tries_left(plan));
        let left = match left {
            0 => String::new(),
            1 => "; 1 retry left".to_owned(),
            n => format!("; {n} retries left"),
        };
        self.finish(step, &red("✗"), &format!("failed: {}{left}", plain(&why.to_string())));
        if let Failure::Exit { tail, .. } | Failure::Verify { tail, .. } = why {
            let lines: Vec<&str> = tail.trim_end().lines().collect();
            for line in &lines[lines.len().saturating_sub(FAILURE_LINES)..] {
                self.ui.talk(dim(&format!("  | {}", text::stripped(line.as_bytes()))));
            }
        }
    }

    /// What to type is told at once: the agent may be waiting for it.
    fn asked(&mut self, run: &Run, step: &StepRef, text: &str, choices: &[String]) {
        let all = run.questions().filter(|(of, question)| of == step && question.text == text);
        let Some((_, question)) = all.last() else { return };
        let (id, handle) = (question.id, &run.opened.handle);
        if self.ui.can_ask() {
            // Whoever watches is asked at once.
            return;
        }
        self.say(step, &yellow("?"), &format!("asks {id}: {}", clipped(text, 200)));
        for command in hints::answers(handle.as_str(), id, choices) {
            self.ui.talk(format!("  {command}"));
        }
    }

    fn awaits(&mut self, run: &Run, step: &StepRef, by: &StepRef) {
        let held = run.held().find(|(held, _)| held == by).map(|(_, attempt)| &attempt.holder);
        let whose = match held {
            Some(Holder::External { worktree, .. }) => format!("claimed from {}", plain(worktree)),
            Some(Holder::Keeper { host, .. }) => format!("held by a keeper on {host}"),
            None => return,
        };
        let handle = &run.opened.handle;
        let text = match step == by {
            true => format!("waits: it is {whose}"),
            false => format!("waits: step {by}, {whose}, is worked on in its worktree"),
        };
        self.say(step, "○", &text);
        self.ui.hint(format!(
            "it goes on when that claim ends; `piton release {handle} {by} --force` ends it"
        ));
    }

    fn swept(&mut self, step: &StepRef, ended: &[i32], survivors: &[i32]) {
        if !ended.is_empty() {
            let pids: Vec<String> = ended.iter().map(i32::to_string).collect();
            let text = format!("ended what its dead attempt had left: {}", pids.join(" "));
            self.say(step, "●", &text);
        }
        if !survivors.is_empty() {
            let pids: Vec<String> = survivors.iter().map(i32::to_string).collect();
            let message = format!("step {step}: could not end processes {}", pids.join(" "));
            self.ui.warn(Kind::Noticed, message, Some(format!("`ps -fp {}`", pids.join(","))));
        }
    }

    pub(crate) fn stopping(&mut self, haste: Haste, grace: Duration) {
        match haste {
            Haste::Graceful => {
                self.ui.talk(format!("stopping agents ({}); Ctrl-C again kills them", span(grace)))
            }
            Haste::Now => self.ui.talk("killing agents; Ctrl-C again only leaves"),
        }
        for line in held(&self.lines).values_mut() {
            line.stage = "stopping";
        }
    }

    fn say(&self, step: &StepRef, mark: &str, text: &str) {
        match self.ui.is_live() {
            true => self.ui.talk(format!("{mark} {} {text}", bold(&step.to_string()))),
            false => self.ui.talk(format!("step {step}: {text}")),
        }
    }

    fn begin(&mut self, run: &Run, step: &StepRef, stage: &'static str) {
        let state = run.step(step).map(|(_, state)| state);
        let Some(attempt) = state.and_then(|state| state.attempt()) else { return };
        if !self.ui.is_live() {
            return;
        }
        let bar = ProgressBar::new_spinner()
            .with_elapsed(now().since(attempt.claimed_at))
            .with_style(style())
            .with_prefix(self.ui.painted(&bold(&step.to_string())));
        let bar = match &self.whole {
            Some(whole) => self.ui.live().insert_before(whole, bar),
            None => self.ui.live().add(bar),
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        let folder = self.project.folder(attempt.id);
        let line = Line { bar, folder, stage, kept: None };
        held(&self.lines).insert(step.clone(), line);
    }

    fn stage(&mut self, step: &StepRef, stage: &'static str) {
        if let Some(line) = held(&self.lines).get_mut(step) {
            line.stage = stage;
        }
    }

    fn finish(&mut self, step: &StepRef, mark: &str, text: &str) {
        let line = held(&self.lines).remove(step);
        if let Some(line) = line {
            line.bar.finish_and_clear();
            self.ui.live().remove(&line.bar);
        }
        self.say(step, mark, text);
    }
}

impl Line {
    fn refresh(&self, now: Millis) {
        let mut parts = vec![self.stage.to_owned()];
        if let Some((at, changed)) = self.kept {
            parts.push(format!("{} kept {}", count(changed, "changed file"), ago(at, now)));
        }
        let risk = self.folder.read_risk().filter(|_| self.folder.read_exit().is_none());
        parts.extend(risk.map(|risk| at_risk(&risk, now)));
        if let Some(last) = last_line(&self.folder.transcript()) {
            parts.push(last);
        }
        self.bar.set_message(parts.join(" · "));
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refresh(lines: Arc<Mutex<BTreeMap<StepRef, Line>>>) -> Refresher {
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        while stopped.recv_timeout(REFRESH) == Err(mpsc::RecvTimeoutError::Timeout) {
            let now = now();
            for line in held(&lines).values() {
                line.refresh(now);
            }
        }
    });
    Refresher { stop, thread }
}

/// How much work would be lost with the machine.
fn at_risk(risk: &RiskRecord, now: Millis) -> String {
    let since = span(now.since(risk.saved_at));
    match &risk.failing {
        None => format!("not saved yet: the last {since}"),
        Some(why) => {
            format!("not saved yet: the last {since} (snapshots fail: {})", clipped(why, 80))
        }
    }
}

/// The last line of a growing file.
fn last_line(path: &Path) -> Option<String> {
    let mut file = piton_engine::git::file::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let text = text::stripped(&tail);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(clipped(line.trim(), 200))
}

/// Which attempt of its step is open or was the last one, and how it entered.
fn attempt(run: &Run, step: &StepRef) -> (usize, Option<Entry>) {
    match run.step(step) {
        Some((_, state)) => match &state.phase {
            Phase::Held { attempt, .. } => (state.history.len() + 1, Some(attempt.entry)),
            _ => (state.history.len(), state.history.last().map(|past| past.attempt.entry)),
        },
        None => (1, None),
    }
}

/// How an attempt was interrupted, in words.
fn stopped_by(cause: Cause) -> String {
    match cause {
        Cause::UserInterrupt => "stopped by you".to_owned(),
        cause => format!("interrupted ({cause})"),
    }
}

/// Said only where a snapshot has it: somebody may have removed the worktree.
fn kept(run: &Run, step: &StepRef) -> &'static str {
    let has = run.step(step).is_some_and(|(_, state)| state.snapshot.is_some());
    if has { "; work saved" } else { "" }
}

fn took(run: &Run, step: &StepRef) -> Option<Duration> {
    let (_, state) = run.step(step)?;
    let last = state.history.last()?;
    Some(last.ended_at.since(last.attempt.claimed_at))
}

fn verified(truth: Truth, checked: bool) -> String {
    match (truth, checked) {
        (Truth::Verified, true) => "verified".to_owned(),
        (Truth::Verified, false) => "ended well".to_owned(),
        (Truth::Claimed | Truth::Unknown, _) => "done, unverified".to_owned(),
    }
}
