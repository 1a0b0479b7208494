//! The simulated repository that the hosts share, and the worktree that each has of it: commits that
//! are named by their content, one branch that moves by compare-and-swap.

use std::collections::{BTreeMap, BTreeSet};

use piton_core::ids::{AttemptId, Oid};

pub(super) type Files = BTreeMap<String, String>;

pub(super) struct Repository {
    commits: BTreeMap<Oid, Commit>,
    /// The run's branch.
    tip: Oid,
}

struct Commit {
    files: Files,
    parents: Vec<Oid>,
}

/// A worktree on a host.
pub(super) struct Tree {
    pub(super) files: Files,
    pub(super) base: Oid,
    /// What somebody merged into it since.
    pub(super) merged: Vec<Oid>,
    /// The attempt that it was prepared for last.
    pub(super) of: Option<AttemptId>,
}

impl Tree {
    /// What a commit of it follows.
    pub(super) fn parents(&self) -> Vec<Oid> {
        std::iter::once(&self.base).chain(&self.merged).cloned().collect()
    }
}

/// What it takes to bring a commit onto the branch.
pub(super) enum Landing {
    Nothing,
    FastForward { onto: Oid, to: Oid },
    Merge { onto: Oid, to: Oid },
    Conflict { onto: Oid, paths: Vec<String> },
}

/// The file that several steps write a line of their own into.
pub(super) const SHARED: &str = "shared";

impl Repository {
    pub(super) fn new() -> Repository {
        let files = Files::from([("README".to_owned(), "base".to_owned())]);
        let tip = named(&files, &[]);
        let root = Commit { files, parents: Vec::new() };
        Repository { commits: BTreeMap::from([(tip.clone(), root)]), tip }
    }

    pub(super) fn tip(&self) -> Oid {
        self.tip.clone()
    }

    pub(super) fn files(&self, commit: &Oid) -> &Files {
        &self.commits[commit].files
    }

    pub(super) fn commit(&mut self, files: &Files, parents: &[Oid]) -> Oid {
        let name = named(files, parents);
        let commit = Commit { files: files.clone(), parents: parents.to_vec() };
        self.commits.insert(name.clone(), commit);
        name
    }

    /// Paths that differ between a commit and files.
    pub(super) fn changed(&self, base: &Oid, files: &Files) -> u64 {
        let before = self.files(base);
        let new = files.iter().filter(|(path, text)| before.get(*path) != Some(text)).count();
        let gone = before.keys().filter(|path| !files.contains_key(*path)).count();
        (new + gone) as u64
    }

    pub(super) fn prepare_landing(&mut self, commit: &Oid) -> Landing {
        let onto = self.tip();
        if self.contains(&onto, commit) {
            return Landing::Nothing;
        }
        if self.contains(commit, &onto) {
            return Landing::FastForward { onto, to: commit.clone() };
        }
        let (files, paths) = self.merge(&onto, self.files(commit), &self.fork(&onto, commit));
        if !paths.is_empty() {
            return Landing::Conflict { onto, paths };
        }
        let to = self.commit(&files, &[onto.clone(), commit.clone()]);
        Landing::Merge { onto, to }
    }

    /// Both sides in one, where they do not conflict, and where they do.
    fn merge(&self, theirs: &Oid, ours: &Files, base: &Oid) -> (Files, Vec<String>) {
        let (before, mut files) = (self.files(base), self.files(theirs).clone());
        let mut conflicts = Vec::new();
        for (path, text) in ours.iter().filter(|(path, text)| before.get(*path) != Some(text)) {
            if files.get(path) != Some(text) && files.get(path) != before.get(path) {
                conflicts.push(path.clone());
            }
            files.insert(path.clone(), text.clone());
        }
        (files, conflicts)
    }

    /// What a person makes of a tree and the branch: of the file that both wrote, every line.
    pub(super) fn merged(&self, tree: &Tree) -> Files {
        let tip = self.tip();
        let base = tree.merged.last().unwrap_or(&tree.base);
        let (mut files, conflicts) = self.merge(&tip, &tree.files, base);
        for path in conflicts {
            let sides = [&tree.files, self.files(&tip)].map(|side| side[&path].as_str());
            files.insert(path, lines(&sides.join(" ")));
        }
        files
    }

    /// The newest commit that two have in common.
    fn fork(&self, one: &Oid, other: &Oid) -> Oid {
        let common = |commit: &&Oid| self.contains(one, commit) && self.contains(other, commit);
        let all: Vec<&Oid> = self.commits.keys().filter(common).collect();
        let newest = all.iter().find(|commit| {
            !all.iter().any(|other| other != *commit && self.contains(other, commit))
        });
        (*newest.expect("every commit has the first")).clone()
    }

    /// Moves the branch if it is still where it was; says whether it moved.
    pub(super) fn swap(&mut self, onto: &Oid, to: &Oid) -> bool {
        let still = self.tip == *onto;
        if still {
            self.tip = to.clone();
        }
        still
    }

    fn contains(&self, tip: &Oid, commit: &Oid) -> bool {
        let mut open = vec![tip];
        while let Some(next) = open.pop() {
            if next == commit {
                return true;
            }
            open.extend(&self.commits[next].parents);
        }
        false
    }
}

/// Words, each once and in order.
pub(super) fn lines(text: &str) -> String {
    let words: BTreeSet<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    words.into_iter().collect::<Vec<_>>().join(" ")
}

/// An object id made of the content.
pub(super) fn named(files: &Files, parents: &[Oid]) -> Oid {
    let bytes = serde_json::to_vec(&(files, parents)).expect("strings only");
    Oid::new(piton_core::ids::Hash::of(&bytes).to_string()).expect("64 hex digits")
}
