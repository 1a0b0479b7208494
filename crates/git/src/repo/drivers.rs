//! Filter and merge drivers run programs. Those in the user's own configuration are the user's wish
//! and keep working (LFS); those that only the repository defines may be an agent's, and are put out
//! of action by settings that stand above the configuration files. Hooks that a configuration defines
//! do not run at all.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::{Call, GitError};

const KEYS: &str =
    r"^(filter\..*\.(clean|smudge|process|required)|merge\..*\.driver|hook\..*\.command)$";

/// What git itself does with a text file, and a conflict for everything else. An empty driver would
/// be worse than none: git takes its silence for a clean merge.
const TEXT_MERGE: &str = "git merge-file --marker-size=%L %A %O %B || exit 1";

/// Settings that undo every driver of the repository, and every hook. Ask again before each use: the configuration
/// is within the agent's reach.
pub fn overrides(call: Call) -> Result<Vec<(OsString, OsString)>, GitError> {
    let asked = call.args(&["config", "-z", "--show-scope", "--get-regexp", "--", KEYS]);
    let answer = asked.accept(&[0, 1]).run()?;
    Ok(undone(&answer.stdout))
}

/// A setting's value in the user's configuration, and whether the repository has its own.
#[derive(Default)]
struct Setting {
    user: Option<Vec<u8>>,
    repository: bool,
}

fn undone(listed: &[u8]) -> Vec<(OsString, OsString)> {
    let mut settings: BTreeMap<Vec<u8>, Setting> = BTreeMap::new();
    let mut fields = listed.split(|&b| b == 0);
    while let (Some(scope), Some(entry)) = (fields.next(), fields.next()) {
        let cut = entry.iter().position(|&b| b == b'\n').unwrap_or(entry.len());
        let setting = settings.entry(entry[..cut].to_vec()).or_default();
        match scope {
            b"system" | b"global" => {
                setting.user = Some(entry.get(cut + 1..).unwrap_or_default().to_vec());
            }
            _ => setting.repository = true,
        }
    }
    settings.into_iter().filter_map(|(key, setting)| undo(key, setting)).collect()
}

fn undo(mut key: Vec<u8>, setting: Setting) -> Option<(OsString, OsString)> {
    if key.starts_with(b"hook.") {
        key.truncate(key.len() - b"command".len());
        key.extend_from_slice(b"enabled");
        return Some((OsString::from_vec(key), "false".into()));
    }
    let value = setting.user.unwrap_or_else(|| neutral(&key).as_bytes().to_vec());
    setting.repository.then(|| (OsString::from_vec(key), OsString::from_vec(value)))
}

fn neutral(key: &[u8]) -> &'static str {
    if key.ends_with(b".required") {
        "false"
    } else if key.starts_with(b"merge.") {
        TEXT_MERGE
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_drivers_stay_the_repositorys_and_all_hooks_go() {
        let listed = b"global\0filter.lfs.clean\ngit-lfs clean\0\
            local\0filter.lfs.clean\nevil\0\
            local\0filter.a=b.smudge\nevil\0\
            worktree\0filter.a=b.required\ntrue\0\
            local\0merge.m.driver\nevil\0\
            global\0hook.lint er.command\nlint\0\
            local\0hook.x.y.command\nevil\0\
            global\0filter.own.smudge\nfine\0";
        let undone = undone(listed);
        let shown: Vec<_> = undone.iter().map(|(k, v)| format!("{k:?} {v:?}")).collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        "filter.a=b.required" "false"
        "filter.a=b.smudge" ""
        "filter.lfs.clean" "git-lfs clean"
        "hook.lint er.enabled" "false"
        "hook.x.y.enabled" "false"
        "merge.m.driver" "git merge-file --marker-size=%L %A %O %B || exit 1"
        "#);
    }
}
