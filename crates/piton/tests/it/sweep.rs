//! One file of each kind that piton keeps in a repository, damaged in every way: looking verbs answer, and
//! `resume` goes on, or names a command that, pasted, makes it go on. The ordinary tests damage each kind in
//! one way, chosen by a seed; `PITON_FULL=1` in all of them, and prints the numbers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use piton_testkit::Sandbox;

use crate::stuck::{hinted, killed};

const DAMAGES: [&str; 8] =
    ["emptied", "cut", "flipped", "deleted", "pipe", "folder", "link loop", "mode 0"];
const LOOKING: [&[&str]; 8] = [
    &["status"],
    &["show"],
    &["log"],
    &["events"],
    &["doctor"],
    &["snapshot", "list"],
    &["clean"],
    &["resume", "--dry-run"],
];
/// Longer than any verb takes on a busy machine; what waits for ever is found out all the same.
const PATIENCE: Duration = Duration::from_secs(45);
/// How often what is hinted is pasted before it counts as a dead end.
const PASTES: usize = 4;

/// What became of a damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    WentOn,
    AfterHint,
    Stuck,
}

/// The files that piton keeps, one of each kind, by what they are called without numbers and ids.
fn kinds(sandbox: &Sandbox) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut left = vec![sandbox.path(".git/piton"), sandbox.path(".git/worktrees")];
    let trees = sandbox.path(".piton/worktrees");
    for run in fs::read_dir(trees).expect("worktrees").flatten() {
        left.extend(
            fs::read_dir(run.path()).expect("a run").flatten().map(|tree| tree.path().join(".git")),
        );
    }
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).expect("a folder").flatten().map(|entry| entry.path()));
            continue;
        }
        let name = path.strip_prefix(sandbox.repo()).expect("below it").display().to_string();
        let parts = name.split(['/', '-']).map(|part| match part {
            part if part.len() >= 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID",
            part if part.parse::<u32>().is_ok() => "N",
            part => part,
        });
        found
            .entry(parts.collect::<Vec<_>>().join("/").replace("ID/ID/ID/ID/ID", "ID"))
            .or_insert(path);
    }
    found
}

/// Says whether there was anything to damage in this way.
fn damage(path: &Path, how: &str) -> bool {
    let bytes = fs::read(path).expect("a file");
    let remade = |make: &dyn Fn()| {
        fs::remove_file(path).expect("there");
        make();
        true
    };
    match how {
        "emptied" | "cut" | "flipped" if bytes.is_empty() => return false,
        "emptied" => fs::write(path, "").expect("writable"),
        "cut" => fs::write(path, &bytes[..bytes.len() / 2]).expect("writable"),
        "flipped" => {
            let mut bytes = bytes;
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x15;
            fs::write(path, bytes).expect("writable");
        }
        "deleted" => fs::remove_file(path).expect("there"),
        "pipe" => {
            return remade(&|| {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.expect("mkfifo").success());
            });
        }
        "folder" => return remade(&|| fs::create_dir(path).expect("a folder")),
        "link loop" => return remade(&|| symlink(path, path).expect("a link")),
        _ => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("ours");
            // Nothing is shut for root.
            return fs::File::open(path).is_err();
        }
    }
    true
}

fn is_completed(sandbox: &Sandbox) -> bool {
    let shown = sandbox.piton(&["status", "--ended", "--json"]).deadline(PATIENCE).output();
    shown.stdout.contains("\"status\":\"completed\"")
}

/// For whoever reads what a sweep went through.
fn tell(text: &str) {
    let _unheard = writeln!(io::stderr(), "{text}");
}

/// Goes on as somebody would who pastes what is hinted.
fn fate(sandbox: &Sandbox, what: &str) -> Fate {
    let mut output = sandbox.piton(&["resume"]).deadline(PATIENCE).output();
    for pastes in 0..=PASTES {
        if output.code == Some(0) && is_completed(sandbox) {
            return if pastes == 0 { Fate::WentOn } else { Fate::AfterHint };
        }
        let Some(command) = hinted(&output).into_iter().next() else { break };
        tell(&format!("{what}: {}\n  -> {command}", output.stderr.trim_end()));
        let words: Vec<&str> = command.split(' ').collect();
        match words.as_slice() {
            ["piton", "resume" | "run", ..] => {
                output = sandbox.piton(&words[1..]).deadline(PATIENCE).output();
                continue;
            }
            ["piton", rest @ ..] => drop(sandbox.piton(rest).deadline(PATIENCE).output()),
            _ => drop(sandbox.command("sh").args(["-c", &command]).output().expect("a shell")),
        }
        output = sandbox.piton(&["resume"]).deadline(PATIENCE).output();
    }
    tell(&format!("{what}: STUCK: {output}"));
    Fate::Stuck
}

/// Every kind of file, those of one share of them in the ordinary tests.
fn swept(share: usize, of: usize) {
    let full = std::env::var_os("PITON_FULL").is_some();
    let seed: usize = std::env::var("PITON_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let sandbox = killed();
    let whole = sandbox.root().with_extension("whole");
    fs::rename(sandbox.root(), &whole).expect("it can be moved");
    let copy = || {
        let mut copied = std::process::Command::new("cp");
        let status = copied.arg("-a").arg(&whole).arg(sandbox.root()).status();
        assert!(status.expect("cp").success());
    };
    copy();
    let kinds = kinds(&sandbox);
    fs::remove_dir_all(sandbox.root()).expect("a copy");
    assert!(kinds.len() > 15, "{kinds:#?}");
    let (mut fates, mut stuck): (BTreeMap<Fate, usize>, Vec<String>) =
        (BTreeMap::new(), Vec::new());
    for (n, (kind, path)) in kinds.iter().enumerate().filter(|(n, _)| n % of == share) {
        let chosen = DAMAGES[(n / of + n + seed) % DAMAGES.len()];
        for how in DAMAGES.iter().filter(|how| full || **how == chosen) {
            copy();
            if damage(path, how) {
                let what = format!("{kind} {how}");
                let looking = if full { &LOOKING[..] } else { &LOOKING[..5] };
                for verb in looking {
                    sandbox.piton(verb).deadline(PATIENCE).output();
                }
                let fate = fate(&sandbox, &what);
                *fates.entry(fate).or_default() += 1;
                if fate == Fate::Stuck {
                    stuck.push(what);
                }
            }
            sandbox.kill_all();
            let _closed = std::process::Command::new("chmod")
                .args(["-R", "u+rwX"])
                .arg(sandbox.root())
                .status();
            fs::remove_dir_all(sandbox.root()).expect("a copy");
        }
    }
    fs::rename(&whole, sandbox.root()).expect("it can be moved back");
    tell(&format!("{fates:?}"));
    assert_eq!(stuck, Vec::<String>::new(), "{fates:?}");
}

#[test]
fn no_damaged_file_is_a_dead_end_1() {
    swept(0, 4);
}

#[test]
fn no_damaged_file_is_a_dead_end_2() {
    swept(1, 4);
}

#[test]
fn no_damaged_file_is_a_dead_end_3() {
    swept(2, 4);
}

#[test]
fn no_damaged_file_is_a_dead_end_4() {
    swept(3, 4);
}
