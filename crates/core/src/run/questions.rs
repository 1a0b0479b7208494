//! What a step's attempts asked, and what became of it, as the fold keeps it.

use super::Step;
use crate::event::About;
use crate::ids::{Fence, QuestionId};
use crate::question::{CONTINUE, Question, QuestionState, STOP};
use crate::time::Millis;

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
            // What was answered is done with the answer.
            Some(
                About::NoProgress { .. }
                | About::Repetition { .. }
                | About::FailedAlike { .. }
                | About::Loop { .. }
                | About::Account { .. },
            ) => QuestionState::Applied { answer, at, by },
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

    /// The open attempt was told these answers; none where one was applied before, or never
    /// given.
    pub(crate) fn apply_answers(&mut self, told: &[QuestionId]) -> Option<()> {
        let by = self.attempt()?.fence;
        if self.unread_of(told).len() != told.len() {
            return None;
        }
        for question in self.questions.iter_mut().filter(|question| told.contains(&question.id)) {
            if let QuestionState::Answered { answer, at } = &question.state {
                question.state = QuestionState::Applied { answer: answer.clone(), at: *at, by };
            }
        }
        Some(())
    }

    /// Those of these answers that no attempt had been told before.
    pub(crate) fn unread_of(&self, told: &[QuestionId]) -> Vec<QuestionId> {
        let unread = self.unread_answers().map(|question| question.id);
        unread.filter(|question| told.contains(question)).collect()
    }
}
