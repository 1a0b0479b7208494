//! Questions and answers: who may ask what, which answer a text stands for, and that an answer is given once
//! and applied once. Who may claim a step that waits is decided elsewhere.

use super::complete::verified;
use super::limit::words;
use super::loops::settled;
use super::mend::{decide_skip, retryable};
use super::{Held, lease, nothing};
use crate::decided::Decided;
use crate::event::{
    About, Cause, Conflict, Event, Fact, Failure, Haste, Interruption, Scope, Under,
};
use crate::ids::{HostId, QuestionId, StepRef};
use crate::limits::{
    ALIKE_FAILURES_MAX, ANSWER_BYTES_MAX, CHOICE_CHARS_MAX, CHOICES_MAX, IDLE_INTERRUPTIONS_MAX,
    OPEN_QUESTIONS_MAX, QUESTION_BYTES_MAX,
};
use crate::plan::{OnFailure, PlanStep, Work};
use crate::question::{
    CONTINUE, GO_ON, LAND_AGAIN, Question, QuestionState, RESTART, SKIP, STOP, TRY_AGAIN,
    WhichQuestion,
};
use crate::refusal::Refusal;
use crate::run::{Phase, Rest, Run, Step, asks_first};
use crate::time::{Millis, Moment, timestamp};

/// How much of a question about a conflict is for the names of files, in characters: it is read at a glance,
/// and `about` has more of them.
const CONFLICT_CHARS_MAX: usize = 100;

/// Asking the same again while it is open, or while nobody was told its answer, asks nothing new.
pub(super) fn decide_ask(
    held: &Held<'_>,
    text: &str,
    choices: &[String],
) -> Result<Decided, Refusal> {
    let text = text.trim();
    askable(text, choices)?;
    if held.state.asked_already(text, choices).is_some() {
        return Ok(nothing());
    }
    let open = held.state.questions.iter().filter(|question| question.is_open());
    if open.count() >= OPEN_QUESTIONS_MAX {
        return Err(Refusal::BadQuestion { why: "the step has too many open questions" });
    }
    let (text, choices) = (text.to_owned(), choices.to_vec());
    Ok(held.fact(Fact::Asked { text, choices, about: None }))
}

/// The commit cannot be landed: a person is asked. What a keeper had waits for the answer; who works
/// outside may bring both sides together without.
pub(super) fn decide_conflict(
    held: &Held<'_>,
    conflict: &Conflict,
    now: &Moment,
) -> Result<Decided, Refusal> {
    verified(held)?;
    let about = Box::new(About::Conflict(conflict.clone()));
    let same = |asked: &Question| asked.is_open() && asked.about.as_ref() == Some(&about);
    if held.state.questions.iter().any(same) {
        return Ok(nothing());
    }
    let asked = Fact::Asked {
        text: conflict_text(&held.under.step, conflict),
        choices: [LAND_AGAIN, RESTART, STOP].map(str::to_owned).to_vec(),
        about: Some(about),
    };
    if !held.is_kept() {
        return Ok(held.fact(asked));
    }
    let events = [asked, Fact::Suspended {}].map(|fact| Event::Under(held.under.clone(), fact));
    Ok(Decided::new(events.to_vec()).with_lease(lease(held.under, now)))
}

/// The question about an attempt that died in the middle of its work.
pub(super) fn about_interruption(
    step: &StepRef,
    (plan, state): (&PlanStep, &Step),
    (cause, at): (Cause, Millis),
) -> Fact {
    let kept = state.resume_snapshot().map(|kept| kept.snapshot.refname.clone());
    let changed = state.changed;
    Fact::Asked {
        text: interruption_text((step, &plan.work), (cause, at), changed, kept.as_deref()),
        choices: [CONTINUE, RESTART, STOP].map(str::to_owned).to_vec(),
        about: Some(Box::new(About::Interruption { cause, changed, kept })),
    }
}

