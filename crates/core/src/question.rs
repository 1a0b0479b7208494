//! Questions: what an attempt asks a person, and what becomes of it. A question is known by the
//! position of its record, is answered once, and its answer is applied once: by the start of the
//! attempt whose brief carried it, or by the holder who read it. Who may claim a step that waits is
//! decided elsewhere.

use serde::{Deserialize, Serialize};

use crate::claim::{asks_first, lease_key};
use crate::decide::{Refusal, nothing, one, own};
use crate::decided::{Decided, Lease};
use crate::event::{About, Cause, Conflict, Event, Haste, Holder, Scope};
use crate::ids::{Fence, HostId, QuestionId, StepRef};
use crate::limits::{
    ANSWER_BYTES_MAX, CHOICE_CHARS_MAX, CHOICES_MAX, OPEN_QUESTIONS_MAX, QUESTION_BYTES_MAX,
};
use crate::plan::{PlanStep, Work};
use crate::run::{Phase, Run, Step};
use crate::time::{Millis, Moment};
use crate::view::timestamp;

/// A question of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub id: QuestionId,
    /// The attempt that asked.
    pub fence: Fence,
    pub text: String,
    /// The only answers there are; without any, every text is one.
    pub choices: Vec<String>,
    /// What piton itself asks about.
    pub about: Option<Box<About>>,
    pub asked_at: Millis,
    pub state: QuestionState,
}

/// The answers to a question about a conflict: the commit is landed again, once both sides were brought
/// together; the step is done again from the run's branch; the run stops.
pub const LAND_AGAIN: &str = "land again";
/// How much of a question about a conflict is for the names of files, in characters: it is read at a glance,
/// and `about` has more of them.
const CONFLICT_CHARS_MAX: usize = 100;

/// The answers to a question about an interruption: the step goes on in the tree as it was left; it is
/// done again from its base; the run stops.
pub const CONTINUE: &str = "continue";
pub const RESTART: &str = "restart";
pub const STOP: &str = "stop";

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// The step waits.
    Open,
    /// Answered; no attempt has been told yet.
    Answered { answer: String, at: Millis },
    /// The attempt of this fence was told.
    Applied { answer: String, at: Millis, by: Fence },
    /// Nobody waits for the answer any more.
    Void,
}

/// Which question is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhichQuestion {
    Id(QuestionId),
    /// The only open one of this step, or else the last that was answered.
    Of(StepRef),
}

impl Question {
    pub fn is_open(&self) -> bool {
        self.state == QuestionState::Open
    }

    /// Answered, and no attempt has been told.
    pub fn is_unread(&self) -> bool {
        matches!(self.state, QuestionState::Answered { .. })
    }

    /// Whether a person said that the step is to be done again, instead of landing its commit.
    pub(crate) fn is_to_restart(&self) -> bool {
        self.is_about_landing() && self.answer() == Some(RESTART)
    }

    fn is_about_landing(&self) -> bool {
        matches!(self.about.as_deref(), Some(About::Conflict(_)))
    }

    pub fn answer(&self) -> Option<&str> {
        match &self.state {
            QuestionState::Answered { answer, .. } | QuestionState::Applied { answer, .. } => {
                Some(answer)
            }
            QuestionState::Open | QuestionState::Void => None,
        }
    }

    /// The answer that a text stands for: a choice by its text or its number, else the text itself.
    fn understood(&self, text: &str) -> Result<String, Refusal> {
        let text = text.trim();
        if self.choices.is_empty() {
            return match text.len() {
                0 => Err(Refusal::BadAnswer { why: "an answer has a text" }),
                1..=ANSWER_BYTES_MAX => Ok(text.to_owned()),
                _ => Err(Refusal::BadAnswer { why: "the answer is too long" }),
            };
        }
        let by_text = self.choices.iter().find(|choice| *choice == text);
        let number = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match by_text.or_else(|| self.choices.get(number?)) {
            Some(choice) => Ok(choice.clone()),
            None => {
                let (question, choices) = (self.id, self.choices.clone());
                Err(Refusal::NotAChoice { question, choices })
            }
        }
    }
}

impl Step {
    /// The question that the step waits for.
    pub fn open_question(&self) -> Option<&Question> {
        self.questions.iter().find(|question| question.is_open())
    }

