//! Time as data: the core never asks a clock. A moment carries the wall clock for people and, where a
//! store has one host, the boot-time clock, which alone judges within a boot.

use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::ids::BootId;

/// Milliseconds since the Unix epoch, by a wall clock.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub i64);

impl Millis {
    /// How long after `earlier` this is; nothing when the clock went backwards.
    pub fn since(self, earlier: Millis) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub fn before(self, by: Duration) -> Millis {
        Millis(self.0.saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    pub fn after(self, by: Duration) -> Millis {
        Millis(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// A time as people and programs both read it.
pub fn timestamp(at: Millis) -> String {
    match jiff::Timestamp::from_millisecond(at.0) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => format!("{} ms", at.0),
    }
}

/// A reading of the boot-time clock: it counts through suspend and cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootClock {
    pub boot: BootId,
    pub ms: i64,
}

/// A reading of a store's clock, or a deadline by it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Moment {
    pub wall: Millis,
    #[serde(default)]
    pub clock: Option<BootClock>,
}

/// A clock that is not there is left out for people; packed data must say so.
impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let shown = self.clock.is_some() || !to.is_human_readable();
        let mut fields = to.serialize_struct("Moment", 1 + usize::from(shown))?;
        fields.serialize_field("wall", &self.wall)?;
        if shown {
            fields.serialize_field("clock", &self.clock)?;
        }
        fields.end()
    }
}

impl Moment {
    /// A moment of a store that has only a wall clock (a database server's own).
    pub fn wall(wall: Millis) -> Moment {
        Moment { wall, clock: None }
    }

    pub fn after(&self, by: Duration) -> Moment {
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        Moment {
            wall: self.wall.after(by),
            clock: self.clock.as_ref().map(|clock| BootClock {
                boot: clock.boot.clone(),
                ms: clock.ms.saturating_add(ms),
            }),
        }
    }

    /// Whether this deadline is over at `now`. Within one boot the boot-time clock judges, so a wall
    /// clock that was set cannot end or stretch a lease; across boots only the wall clock is left.
    pub fn is_over(&self, now: &Moment) -> bool {
        match (&self.clock, &now.clock) {
            (Some(deadline), Some(now)) if deadline.boot == now.boot => now.ms >= deadline.ms,
            _ => now.wall >= self.wall,
        }
    }

    /// Whether this deadline is later than `other`: a renewal may only grow.
    pub fn is_later_than(&self, other: &Moment) -> bool {
        match (&self.clock, &other.clock) {
            (Some(a), Some(b)) if a.boot == b.boot => a.ms > b.ms,
            _ => self.wall > other.wall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(wall: i64, boot: &str, ms: i64) -> Moment {
        let boot = BootId(boot.to_owned());
        Moment { wall: Millis(wall), clock: Some(BootClock { boot, ms }) }
    }

    #[test]
    fn within_a_boot_the_wall_clock_does_not_judge() {
        let until = moment(1_000, "a", 50).after(Duration::from_secs(60));
        let day = 86_400_000;
        assert!(!until.is_over(&moment(1_000 + day, "a", 60_049)), "set forward by a day");
        assert!(until.is_over(&moment(1_000 - day, "a", 60_050)), "set back by a day");
    }

    #[test]
    fn across_boots_and_on_servers_the_wall_clock_judges() {
        let until = moment(1_000, "a", 1_000_000).after(Duration::from_millis(5));
        assert!(!until.is_over(&moment(1_004, "b", 1)));
        assert!(until.is_over(&moment(1_005, "b", 1)));
        assert!(Moment::wall(Millis(5)).is_over(&Moment::wall(Millis(5))));
    }

    #[test]
    fn a_lease_of_two_hours_is_two_hours_long() {
        let start = moment(0, "a", 0);
        let until = start.after(Duration::from_secs(7_200));
        assert_eq!(until.wall.since(start.wall), Duration::from_secs(7_200));
        assert!(!until.is_over(&moment(0, "a", 7_199_999)));
        assert!(until.is_over(&moment(0, "a", 7_200_000)));
    }
}
