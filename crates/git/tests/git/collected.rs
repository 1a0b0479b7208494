//! A `git gc --prune=now` at the worst moments: what piton has just made is complete all the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use piton_git::merging::{Landing, prepare};
use piton_git::snapshot::read_back;

use crate::lab::{BRANCH, Lab, put};

const RUN: &str = "piton/x/run";

/// A git in front of the real one that collects before it moves a ref, or loses what the ref needs
/// right after; a few times only. It writes down each time. A pack is collected under when all of it is
/// written and its end is not yet told.
const COLLECTOR: &str = r#"#!/bin/sh
real=REAL
[ "$PITON_LAB_TIMES" ] || exec $real "$@"
case " $* " in *" update-ref "* | *" fast-import "*) ;; *) exec $real "$@" ;; esac
times=$(wc -l < "$PITON_LAB_TIMES")
[ "$times" -lt 3 ] || exec $real "$@"
echo "$@" >> "$PITON_LAB_TIMES"
objects="$PITON_LAB_REPO/.git/objects"
plain="env -i HOME=$HOME PATH=$PATH $real -C $PITON_LAB_REPO"
case " $* " in *" fast-import "*)
    {
        head -c -5
        case "$times" in
        0) $plain gc --quiet --prune=now ;;
        *) $plain repack -adq; $plain prune-packed ;;
        esac
        echo done
    } | $real "$@"
    exit $?
esac
if [ "$times" -eq 1 ]; then
    find "$objects" -type f -newer "$PITON_LAB_SINCE" -path "*/??/*" > "$PITON_LAB_TIMES.list"
    $real "$@" || exit $?
    xargs rm -f < "$PITON_LAB_TIMES.list"
    exit 0
fi
$plain prune --expire=now
exec $real "$@"
"#;

/// A git whose first packs are gone when they are to get their names: what holds them is there already,
/// and stays. The last tries pack the same.
const HOLDER: &str = r#"#!/bin/sh
real=REAL
case " $* " in *" fast-import "*) ;; *) exec $real "$@" ;; esac
[ "$(wc -l < "$PITON_LAB_TIMES")" -lt 4 ] || exec $real "$@"
echo "$@" >> "$PITON_LAB_TIMES"
naming=?link,?linkat,?rename,?renameat,?renameat2
exec strace -f -qq -o /dev/null -e trace=$naming -e inject=$naming:error=ENOENT $real "$@"
"#;

/// Runs another test of this file with that git.
fn among_collectors(lab: &Lab, name: &str) {
    let times = among(lab, COLLECTOR, name);
    assert!(times.lines().count() >= 2, "the fault was not applied: {times}");
}

/// The same with any git; what it has written down.
fn among(lab: &Lab, git: &str, name: &str) -> String {
    let folder = lab.root().join("bin");
    let real = Command::new("sh").args(["-c", "command -v git"]).output().expect("sh starts");
    let real = String::from_utf8_lossy(&real.stdout).trim().to_owned();
    put(&folder.join("git"), git.replace("REAL", &real));
    fs::set_permissions(folder.join("git"), fs::Permissions::from_mode(0o755)).expect("ours");
    let (times, since) = (lab.root().join("times"), lab.root().join("since"));
    put(&times, "");
    put(&since, "");
    let path = std::env::var("PATH").expect("set");
    let mut victim = lab.again(name);
    victim.env("PATH", format!("{}:{path}", folder.display()));
    victim.env("PITON_LAB_TIMES", &times).env("PITON_LAB_SINCE", &since);
    victim.env("PITON_LAB_REPO", lab.repo());
    let out = victim.output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{}\n{said}", String::from_utf8_lossy(&out.stdout));
    lab.git(&["fsck", "--connectivity-only", "--no-dangling"]);
    fs::read_to_string(&times).expect("written")
}

fn is_victim() -> bool {
    std::env::var_os("PITON_LAB_TIMES").is_some()
}

lab_test! {
    fn snapshot_victim(lab) {
        if is_victim() {
            let tree = lab.tree_at("run");
            let kept = lab.taken(&tree, 1);
            read_back(&lab.found(), &kept).expect("readable");
        }
    }
}

lab_test! {
    fn a_snapshot_is_made_again(lab) {
        let tree = lab.tree();
        put(&tree.path().join("new/work"), "x");
        put(&tree.path().join("README.md"), "changed");
        put(&tree.path().join("staged"), "x");
        lab.git_in(tree.path(), &["add", "staged"]);
        among_collectors(lab, "collected::snapshot_victim");
        let paths = lab.git(&["ls-tree", "-r", "--name-only", "refs/piton/x/a/7/1"]);
        assert_eq!(paths, ".gitignore\nREADME.md\nnew/work\nsrc/main.rs\nstaged");
    }
}

