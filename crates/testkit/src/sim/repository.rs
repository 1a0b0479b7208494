//! The simulated repository that the hosts share, and the worktree that each has of it: commits that
//! are named by their content, one branch that moves by compare-and-swap.

use std::collections::BTreeMap;

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

/// The run's worktree on a host.
pub(super) struct Tree {
    pub(super) files: Files,
    pub(super) base: Oid,
    /// The attempt that it was prepared for last.
    pub(super) of: Option<AttemptId>,
}

/// What it takes to bring a commit onto the branch.
pub(super) enum Landing {
    Nothing,
    FastForward { onto: Oid, to: Oid },
    Merge { onto: Oid, to: Oid },
}

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

    pub(super) fn prepare_landing(&mut self, commit: &Oid, base: &Oid) -> Landing {
        let onto = self.tip();
        if self.contains(&onto, commit) {
            return Landing::Nothing;
        }
        if self.contains(commit, &onto) {
            return Landing::FastForward { onto, to: commit.clone() };
        }
        let mut files = self.files(&onto).clone();
        for (path, text) in self.files(commit) {
            if self.files(base).get(path) != Some(text) {
                files.insert(path.clone(), text.clone());
            }
        }
        let to = self.commit(&files, &[onto.clone(), commit.clone()]);
        Landing::Merge { onto, to }
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

/// An object id made of the content.
pub(super) fn named(files: &Files, parents: &[Oid]) -> Oid {
    let bytes = serde_json::to_vec(&(files, parents)).expect("strings only");
    Oid::new(piton_core::ids::Hash::of(&bytes).to_string()).expect("64 hex digits")
}
