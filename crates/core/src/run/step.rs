//! A step of a run, folded: where it stands, its attempts, and what they left behind. What may follow what
//! is here; which other steps that concerns is the run's business.

use serde::{Deserialize, Serialize};

use super::{Stop, stronger, trees};
use crate::checklist::{Checklist, Gap};
use crate::event::{
    About, Cause, Claimed, Entry, Event, Failure, Grounds, Holder, Omission, Report, Scope,
    Snapshot, SnapshotReason, Stage, Truth, Waived,
};
use crate::ids::{AttemptId, Fence, Oid, TreeNo};
use crate::limits::{CHECKOUT_FILES_MAX, CONTINUE_PERCENT_MIN, IDLE_INTERRUPTIONS_MAX};
use crate::packing::{as_json, as_json_option};
use crate::plan::{OnInterrupt, PlanStep, Work};
use crate::question::{Question, QuestionState, RESTART};
use crate::record::Record;
use crate::time::{Millis, Moment};

/// A step's folded state, beside its recipe in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    /// The commit its branch starts from, once an attempt was started.
    pub base: Option<Oid>,
    pub snapshot: Option<KeptSnapshot>,
    /// Paths that differ from the base, by the last snapshot.
    pub changed: u64,
    pub verified: Option<VerifiedCommit>,
    pub landing: Option<LandingIntent>,
    /// Failed attempts: what the retry budget counts.
    pub failures: u32,
    /// Interruptions in a row that brought nothing new.
    pub idle: u32,
    /// The stop that its last attempt ended under: nothing goes on before somebody asks for that.
    pub held_back: Option<Stop>,
    pub history: Vec<PastAttempt>,
    /// What was done does not fit any more: the next attempt starts afresh.
    outdated: bool,
    /// The last attempt that was started was interrupted at work, or lost with its holder.
    died_mid_work: bool,
    pub checklist: Checklist,
    /// What holders reported last, field by field.
    #[serde(with = "as_json")]
    pub report: Report,
    /// What its attempts asked, oldest first.
    pub questions: Vec<Question>,
    /// The last attempt that began from the base again: what was kept before is of another tree.
    restarted_at: Option<Fence>,
    last_progress: Option<Progress>,
}

/// How far a step had come when it was interrupted: what the next interruption is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    left_at: Stage,
    tree: Option<Oid>,
    /// Substeps and items.
    parts: usize,
    reported: Option<u8>,
}

/// Where a step stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Phase {
    #[default]
    Pending,
    Held(Attempt),
    Failed {
        why: Failure,
        at: Millis,
    },
    Interrupted(Interruption),
    /// Its attempt ended to wait for an answer.
    Suspended {
        at: Millis,
    },
    Completed {
        commit: Option<Oid>,
        truth: Truth,
        at: Millis,
        fence: Fence,
        /// What it was completed in spite of.
        #[serde(with = "as_json_option")]
        waived: Option<Waived>,
    },
}

/// An attempt that ended without an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    pub cause: Cause,
    pub at: Millis,
    pub evidence: String,
    pub left_at: Stage,
}

/// What happens under one claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub id: AttemptId,
    pub fence: Fence,
    pub holder: Holder,
    /// Of a keeper: the tree of the pool that it works in.
    pub tree: Option<TreeNo>,
    pub entry: Entry,
    pub grounds: Grounds,
    pub claimed_at: Millis,
    pub until: Moment,
    pub started_at: Option<Millis>,
    pub stop: Option<Stop>,
    /// Somebody asked for the run to go on since: the stop still ends what a keeper runs, and then
    /// holds nothing back.
    pub lifted: bool,
    pub trace: Trace,
}

/// What explains an attempt afterwards; nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Trace {
    /// The keeper, or the process that asked from outside.
    pub pid: Option<u32>,
    /// The commit that was checked out when it was last looked at.
    pub head: Option<Oid>,
    /// How many commits it had added by then.
    pub commits: u64,
    /// The commit that piton saw pass.
    pub verified: Option<Oid>,
    /// What was in its worktree and is not in its commit.
    pub omitted: Vec<Omission>,
    pub checkout: Option<Box<CheckoutChanges>>,
}

