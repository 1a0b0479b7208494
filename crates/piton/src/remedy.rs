//! What to type about an error, where the error alone tells it: the one place that writes commands for
//! errors of the engine and of the store. What depends on the run and the claim is in `hints`.

use std::io;
use std::path::Path;

use piton_core::ids::{AgentName, Handle};
use piton_core::plan::nearest;
use piton_engine::error::EngineError;
use piton_engine::error::Living;
use piton_engine::error::LogError;
use piton_engine::error::NotUndone;
use piton_engine::git::GitError;
use piton_engine::git::shell::word;
use piton_engine::git::snapshot::PutError;
use piton_engine::outside::claims::Unclaimable;
use piton_engine::remedy::Remedy;
use piton_engine::run::snapshot_history::place_for;
use piton_engine::{ALLOW_NETWORK_FS, Damage, StoreError, Unsafe};

use crate::text::plain;

/// The plan that is meant where none is named.
pub(crate) const PLAN: &str = "plan.toml";

/// Claims that are named, at most: more would not be read.
const NAMED_MAX: usize = 3;

/// The remedy of an error, where the error alone tells it.
pub(crate) fn of(error: &EngineError) -> Option<String> {
    if error.is_full_disk() {
        return Some("the disk is full: free some space, then try again".into());
    }
    match error {
        EngineError::Git(GitError::Io { source, .. }) | EngineError::Io { source, .. }
            if is_of_another_kind(source) =>
        {
            Some(repair())
        }
        EngineError::Git(error) => error.hint(),
        EngineError::Log(LogError::Store(error)) => Some(of_store(error)),
        EngineError::Log(LogError::Damaged { .. } | LogError::Plan { .. } | LogError::Empty(_)) => {
            Some("`piton doctor` says what is damaged; the work itself is in git: `git for-each-ref refs/piton`".into())
        }
        // Whoever tells these knows the run they are about, and the claim.
        EngineError::Log(LogError::Refused(_))
        | EngineError::NotOwner { .. }
        | EngineError::NothingToStart { .. }
        | EngineError::PlanChanged { .. }
        | EngineError::Uncommitted { .. }
        | EngineError::Unverified { .. }
        | EngineError::VerifyEnded { .. }
        | EngineError::Unlanded(_)
        | EngineError::Unmerged(_)
        | EngineError::NoTree { .. }
        | EngineError::NoRecords { .. }
        | EngineError::OtherHost { .. }
        | EngineError::NewerEdits { .. }
        | EngineError::KeeperLost { .. } => None,
        EngineError::Untrusted { plan, .. } => {
            let plan = word(&plan.display().to_string());
            Some(format!("look at them: `piton trust {plan}`"))
        }
        EngineError::Trust(error) => error.hint(),
        EngineError::Config(error) => error.hint(),
        EngineError::Plan { path, .. } => {
            Some(format!("correct it, then `piton plan check '{}'`", path.display()))
        }
        EngineError::PlanFile { path, source } => Some(match source.kind() {
            io::ErrorKind::NotFound => missing_plan(path),
            _ => format!("see what is there: `ls -l '{}'`", path.display()),
        }),
        EngineError::PlanThere { path } => Some(format!(
            "look at it: `piton plan check '{}'`; or name another file",
            path.display()
        )),
        EngineError::PlanOutside { .. } => {
            Some("put the plan inside the repository it is about".into())
        }
        EngineError::NoSuchRun { near, .. } => Some(match near.as_slice() {
            [] => "`piton status --ended` lists the runs".into(),
            near => format!("did you mean {}?", joined(near)),
        }),
        EngineError::AmbiguousRun { .. } => Some("name one of them".into()),
        EngineError::Worktree { .. } => {
            Some("name a folder that is there; a claim can also be named by its --fence".into())
        }
        EngineError::NoRuns => Some(first_run()),
        EngineError::StillAlive { handle, living } => Some(format!(
            "first {}; or give the whole run up: `piton abandon {handle} --yes`; or go on with it: \
             leave --fresh out",
            ended_by(living, handle)
        )),
        EngineError::UnknownInput { known, .. } => Some(match known.as_slice() {
            [] => "the plan has no [inputs]".into(),
            known => format!("its inputs: {}", known.join(", ")),
        }),
        EngineError::UnknownAgent { agent, known, .. } => Some(format!(
            "add [agent.{agent}] with a command to piton.toml or the plan{}",
            match known.as_slice() {
                [] => String::new(),
                known => format!(
                    "; defined are {}",
                    known.iter().map(AgentName::as_str).collect::<Vec<_>>().join(", ")
                ),
            }
        )),
        EngineError::LostStore { path } => Some(format!(
            "put {} back from a backup; or go on without the records, with the snapshots under \
             refs/lost-piton: `{REPAIR} --yes`",
            path.display()
        )),
        EngineError::LogBehind { handle, store, .. } => Some(format!(
            "put the newest copy of {} (with its -wal file) back; if there is none, leave this run \
             aside: `piton abandon {handle} --yes` (its branches, worktrees and snapshots stay)",
            store.display()
        )),
        EngineError::Settings(_) => Some("`piton doctor`".into()),
        EngineError::Stays { .. } => Some("`piton clean` says what can go".into()),
        EngineError::NotUndone(why) => not_undone_hint(why),
        EngineError::NotPurged { handle, .. } => {
            Some(format!("once that is settled: `piton abandon {handle} --purge`"))
        }
        EngineError::UnknownHolder { .. } => Some(repair()),
        EngineError::WorktreeRoot { .. } => {
            Some("name another folder: worktree.root, or PITON_WORKTREE_ROOT".into())
        }
        EngineError::Io { .. } | EngineError::Unstarted { .. } => None,
        EngineError::TreeInUse { handle, step, .. } => Some(format!(
            "stop it first: `piton stop {handle} {step}`"
        )),
        EngineError::NoOwnTree { handle, step } => Some(format!(
            "it gets one when it is started; `piton worktree create {handle} {step}` makes one"
        )),
        EngineError::NotPutBack { before, source } => Some(match source {
            PutError::TakenBack(_) => {
                format!("everything is as it was, and also kept as {before}")
            }
            PutError::Torn { .. } => {
                format!("what was there is kept as {before}; say it again to go on")
            }
        }),
    }
}

