//! What somebody asks of a run: imperative, complete, and refused or granted as a whole.

use std::sync::Arc;

use crate::claim::Claim;
use crate::event::{
    Cause, Check, Conflict, Failure, Haste, Mark, MergeIntent, Omission, Priority, Report, Scope,
    Snapshot, Stage, Truth,
};
use crate::ids::{Fence, HostId, ItemRef, Oid, QuestionId, StepRef, SubstepId, TreeNo};
use crate::observed::Corpse;
use crate::plan::Plan;
use crate::question::WhichQuestion;
use crate::time::{Millis, Moment};

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Claim(Claim),
    Start {
        step: StepRef,
        fence: Fence,
        base: Option<Oid>,
        /// What whoever starts has been told.
        answers: Vec<QuestionId>,
        /// The keeper's process.
        pid: Option<u32>,
    },
    /// Moves a lease that the store has no row of any more.
    Renew {
        step: StepRef,
        fence: Fence,
        until: Moment,
        /// Where the holder works, if that is where keepers do.
        place: Option<TreeNo>,
    },
    Checkpoint {
        step: StepRef,
        fence: Fence,
        snapshot: Option<Snapshot>,
        report: Option<Box<Report>>,
    },
    CompleteSubstep {
        step: StepRef,
        fence: Fence,
        substep: SubstepId,
    },
    AddItem {
        step: StepRef,
        fence: Fence,
        text: String,
        priority: Priority,
    },
    MarkItems {
        step: StepRef,
        fence: Fence,
        items: Vec<ItemRef>,
        mark: Mark,
    },
    Verify {
        step: StepRef,
        fence: Fence,
        commit: Oid,
        tree: Oid,
        truth: Truth,
        check: Option<Check>,
        commits: u64,
        omitted: Vec<Omission>,
    },
    Land {
        step: StepRef,
        fence: Fence,
        onto: Oid,
        to: Oid,
    },
    Complete {
        step: StepRef,
        fence: Fence,
        /// What it landed with; a holder outside may complete without.
        commit: Option<Oid>,
        /// Why what is still open does not matter.
        waive: Option<String>,
    },
    /// Asks a person.
    Ask {
        step: StepRef,
        fence: Fence,
        text: String,
        choices: Vec<String>,
    },
    /// Asks a person what becomes of a commit that cannot be landed.
    RaiseConflict {
        step: StepRef,
        fence: Fence,
        conflict: Conflict,
    },
    Answer {
        question: WhichQuestion,
        answer: String,
        host: HostId,
    },
    /// Says that files of the user's checkout changed meanwhile.
    TellCheckout {
        step: StepRef,
        fence: Fence,
        files: Vec<String>,
        more: u64,
    },
    /// Says that a holder at work has been told these answers.
    ApplyAnswers {
        step: StepRef,
        fence: Fence,
        questions: Vec<QuestionId>,
    },
    /// Ends an attempt that has to wait for an answer.
    Suspend {
        step: StepRef,
        fence: Fence,
    },
    /// Gives a claim back; without a fence by force.
    Release {
        step: StepRef,
        fence: Option<Fence>,
    },
    /// Makes a step that had ended pending again. A completed one only with a reason.
    Reset {
        step: StepRef,
        reason: Option<String>,
    },
    Fail {
        step: StepRef,
        fence: Fence,
        why: Failure,
    },
    Interrupt {
        step: StepRef,
        fence: Fence,
        cause: Cause,
        at: Millis,
        evidence: String,
        left_at: Stage,
    },
    /// Ends an attempt whose holder was seen dead on its own host.
    Bury {
        step: StepRef,
        fence: Fence,
        corpse: Corpse,
    },
    /// Ends an attempt whose lease is over, where a person is asked before another begins.
    Expire {
        step: StepRef,
        fence: Fence,
    },
    Stop {
        scope: Scope,
        cause: Cause,
        haste: Haste,
    },
    Resume {
        host: HostId,
        confirmed: bool,
    },
    /// Gives the run up. Nobody may hold anything of it.
    Abandon {
        host: HostId,
        keep_until: Option<Millis>,
    },
    /// Goes on with a run that was given up, if no other run of its plan is there.
    Reopen {
        host: HostId,
    },
    /// Says that what was landed is about to be brought into another branch.
    IntendMerge(MergeIntent),
    /// Says that what was landed by `tip` is in another branch.
    Merge {
        into: String,
        commit: Oid,
        tip: Oid,
    },
    /// Goes on with a plan that was changed under the run.
    AcceptPlan {
        plan: Arc<Plan>,
    },
}