    /// Answers that no attempt has been told.
    pub fn unread_answers(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.is_unread())
    }

    /// What an attempt asked and has not been told: it cannot be done before.
    pub fn awaits(&self, fence: Fence) -> Option<&Question> {
        let own = self.questions.iter().filter(|question| question.fence == fence);
        own.into_iter().find(|question| question.is_open() || question.is_unread())
    }

    /// A question with these words that was not settled: asking it again is asking for its answer.
    pub fn asked_already(&self, text: &str, choices: &[String]) -> Option<&Question> {
        let same = |question: &&Question| question.text == text && question.choices == choices;
        let mut unsettled = self.questions.iter().filter(|q| q.is_open() || q.is_unread());
        unsettled.find(same)
    }

    /// Nobody waits for an answer any more; what was answered stays.
    pub(crate) fn void_questions(&mut self) {
        for question in self.questions.iter_mut().filter(|question| question.is_open()) {
            question.state = QuestionState::Void;
        }
    }

    /// Takes in an answer and tells what it is about; none where no such question is open.
    pub(crate) fn answer(
        &mut self,
        id: QuestionId,
        answer: &str,
        at: Millis,
    ) -> Option<Option<&About>> {
        let mut open = self.questions.iter_mut().filter(|question| question.is_open());
        let question = open.find(|question| question.id == id)?;
        let (answer, by) = (answer.to_owned(), question.fence);
        question.state = match question.about.as_deref() {
            // The run is stopped with it, and nobody else is told: whoever resumes is asked again.
            Some(About::Interruption { .. }) if answer == STOP => {
                QuestionState::Applied { answer, at, by }
            }
            _ => QuestionState::Answered { answer, at },
        };
        Some(question.about.as_deref())
    }

    /// Answers to what piton itself asked, that no attempt has followed yet.
    pub(crate) fn directions(&self) -> impl Iterator<Item = &Question> {
        self.unread_answers().filter(|question| question.about.is_some())
    }

    /// Answers that are for the agent, and that it was not told.
    pub(crate) fn untold(&self) -> impl Iterator<Item = &Question> {
        self.unread_answers().filter(|question| question.about.is_none())
    }

    /// Whether a person said that the commit which could not be landed shall be landed all the same.
    pub(crate) fn lands_again(&self) -> bool {
        self.directions().any(|asked| asked.is_about_landing() && !asked.is_to_restart())
    }

    /// Whether a person said that what was cut off shall go on where it was.
    pub(crate) fn goes_on_as_told(&self) -> bool {
        self.directions().any(|question| question.answer() == Some(CONTINUE))
    }

    /// What piton had asked of a holder who went on without the answer.
    pub(crate) fn void_asked_by_piton(&mut self) {
        let open = self.questions.iter_mut().filter(|question| question.is_open());
        for question in open.filter(|question| question.about.is_some()) {
            question.state = QuestionState::Void;
        }
    }

    /// The attempt of this fence was told these answers; none where one was applied before, or never
    /// given.
    pub(crate) fn apply_answers(&mut self, told: &[QuestionId], by: Fence) -> Option<()> {
        if unread_of(self, told).len() != told.len() {
            return None;
        }
        for question in self.questions.iter_mut().filter(|question| told.contains(&question.id)) {
            if let QuestionState::Answered { answer, at } = &question.state {
                question.state = QuestionState::Applied { answer: answer.clone(), at: *at, by };
            }
        }
        Some(())
    }
}

/// Asking the same again while it is open, or while nobody was told its answer, asks nothing new.
pub(crate) fn decide_ask(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    text: &str,
    choices: &[String],
) -> Result<Decided, Refusal> {
    let (state, _) = own(run, step, fence)?;
    let text = text.trim();
    askable(text, choices)?;
    if state.asked_already(text, choices).is_some() {
        return Ok(nothing());
    }
    if state.questions.iter().filter(|question| question.is_open()).count() >= OPEN_QUESTIONS_MAX {
        return Err(Refusal::BadQuestion { why: "the step has too many open questions" });
    }
    let (step, text, choices) = (step.clone(), text.to_owned(), choices.to_vec());
    Ok(one(Event::Asked { step, fence, text, choices, about: None }))
}