/// What mends the files of piton's own.
const REPAIR: &str = "piton doctor --repair";

/// Whether something else stands where a file should be, or one that may not be opened.
fn is_of_another_kind(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, PermissionDenied};
    matches!(error.kind(), InvalidInput | IsADirectory | NotADirectory | PermissionDenied)
}

fn repair() -> String {
    format!("move it aside: `{REPAIR}`")
}

/// Where nothing was ever run: of the plan that is there, else of one that is still to be written.
pub(crate) fn first_run() -> String {
    match Path::new(PLAN).is_file() {
        true => begin(PLAN),
        false => "write a first plan: `piton init`".to_owned(),
    }
}

/// What begins a run of a plan.
pub(crate) fn begin(plan: &str) -> String {
    format!(
        "run it: `piton run {plan}`; or open it and take a step: `piton claim {plan} --worktree .`"
    )
}

/// Where a run needs trust to go on.
pub(crate) fn trust_first(plan: &Path, run: &Handle) -> String {
    let plan = word(&plan.display().to_string());
    format!("look at what it executes: `piton trust {plan}`; then `piton resume {run}`")
}

/// The remedy of an error of the store.
fn of_store(error: &StoreError) -> String {
    match error {
        StoreError::Missing { .. } => first_run(),
        StoreError::Damaged { damage: Damage::Newer { .. }, .. } => {
            "use the newer piton that wrote it; `piton doctor` shows which store is used".to_owned()
        }
        StoreError::Damaged { path, .. } if error.code() == "E046" => {
            format!(
                "put the newest copy of {} (with its -wal file) back; if there is none, go on \
                 without what it lacks: `{REPAIR} --yes` (branches, worktrees and snapshots are in git)",
                path.display()
            )
        }
        StoreError::CannotOpen { path, source }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            format!("give yourself the rights again: `{REPAIR}`")
        }
        StoreError::Damaged { .. } => format!(
            "put the newest copy of the store back; if there is none, go on without it: `{REPAIR} --yes`"
        ),
        StoreError::NetworkFileSystem { .. } => format!(
            "keep the repository on a local disk, or accept the risk: `{ALLOW_NETWORK_FS}=1 piton status`"
        ),
        StoreError::Unsafe { path, why } => of_unsafe(why, path),
        StoreError::Busy { holder: Some(pid), .. } => {
            format!(
                "see what process {pid} is doing (`ps -p {pid}`), then try again: `piton status`"
            )
        }
        StoreError::Busy { holder: None, .. } => {
            "another program has the database locked; close it, then: `piton status`".to_owned()
        }
        StoreError::UnknownRun { .. }
        | StoreError::RunExists { .. }
        | StoreError::KeyHeld { .. } => "list the runs: `piton status --ended`".to_owned(),
        StoreError::EngineTooOld { .. }
        | StoreError::SettingRefused { .. }
        | StoreError::CannotOpen { .. }
        | StoreError::LookOnly
        | StoreError::CursorNotInChain { .. }
        | StoreError::MissingText { .. }
        | StoreError::Full { .. }
        | StoreError::Io { .. }
        | StoreError::Sqlite(_) => "find out what is wrong: `piton doctor`".to_owned(),
    }
}

