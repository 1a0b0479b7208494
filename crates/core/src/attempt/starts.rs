//! The starts of an agent within one attempt: it is started again where its conversation is not there, or where
//! its server was busy, and not for ever.

use std::time::Duration;

use crate::agent::{Dialect, Rung};
use crate::dialect::Trouble;
use crate::exit::{AgentExit, Heard, StopRequest};
use crate::limits::{BUSY_PAUSE, BUSY_STARTS_MAX};

/// Counts them.
#[derive(Debug, Clone, Default)]
pub struct Starts {
    busy: u32,
}

/// What follows the exit of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It has ended.
    Over,
    /// The conversation that it was to go on with is not there: the next rung.
    Below(Rung),
    /// Its server was busy: it goes on with its conversation after this pause.
    After(Duration),
}

impl Starts {
    /// What comes next, once an agent that took up its work at this rung has exited.
    pub fn next(&mut self, rung: Rung, ended: AgentExit, heard: &Heard) -> Then {
        let said = &heard.said;
        if rung != Rung::Start && said.has_no_conversation && said.session.is_none() {
            return Then::Below(rung.below());
        }
        let is_busy = heard.dialect != Dialect::Plain
            && matches!(heard.trouble(), Some((Trouble::Busy, _)))
            && matches!(ended.stop, StopRequest::Nothing | StopRequest::TurnOver);
        if !is_busy || self.busy == BUSY_STARTS_MAX {
            return Then::Over;
        }
        self.busy += 1;
        Then::After(BUSY_PAUSE * 4_u32.pow(self.busy - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dialect::{Said, Turn};
    use crate::event::{Cause, Exit};
    use crate::ids::AccountName;

    fn heard(dialect: Dialect, said: Said) -> Heard {
        let account = AccountName::new("fake").expect("valid");
        Heard { dialect, said, account, agents: BTreeSet::new(), resets_at: None, jitter: 0 }
    }

    fn failed(trouble: Option<Trouble>) -> Said {
        Said { turn: Some(Turn::Failed { trouble, message: String::new() }), ..Said::default() }
    }

    const EXITED: AgentExit = AgentExit { exit: Exit::Code(1), stop: StopRequest::Nothing };

    #[test]
    fn a_busy_server_is_tried_again_and_not_for_ever() {
        let (mut starts, busy) = (Starts::default(), failed(Some(Trouble::Busy)));
        let mut next =
            |dialect, ended| starts.next(Rung::Start, ended, &heard(dialect, busy.clone()));
        let stopped = AgentExit { stop: StopRequest::Stop(Cause::UserInterrupt), ..EXITED };
        assert_eq!(next(Dialect::Claude, stopped), Then::Over);
        assert_eq!(next(Dialect::Plain, EXITED), Then::Over, "text says anything");
        let pauses = [1, 4, 16, 64, 256].map(|s| Then::After(Duration::from_secs(s)));
        assert_eq!(pauses.map(|_| next(Dialect::Claude, EXITED)), pauses);
        assert_eq!(next(Dialect::Claude, EXITED), Then::Over);
    }

    #[test]
    fn other_troubles_end_it() {
        for trouble in [None, Some(Trouble::Limit), Some(Trouble::Spend), Some(Trouble::SignIn)] {
            let heard = heard(Dialect::Codex, failed(trouble));
            assert_eq!(Starts::default().next(Rung::Resume, EXITED, &heard), Then::Over);
        }
    }

    #[test]
    fn a_lost_conversation_leads_a_rung_down() {
        let lost = Said { has_no_conversation: true, ..Said::default() };
        let named = Said { session: Some("a".to_owned()), ..lost.clone() };
        let next = |rung, said: &Said| {
            Starts::default().next(rung, EXITED, &heard(Dialect::Claude, said.clone()))
        };
        assert_eq!(next(Rung::Resume, &lost), Then::Below(Rung::Fork));
        assert_eq!(next(Rung::Fork, &lost), Then::Below(Rung::Start));
        assert_eq!(next(Rung::Start, &lost), Then::Over);
        assert_eq!(next(Rung::Resume, &named), Then::Over, "it has one after all");
    }
}
