//! Waiting for the world to get somewhere: the only place of the tests that sleeps. A wait ends as
//! soon as its condition holds, and a deadline that passes is a failed test which says what was
//! waited for and what was seen last.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime};

use piton_core::time::{Millis, timestamp};

/// Generous: a busy machine must not fail a test, and a passing test never waits that long.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The time as piton tells it, to be compared with the times of leases and events.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = since.expect("a clock after 1970").as_millis();
    timestamp(Millis(i64::try_from(ms).expect("a time of this age")))
}

/// Waits until `condition` holds.
///
/// # Panics
/// When `deadline` passes first, saying `what` was waited for.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(deadline, what, || condition().then_some(()).ok_or("not yet"));
}

/// Waits until `look` returns a value; until then it returns what it sees instead.
///
/// # Panics
/// When `deadline` passes first, saying `what` was waited for and what was seen last.
#[track_caller]
pub fn wait_for<T, Seen: Debug>(
    deadline: Duration,
    what: &str,
    look: impl FnMut() -> Result<T, Seen>,
) -> T {
    match poll(deadline, look) {
        Ok(value) => value,
        Err(seen) => panic!("waited {deadline:?} for {what}; last seen: {seen:#?}"),
    }
}

/// The same without the panic. It looks once more after the deadline, so that a process that was
/// itself stopped for a while does not fail for it.
pub(crate) fn poll<T, Seen>(
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, Seen>,
) -> Result<T, Seen> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let late = start.elapsed() > deadline;
        match look() {
            Ok(value) => return Ok(value),
            Err(seen) if late => return Err(seen),
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