lab_test! {
    /// A pack of the same bytes could not be stored again.
    #[cfg(target_os = "linux")]
    fn a_pack_that_is_gone_and_still_held_is_no_obstacle(lab) {
        put(&lab.tree().path().join("work"), "x");
        assert_eq!(among(lab, HOLDER, "collected::snapshot_victim").lines().count(), 4);
        let list = fs::read_dir(lab.path(".git/objects/pack")).expect("a folder").flatten();
        let held = list.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "keep"));
        let held = held.expect("the fault was not applied");
        assert!(!held.with_extension("pack").exists());
        assert_eq!(lab.git(&["show", "refs/piton/x/a/7/1:work"]), "x");
    }
}

lab_test! {
    fn leftovers_victim(lab) {
        if is_victim() {
            lab.tree_at("run").commit_all(BRANCH, "leftovers").expect("committed");
        }
    }
}

lab_test! {
    fn leftovers_are_made_again(lab) {
        let tree = lab.tree();
        put(&tree.path().join("new/work"), "x");
        put(&tree.path().join("README.md"), "changed");
        put(&tree.path().join("forced.log"), "x");
        lab.git_in(tree.path(), &["add", "-f", "forced.log"]);
        among_collectors(lab, "collected::leftovers_victim");
        let paths = lab.git(&["ls-tree", "-r", "--name-only", BRANCH]);
        assert_eq!(paths, ".gitignore\nREADME.md\nforced.log\nnew/work\nsrc/main.rs");
        assert_eq!(lab.git(&["show", &format!("{BRANCH}:README.md")]), "changed");
        assert_eq!(lab.git_in(tree.path(), &["status", "--porcelain"]), "");
        assert_eq!(lab.git(&["for-each-ref", "refs/piton/held"]), "", "nothing is held any more");
    }
}

lab_test! {
    fn landing_victim(lab) {
        if is_victim() {
            let git = lab.found();
            let commit = git.commit("side").expect("there");
            let landing = prepare(&git, RUN, &commit, "land").expect("known");
            let Landing::Merge { onto, to } = landing else { panic!("a merge: {landing:?}") };
            // A gc before the branch moves finds the merge held.
            lab.git(&["gc", "-q", "--prune=now"]);
            git.move_ref(&format!("refs/heads/{RUN}"), &to, Some(&onto), "land").expect("moved");
        }
    }
}

lab_test! {
    fn a_merge_is_made_again_and_held(lab) {
        lab.git(&["checkout", "-q", "-b", "side"]);
        lab.write("deep/side", "x");
        lab.commit("side");
        lab.git(&["checkout", "-q", "main"]);
        lab.write("deep/main", "x");
        lab.commit("main");
        lab.git(&["branch", RUN]);
        among_collectors(lab, "collected::landing_victim");
        let paths = lab.git(&["ls-tree", "-r", "--name-only", RUN]);
        assert!(paths.contains("deep/main\ndeep/side"), "{paths}");
    }
}

/// Ends the loop when a test ends, also by a panic.
struct Loop(std::process::Child);

impl Drop for Loop {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

lab_test! {
    /// No trick: a real gc, over and over.
    fn everything_outlives_a_gc_in_a_loop(lab) {
        let (tree, git) = (lab.tree(), lab.found());
        lab.git(&["branch", RUN]);
        let count = lab.root().join("count");
        put(&count, "");
        let script = format!(
            "while :; do git gc --quiet --prune=now && echo >> {}; done 2>/dev/null",
            count.display()
        );
        let mut gc = Command::new("sh");
        gc.args(["-c", &script]).current_dir(lab.repo()).stdout(Stdio::null());
        gc.env_clear().env("HOME", lab.home()).env("PATH", std::env::var_os("PATH").expect("set"));
        let running = Loop(gc.spawn().expect("sh starts"));
        let mut n = 0;
        while n < 12 || fs::read(&count).expect("there").len() < 12 {
            n += 1;
            put(&tree.path().join(format!("folder-{n}/work")), format!("{n}"));
            let kept = lab.taken(&tree, n);
            read_back(&git, &kept).expect("readable");
            if n % 3 == 0 {
                let commit = tree.commit_all(BRANCH, "leftovers").expect("committed").commit;
                let landing = prepare(&git, RUN, &commit, "land").expect("known");
                let Landing::FastForward { onto, to } = landing else { panic!("{landing:?}") };
                git.move_ref(&format!("refs/heads/{RUN}"), &to, Some(&onto), "land").expect("moved");
            }
            assert!(n < 2000, "the fault was not applied");
        }
        drop(running);
        lab.git(&["fsck", "--connectivity-only", "--no-dangling"]);
    }
}
