//! A step of a run, folded: where it stands, its attempts, and what they left behind. What may follow what
//! is here; which other steps that concerns is the run's business.

use serde::{Deserialize, Serialize};

use super::outputs::{AwaitedOutput, Outputs, Published};
use super::{Stop, stronger, trees};
use crate::checklist::{Checklist, Gap};
use crate::dialect::Trouble;
use crate::event::{
    About, Cause, CheckoutChanges, Claimed, Conversation, Entry, Event, Fact, Failure, Found,
    FoundState, Grounds, Holder, Interruption, IterationCheck, LandingIntent, Limited, Mark,
    Omission, Report, Scope, Snapshot, SnapshotReason, Stage, Truth, Waived,
};
use crate::ids::{AgentName, AttemptId, Fence, Oid, QuestionId, TreeNo};
use crate::limits::{CHECKOUT_FILES_MAX, IDLE_INTERRUPTIONS_MAX};
use crate::packing::{Pack, as_json};
use crate::plan::{OnInterrupt, PlanStep, Work};
use crate::question::{Question, QuestionState, RESTART};
use crate::record::Record;
use crate::time::{Millis, Moment};

/// A step's folded state, beside its recipe in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Step {
    pub phase: Phase,
    /// Failed attempts: what the retry budget counts.
    pub failures: u32,
    /// The commit its branch starts from, once an attempt was started.
    pub base: Option<Oid>,
    pub snapshot: Option<KeptSnapshot>,
    /// Paths that differ from the base, by the last snapshot.
    pub changed: u64,
    /// The last attempt that began from the base again: what was kept before is of another tree.
    restarted_at: Option<Fence>,
    /// What was done does not fit any more: the next attempt starts afresh.
    outdated: bool,
    /// Somebody took the step up again after they had worked in its tree: attempts go on there until one is
    /// verified.
    in_tree: bool,
    pub checklist: Checklist,
    /// What holders reported last, field by field.
    #[serde(with = "as_json")]
    pub report: Report,
    pub outputs: Outputs,
    pub awaited: Option<AwaitedOutput>,
    /// What the plan's file knew of earlier work on it.
    pub notes: Vec<String>,
    /// What its attempts asked, oldest first.
    pub questions: Vec<Question>,
    pub history: Vec<PastAttempt>,
    /// Of the last step of a loop, once it was verified.
    pub iteration: Option<Box<IterationCheck>>,
}

/// Where a step stands. `held_back` is the stop that the last attempt ended under: nothing goes on before
/// somebody asks for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Pending {
        held_back: Option<Stop>,
        idle: Idle,
    },
    Held {
        attempt: Box<Attempt>,
        inherited: Inherited,
    },
    Failed {
        why: Failure,
        held_back: Option<Stop>,
    },
    Interrupted {
        last: Interruption,
        inherited: Inherited,
        held_back: Option<Stop>,
    },
    /// Its attempt ended to wait for an answer.
    Suspended {
        held_back: Option<Stop>,
    },
    /// Its attempt ended because its agent's account has met a limit.
    Parked {
        held_back: Option<Stop>,
        idle: Idle,
    },
    Completed {
        commit: Option<Oid>,
        truth: Truth,
        at: Millis,
        fence: Fence,
        /// What it was completed in spite of.
        #[serde(with = "as_json")]
        waived: Option<Waived>,
    },
    /// Left out: needs on it are met, and nothing of it lands.
    Skipped {
        reason: String,
        at: Millis,
    },
}

/// What an attempt that did not come to an end leaves to the next one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inherited {
    /// The commit that only has to be landed.
    pub verified: Option<VerifiedCommit>,
    pub idle: Idle,
    /// The last attempt that was started died in the middle of its work, or was lost with its holder.
    died_mid_work: bool,
}

/// Interruptions in a row that brought nothing new.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Idle {
    pub times: u32,
    last: Option<Progress>,
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