/// The question about a step that is interrupted again and again. What is in the way is no question: a person
/// moves it.
pub(super) fn about_no_progress(held: &Held<'_>, last: &Interruption) -> Option<Fact> {
    let (step, cause) = (&held.under.step, last.cause);
    let times = held.state.idle_after(last, held.run.stop).times;
    if times < IDLE_INTERRUPTIONS_MAX || cause == Cause::Obstacle {
        return None;
    }
    let text = format!(
        "{step} was interrupted {times} times in a row without new progress ({cause}): is it tried again?\n\
         {TRY_AGAIN}: it goes on, and is asked about again after {IDLE_INTERRUPTIONS_MAX} more\n\
         {SKIP}: steps that need it go on without it, and nothing of it lands\n\
         {STOP}: nothing more is begun; resuming the run tries it again"
    );
    let choices = [TRY_AGAIN, SKIP, STOP].map(str::to_owned).to_vec();
    Some(Fact::Asked { text, choices, about: Some(Box::new(About::NoProgress { times, cause })) })
}

/// The question about a failure that would perhaps repeat itself: in the same step, or in one step after the
/// other. About the run it is asked once.
pub(super) fn about_failure(held: &Held<'_>, why: &Failure) -> Option<Fact> {
    let (run, step) = (held.run, &held.under.step);
    let rest = held.state.rest_after(held.plan, why)?;
    let steps = run.alike_with(step, why);
    let goes_on = run.plan().on_failure == OnFailure::Continue;
    let is_row = goes_on && steps.len() >= ALIKE_FAILURES_MAX;
    let (text, choices, about) = match rest {
        _ if is_row && run.question_about_run().is_none() => {
            let names: Vec<String> = steps.iter().map(ToString::to_string).collect();
            let text = format!(
                "{} failed in the same way ({why}): does the run go on?\n\
                 {TRY_AGAIN}: these steps go on in their trees, with all their retries\n\
                 {GO_ON}: they stay failed; steps that do not need them are started\n\
                 {STOP}: nothing more is begun before the run is resumed",
                names.join(", ")
            );
            let about = About::FailedAlike { steps, why: why.clone() };
            (text, [TRY_AGAIN, GO_ON, STOP], about)
        }
        Rest::Repeats => {
            let left = held.state.tries_left(held.plan) - 1;
            let text = format!(
                "{step} failed twice in the same way ({why}): is it tried again?\n\
                 {TRY_AGAIN}: it may fail {left} more times\n\
                 {SKIP}: steps that need it go on without it, and nothing of it lands\n\
                 {STOP}: nothing more is begun; resuming the run tries it again"
            );
            (text, [TRY_AGAIN, SKIP, STOP], About::Repetition { why: why.clone() })
        }
        Rest::RetriesUsed => return None,
    };
    let choices = choices.map(str::to_owned).to_vec();
    Some(Fact::Asked { text, choices, about: Some(Box::new(about)) })
}

/// The answers that come with a yes to everything: what only asks whether it is tried again is.
pub(super) fn tried_again(run: &Run, host: &HostId) -> Vec<Event> {
    let open = run.questions().filter(|(_, asked)| asked.is_open() && asked.is_about_progress());
    let answered = |(step, asked): (StepRef, &Question)| Event::Answered {
        step,
        question: asked.id,
        answer: TRY_AGAIN.to_owned(),
        host: host.clone(),
    };
    open.map(answered).collect()
}

