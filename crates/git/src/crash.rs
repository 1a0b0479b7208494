//! Crash points: named places between durable actions at which a test stops a process and then kills
//! whom it likes. Without the feature `crash-points` they compile to nothing; with it they cost one
//! look at a cached environment variable.
//!
//! `PITON_CRASH_AT=<point>[:N]` and `PITON_CRASH_DIR=<dir>`: the process that reaches the point for
//! the N-th time creates `<dir>/<point>.hit` with its pid (only one ever does) and waits there until
//! `<dir>/<point>.go` exists. The `.hit` file is the proof that the fault was really applied.

#[cfg(not(feature = "crash-points"))]
pub fn point(_name: &str) {}

#[cfg(feature = "crash-points")]
pub use armed::point;

#[cfg(feature = "crash-points")]
mod armed {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    struct Armed {
        point: String,
        countdown: AtomicU64,
        dir: PathBuf,
    }

    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

    fn armed() -> Option<&'static Armed> {
        let read = || {
            let at = std::env::var("PITON_CRASH_AT").ok()?;
            let dir = std::env::var_os("PITON_CRASH_DIR")?.into();
            let (point, nth) = match at.split_once(':') {
                Some((point, nth)) => (point.to_owned(), nth.parse().ok()?),
                None => (at, 1),
            };
            Some(Armed { point, countdown: AtomicU64::new(nth), dir })
        };
        ARMED.get_or_init(read).as_ref()
    }

    pub fn point(name: &str) {
        let Some(armed) = armed().filter(|armed| armed.point == name) else { return };
        if armed.countdown.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let hit = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(armed.dir.join(format!("{name}.hit")));
        // Somebody else was hit already: each armed point stops one process.
        let Ok(mut hit) = hit else { return };
        let written = writeln!(hit, "{}", std::process::id());
        let go = armed.dir.join(format!("{name}.go"));
        while written.is_ok() && !go.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
