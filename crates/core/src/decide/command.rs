//! What somebody asks of a run: imperative, complete, and refused or granted as a whole.

use std::sync::Arc;

use crate::claim::Claim;
use crate::event::Check;
use crate::event::{
    Cause, CheckoutChanges, Conflict, Conversation, Failure, Haste, Interruption, IterationCheck,
    LandingIntent, Mark, MergeIntent, Omission, Priority, Report, Scope, Snapshot, Terms, Under,
};
use crate::exit::Heard;
use crate::ids::{HostId, ItemRef, Oid, OutputName, QuestionId, StepRef, SubstepId, TreeNo};
use crate::observed::Corpse;
use crate::output::OutputRef;
use crate::plan::Plan;
use crate::question::WhichQuestion;
use crate::time::{Millis, Moment};

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Claim(Claim),
    /// Refused unless the claim is the step's present one.
    Under(Under, Request),
    Answer {
        question: WhichQuestion,
        answer: String,
        host: HostId,
    },
    /// Takes a claim away from its holder.
    ForceRelease {
        step: StepRef,
    },
    /// Makes a step that had ended pending again. A completed one only with a reason.
    Reset {
        step: StepRef,
        reason: Option<String>,
    },
    /// Takes steps up again that had failed, were interrupted or were stopped, in their trees.
    Retry {
        steps: Vec<StepRef>,
        host: HostId,
    },
    /// Takes a step as completed because the plan's file says so. Nobody has checked it.
    Find {
        step: StepRef,
    },
    /// Leaves a step out: needs on it are met.
    Skip {
        step: StepRef,
        reason: String,
        host: HostId,
    },
    Stop {
        scope: Scope,
        cause: Cause,
        haste: Haste,
    },
    Resume {
        host: HostId,
        confirmed: bool,
        terms: Terms,
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

/// What is asked for under a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Start {
        base: Option<Oid>,
        /// What whoever starts has been told.
        answers: Vec<QuestionId>,
        /// The keeper's process.
        pid: Option<u32>,
    },
    /// Moves a lease that the store has no row of any more.
    Renew {
        until: Moment,
        /// Where the holder works, if that is where keepers do.
        place: Option<TreeNo>,
    },
    Checkpoint {
        snapshot: Option<Snapshot>,
        report: Option<Box<Report>>,
    },
    CompleteSubstep {
        substep: SubstepId,
    },
    AddItem {
        text: String,
        priority: Priority,
    },
    MarkItems {
        items: Vec<ItemRef>,
        mark: Mark,
    },
    /// Publishes data for other steps.
    SetOutput {
        name: OutputName,
        /// JSON.
        json: String,
    },
    /// Says that the holder waits for an output.
    AwaitOutput {
        output: OutputRef,
        until: Option<Millis>,
    },
    /// Says that files of the user's checkout changed meanwhile.
    ReportCheckout(CheckoutChanges),
    /// Says that no snapshot could be kept, and why.
    ReportUnkept {
        why: String,
    },
    /// Says which conversation its agent is in.
    Converse(Conversation),
    Verify {
        commit: Oid,
        tree: Oid,
        check: Option<Check>,
        commits: u64,
        omitted: Vec<Omission>,
        /// Of the last step of a loop.
        iteration: Option<Box<IterationCheck>>,
    },
    /// Says that the work is there already, and nothing was started.
    FindDone {
        check: Option<Check>,
    },
    /// Completes a planner, or finds it done, and goes on with the plan that it produced.
    WithPlan {
        end: Box<Request>,
        plan: Arc<Plan>,
    },
    Land(LandingIntent),
    Complete {
        /// What it landed with; a holder outside may complete without.
        commit: Option<Oid>,
        /// Why what is still open does not matter.
        waive: Option<String>,
    },
    /// Asks a person.
    RaiseQuestion {
        text: String,
        choices: Vec<String>,
    },
    /// Asks a person what becomes of a commit that cannot be landed.
    RaiseConflict(Conflict),
    /// Says that a holder at work has been told these answers.
    ApplyAnswers {
        questions: Vec<QuestionId>,
    },
    /// Says that its agent's model has answered.
    ReportAnswer,
    /// Ends an attempt whose agent's account has met a limit.
    Park(Box<Heard>),
    /// Ends an attempt that has to wait for an answer.
    Suspend,
    /// Gives the claim back.
    Release,
    Fail {
        why: Failure,
    },
    Interrupt(Interruption),
    /// Ends an attempt whose holder was seen dead on its own host.
    Bury(Corpse),
    /// Ends an attempt whose lease is over, where a person is asked before another begins.
    Expire,
}
