//! Limits: until when an account that has met one is left alone, when it is known to be over, and when a person
//! is asked. Who waits for it is decided by whoever may claim.

use std::time::Duration;

use super::{Held, clipped, nothing};
use crate::decided::Decided;
use crate::dialect::Trouble;
use crate::event::{About, Fact, Limited};
use crate::exit::Heard;
use crate::limits::{
    LIMIT_BACKOFF, LIMIT_BACKOFF_MAX, LIMIT_JITTER_MAX, LIMIT_MARGIN_MAX, LIMIT_WAIT_MAX,
};
use crate::plan::OnLimit;
use crate::question::{SKIP, STOP, TRY_AGAIN, WAIT};
use crate::time::{Millis, Moment, timestamp};

/// The limit that an attempt ends with. One that does not pass by itself has no instant.
pub(super) fn limited(held: &Held<'_>, heard: &Heard, now: &Moment) -> Limited {
    let (trouble, text) = heard.trouble().unwrap_or((Trouble::Limit, ""));
    let before = held.run.limits().at(&heard.account);
    let times = before.map_or(0, |before| before.times_after(held.under.fence));
    let until = match trouble {
        Trouble::Spend | Trouble::SignIn => None,
        Trouble::Limit | Trouble::Busy => {
            Some(until(heard.resets_at, times, heard.jitter, now.wall))
        }
    };
    let mut agents = heard.agents.clone();
    agents.extend(held.plan.work.agent().cloned());
    Limited { account: heard.account.clone(), agents, trouble, until, text: clipped(text) }
}

/// An instant that was named, with a margin; else longer and longer waits. Both are spread by chance. An
/// instant in the past is none: the limit is said to be over, and is not.
fn until(resets_at: Option<Millis>, times: u32, jitter: u16, now: Millis) -> Millis {
    let spread = |over: Duration| over * u32::from(jitter.min(1000)) / 1000;
    let named = resets_at.filter(|at| *at > now).map(|at| at.since(now).min(LIMIT_WAIT_MAX));
    let wait = match named {
        Some(wait) => {
            let margin = (wait / 10).min(LIMIT_MARGIN_MAX);
            wait + margin + spread((wait / 5).min(LIMIT_JITTER_MAX))
        }
        None => {
            let wait = LIMIT_BACKOFF.saturating_mul(2_u32.saturating_pow(times));
            wait.min(LIMIT_BACKOFF_MAX) + spread(LIMIT_JITTER_MAX)
        }
    };
    now.after(wait)
}

/// The question about a limit, where a person is to be asked.
pub(super) fn about_limit(held: &Held<'_>, limited: &Limited) -> Option<Fact> {
    let Limited { account, agents, trouble, until, text } = limited;
    let about = Box::new(About::Account {
        account: account.clone(),
        agents: agents.clone(),
        trouble: *trouble,
        until: *until,
    });
    // Others on the account have asked already.
    let mut names = agents.iter();
    if names.any(|agent| held.run.question_about_account_of(agent).is_some()) {
        return None;
    }
    let (step, what) = (&held.under.step, words(*trouble));
    let first = text.lines().next().unwrap_or_default();
    let (question, choices) = match (until, held.plan.on_limit) {
        (Some(_), OnLimit::Wait | OnLimit::Stop) => return None,
        (Some(until), OnLimit::Ask) => {
            let at = timestamp(*until);
            let question = format!(
                "{step}: account {account} {what} ({first}): is it waited for?\n\
                 {WAIT}: it is tried again at {at}\n\
                 {TRY_AGAIN}: it is tried again now\n"
            );
            (question, vec![WAIT, TRY_AGAIN, SKIP, STOP])
        }
        (None, _) => {
            let question = format!(
                "{step}: account {account} {what} ({first}): is it tried again?\n\
                 {TRY_AGAIN}: once you have seen to that, this step goes on first\n"
            );
            (question, vec![TRY_AGAIN, SKIP, STOP])
        }
    };
    let text = format!(
        "{question}{SKIP}: steps that need it go on without it, and nothing of it lands\n\
         {STOP}: nothing more is begun before the run is resumed"
    );
    let choices = choices.into_iter().map(str::to_owned).collect();
    Some(Fact::Asked { text, choices, about: Some(about) })
}

/// What is wrong with an account.
pub(super) fn words(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Limit => "has met its usage limit",
        Trouble::Spend => "has no credit left",
        Trouble::SignIn => "is not signed in",
        Trouble::Busy => "is not answered",
    }
}

/// Only an attempt that was started because the limit should be over shows that it is.
pub(super) fn decide_lift(held: &Held<'_>) -> Decided {
    let agent = held.plan.work.agent();
    let limit = agent.and_then(|agent| held.run.limits().of(agent));
    match limit {
        Some((account, limit)) if limit.is_probed_by(agent, held.under.fence) => {
            held.fact(Fact::LimitLifted { account: account.clone() })
        }
        _ => nothing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits in seconds: what the agent says from now on, the times before, the chance, what is waited.
    #[test]
    fn nothing_is_tried_early_and_no_wait_is_for_ever() {
        let now = Millis(1_794_819_600_000);
        let table = [
            (Some(3600), 0, 0, 3610.0),
            (Some(3600), 0, 1000, 3630.0),
            (Some(3600), 7, 500, 3620.0),
            (Some(10), 0, 0, 11.0),
            (Some(10), 0, 1000, 13.0),
            (Some(90 * 86_400), 0, 0, 32.0 * 86_400.0 + 10.0),
            (Some(0), 0, 0, 120.0),
            (Some(-60), 1, 0, 240.0),
            (None, 0, 0, 120.0),
            (None, 0, 1000, 140.0),
            (None, 2, 0, 480.0),
            (None, 5, 0, 3600.0),
            (None, 400, 0, 3600.0),
        ];
        for (says, times, jitter, expected) in table {
            let resets_at = says.map(|seconds: i64| Millis(now.0 + seconds * 1000));
            let waits = until(resets_at, times, jitter, now).since(now).as_secs_f64();
            assert!((waits - expected).abs() < 0.001, "{says:?} {times} {jitter}: {waits}");
        }
    }
}
