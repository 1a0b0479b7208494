//! A durable snapshot of a few changed files in many, beside a bare walk of the tree by two threads,
//! `git add -A` on a private index made durable, and `git stash create`, which flushes nothing and leaves
//! out what is untracked.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use piton_core::event::SnapshotReason;
use piton_core::ids::Oid;
use piton_engine::git::Git;
use piton_engine::git::snapshot::{self, Ask};
use piton_engine::git::worktree::Worktree;
use piton_testkit::Sandbox;

use crate::Bench;
use crate::report::Row;
use crate::sample::{Samples, timed};

const CHANGED: usize = 10;
const NEW: usize = 5;
/// Files in a folder.
const FOLDER: usize = 50;
/// What a snapshot may take besides its walk, in milliseconds of a quiet machine.
const BESIDES: f64 = 10.0;
/// A small append with its flush on that machine.
const QUIET_FLUSH: f64 = 0.48;

pub(crate) fn measure(bench: &Bench) -> Vec<Row> {
    let mut rows = of(bench, 1_000);
    if !bench.short {
        rows.extend(of(bench, 10_000));
        rows.extend(of(bench, 100_000));
    }
    rows
}

fn of(bench: &Bench, files: usize) -> Vec<Row> {
    let mut tree = Tree::new(bench, files);
    let root = tree.worktree.path().to_owned();
    // The first one knows nothing yet, and reads every file.
    tree.change(0);
    let first = tree.snapshot();
    let [mut walks, mut flushes, mut ours, mut by_git, mut stashes] = [const { Vec::new() }; 5];
    // In this order, because all of them have to see the same changes.
    for turn in 1..=bench.samples(21, 7) {
        tree.change(turn);
        walks.push(timed(|| walk(&root)).0);
        flushes.push(timed(|| tree.flush()).0);
        ours.push(tree.snapshot());
        by_git.push(tree.git_add(turn));
        stashes.push(tree.stash_create());
    }
    let [walk, flush, ours, git, stash] = [walks, flushes, ours, by_git, stashes].map(Samples::new);
    let what = format!("snapshot of {CHANGED} changed + {NEW} new in {files} files");
    let slower = (flush.p50() / QUIET_FLUSH).max(1.0);
    let limit = 1.5 * walk.p50() + BESIDES * slower;
    vec![
        Row::new(format!("{what}, beside a walk"), ours.shown())
            .beside(walk.shown(), ours.p50() / walk.p50())
            .at_most(ours.p50(), limit.round(), "ms"),
        Row::new("`git add -A`, durable, beside that snapshot", git.shown())
            .beside(ours.shown(), git.p50() / ours.p50())
            .times_at_least(2.0),
        Row::new("`git stash create`, not durable, beside that snapshot", stash.shown())
            .beside(ours.shown(), stash.p50() / ours.p50()),
        Row::new("the first snapshot, which reads every file", format!("{first:.0} ms")),
    ]
}

struct Tree {
    sandbox: Sandbox,
    worktree: Worktree,
    files: usize,
    head: Oid,
    last: Option<Oid>,
}

impl Tree {
    fn new(bench: &Bench, files: usize) -> Tree {
        let sandbox = Sandbox::with_binary(&bench.piton);
        for n in 0..files {
            sandbox.write(name(n), &format!("file {n}\n").repeat(40));
        }
        let head = Oid::new(sandbox.commit("many files")).expect("a commit");
        let ok = |mut command: Command| assert!(command.status().expect("it starts").success());
        let mut repack = sandbox.command("git");
        repack.args(["repack", "-adq"]);
        ok(repack);
        // What the others write goes elsewhere: from here our snapshot would have to flush it, and they
        // would find there what ours has written.
        let mut copy = sandbox.command("cp");
        copy.arg("-a").arg(sandbox.path(".git/objects")).arg(sandbox.root().join("apart"));
        ok(copy);
        let git = Git::discover(&sandbox.repo()).expect("a repository");
        let worktree = Worktree::at(&git, &sandbox.repo());
        Tree { sandbox, worktree, files, head, last: None }
    }

    /// Changes some files and adds some, others each time.
    fn change(&mut self, turn: usize) {
        for n in 0..CHANGED {
            let file = (turn * CHANGED + n) * 37 % self.files;
            self.sandbox.write(name(file), &format!("turn {turn}, file {file}\n").repeat(40));
        }
        for n in 0..NEW {
            self.sandbox.write(format!("new/{turn}-{n}.txt"), &format!("new in turn {turn}\n"));
        }
    }

    fn snapshot(&mut self) -> f64 {
        let ask = Ask {
            folder: "refs/piton/bench/s1/1".to_owned(),
            base: Some(self.head.clone()),
            message: "bench\n".to_owned(),
            reason: SnapshotReason::Cadence,
            last: self.last.clone(),
        };
        let (took, taken) = timed(|| snapshot::keep(&self.worktree, &ask));
        let taken = taken.expect("a snapshot").expect("something has changed");
        self.last = Some(taken.tree);
        took
    }

    /// A small append with its flush.
    fn flush(&self) {
        let path = self.sandbox.root().join("flushed");
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        let appended = file.and_then(|mut file| {
            file.write_all(&[7; 4096])?;
            file.sync_data()
        });
        appended.expect("an append");
    }

    fn stash_create(&self) -> f64 {
        let mut command = self.sandbox.command("git");
        command.args(["stash", "create"]);
        self.apart(&mut command, "stash-index");
        let (took, out) = timed(|| command.output().expect("git"));
        assert!(out.status.success(), "{out:?}");
        took
    }

    /// With objects and an index that only this one uses.
    fn apart(&self, command: &mut Command, index: &str) {
        let index = self.sandbox.root().join(index);
        if !index.exists() {
            fs::copy(self.sandbox.path(".git/index"), &index).expect("a copy of the index");
        }
        command.env("GIT_OBJECT_DIRECTORY", self.sandbox.root().join("apart"));
        command.env("GIT_INDEX_FILE", index);
    }

    /// What a script would do: stage everything in an index of its own, commit it, flush, name it.
    fn git_add(&self, number: usize) -> f64 {
        let git = |args: &[&str]| -> String {
            let mut command: Command = self.sandbox.command("git");
            command.args([
                "-c",
                "core.fsync=loose-object,reference",
                "-c",
                "core.fsyncMethod=fsync",
            ]);
            self.apart(&mut command, "git-index");
            let out = command.args(args).output().expect("git");
            assert!(out.status.success(), "git {args:?}: {out:?}");
            String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
        };
        let (took, ()) = timed(|| {
            git(&["add", "-A"]);
            let tree = git(&["write-tree"]);
            let commit = git(&["commit-tree", "-p", self.head.as_str(), "-m", "bench", &tree]);
            git(&["update-ref", &format!("refs/bench/{number}"), &commit]);
        });
        // Its objects are not the repository's.
        git(&["update-ref", "-d", &format!("refs/bench/{number}")]);
        took
    }
}

fn name(n: usize) -> PathBuf {
    PathBuf::from(format!("src/{}/{n}.txt", n / FOLDER))
}

/// Looks at every file, with two threads.
fn walk(root: &Path) -> u64 {
    let folders: Vec<PathBuf> = ["src", "new"]
        .iter()
        .filter_map(|name| fs::read_dir(root.join(name)).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .collect();
    let (a, b) = folders.split_at(folders.len() / 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| look(b));
        look(a) + other.join().expect("the other half")
    })
}

fn look(paths: &[PathBuf]) -> u64 {
    let size = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
        }
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    paths.iter().map(size).sum()
}
