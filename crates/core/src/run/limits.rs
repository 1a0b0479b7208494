//! Accounts that have met a limit, as the fold keeps them: until when nothing is started on one, and which
//! attempt has shown since that it is over. The store's wall clock judges that; nothing here has a clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Run;
use crate::event::{About, Event, Fact, Limited};
use crate::ids::{AccountName, AgentName, Fence, StepRef};
use crate::question::{Question, WAIT};
use crate::record::Record;
use crate::time::Millis;

/// By account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits(BTreeMap<AccountName, Limit>);

/// What is known of an account's limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    agents: BTreeSet<AgentName>,
    /// From then on an attempt may show whether it is over.
    pub until: Millis,
    /// How often in a row an attempt that was to show it has met it again.
    pub(crate) times: u32,
    /// Claims after this one were made because it should be over.
    since: Fence,
}

impl Limits {
    /// The limit that holds for an agent.
    pub fn of(&self, agent: &AgentName) -> Option<(&AccountName, &Limit)> {
        self.0.iter().find(|(_, limit)| limit.agents.contains(agent))
    }

    pub(crate) fn at(&self, account: &AccountName) -> Option<&Limit> {
        self.0.get(account)
    }

    /// Takes in what happened to a step.
    pub(super) fn take_in(&mut self, event: &Event, record: &Record) {
        match event {
            Event::Under(under, Fact::Limited(limited)) => {
                let Limited { account, agents, until, .. } = limited;
                let before = self.0.get(account);
                let times = before.map_or(0, |before| before.times_after(under.fence));
                // Others that had begun earlier may know an earlier instant.
                let known = before.filter(|before| under.fence < before.since);
                let until = until.unwrap_or(record.at);
                let until = known.map_or(until, |known| until.max(known.until));
                let (agents, since) = (agents.clone(), record.position.into());
                self.0.insert(account.clone(), Limit { agents, until, times, since });
            }
            Event::Under(_, Fact::LimitLifted { account }) => drop(self.0.remove(account)),
            _ => {}
        }
    }

    /// A person wants to know now whether it is over.
    pub(super) fn try_now(&mut self, account: &AccountName, now: Millis) {
        if let Some(limit) = self.0.get_mut(account) {
            limit.until = limit.until.min(now);
        }
    }
}

impl Limit {
    /// Whether an attempt of this agent shows if it is over.
    pub(crate) fn is_probed_by(&self, agent: Option<&AgentName>, fence: Fence) -> bool {
        fence > self.since && agent.is_some_and(|agent| self.agents.contains(agent))
    }

    /// How often in a row it was met, once this attempt has met it again.
    pub(crate) fn times_after(&self, fence: Fence) -> u32 {
        self.times + u32::from(fence > self.since)
    }
}

impl Run {
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.0.is_empty() || !self.sets.asks_about_account.is_clear()
    }

    /// The account that a person wants to be tried now: by an answer, or by retrying a step that waits for it.
    pub(super) fn account_tried_by(&self, index: usize, event: &Event) -> Option<AccountName> {
        match event {
            Event::Answered { question, answer, .. } if answer != WAIT => {
                let mut asked = self.steps[index].questions.iter();
                let asked = asked.find(|asked| asked.id == *question)?;
                match asked.about.as_deref() {
                    Some(About::Account { account, .. }) => Some(account.clone()),
                    _ => None,
                }
            }
            Event::Retried { .. } => {
                let agent = self.plan().steps[index].work.agent()?;
                self.limits.of(agent).map(|(account, _)| account.clone())
            }
            _ => None,
        }
    }

    /// The open question before whose answer nothing is started on this agent's account.
    pub fn question_about_account_of(&self, agent: &AgentName) -> Option<(StepRef, &Question)> {
        self.sets.asks_about_account.ones().find_map(|index| {
            let open = self.steps[index].questions.iter().filter(|question| question.is_open());
            let asked = open.into_iter().find(|question| question.is_about_account_of(agent))?;
            Some((self.ref_at(index), asked))
        })
    }
}
