//! A typed no, in the words that a person reads. What to type next is said by whoever knows the remedy.

use crate::ids::{
    AccountName, Fence, ItemRef, LockName, Oid, OutputName, QuestionId, StepRef, SubstepId,
};
use crate::output::{Bound, OutputRef};
use crate::plan::Need;
use crate::time::{Millis, Moment, timestamp};

/// A typed no: nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the plan has no step {0}")]
    UnknownStep(StepRef),
    #[error("step {step} is no longer yours: its fence is {current}, yours was {given}")]
    StaleFence { step: StepRef, given: Fence, current: Fence },
    #[error("step {step} is not claimed, and fence {given} is over")]
    NotClaimed { step: StepRef, given: Fence },
    #[error("step {step} is no longer yours: your claim (fence {given}) has ended")]
    ClaimOver { step: StepRef, given: Fence },
    #[error("step {0} is completed")]
    Completed(StepRef),
    #[error("step {0} was skipped")]
    Skipped(StepRef),
    #[error("step {0} has not been attempted: there is nothing to retry")]
    NotAttempted(StepRef),
    #[error("step {step} is held by a live attempt (fence {fence})")]
    HeldAlive { step: StepRef, fence: Fence },
    #[error("step {step} is held by a dead attempt (fence {fence}) that has to be recovered first")]
    HeldDead { step: StepRef, fence: Fence },
    #[error("step {step} is held elsewhere; its lease is not over")]
    HeldElsewhere { step: StepRef, fence: Fence, until: Moment },
    #[error("step {step} was lost at work, and a person is asked before it goes on")]
    AskFirst { step: StepRef, fence: Fence },
    #[error("step {step} waits for {}", shown(needs))]
    NeedsUnmet { step: StepRef, needs: Vec<Need> },
    #[error("the worktree is in use by step {by}")]
    TreeBusy { by: StepRef },
    #[error("as many steps are attempted as may be at once ({jobs})")]
    JobsBusy { jobs: u32 },
    #[error("step {step} waits until the limit of account {account} is over ({})", timestamp(*until))]
    Limited { step: StepRef, account: AccountName, until: Millis, probe: Option<StepRef> },
    #[error("step {0} was stopped on request")]
    StepStopped(StepRef),
    #[error("step {0} failed and has no retries left")]
    RetriesUsed(StepRef),
    #[error("the run has ended: step {0} failed")]
    RunFailed(StepRef),
    #[error("the run is stopped")]
    RunStopped,
    #[error("the run is completed")]
    RunCompleted,
    #[error("the run was abandoned")]
    RunAbandoned,
    #[error("the run is neither completed nor abandoned")]
    RunNotOver,
    #[error("step {0} is not among the steps that the run was resumed with")]
    NotChosen(StepRef),
    #[error("step {step} cannot go on by itself: {why}")]
    Obstructed { step: StepRef, why: String },
    #[error("step {step} is not verified")]
    NotVerified { step: StepRef },
    #[error("step {step} has not been started")]
    NotStarted { step: StepRef },
    #[error("the agent of step {step} has ended: there is nothing to start")]
    NothingToStart { step: StepRef },
    #[error("step {step} was not landed with commit {commit}")]
    NotLanded { step: StepRef, commit: Oid },
    #[error("step {step} was completed {}, not with {}", with_what(with), commit.short())]
    CompletedOtherwise { step: StepRef, commit: Oid, with: Option<Oid> },
    #[error("step {step} has open items: {}", shown(items))]
    OpenItems { step: StepRef, items: Vec<ItemRef> },
    #[error("step {step} has open substeps: {}", shown(substeps))]
    OpenSubsteps { step: StepRef, substeps: Vec<SubstepId> },
    #[error("step {step} has not published its outputs: {}", shown(outputs))]
    OpenOutputs { step: StepRef, outputs: Vec<OutputName> },
    #[error("output {output} of step {step} is {value}, and must be {bound}")]
    OutputShort { step: StepRef, output: OutputName, value: String, bound: Bound },
    #[error("the output cannot be published: {why}")]
    BadOutput { why: String },
    #[error("step {step} is done and has no output {name}")]
    NoOutput { step: StepRef, name: OutputName },
    #[error(
        "step {step} would wait for itself: no other step is at work that could publish {output}"
    )]
    WaitsForItself { step: StepRef, output: OutputRef },
    #[error("step {step} has no item {item}")]
    UnknownItem { step: StepRef, item: ItemRef },
    #[error("step {step} has no substep {substep}")]
    UnknownSubstep { step: StepRef, substep: SubstepId },
    #[error("lock {lock} has no free slot; it is held by {}", shown(by))]
    LockBusy { lock: LockName, by: Vec<StepRef> },
    #[error("no step can be claimed now")]
    NothingReady,
    #[error("step {0} is not claimed: it is pending")]
    Pending(StepRef),
    #[error("step {step} is not claimed: {how}")]
    NothingHeld { step: StepRef, how: &'static str },
    #[error("step {0} is completed: that cannot be released")]
    CannotRelease(StepRef),
    #[error("step {0} is run by piton: what runs inside of it cannot give it back")]
    RunByPiton(StepRef),
    #[error("step {0} is completed: resetting it needs a reason")]
    ResetNeedsReason(StepRef),
    #[error("step {0} is claimed; release it first")]
    StillHeld(StepRef),
    #[error(
        "the changed plan changes or removes steps that are claimed or completed: {}",
        shown(steps)
    )]
    PlanInUse { steps: Vec<StepRef> },
    #[error("the changed plan has another {what}, which was recorded when the run was opened")]
    PlanFixed { what: &'static str },
    #[error("step {step} waits for the answer to {question}: {}", first_line(text))]
    QuestionOpen { step: StepRef, question: QuestionId, text: String },
    #[error("step {step} has asked {question} and has no answer yet")]
    Unanswered { step: StepRef, question: QuestionId },
    #[error("the answer to {question} was not read at step {step}")]
    AnswerUnread { step: StepRef, question: QuestionId },
    #[error("step {step} has asked nothing that is open")]
    NothingAsked { step: StepRef },
    #[error("there is no question {question}")]
    UnknownQuestion { question: QuestionId },
    #[error("step {step} has several open questions: {}", shown(questions))]
    SeveralQuestions { step: StepRef, questions: Vec<QuestionId> },
    #[error("{question} was answered already: {answer}")]
    AnsweredOtherwise { question: QuestionId, answer: String },
    #[error("{question} is void: its answer is not needed any more")]
    QuestionVoid { question: QuestionId },
    #[error("{question} has these answers: {}", choices.join(", "))]
    NotAChoice { question: QuestionId, choices: Vec<String> },
    #[error("{why}")]
    BadQuestion { why: &'static str },
    #[error("{why}")]
    BadAnswer { why: &'static str },
}

impl Refusal {
    /// Whether the claim that was written under is not, or no longer, the writer's.
    pub fn is_lost(&self) -> bool {
        matches!(
            self,
            Refusal::StaleFence { .. }
                | Refusal::ClaimOver { .. }
                | Refusal::NotClaimed { .. }
                | Refusal::Completed(_)
                | Refusal::Skipped(_)
        )
    }
}

fn with_what(commit: &Option<Oid>) -> String {
    match commit {
        Some(commit) => format!("with commit {}", commit.short()),
        None => "without a commit".to_owned(),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn shown<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