/// The commit cannot be landed: a person is asked. What a keeper had waits for the answer; who works
/// outside may bring both sides together without.
pub(crate) fn decide_conflict(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    conflict: &Conflict,
    now: &Moment,
) -> Result<Decided, Refusal> {
    let (state, attempt) = own(run, step, fence)?;
    if state.verified.is_none() {
        return Err(Refusal::NotVerified { step: step.step.clone() });
    }
    let about = Box::new(About::Conflict(conflict.clone()));
    let same = |asked: &Question| asked.is_open() && asked.about.as_ref() == Some(&about);
    if state.questions.iter().any(same) {
        return Ok(nothing());
    }
    let asked = Event::Asked {
        step: step.clone(),
        fence,
        text: conflict_text(step, conflict),
        choices: [LAND_AGAIN, RESTART, STOP].map(str::to_owned).to_vec(),
        about: Some(about),
    };
    Ok(match attempt.holder {
        Holder::Keeper { .. } => {
            let suspended = Event::Suspended { step: step.clone(), fence };
            let over = Lease { key: lease_key(step), fence, until: now.clone() };
            Decided::new(vec![asked, suspended]).with_lease(over)
        }
        Holder::External { .. } => one(asked),
    })
}

/// The question about an attempt that was cut off at work.
pub(crate) fn about_interruption(
    (plan, state): (&PlanStep, &Step),
    (step, fence): (&StepRef, Fence),
    (cause, at): (Cause, Millis),
) -> Event {
    let kept = state.to_go_on_from().map(|kept| kept.snapshot.refname.clone());
    let changed = state.changed;
    Event::Asked {
        step: step.clone(),
        fence,
        text: interruption_text((step, &plan.work), (cause, at), changed, kept.as_deref()),
        choices: [CONTINUE, RESTART, STOP].map(str::to_owned).to_vec(),
        about: Some(Box::new(About::Interruption { cause, changed, kept })),
    }
}

/// The questions to ask again when a run goes on that was stopped instead of an answer.
pub(crate) fn asked_again(run: &Run) -> Vec<Event> {
    let ask = |(plan, state): (&PlanStep, &Step)| {
        let Phase::Interrupted(last) = &state.phase else { return None };
        let open = state.questions.iter().any(|asked| asked.is_open() && asked.about.is_some());
        let due = asks_first(plan, state) && !open;
        let past = state.history.last().filter(|_| due)?;
        let (step, fence) = (StepRef::first(plan.id.clone()), past.attempt.fence);
        Some(about_interruption((plan, state), (&step, fence), (last.cause, last.at)))
    };
    run.interrupted().filter_map(ask).collect()
}

/// The first line alone says what is asked.
fn interruption_text(
    (step, work): (&StepRef, &Work),
    (cause, at): (Cause, Millis),
    changed: u64,
    kept: Option<&str>,
) -> String {
    let [at_work, going_on, again] = match work {
        Work::Agent { .. } => ["agent worked", "the agent goes on", "the agent begins again"],
        Work::Run(_) | Work::ByHand | Work::Told(_) => {
            ["command ran", "the command is run again", "the command is run again"]
        }
    };
    let there = match (changed, kept) {
        (0, _) | (_, None) => "No changed file was found in its worktree".to_owned(),
        (1, Some(kept)) => format!("1 changed file is kept as {kept}"),
        (count, Some(kept)) => format!("{count} changed files are kept as {kept}"),
    };
    let at = timestamp(at);
    format!(
        "{step} was interrupted ({cause}) at {at} while its {at_work}: how does it go on?\n\
         {there}; what it did elsewhere stays done.\n\
         {CONTINUE}: {going_on} in the tree as it was left\n\
         {RESTART}: {again} from the step's base; what is in the tree is kept first\n\
         {STOP}: nothing more is begun, and resuming asks again"
    )
}

/// Like [`interruption_text`]: what it is about in the first line, then what each answer does.
fn conflict_text(step: &StepRef, conflict: &Conflict) -> String {
    let Conflict { branch, onto, commit, kept, paths, count, worktree } = conflict;
    let mut length = 0;
    let fits = |path: &&String| {
        length += path.chars().count();
        length <= CONFLICT_CHARS_MAX
    };
    let shown = paths.iter().take_while(fits).count().max(1).min(paths.len());
    let more = match usize::try_from(*count).unwrap_or(usize::MAX).saturating_sub(shown) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let place = match worktree {
        Some(worktree) => format!("in {worktree}"),
        None => "on the step's branch".to_owned(),
    };
    format!(
        "{step} conflicts with {branch} ({}) in {}{more}\n\
         its commit {} is kept as {kept}\n\
         {LAND_AGAIN}: after `git merge {branch}` {place}, solved and committed\n\
         {RESTART}: the step is done again from {branch}\n\
         {STOP}: nothing more is begun, and resuming tries to land it once more",
        onto.short(),
        paths[..shown].join(", "),
        commit.short(),
    )
}