/// The questions to ask again when a run goes on that was stopped instead of an answer.
pub(super) fn asked_again(run: &Run) -> Vec<Event> {
    let ask = |(step, plan, state): (StepRef, &PlanStep, &Step)| {
        let Phase::Interrupted { last, .. } = &state.phase else { return None };
        let open = state.questions.iter().any(|asked| asked.is_open() && asked.about.is_some());
        let due = asks_first(plan, state) && !open;
        let fence = state.history.last().filter(|_| due)?.attempt.fence;
        let asked = about_interruption(&step, (plan, state), (last.cause, last.at));
        Some(Event::Under(Under { step, fence }, asked))
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
        (0, _) => "No changed file was found in its worktree".to_owned(),
        (_, None) => "What is in its worktree is in no snapshot yet".to_owned(),
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
pub(super) fn decide_answer(
    run: &Run,
    which: &WhichQuestion,
    answer: &str,
    host: &HostId,
) -> Result<Decided, Refusal> {
    let (step, question) = asked(run, which)?;
    let answer = understood(question, answer)?;
    match (&question.state, question.answer()) {
        (QuestionState::Void, _) => Err(Refusal::QuestionVoid { question: question.id }),
        (_, Some(given)) if given == answer => Ok(nothing()),
        (_, Some(given)) => {
            let (question, answer) = (question.id, given.to_owned());
            Err(Refusal::AnsweredOtherwise { question, answer })
        }
        (_, None) => {
            let follows = following(run, (&step, question), &answer, host)?;
            let is_about_loop = question.is_about_loop();
            let (question, host) = (question.id, host.clone());
            let of = step.clone();
            let decided = follows.after(Event::Answered { step, question, answer, host });
            // The loop may have been all that was left.
            Ok(if is_about_loop { settled(run, &of, decided) } else { decided })
        }
    }
}

/// What an answer to a question of piton's own brings about at once.
fn following(
    run: &Run,
    (step, question): (&StepRef, &Question),
    answer: &str,
    host: &HostId,
) -> Result<Decided, Refusal> {
    match (question.about.as_deref(), answer) {
        (Some(_), STOP) if run.stop.is_none() => {
            let (cause, haste) = (Cause::UserInterrupt, Haste::Graceful);
            let stop = Event::StopRequested { scope: Scope::Run, cause, haste };
            Ok(Decided::new(vec![stop]))
        }
        (Some(About::FailedAlike { steps, .. }), TRY_AGAIN) => {
            let again = steps.iter().filter(|step| retryable(run, step).is_ok());
            let retried =
                again.map(|step| Event::Retried { step: step.clone(), host: host.clone() });
            Ok(Decided::new(retried.collect()))
        }
        (Some(About::NoProgress { times, cause }), SKIP) => {
            let why = format!("interrupted {times} times without new progress ({cause})");
            decide_skip(run, step, &why, host)
        }
        (Some(About::Account { account, trouble, .. }), SKIP) => {
            decide_skip(run, step, &format!("account {account}: {}", words(*trouble)), host)
        }
        (Some(About::Repetition { why }), SKIP) => {
            decide_skip(run, step, &format!("{why}, twice in the same way"), host)
        }
        _ => Ok(nothing()),
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
    let unknown = || Refusal::UnknownStep(step.clone());
    let (_, state) = run.step(step).ok_or_else(unknown)?;
    let open: Vec<&Question> = state.questions.iter().filter(|q| q.is_open()).collect();
    match open.as_slice() {
        [question] => Ok((step.clone(), question)),
        [] => match state.questions.iter().rev().find(|question| question.answer().is_some()) {
            Some(question) => Ok((step.clone(), question)),
            None => Err(Refusal::NothingAsked { step: step.clone() }),
        },
        several => {
            let questions = several.iter().map(|question| question.id).collect();
            Err(Refusal::SeveralQuestions { step: step.clone(), questions })
        }
    }
}

/// A holder was told these answers. Being told again is harmless.
pub(super) fn decide_apply(held: &Held<'_>, told: &[QuestionId]) -> Decided {
    let questions = held.state.unread_of(told);
    if questions.is_empty() {
        return nothing();
    }
    held.fact(Fact::AnswersApplied { questions })
}

/// The answer that a text stands for: a choice by its text or its number, else the text itquestion.
fn understood(question: &Question, text: &str) -> Result<String, Refusal> {
    let text = text.trim();
    if question.choices.is_empty() {
        return match text.len() {
            0 => Err(Refusal::BadAnswer { why: "an answer has a text" }),
            1..=ANSWER_BYTES_MAX => Ok(text.to_owned()),
            _ => Err(Refusal::BadAnswer { why: "the answer is too long" }),
        };
    }
    let by_text = question.choices.iter().find(|choice| *choice == text);
    let number = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    match by_text.or_else(|| question.choices.get(number?)) {
        Some(choice) => Ok(choice.clone()),
        None => {
            let choices = question.choices.clone();
            Err(Refusal::NotAChoice { question: question.id, choices })
        }
    }
}
