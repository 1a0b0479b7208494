//! A process that outlives its agent, in the ways in which real ones do: development servers, build
//! daemons, shells that put themselves into a session of their own.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::act::{PATIENCE, ignore_term, write_whole};
use crate::script::Trait;

/// First argument of this program when it is a grandchild.
pub(crate) const FLAG: &str = "--grandchild";

/// Closes every inherited descriptor but the standard three (which are /dev/null by then). A shell
/// does it because closing a descriptor by its number is not something safe Rust offers.
const CLOSE_FDS: &str = r#"for fd in /dev/fd/*; do
  n=${fd##*/}; [ "$n" -gt 2 ] && eval "exec $n>&-"
done 2>/dev/null
exec "$@""#;

pub(crate) fn spawn(path: &Path, traits: &[Trait]) -> Result<(), String> {
    let me = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
    let mut command;
    if traits.contains(&Trait::CloseFds) {
        command = Command::new("bash");
        command.args(["-c", CLOSE_FDS, "bash"]).arg(me);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    } else {
        command = Command::new(me);
    }
    if traits.contains(&Trait::ClearEnv) {
        command.env_clear();
    }
    command.arg(FLAG).arg(path);
    for option in traits {
        match option {
            Trait::Setsid => command.arg("setsid"),
            Trait::IgnoreTerm => command.arg("ignore-term"),
            Trait::Writes(file) => command.arg("writes").arg(file),
            Trait::CloseFds | Trait::ClearEnv => &mut command,
        };
    }
    // Never waited for: outliving its parent is the point.
    command.spawn().map(drop).map_err(|e| format!("grandchild: {e}"))
}

/// The life of a grandchild: says that it is there, then writes or idles until it is ended.
pub(crate) fn live(words: Vec<String>) -> Result<u8, String> {
    let mut words = words.into_iter();
    let path = PathBuf::from(words.next().ok_or("a grandchild needs a path")?);
    let mut writes = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "setsid" => drop(rustix::process::setsid().map_err(|e| format!("setsid: {e}"))?),
            "ignore-term" => ignore_term()?,
            "writes" => writes = Some(PathBuf::from(words.next().ok_or("writes needs a file")?)),
            unknown => return Err(format!("a grandchild has no option {unknown:?}")),
        }
    }
    write_whole(&path, &std::process::id().to_string())?;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(file) = &writes {
            // The tree may be taken away under it; a real one would not care either.
            let open = OpenOptions::new().create(true).append(true).open(file);
            let _ = open.and_then(|mut file| file.write_all(b"still here\n"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(0)
}