fn of_unsafe(why: &Unsafe, path: &Path) -> String {
    let path = path.display();
    match why {
        Unsafe::WritableByOthers { .. } => {
            format!("take their rights away: `chmod go-rwx '{path}'`")
        }
        Unsafe::ForeignOwner { owner, .. } => {
            format!("run piton as user {owner}; or make it yours: `sudo chown \"$USER\" '{path}'`")
        }
        Unsafe::Symlink | Unsafe::WrongKind { .. } => repair(),
    }
}

fn not_undone_hint(why: &NotUndone) -> Option<String> {
    Some(match why {
        NotUndone::Nothing | NotUndone::Unknown { .. } | NotUndone::Already { .. } => {
            "`piton undo --list` shows what was done".into()
        }
        NotUndone::InTheWay { act, .. } => {
            format!("move it away, then `piton undo {act}`; nothing was changed")
        }
        NotUndone::PlanTaken { act, handle } => {
            format!("`piton abandon {handle}`, then `piton undo {act}`; nothing was changed")
        }
        NotUndone::UsedSince { handle, step, before, .. } => {
            let to = place_for(handle, step);
            format!(
                "what was there before is kept: `piton snapshot restore {handle}/{step} --at {before} \
                 --to {to}`; nothing was changed"
            )
        }
        NotUndone::Purged { handle, .. } => {
            format!("its records are gone; its work stays: `piton snapshot list {handle}`")
        }
        NotUndone::Unreadable { .. } => {
            "it may be of a newer piton, and is left alone; `piton undo \
             --list` shows the others"
                .into()
        }
    })
}

/// What may have been meant by a plan that is not there.
fn missing_plan(path: &Path) -> String {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = listed.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    let asked = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match nearest(asked, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}?", path.with_file_name(near).display()),
        None => format!("a plan is a TOML file; look for it: `ls '{}'`", folder.display()),
    }
}

/// A remedy as a command to paste.
pub(crate) fn words(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Text { text } => text.clone(),
        _ => format!("`{}`", command(remedy)),
    }
}

/// The same without quotes, on a line of its own.
pub(crate) fn command(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Resume { run } => format!("piton resume {run}"),
        Remedy::Stop { run, step } => format!("piton stop {run} {step}"),
        Remedy::Release { run, step } => format!("piton release {run} {step} --force"),
        Remedy::Reset { run, step } => format!("piton reset {run} {step}"),
        Remedy::TakeOver { run, step, worktree } => {
            format!("piton claim {run} --step {step} --worktree {} --force", word(worktree))
        }
        Remedy::Shell { command } => command.clone(),
        Remedy::Repair => REPAIR.to_owned(),
        Remedy::ThenResume { command, run } => format!("{command} && piton resume {run}"),
        Remedy::Text { text } => text.clone(),
    }
}

/// Why a step could not be had, with what can be done about it.
pub(crate) fn why(Unclaimable { why, remedies, .. }: &Unclaimable) -> String {
    let ways: Vec<String> = remedies.iter().map(words).collect();
    match ways.is_empty() {
        true => plain(why),
        false => format!("{}: {}", plain(why), ways.join(" or ")),
    }
}

/// The commands after which nobody works on a run any more. A holder outside does not end by being asked
/// to.
pub(crate) fn ended_by(living: &Living, run: &Handle) -> String {
    let stop = (!living.kept.is_empty()).then(|| format!("`piton stop {run}`"));
    let release = |step| format!("`piton release {run} {step} --force`");
    let released = living.outside.iter().take(NAMED_MAX).map(release);
    stop.into_iter().chain(released).collect::<Vec<_>>().join(", ")
}

fn joined(handles: &[Handle]) -> String {
    handles.iter().map(Handle::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ENOSPC`, on Linux and macOS alike.
    const NO_SPACE: i32 = 28;

    #[test]
    fn a_full_disk_is_told_as_one() {
        let full = || io::Error::from_raw_os_error(NO_SPACE);
        let errors: [EngineError; 3] = [
            EngineError::Io { what: "the attempt's folder".into(), source: full() },
            StoreError::Io { doing: "writing", source: full() }.into(),
            StoreError::CannotOpen { path: "store.db".into(), source: full() }.into(),
        ];
        for error in errors {
            let hint = of(&error).expect("a remedy");
            assert!(hint.contains("free some space") && !hint.contains("doctor"), "{hint}");
        }
    }

    #[test]
    fn a_plan_that_is_not_there_has_neighbours() {
        let home = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(home.path().join("release.toml"), "").expect("written");
        let near = missing_plan(&home.path().join("relaese.toml"));
        assert!(near.contains("did you mean") && near.contains("/release.toml?"), "{near}");
        let far = missing_plan(&home.path().join("other.toml"));
        assert!(far.contains("`ls '"), "{far}");
    }
}
