//! Samples of a duration, and taking them in turns: whatever slows the machine down for a moment then
//! slows the floor down too.

use std::process::{Command, Stdio};
use std::time::Instant;

/// Durations in milliseconds, sorted.
#[derive(Debug, Clone)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn new(mut taken: Vec<f64>) -> Samples {
        assert!(!taken.is_empty(), "nothing was measured");
        taken.sort_by(f64::total_cmp);
        Samples(taken)
    }

    pub(crate) fn p50(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    pub(crate) fn p99(&self) -> f64 {
        self.0[(self.0.len() * 99 / 100).min(self.0.len() - 1)]
    }

    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// `3.21 ms (p99 4.56)`.
    pub(crate) fn shown(&self) -> String {
        format!("{} (p99 {:.1})", ms(self.p50()), self.p99())
    }
}

/// Milliseconds for people.
pub(crate) fn ms(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3} ms"),
        v if v < 100.0 => format!("{v:.2} ms"),
        v => format!("{v:.0} ms"),
    }
}

/// How long something takes, in milliseconds.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let made = work();
    (begun.elapsed().as_secs_f64() * 1e3, made)
}

/// Takes `n` samples of each, in turns; the first turn only warms up. Every turn begins with another
/// one, because who comes first pays for what the others left behind.
pub(crate) fn in_turns<const N: usize>(
    n: usize,
    takers: [&mut dyn FnMut() -> f64; N],
) -> [Samples; N] {
    let mut taken = [const { Vec::new() }; N];
    for turn in 0..=n {
        for who in (0..N).map(|place| (place + turn) % N) {
            let sample = takers[who]();
            if turn > 0 {
                taken[who].push(sample);
            }
        }
    }
    taken.map(Samples::new)
}

/// How long a process takes from start to end; it must succeed.
pub(crate) fn process(mut command: Command) -> f64 {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // `cargo run` sets it, and looking for libraries there is no part of anybody's start.
    command.env_remove("LD_LIBRARY_PATH");
    let (took, status) = timed(|| command.status());
    match status {
        Ok(status) if status.success() => took,
        other => panic!("{command:?} ended otherwise: {other:?}"),
    }
}