fn askable(text: &str, choices: &[String]) -> Result<(), Refusal> {
    let alike = |n: usize| choices[..n].contains(&choices[n]);
    let why = if text.is_empty() {
        "a question has a text"
    } else if text.len() > QUESTION_BYTES_MAX {
        "the question is too long"
    } else if choices.len() > CHOICES_MAX {
        "the question has too many choices"
    } else if choices.iter().any(|choice| choice.trim() != choice || choice.is_empty()) {
        "a choice has a text, without space around it"
    } else if choices.iter().any(|choice| choice.chars().count() > CHOICE_CHARS_MAX) {
        "a choice is too long"
    } else if (0..choices.len()).any(alike) {
        "two choices are the same"
    } else {
        return Ok(());
    };
    Err(Refusal::BadQuestion { why })
}

/// The first answer stands: the same again is harmless, another one is refused.
pub(crate) fn decide_answer(
    run: &Run,
    which: &WhichQuestion,
    answer: &str,
    host: &HostId,
) -> Result<Decided, Refusal> {
    let (step, question) = asked(run, which)?;
    let answer = question.understood(answer)?;
    match (&question.state, question.answer()) {
        (QuestionState::Void, _) => Err(Refusal::QuestionVoid { question: question.id }),
        (_, Some(given)) if given == answer => Ok(nothing()),
        (_, Some(given)) => {
            let (question, answer) = (question.id, given.to_owned());
            Err(Refusal::AnsweredOtherwise { question, answer })
        }
        (_, None) => {
            let stops = question.about.is_some() && answer == STOP && run.stop.is_none();
            let (question, host) = (question.id, host.clone());
            let answered = Event::Answered { step, question, answer, host };
            let (cause, haste) = (Cause::UserInterrupt, Haste::Graceful);
            let stop = Event::StopRequested { scope: Scope::Run, cause, haste };
            let stop = stops.then_some(stop);
            Ok(Decided::new([Some(answered), stop].into_iter().flatten().collect()))
        }
    }
}

/// The question that is meant.
pub fn asked<'run>(
    run: &'run Run,
    which: &WhichQuestion,
) -> Result<(StepRef, &'run Question), Refusal> {
    let step = match which {
        WhichQuestion::Id(id) => {
            let mut all = run.questions();
            let found = all.find(|(_, question)| question.id == *id);
            return found.ok_or(Refusal::UnknownQuestion { question: *id });
        }
        WhichQuestion::Of(step) => step,
    };
    let unknown = || Refusal::UnknownStep(step.step.clone());
    let state = run.state_of(step).ok_or_else(unknown)?;
    let open: Vec<&Question> = state.questions.iter().filter(|q| q.is_open()).collect();
    match open.as_slice() {
        [question] => Ok((step.clone(), question)),
        [] => match state.questions.iter().rev().find(|question| question.answer().is_some()) {
            Some(question) => Ok((step.clone(), question)),
            None => Err(Refusal::NothingAsked { step: step.step.clone() }),
        },
        several => {
            let questions = several.iter().map(|question| question.id).collect();
            Err(Refusal::SeveralQuestions { step: step.step.clone(), questions })
        }
    }
}

/// A holder was told these answers. Being told again is harmless.
pub(crate) fn decide_apply(
    run: &Run,
    (step, fence): (&StepRef, Fence),
    told: &[QuestionId],
) -> Result<Decided, Refusal> {
    let (state, _) = own(run, step, fence)?;
    let questions = unread_of(state, told);
    if questions.is_empty() {
        return Ok(nothing());
    }
    Ok(one(Event::AnswersApplied { step: step.clone(), fence, questions }))
}

/// Those of these answers that no attempt had been told before.
pub(crate) fn unread_of(state: &Step, told: &[QuestionId]) -> Vec<QuestionId> {
    let unread = state.unread_answers().map(|question| question.id);
    unread.filter(|question| told.contains(question)).collect()
}