/// A commit that passed its check, or has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedCommit {
    pub commit: Oid,
    pub tree: Oid,
    pub truth: Truth,
    pub landing: Option<LandingIntent>,
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
    /// Its agent's, once the agent has named it.
    pub conversation: Option<Conversation>,
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
    /// Why its last work is in no snapshot.
    pub unkept: Option<String>,
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
    /// The work was there before anything was started.
    Found,
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
    /// Its agent's account has met a limit.
    Limited {
        trouble: Trouble,
        until: Option<Millis>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSnapshot {
    #[serde(with = "as_json")]
    pub snapshot: Snapshot,
    pub at: Millis,
    pub fence: Fence,
}

impl Pack for Step {}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Pending { held_back: None, idle: Idle::default() }
    }
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

    /// Whether needs on it are met.
    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Completed { .. } | Phase::Skipped { .. })
    }

    /// The stop that its last attempt ended under, if nobody has asked for it to go on since.
    pub fn held_back(&self) -> Option<Stop> {
        match &self.phase {
            Phase::Pending { held_back, .. }
            | Phase::Failed { held_back, .. }
            | Phase::Interrupted { held_back, .. }
            | Phase::Parked { held_back, .. }
            | Phase::Suspended { held_back } => *held_back,
            Phase::Held { .. } | Phase::Completed { .. } | Phase::Skipped { .. } => None,
        }
    }

    /// Whether somebody asked for it to stop, and nobody since for it to go on: whoever has it is to
    /// end, and nobody gets it.
    pub fn is_stopped(&self) -> bool {
        let held = self.attempt().and_then(Attempt::unlifted_stop);
        held.or(self.held_back()).is_some()
    }

    /// How often it may still be attempted before it has failed for good.
    pub fn tries_left(&self, plan: &PlanStep) -> u32 {
        (plan.retries + 1).saturating_sub(self.failures)
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Held { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    fn inherited(&self) -> Option<&Inherited> {
        match &self.phase {
            Phase::Held { inherited, .. } | Phase::Interrupted { inherited, .. } => Some(inherited),
            _ => None,
        }
    }

    /// The commit that only has to be landed.
    pub fn verified(&self) -> Option<&VerifiedCommit> {
        self.inherited()?.verified.as_ref()
    }

    /// How many interruptions in a row brought nothing new.
    pub fn idle(&self) -> u32 {
        match &self.phase {
            Phase::Pending { idle, .. } | Phase::Parked { idle, .. } => idle.times,
            _ => self.inherited().map_or(0, |inherited| inherited.idle.times),
        }
    }

    /// How far the open attempt has come, as far as the log knows. Whether an agent has ended is not
    /// in the log: its exit record tells.
    pub fn stage(&self, attempt: &Attempt) -> Stage {
        match attempt.entry {
            _ if self.verified().is_some() => Stage::Land,
            Entry::Land => Stage::Land,
            Entry::Verify => Stage::Verify,
            Entry::Fresh | Entry::Continue if attempt.started_at.is_some() => Stage::Agent,
            Entry::Fresh | Entry::Continue => Stage::Unstarted,
        }
    }

    /// Whether verify has failed in the tree that the work goes on in.
    pub(crate) fn has_failed_verify(&self) -> bool {
        let of_this_tree =
            |past: &&PastAttempt| self.restarted_at.is_none_or(|at| past.attempt.fence >= at);
        let mut past = self.history.iter().filter(of_this_tree);
        past.any(|past| matches!(past.ending, Ending::Failed(Failure::Verify { .. })))
    }

    /// The snapshot of the tree that the work goes on in.
    pub fn resume_snapshot(&self) -> Option<&KeptSnapshot> {
        let of_this_tree =
            |kept: &&KeptSnapshot| self.restarted_at.is_none_or(|at| kept.fence >= at);
        self.snapshot.as_ref().filter(of_this_tree)
    }

    /// Whether the last attempt that was started died in the middle of its work, also one that is not
    /// recorded as such: whoever holds the step now may be lost.
    pub(crate) fn died_mid_work(&self) -> bool {
        match &self.phase {
            Phase::Held { attempt, .. } => self.dies_mid_work_at(self.stage(attempt)),
            _ => self.inherited().is_some_and(|inherited| inherited.died_mid_work),
        }
    }

    /// Whether an attempt that is lost at this stage dies in the middle of its work. One that never began
    /// leaves it as it was.
    fn dies_mid_work_at(&self, stage: Stage) -> bool {
        match stage {
            Stage::Unstarted => self.inherited().is_some_and(|inherited| inherited.died_mid_work),
            Stage::Agent => true,
            Stage::Verify | Stage::Land => false,
        }
    }

    /// Where a command or agent that piton starts again enters: as the plan or a person said about work
    /// that was broken off, else by what was done.
    pub(crate) fn work_entry(&self, plan: &PlanStep, enough: u8) -> Entry {
        let said = plan.on_interrupt.filter(|_| self.died_mid_work());
        match said {
            _ if self.outdated || self.base.is_none() => Entry::Fresh,
            _ if self.in_tree => Entry::Continue,
            Some(OnInterrupt::Continue) => Entry::Continue,
            Some(OnInterrupt::Restart) => Entry::Fresh,
            Some(OnInterrupt::Ask) if self.goes_on_as_told() => Entry::Continue,
            Some(OnInterrupt::Ask) | None => self.agent_entry(&plan.work, enough),
        }
    }

    /// The claim under which the work was last begun from the step's base; what is older is of another
    /// tree.
    pub fn restarted_at(&self) -> Option<Fence> {
        self.restarted_at
    }

    /// The last conversation of this agent about the tree that the work goes on in.
    pub fn conversation(&self, agent: &AgentName) -> Option<&Conversation> {
        let of_this_tree =
            |past: &&PastAttempt| self.restarted_at.is_none_or(|at| past.attempt.fence >= at);
        let past = self.history.iter().rev().filter(of_this_tree);
        past.filter_map(|past| past.attempt.conversation.as_ref()).find(|with| with.agent == *agent)
    }

    /// Where an agent that has to run again enters: in the tree when its conversation is about that, or
    /// enough was done there, else from the base. A plain command always starts from its base.
    pub(crate) fn agent_entry(&self, work: &Work, enough: u8) -> Entry {
        match work {
            _ if self.outdated || self.base.is_none() => Entry::Fresh,
            _ if self.in_tree => Entry::Continue,
            Work::Agent { agent, .. } if self.conversation(agent).is_some() => Entry::Continue,
            Work::Agent { .. } if self.has_done(enough) => Entry::Continue,
            _ => Entry::Fresh,
        }
    }

    /// By what the agent reported; where it reported nothing, by whether anything is there.
    fn has_done(&self, enough: u8) -> bool {
        match self.report.progress {
            Some(percent) => percent >= enough,
            None => self.changed > 0 || self.checklist.parts_done() > 0,
        }
    }

    /// Whether somebody worked in its tree, and nothing was verified since.
    pub(crate) fn goes_on_in_tree(&self) -> bool {
        self.in_tree
    }

    /// Whether nothing that happened counts against the next attempt: no failure, no interruption, no
    /// stop.
    pub(crate) fn is_unspent(&self) -> bool {
        self.failures == 0 && self.idle() == 0 && self.held_back().is_none()
    }

    /// Whether the next attempt begins from the base, nothing counts against it, and others have nothing of
    /// the step.
    pub(crate) fn is_at_base(&self) -> bool {
        self.is_unspent() && (self.base.is_none() || self.outdated) && self.outputs.is_empty()
    }

    /// Whether it was begun before, and begins again from its base.
    pub(crate) fn begins_again(&self) -> bool {
        self.outdated && self.base.is_some()
    }

    /// Whether an attempt has begun it, or something that happened to one counts against the next.
    pub(crate) fn was_attempted(&self) -> bool {
        self.base.is_some() || !self.is_unspent()
    }

    /// Whether it waits for a person to move what was in its way.
    pub fn is_obstructed(&self) -> bool {
        match &self.phase {
            Phase::Interrupted { last, inherited, .. } => {
                inherited.idle.times > 0 && last.cause == Cause::Obstacle
            }
            _ => false,
        }
    }

    /// The step in the next iteration of its loop. What was done of its checklist stays where that ends the
    /// loop.
    pub(super) fn next_iteration(&self, keeps_items: bool) -> Step {
        let mut checklist = Checklist::default();
        if keeps_items {
            let done = self.checklist.marks.iter().filter(|(_, mark)| **mark == Mark::Done);
            checklist.marks = done.map(|(item, mark)| (item.clone(), mark.clone())).collect();
            checklist.added.clone_from(&self.checklist.added);
        }
        Step { checklist, ..Step::default() }
    }

    /// The step under another recipe: pending, with its history; its checklist is another one.
    pub(super) fn replanned(&self) -> Step {
        let (phase, checklist) = (Phase::default(), Checklist::default());
        let mut step = Step { phase, failures: 0, changed: 0, checklist, ..self.clone() };
        step.outputs.clear();
        step.void_questions();
        step
    }

    /// Somebody asked for the run to go on. Whoever resumes has moved what was in the way, or is told of
    /// it again; `confirmed` answers yes where recovery would ask.
    pub(super) fn lift(&mut self, run_stop: Option<Stop>, confirmed: bool) {
        if confirmed || self.is_obstructed() {
            self.forgive();
        }
        match &mut self.phase {
            Phase::Held { attempt, .. } => attempt.lift(run_stop),
            Phase::Pending { held_back, .. }
            | Phase::Failed { held_back, .. }
            | Phase::Interrupted { held_back, .. }
            | Phase::Parked { held_back, .. }
            | Phase::Suspended { held_back } => *held_back = None,
            Phase::Completed { .. } | Phase::Skipped { .. } => {}
        }
    }

    /// Interruptions are counted from none again.
    fn forgive(&mut self) {
        match &mut self.phase {
            Phase::Pending { idle, .. } | Phase::Parked { idle, .. } => *idle = Idle::default(),
            Phase::Held { inherited, .. } | Phase::Interrupted { inherited, .. } => {
                inherited.idle = Idle::default();
            }
            Phase::Failed { .. }
            | Phase::Suspended { .. }
            | Phase::Completed { .. }
            | Phase::Skipped { .. } => {}
        }
    }

    /// `None` where the event does not fit.
    pub(super) fn apply(
        &mut self,
        event: &Event,
        record: &Record,
        run_stop: Option<Stop>,
    ) -> Option<()> {
        match event {
            Event::Found(found) => self.found(found, record),
            Event::Claimed(claimed) => self.claim(claimed, record),
            Event::Under(under, Fact::Asked { text, choices, about }) => {
                self.may_ask(under.fence, about.as_deref())?;
                self.questions.push(Question {
                    id: record.position.into(),
                    fence: under.fence,
                    text: text.clone(),
                    choices: choices.clone(),
                    about: about.clone(),
                    asked_at: record.at,
                    state: QuestionState::Open,
                });
                Some(())
            }
            Event::Under(under, fact) => {
                self.attempt().filter(|attempt| attempt.fence == under.fence)?;
                self.take_in(fact, record, run_stop)
            }
            Event::Answered { question, answer, .. } => self.answered(*question, answer, record.at),
            Event::Reset { .. } => self.reset(),
            Event::Retried { .. } => self.retry(),
            Event::Skipped { reason, .. } => self.skip(reason, record.at),
            Event::StopRequested { scope: Scope::Attempt(under), cause, haste } => {
                let attempt = self.own().filter(|attempt| attempt.fence == under.fence)?;
                attempt.stop = Some(Stop { cause: *cause, haste: *haste, at: record.at });
                attempt.lifted = false;
                Some(())
            }
            _ => None,
        }
    }

    /// What happened under the open claim.
    fn take_in(&mut self, fact: &Fact, record: &Record, run_stop: Option<Stop>) -> Option<()> {
        let at = record.at;
        match fact {
            Fact::Asked { .. } => None,
            Fact::Started { base, answers, pid } => self.started(base.as_ref(), answers, *pid, at),
            Fact::Checkpointed { snapshot, report } => {
                if let Some(report) = report {
                    self.report.take_in(report);
                }
                snapshot.as_ref().map_or(Some(()), |snapshot| self.checkpointed(snapshot, at))
            }
            Fact::SubstepCompleted { substep } => {
                self.checklist.completed.insert(substep.clone());
                Some(())
            }
            Fact::ItemAdded { text, priority } => {
                self.checklist.added.push(Gap { text: text.clone(), priority: *priority });
                Some(())
            }
            Fact::ItemsMarked { items, mark } => {
                let marked = items.iter().map(|item| (item.clone(), mark.clone()));
                self.checklist.marks.extend(marked);
                Some(())
            }
            Fact::CheckoutChanged(changes) => self.checkout_changed(changes),
            Fact::OutputSet { name, value } => {
                let (value, fence) = (value.clone(), self.attempt()?.fence);
                self.outputs.insert(name.clone(), Published { value, at, fence });
                Some(())
            }
            Fact::OutputAwaited { output, until } => {
                let before = self.awaited.take().filter(|awaited| awaited.output == *output);
                let since = before.map_or(at, |awaited| awaited.since);
                let (output, until) = (output.clone(), *until);
                self.awaited = Some(AwaitedOutput { output, since, until });
                Some(())
            }
            Fact::Unkept { why } => {
                self.own()?.trace.unkept = Some(why.clone());
                // Unknown counts as changed.
                self.changed = self.changed.max(1);
                Some(())
            }
            Fact::Conversed(with) => {
                self.own()?.conversation = Some(with.clone());
                Some(())
            }
            Fact::AnswersApplied { questions } => self.apply_answers(questions),
            Fact::Verified { .. } => self.was_verified(fact),
            Fact::LandingIntended(intent) => {
                let Phase::Held { inherited, .. } = &mut self.phase else { return None };
                inherited.verified.as_mut()?.landing = Some(intent.clone());
                Some(())
            }
            Fact::FoundDone { .. } => self.found_done(at),
            Fact::Completed { commit, waived } => self.completed(commit.as_ref(), waived, at),
            Fact::Failed { why } => self.failed(why, at, run_stop),
            Fact::Interrupted(last) => self.interrupted(last, at, run_stop),
            Fact::LimitLifted { .. } => self.own().map(drop),
            Fact::Limited(limited) => {
                let Limited { trouble, until, .. } = *limited;
                let (held_back, inherited) =
                    self.end(Ending::Limited { trouble, until }, at, run_stop)?;
                self.phase = Phase::Parked { held_back, idle: inherited.idle };
                Some(())
            }
            Fact::Suspended {} => {
                self.awaits(self.attempt()?.fence)?;
                let (held_back, _) = self.end(Ending::Suspended, at, run_stop)?;
                self.phase = Phase::Suspended { held_back };
                Some(())
            }
            Fact::Released { .. } => {
                let (held_back, inherited) = self.end(Ending::Released, at, run_stop)?;
                self.phase = Phase::Pending { held_back, idle: inherited.idle };
                self.checklist.reopen();
                self.void_questions();
                Some(())
            }
        }
    }

    /// What the plan's file says. When the run is opened, a step that was at work is taken up again, and one
    /// that had failed waits for somebody to retry it; later only what is done is found.
    fn found(&mut self, found: &Found, record: &Record) -> Option<()> {
        let is_first = *self == Step::default();
        if self.is_done() || self.attempt().is_some() || !(is_first || found.state.is_done()) {
            return None;
        }
        self.void_questions();
        self.checklist.completed.extend(found.substeps.iter().cloned());
        self.checklist.marks.extend(found.items.iter().map(|item| (item.clone(), Mark::Done)));
        self.notes.clone_from(&found.notes);
        if let Some(text) = found.question.as_ref().filter(|_| !found.state.is_done()) {
            self.questions.push(Question {
                id: record.position.into(),
                fence: record.position.into(),
                text: text.clone(),
                choices: Vec::new(),
                about: None,
                asked_at: record.at,
                state: QuestionState::Open,
            });
        }
        let (at, held_back) = (record.at, None);
        self.phase = match &found.state {
            FoundState::Pending => return Some(()),
            FoundState::InProgress => {
                let (cause, left_at) = (Cause::Unknown, Stage::Unstarted);
                let evidence = "the plan file says that it is in progress".to_owned();
                self.notes.push(
                    "The plan file says that it was in progress: part of it may be done."
                        .to_owned(),
                );
                let last = Interruption { cause, at, evidence, left_at };
                Phase::Interrupted { last, inherited: Inherited::default(), held_back }
            }
            FoundState::Completed { .. } => Phase::Completed {
                commit: None,
                truth: Truth::Claimed,
                at,
                fence: record.position.into(),
                waived: None,
            },
            FoundState::Failed { reason } => {
                self.failures = 1;
                Phase::Failed { why: Failure::Reported { reason: reason.clone() }, held_back }
            }
            FoundState::Skipped { reason } => Phase::Skipped { reason: reason.clone(), at },
        };
        Some(())
    }

    fn claim(&mut self, claimed: &Claimed, record: &Record) -> Option<()> {
        let mut inherited = match &mut self.phase {
            Phase::Completed { .. } | Phase::Skipped { .. } => return None,
            Phase::Held { .. } if claimed.grounds == Grounds::Free => return None,
            Phase::Held { .. } => {
                let died_mid_work = self.died_mid_work();
                let (_, inherited) = self.end(Ending::Displaced, record.at, None)?;
                Inherited { died_mid_work, ..inherited }
            }
            Phase::Interrupted { inherited, .. } => std::mem::take(inherited),
            Phase::Pending { idle, .. } | Phase::Parked { idle, .. } => {
                Inherited { idle: std::mem::take(idle), ..Inherited::default() }
            }
            Phase::Failed { .. } | Phase::Suspended { .. } => Inherited::default(),
        };
        if matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
            // The work goes on: what was verified before is not what this attempt will leave.
            inherited.verified = None;
        }
        self.checklist.reopen_unfinished_substeps();
        let attempt = Attempt {
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
            conversation: None,
            trace: Trace { pid: claimed.pid, ..Trace::default() },
        };
        self.phase = Phase::Held { attempt: Box::new(attempt), inherited };
        Some(())
    }

    fn started(
        &mut self,
        base: Option<&Oid>,
        answers: &[QuestionId],
        pid: Option<u32>,
        at: Millis,
    ) -> Option<()> {
        self.apply_answers(answers)?;
        let Phase::Held { attempt, inherited } = &mut self.phase else { return None };
        attempt.started_at = Some(at);
        attempt.trace.pid = pid.or(attempt.trace.pid);
        inherited.died_mid_work = false;
        inherited.verified = None;
        if attempt.entry == Entry::Fresh {
            // A keeper begins from the base; whoever works outside has a tree of their own.
            if matches!(attempt.holder, Holder::Keeper { .. }) {
                self.report.progress = None;
            }
            self.changed = 0;
            self.restarted_at = Some(attempt.fence);
            self.outdated = false;
            self.in_tree = false;
        }
        if let Some(base) = base {
            self.base = Some(base.clone());
        }
        Some(())
    }

    fn checkpointed(&mut self, snapshot: &Snapshot, at: Millis) -> Option<()> {
        let attempt = self.own()?;
        let fence = attempt.fence;
        if let Some(head) = &snapshot.head {
            attempt.trace.head = Some(head.clone());
            attempt.trace.commits = snapshot.commits;
        }
        attempt.trace.unkept = None;
        // What stood in the tree before a reset may be another step's: it is kept, found by its ref, and
        // nothing that this step would go on from.
        if snapshot.reason != SnapshotReason::Reset {
            self.changed = snapshot.changed;
            self.snapshot = Some(KeptSnapshot { snapshot: snapshot.clone(), at, fence });
        }
        Some(())
    }

    fn checkout_changed(&mut self, changes: &CheckoutChanges) -> Option<()> {
        let known = self.own()?.trace.checkout.get_or_insert_default();
        let room = CHECKOUT_FILES_MAX.saturating_sub(known.files.len());
        known.files.extend(changes.files.iter().take(room).cloned());
        known.more += changes.more + changes.files.len().saturating_sub(room) as u64;
        Some(())
    }

    fn answered(&mut self, question: QuestionId, answer: &str, at: Millis) -> Option<()> {
        let by_piton = self.answer(question, answer, at)?.is_some();
        if by_piton {
            // What was done does not fit onto the run's branch, or is not wanted.
            self.outdated |= answer == RESTART;
            // A person has looked at it.
            self.forgive();
        }
        Some(())
    }

    fn was_verified(&mut self, fact: &Fact) -> Option<()> {
        let Fact::Verified { commit, tree, truth, commits, answers, omitted, iteration, .. } = fact
        else {
            return None;
        };
        self.iteration.clone_from(iteration);
        self.apply_answers(answers)?;
        self.void_asked_by_piton();
        self.in_tree = false;
        let Phase::Held { attempt, inherited } = &mut self.phase else { return None };
        attempt.trace.head = Some(commit.clone());
        attempt.trace.commits = *commits;
        attempt.trace.omitted.clone_from(omitted);
        if *truth == Truth::Verified {
            attempt.trace.verified = Some(commit.clone());
        }
        let (commit, tree, truth) = (commit.clone(), tree.clone(), *truth);
        inherited.verified = Some(VerifiedCommit { commit, tree, truth, landing: None });
        Some(())
    }

    fn completed(
        &mut self,
        commit: Option<&Oid>,
        waived: &Option<Waived>,
        at: Millis,
    ) -> Option<()> {
        let verified = self.verified().map(|verified| (verified.commit.clone(), verified.truth));
        let attempt = self.own()?;
        let fence = attempt.fence;
        let truth = match commit {
            Some(_) => {
                let (given, truth) = verified?;
                // What it was given to be landed, wherever its worktree stands by now.
                attempt.trace.head = Some(given);
                truth
            }
            // Nobody but the holder has seen it done.
            None => Truth::Claimed,
        };
        self.end(Ending::Completed, at, None)?;
        self.void_questions();
        self.awaited = None;
        // What only the next attempt would have asked for is left to the log: runs that are mostly done
        // are kept small.
        if let Some(kept) = &mut self.snapshot {
            kept.snapshot.omitted.clear();
        }
        let (commit, waived) = (commit.cloned(), waived.clone());
        self.phase = Phase::Completed { commit, truth, at, fence, waived };
        Some(())
    }

    /// piton saw that it is done, and by whom is unknown.
    fn found_done(&mut self, at: Millis) -> Option<()> {
        let fence = self.attempt()?.fence;
        self.end(Ending::Found, at, None)?;
        self.void_questions();
        let (commit, truth, waived) = (None, Truth::Verified, None);
        self.phase = Phase::Completed { commit, truth, at, fence, waived };
        Some(())
    }

    fn failed(&mut self, why: &Failure, at: Millis, run_stop: Option<Stop>) -> Option<()> {
        let (held_back, _) = self.end(Ending::Failed(why.clone()), at, run_stop)?;
        self.failures += 1;
        self.outdated |= matches!(why, Failure::Landing { .. });
        self.phase = Phase::Failed { why: why.clone(), held_back };
        Some(())
    }

    fn interrupted(
        &mut self,
        last: &Interruption,
        at: Millis,
        run_stop: Option<Stop>,
    ) -> Option<()> {
        let idle = self.idle_after(last, run_stop);
        let died_mid_work = self.dies_mid_work_at(last.left_at);
        let ending = Ending::Interrupted { cause: last.cause, at: last.at };
        // It died before that was recorded.
        let ended_at = last.at.min(at).max(self.attempt()?.claimed_at);
        let (held_back, mut inherited) = self.end(ending, ended_at, run_stop)?;
        inherited.died_mid_work = died_mid_work;
        inherited.idle = idle;
        self.phase = Phase::Interrupted { last: last.clone(), inherited, held_back };
        Some(())
    }

    /// Somebody takes it up again, as if it had never failed.
    fn retry(&mut self) -> Option<()> {
        match self.phase {
            Phase::Held { .. } => return None,
            _ if self.is_done() || !self.was_attempted() => return None,
            _ => {}
        }
        self.lift(None, true);
        if let Phase::Interrupted { inherited, .. } = &mut self.phase {
            // A person has said how it goes on.
            inherited.died_mid_work = false;
        }
        self.failures = 0;
        self.outdated = false;
        self.in_tree = true;
        self.void_asked_by_piton();
        Some(())
    }

    fn skip(&mut self, reason: &str, at: Millis) -> Option<()> {
        if self.is_done() || self.attempt().is_some() {
            return None;
        }
        self.phase = Phase::Skipped { reason: reason.to_owned(), at };
        self.void_questions();
        Some(())
    }

    /// Pending again at its base, as if it had never failed; what was done of its checklist stays.
    fn reset(&mut self) -> Option<()> {
        match self.phase {
            Phase::Held { .. } => return None,
            Phase::Pending { .. } if self.is_at_base() => return None,
            _ => {}
        }
        self.phase = Phase::default();
        self.failures = 0;
        self.changed = 0;
        self.outdated = true;
        self.in_tree = false;
        self.checklist.reopen();
        self.outputs.clear();
        self.awaited = None;
        self.void_questions();
        Some(())
    }

    /// A holder asks; about its interruption or failure piton does, once it is over.
    fn may_ask(&mut self, fence: Fence, about: Option<&About>) -> Option<()> {
        let asker = match (about, &self.phase) {
            (Some(About::Conflict(_)) | None, _) => self.attempt()?,
            (
                Some(About::Interruption { .. } | About::NoProgress { .. }),
                Phase::Interrupted { .. },
            )
            | (Some(About::Account { .. }), Phase::Parked { .. })
            | (Some(About::Repetition { .. } | About::FailedAlike { .. }), Phase::Failed { .. }) => {
                &self.history.last()?.attempt
            }
            (Some(About::Loop { .. }), _) if self.is_done() => &self.history.last()?.attempt,
            (Some(_), _) => return None,
        };
        (asker.fence == fence).then_some(())
    }

    fn own(&mut self) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Held { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    /// Moves the open attempt into the history. Says which stop holds the step back from here on, and what
    /// the next attempt inherits.
    fn end(
        &mut self,
        ending: Ending,
        ended_at: Millis,
        run_stop: Option<Stop>,
    ) -> Option<(Option<Stop>, Inherited)> {
        let Phase::Held { mut attempt, inherited } = std::mem::take(&mut self.phase) else {
            return None;
        };
        let held_back = stronger(run_stop, attempt.unlifted_stop());
        // No longer needed for decisions; long histories are kept small.
        attempt.until.clock = None;
        if let Holder::Keeper { boot, .. } = &mut attempt.holder {
            boot.0.clear();
        }
        self.history.push(PastAttempt { attempt: *attempt, ended_at, ending });
        Some((held_back, inherited))
    }

    /// The interruptions in a row that brought nothing new, once the open attempt has ended so.
    pub(crate) fn idle_after(&self, last: &Interruption, run_stop: Option<Stop>) -> Idle {
        let before = self.inherited().map(|inherited| inherited.idle.clone());
        let asked = run_stop.is_some() || self.attempt().is_some_and(|held| held.stop.is_some());
        self.count_interruption(before.unwrap_or_default(), last, asked)
    }

    /// Being stopped on request, or killed before anything was started, says nothing about the step.
    /// Trouble on the way there does: it would come again and again. What is in the way would, however
    /// often it is tried: a person is asked at once.
    fn count_interruption(&self, before: Idle, last: &Interruption, asked: bool) -> Idle {
        let trouble = matches!(last.cause, Cause::Unknown | Cause::DiskFull | Cause::Obstacle);
        if asked || (last.left_at == Stage::Unstarted && !trouble) {
            return before;
        }
        if last.cause == Cause::Obstacle {
            return Idle { times: IDLE_INTERRUPTIONS_MAX, ..before };
        }
        let progress = Some(Progress {
            left_at: last.left_at,
            tree: self.snapshot.as_ref().map(|kept| kept.snapshot.tree.clone()),
            parts: self.checklist.parts_done(),
            reported: self.report.progress,
        });
        let times = if before.last == progress { before.times + 1 } else { 1 };
        Idle { times, last: progress }
    }
}
