//! A child of an attempt while it runs: whether it is to stop, and how firmly it is asked. Time is passed in.

use std::time::Duration;

use crate::event::Haste;
use crate::exit::StopRequest;
use crate::run::Stop;

/// Watches one child: an agent, a setup or a verify command.
#[derive(Debug, Clone)]
pub struct Watch {
    /// How long the child may take.
    timeout: Option<Duration>,
    /// How long it may take to stop before it is killed.
    grace: Duration,
    asked: Option<Asked>,
}

/// The first request to stop is the one that the child ends for.
#[derive(Debug, Clone)]
struct Asked {
    request: StopRequest,
    at: Duration,
    last: Option<Urge>,
}

/// From asking a child to stop to killing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urge {
    Ask,
    AskAgain,
    Kill,
}

impl Watch {
    pub fn new(timeout: Option<Duration>, grace: Duration) -> Watch {
        Watch { timeout, grace, asked: None }
    }

    /// What is done to the child now, `elapsed` after its start: it is asked once, again after half the
    /// grace, and killed at its end, or at once where that is wanted.
    pub fn look(&mut self, elapsed: Duration, stop: Option<Stop>) -> Option<Urge> {
        let time_up = self.timeout.filter(|limit| elapsed > *limit);
        let request = match (stop, time_up) {
            (Some(stop), _) => StopRequest::Stop(stop.cause),
            (None, Some(limit)) => {
                let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                StopRequest::TimeUp { ms }
            }
            (None, None) => StopRequest::Nothing,
        };
        if self.asked.is_none() && request != StopRequest::Nothing {
            self.asked = Some(Asked { request, at: elapsed, last: None });
        }
        let asked = self.asked.as_mut()?;
        let waited = elapsed.saturating_sub(asked.at);
        let is_hasty = stop.is_some_and(|stop| stop.haste == Haste::Now);
        let urge = if is_hasty || waited >= self.grace {
            Urge::Kill
        } else if waited >= self.grace / 2 {
            Urge::AskAgain
        } else {
            Urge::Ask
        };
        if asked.last >= Some(urge) {
            return None;
        }
        asked.last = Some(urge);
        asked.last
    }

    /// What the child was asked to stop for.
    pub fn request(&self) -> StopRequest {
        self.asked.as_ref().map_or(StopRequest::Nothing, |asked| asked.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Cause;
    use crate::time::Millis;

    /// Looks once a second at a child that does not stop: `graceful` and `now` are the seconds from which
    /// on that is requested.
    fn watch(timeout: Option<u64>, graceful: Option<u64>, now: Option<u64>) -> String {
        let mut watch = Watch::new(timeout.map(Duration::from_secs), Duration::from_secs(10));
        let (cause, at) = (Cause::UserInterrupt, Millis(0));
        let mut seen = String::new();
        for second in 0..60 {
            let from = |start: Option<u64>| start.is_some_and(|start| start <= second);
            let haste = match (from(graceful), from(now)) {
                (_, true) => Some(Haste::Now),
                (true, false) => Some(Haste::Graceful),
                (false, false) => None,
            };
            let stop = haste.map(|haste| Stop { cause, haste, at });
            if let Some(urge) = watch.look(Duration::from_secs(second), stop) {
                seen += &format!("{second} {urge:?}, ");
            }
        }
        format!("{seen}{:?}", watch.request())
    }

    #[test]
    fn a_child_is_asked_twice_then_killed() {
        let check = |of: (Option<u64>, Option<u64>, Option<u64>), expected: &str| {
            assert_eq!(watch(of.0, of.1, of.2), expected, "{of:?}");
        };
        check((None, None, None), "Nothing");
        check((None, Some(3), None), "3 Ask, 8 AskAgain, 13 Kill, Stop(UserInterrupt)");
        check((None, Some(3), Some(5)), "3 Ask, 5 Kill, Stop(UserInterrupt)");
        check((None, None, Some(5)), "5 Kill, Stop(UserInterrupt)");
        check((Some(20), None, None), "21 Ask, 26 AskAgain, 31 Kill, TimeUp { ms: 20000 }");
        check((Some(20), Some(23), None), "21 Ask, 26 AskAgain, 31 Kill, TimeUp { ms: 20000 }");
        check((Some(20), Some(18), None), "18 Ask, 23 AskAgain, 28 Kill, Stop(UserInterrupt)");
    }
}