/// Files of the user's own checkout that changed while an attempt was at work; by whom is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckoutChanges {
    pub files: Vec<String>,
    /// How many more, not named.
    pub more: u64,
}

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    pub attempt: Attempt,
    pub ended_at: Millis,
    pub ending: Ending,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Completed,
    Failed(Failure),
    Interrupted {
        cause: Cause,
        at: Millis,
    },
    /// Another claim took the step.
    Displaced,
    /// Given back.
    Released,
    /// To wait for an answer.
    Suspended,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSnapshot {
    #[serde(with = "whole_snapshot")]
    pub snapshot: Snapshot,
    pub at: Millis,
    pub fence: Fence,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedCommit {
    pub commit: Oid,
    pub tree: Oid,
    pub truth: Truth,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandingIntent {
    pub onto: Oid,
    pub to: Oid,
}

impl Attempt {
    /// The tree that it works in, of a keeper.
    pub(super) fn place(&self) -> Option<trees::Place> {
        self.tree.map(|tree| (self.holder.host().clone(), tree))
    }

    /// The stop that was asked of it, if nobody has asked for the run to go on since.
    pub fn unlifted_stop(&self) -> Option<Stop> {
        self.stop.filter(|_| !self.lifted)
    }

    /// A keeper ends what it was asked to end. Whoever works outside has perhaps not heard of it yet, and
    /// goes on.
    pub(super) fn lift(&mut self, run_stop: Option<Stop>) {
        self.stop = match self.holder {
            Holder::Keeper { .. } => stronger(run_stop, self.stop),
            Holder::External { .. } => None,
        };
        self.lifted = self.stop.is_some();
    }
}

impl Step {
    pub fn is_completed(&self) -> bool {
        matches!(self.phase, Phase::Completed { .. })
    }

    /// Whether somebody asked for it to stop, and nobody since for it to go on: whoever has it is to
    /// end, and nobody gets it.
    pub fn is_stopped(&self) -> bool {
        let held = self.attempt().and_then(Attempt::unlifted_stop);
        held.or(self.held_back).is_some()
    }

    /// How often it may still be attempted before it has failed for good.
    pub fn tries_left(&self, plan: &PlanStep) -> u32 {
        (plan.retries + 1).saturating_sub(self.failures)
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Held(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// How far the open attempt has come, as far as the log knows. Whether an agent has ended is not
    /// in the log: its exit record tells.
    pub fn stage(&self, attempt: &Attempt) -> Stage {
        match attempt.entry {
            _ if self.verified.is_some() => Stage::Land,
            Entry::Land => Stage::Land,
            Entry::Verify => Stage::Verify,
            Entry::Fresh | Entry::Continue if attempt.started_at.is_some() => Stage::Agent,
            Entry::Fresh | Entry::Continue => Stage::Unstarted,
        }
    }

    /// The snapshot of the tree that the work goes on in.
    pub fn resume_snapshot(&self) -> Option<&KeptSnapshot> {
        let of_this_tree =
            |kept: &&KeptSnapshot| self.restarted_at.is_none_or(|at| kept.fence >= at);
        self.snapshot.as_ref().filter(of_this_tree)
    }

    /// Whether the last attempt that was started was cut off at work, also by one that is not recorded
    /// as such: whoever holds the step now may be lost.
    pub(crate) fn died_mid_work(&self) -> bool {
        match &self.phase {
            Phase::Held(attempt) => self.dies_mid_work_at(self.stage(attempt)),
            _ => self.died_mid_work,
        }
    }

    /// Whether an attempt that is lost at this stage leaves something cut off. One that never began has
    /// cut off nothing.
    fn dies_mid_work_at(&self, stage: Stage) -> bool {
        match stage {
            Stage::Unstarted => self.died_mid_work,
            Stage::Agent => true,
            Stage::Verify | Stage::Land => false,
        }
    }

    /// Where a command or agent that piton starts again enters: as the plan or a person said about what
    /// was cut off, else by what was done.
    pub(crate) fn work_entry(&self, plan: &PlanStep) -> Entry {
        let said = plan.on_interrupt.filter(|_| self.died_mid_work());
        match said {
            _ if self.outdated || self.base.is_none() => Entry::Fresh,
            Some(OnInterrupt::Continue) => Entry::Continue,
            Some(OnInterrupt::Restart) => Entry::Fresh,
            Some(OnInterrupt::Ask) if self.goes_on_as_told() => Entry::Continue,
            Some(OnInterrupt::Ask) | None => self.agent_entry(&plan.work),
        }
    }

    /// The claim under which the work was last begun from the step's base; what is older is of another
    /// tree.
    pub fn restarted_at(&self) -> Option<Fence> {
        self.restarted_at
    }

    /// Where an agent that has to run again enters: in the tree when enough was done there, else
    /// from the base. A plain command always starts from its base.
    pub(crate) fn agent_entry(&self, work: &Work) -> Entry {
        match work {
            Work::Agent { .. } if self.outdated || self.base.is_none() => Entry::Fresh,
            Work::Agent { .. } if self.has_enough_done() => Entry::Continue,
            _ => Entry::Fresh,
        }
    }

    /// By what the agent reported; where it reported nothing, by whether anything is there.
    fn has_enough_done(&self) -> bool {
        match self.report.progress {
            Some(percent) => percent >= CONTINUE_PERCENT_MIN,
            None => self.changed > 0 || self.checklist.parts_done() > 0,
        }
    }

    /// `Err` names the event that did not fit.
    pub(super) fn apply(
        &mut self,
        event: &Event,
        record: &Record,
        run_stop: Option<Stop>,
    ) -> Result<(), &'static str> {
        // Of whatever ends an attempt.
        let stop = self.attempt().and_then(|held| stronger(run_stop, held.unlifted_stop()));
        match event {
            Event::Claimed(claimed) => return self.claim(claimed, record),
            Event::Started { fence, base, answers, pid, .. } => {
                self.own(*fence).ok_or("started")?;
                self.apply_answers(answers, *fence).ok_or("started")?;
                let attempt = self.own(*fence).ok_or("started")?;
                attempt.started_at = Some(record.at);
                attempt.trace.pid = pid.or(attempt.trace.pid);
                if attempt.entry == Entry::Fresh {
                    // A keeper begins from the base; whoever works outside has a tree of their own.
                    if matches!(attempt.holder, Holder::Keeper { .. }) {
                        self.report.progress = None;
                    }
                    self.changed = 0;
                    self.restarted_at = Some(*fence);
                    self.outdated = false;
                }
                if base.is_some() {
                    self.base.clone_from(base);
                }
                self.died_mid_work = false;
                self.unverify();
            }
            Event::Checkpointed { fence, snapshot, report, .. } => {
                let attempt = self.own(*fence).ok_or("checkpointed")?;
                if let Some(Snapshot { head: Some(head), commits, .. }) = snapshot {
                    attempt.trace.head = Some(head.clone());
                    attempt.trace.commits = *commits;
                }
                if let Some(report) = report {
                    self.report.take_in(report);
                }
                // What stood in the tree before a reset may be another step's: it is kept, found by
                // its ref, and nothing that this step would go on from.
                if let Some(snapshot) = snapshot
                    && snapshot.reason != SnapshotReason::Reset
                {
                    let (snapshot, at, fence) = (snapshot.clone(), record.at, *fence);
                    self.changed = snapshot.changed;
                    self.snapshot = Some(KeptSnapshot { snapshot, at, fence });
                }
            }
            Event::SubstepCompleted { fence, substep, .. } => {
                self.own(*fence).ok_or("substep_completed")?;
                self.checklist.completed.insert(substep.clone());
            }
            Event::ItemAdded { fence, text, priority, .. } => {
                self.own(*fence).ok_or("item_added")?;
                self.checklist.added.push(Gap { text: text.clone(), priority: *priority });
            }
            Event::CheckoutChanged { fence, files, more, .. } => {
                let attempt = self.own(*fence).ok_or("checkout_changed")?;
                let changes = attempt.trace.checkout.get_or_insert_default();
                let CheckoutChanges { files: named, more: others } = &mut **changes;
                let room = CHECKOUT_FILES_MAX.saturating_sub(named.len());
                named.extend(files.iter().take(room).cloned());
                *others += more + files.len().saturating_sub(room) as u64;
            }
            Event::ItemsMarked { fence, items, mark, .. } => {
                self.own(*fence).ok_or("items_marked")?;
                let marked = items.iter().map(|item| (item.clone(), mark.clone()));
                self.checklist.marks.extend(marked);
            }
            Event::Asked { fence, text, choices, about, .. } => {
                self.may_ask(*fence, about.as_deref()).ok_or("asked")?;
                self.questions.push(Question {
                    id: record.position.into(),
                    fence: *fence,
                    text: text.clone(),
                    choices: choices.clone(),
                    about: about.clone(),
                    asked_at: record.at,
                    state: QuestionState::Open,
                });
            }
            Event::Answered { question, answer, .. } => {
                let about = self.answer(*question, answer, record.at).ok_or("answered")?;
                let by_piton = about.is_some();
                // What was done does not fit onto the run's branch, or is not wanted.
                self.outdated |= by_piton && answer == RESTART;
                // A person has looked at it.
                self.idle = if by_piton { 0 } else { self.idle };
            }
            Event::AnswersApplied { fence, questions, .. } => {
                self.own(*fence).ok_or("answers_applied")?;
                self.apply_answers(questions, *fence).ok_or("answers_applied")?;
            }
            Event::Suspended { fence, .. } => {
                self.own(*fence).ok_or("suspended")?;
                self.awaits(*fence).ok_or("suspended")?;
                self.end(Ending::Suspended, record.at);
                self.held_back = stop;
                self.died_mid_work = false;
                self.idle = 0;
                self.unverify();
                self.phase = Phase::Suspended { at: record.at };
            }
            Event::Released { fence, .. } => {
                self.own(*fence).ok_or("released")?;
                self.end(Ending::Released, record.at);
                self.held_back = stop;
                self.died_mid_work = false;
                self.unverify();
                self.checklist.reopen();
                self.void_questions();
            }
            Event::Reset { .. } => self.reset().ok_or("reset")?,
            Event::Verified { fence, commit, tree, truth, commits, answers, omitted, .. } => {
                self.own(*fence).ok_or("verified")?;
                self.apply_answers(answers, *fence).ok_or("verified")?;
                self.void_asked_by_piton();
                let attempt = self.own(*fence).ok_or("verified")?;
                attempt.trace.head = Some(commit.clone());
                attempt.trace.commits = *commits;
                attempt.trace.omitted.clone_from(omitted);
                if *truth == Truth::Verified {
                    attempt.trace.verified = Some(commit.clone());
                }
                let (commit, tree, truth) = (commit.clone(), tree.clone(), *truth);
                self.verified = Some(VerifiedCommit { commit, tree, truth });
                self.landing = None;
            }
            Event::LandingIntended { fence, onto, to, .. } => {
                self.own(*fence).ok_or("landing_intended")?;
                self.landing = Some(LandingIntent { onto: onto.clone(), to: to.clone() });
            }
            Event::Completed { fence, commit, waived, .. } => {
                self.own(*fence).ok_or("completed")?;
                let truth = match commit {
                    Some(_) => self.verified.as_ref().ok_or("completed")?.truth,
                    // Nobody but the holder has seen it done.
                    None => Truth::Claimed,
                };
                // What it was given to be landed, wherever its worktree stands by now.
                let given = self.verified.as_ref().map(|verified| verified.commit.clone());
                if let Some(attempt) = self.own(*fence).filter(|_| commit.is_some()) {
                    attempt.trace.head = given;
                }
                self.end(Ending::Completed, record.at);
                self.died_mid_work = false;
                self.void_questions();
                self.idle = 0;
                self.unverify();
                self.shed();
                let (commit, waived, at) = (commit.clone(), waived.clone(), record.at);
                self.phase = Phase::Completed { commit, truth, at, fence: *fence, waived };
            }
            Event::Failed { fence, why, .. } => {
                self.own(*fence).ok_or("failed")?;
                self.end(Ending::Failed(why.clone()), record.at);
                self.held_back = stop;
                self.died_mid_work = false;
                self.failures += 1;
                self.outdated |= matches!(why, Failure::Landing { .. });
                self.idle = 0;
                self.unverify();
                self.phase = Phase::Failed { why: why.clone(), at: record.at };
            }
            Event::Interrupted { fence, cause, at, evidence, left_at, .. } => {
                let attempt = self.own(*fence).ok_or("interrupted")?;
                let asked = attempt.stop.is_some() || run_stop.is_some();
                self.end(Ending::Interrupted { cause: *cause, at: *at }, record.at);
                self.held_back = stop;
                self.died_mid_work = self.dies_mid_work_at(*left_at);
                self.count_interruption(*left_at, *cause, asked);
                self.phase = Phase::Interrupted(Interruption {
                    cause: *cause,
                    at: *at,
                    evidence: evidence.clone(),
                    left_at: *left_at,
                });
            }
            Event::StopRequested { scope: Scope::Attempt { fence, .. }, cause, haste } => {
                let attempt = self.own(*fence).ok_or("stop_requested")?;
                attempt.stop = Some(Stop { cause: *cause, haste: *haste, at: record.at });
                attempt.lifted = false;
            }
            Event::RunOpened(_)
            | Event::PlanAccepted { .. }
            | Event::MergeIntended(_)
            | Event::Merged { .. }
            | Event::StopRequested { .. }
            | Event::Abandoned { .. }
            | Event::Reopened { .. }
            | Event::Resumed { .. } => {
                return Err("an event about the run");
            }
        }
        Ok(())
    }

    fn claim(&mut self, claimed: &Claimed, record: &Record) -> Result<(), &'static str> {
        match (&self.phase, claimed.grounds) {
            (Phase::Completed { .. }, _) | (Phase::Held(_), Grounds::Free) => {
                return Err("claimed");
            }
            (Phase::Held(lost), Grounds::LeaseOver | Grounds::SameOwner | Grounds::Forced) => {
                self.died_mid_work = self.dies_mid_work_at(self.stage(lost));
                self.end(Ending::Displaced, record.at);
            }
            (
                Phase::Pending
                | Phase::Failed { .. }
                | Phase::Interrupted(_)
                | Phase::Suspended { .. },
                _,
            ) => {}
        }
        self.checklist.reopen_unfinished_substeps();
        if matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
            // The work goes on: what was verified before is not what this attempt will leave.
            self.unverify();
        }
        self.held_back = None;
        self.phase = Phase::Held(Attempt {
            id: claimed.attempt,
            fence: record.position.into(),
            holder: claimed.holder.clone(),
            tree: claimed.tree,
            entry: claimed.entry,
            grounds: claimed.grounds,
            claimed_at: record.at,
            until: claimed.until.clone(),
            started_at: None,
            stop: None,
            lifted: false,
            trace: Trace { pid: claimed.pid, ..Trace::default() },
        });
        Ok(())
    }

    /// Pending again, as if it had never failed; what was done of its checklist stays.
    fn reset(&mut self) -> Option<()> {
        match self.phase {
            Phase::Held(_) => return None,
            Phase::Pending if self.is_unspent() => return None,
            Phase::Pending
            | Phase::Failed { .. }
            | Phase::Interrupted(_)
            | Phase::Suspended { .. }
            | Phase::Completed { .. } => {}
        }
        self.phase = Phase::Pending;
        self.held_back = None;
        self.died_mid_work = false;
        self.failures = 0;
        self.idle = 0;
        self.changed = 0;
        self.unverify();
        self.checklist.reopen();
        self.void_questions();
        Some(())
    }

    /// Whether nothing that happened counts against the next attempt: no failure, no interruption, no
    /// stop.
    pub(crate) fn is_unspent(&self) -> bool {
        self.failures == 0 && self.idle == 0 && self.held_back.is_none()
    }

    /// The step under another recipe: pending, with its history; its checklist is another one.
    pub(super) fn replanned(&self) -> Step {
        let mut step = Step {
            phase: Phase::Pending,
            held_back: None,
            died_mid_work: false,
            failures: 0,
            idle: 0,
            changed: 0,
            verified: None,
            landing: None,
            checklist: Checklist::default(),
            ..self.clone()
        };
        step.void_questions();
        step
    }

    /// A holder asks; about its interruption piton does, once it is over.
    fn may_ask(&mut self, fence: Fence, about: Option<&About>) -> Option<()> {
        match (about, &self.phase) {
            (Some(About::Interruption { .. }), Phase::Interrupted(_)) => {
                self.history.last().filter(|past| past.attempt.fence == fence).map(drop)
            }
            (Some(About::Interruption { .. }), _) => None,
            (Some(About::Conflict(_)) | None, _) => self.own(fence).map(drop),
        }
    }

    /// Whether it waits for a person to move what was in its way.
    pub fn is_obstructed(&self) -> bool {
        match &self.phase {
            Phase::Interrupted(last) => self.idle > 0 && last.cause == Cause::Obstacle,
            _ => false,
        }
    }

    /// What was verified, and perhaps about to land, is not what the step will end with.
    fn unverify(&mut self) {
        self.verified = None;
        self.landing = None;
    }

    fn own(&mut self, fence: Fence) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Held(attempt) if attempt.fence == fence => Some(attempt),
            _ => None,
        }
    }

    /// What only the next attempt would have asked for is left to the log: runs that are mostly done are
    /// kept small.
    fn shed(&mut self) {
        self.last_progress = None;
        if let Some(kept) = &mut self.snapshot {
            kept.snapshot.omitted.clear();
        }
    }

    fn end(&mut self, ending: Ending, ended_at: Millis) {
        if let Phase::Held(mut attempt) = std::mem::take(&mut self.phase) {
            // They judge no more; long histories are kept small.
            attempt.until.clock = None;
            if let Holder::Keeper { boot, .. } = &mut attempt.holder {
                boot.0.clear();
            }
            self.history.push(PastAttempt { attempt, ended_at, ending });
        }
    }

    /// Being stopped on request, or killed before anything was started, says nothing about the step.
    /// Trouble on the way there does: it would come again and again. What is in the way would, however
    /// often it is tried: a person is asked at once.
    fn count_interruption(&mut self, left_at: Stage, cause: Cause, asked: bool) {
        let trouble = matches!(cause, Cause::Unknown | Cause::DiskFull | Cause::Obstacle);
        if asked || (left_at == Stage::Unstarted && !trouble) {
            return;
        }
        if cause == Cause::Obstacle {
            self.idle = IDLE_INTERRUPTIONS_MAX;
            return;
        }
        let tree = self.snapshot.as_ref().map(|kept| kept.snapshot.tree.clone());
        let (parts, reported) = (self.checklist.parts_done(), self.report.progress);
        let progress = Some(Progress { left_at, tree, parts, reported });
        self.idle = if self.last_progress == progress { self.idle + 1 } else { 1 };
        self.last_progress = progress;
    }
}

/// A snapshot with nothing left out, as packed bytes need it: in the order of its fields.
mod whole_snapshot {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::event::Snapshot;

    pub(super) fn serialize<S: Serializer>(snapshot: &Snapshot, to: S) -> Result<S::Ok, S::Error> {
        // Every field is named, so that a new one is not forgotten.
        let Snapshot { commit, tree, refname, changed, omitted, reason, head, commits } = snapshot;
        (commit, tree, refname, changed, omitted, reason, head, commits).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Snapshot, D::Error> {
        let (commit, tree, refname, changed, omitted, reason, head, commits) =
            Deserialize::deserialize(from)?;
        Ok(Snapshot { commit, tree, refname, changed, omitted, reason, head, commits })
    }
}

/// The steps of a run. One that nothing happened to is packed as nothing.
pub(super) mod packed {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Step;
    use crate::packing::shared;

    #[derive(Serialize, Deserialize)]
    struct Touched(#[serde(with = "shared")] Arc<Step>);

    pub(in crate::run) fn serialize<S: Serializer>(
        steps: &[Arc<Step>],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let untouched = Step::default();
        let packed = |step: &Arc<Step>| (**step != untouched).then(|| Touched(Arc::clone(step)));
        to.collect_seq(steps.iter().map(packed))
    }

    pub(in crate::run) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Arc<Step>>, D::Error> {
        let untouched = Arc::default();
        let unpacked = |step: Option<Touched>| match step {
            Some(Touched(step)) => step,
            None => Arc::clone(&untouched),
        };
        Ok(Vec::deserialize(from)?.into_iter().map(unpacked).collect())
    }
}
