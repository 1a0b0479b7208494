//! The attempt's tree: what it finds there, what it keeps of that, and how it gets its own. The log says
//! whose tree it is and whether the step has worked in it. docs/worktrees.md has every state that one can
//! be found in.

use piton_core::event::SnapshotReason;
use piton_core::ids::Oid;
use piton_git::crash;
use piton_git::repo::names;
use piton_git::shell;
use piton_git::snapshot;
use piton_git::worktree::{TreeState, Worktree, differing};

use super::{Instead, Keeper};
use crate::attempt::land;

impl Keeper {
    /// A tree at the tip of the run's branch, with whatever else is in it kept first.
    pub(super) fn start_over(&mut self, tip: &Oid) -> Result<(), Instead> {
        self.keep_leftovers(tip)?;
        self.tree.restart(&self.branch(), tip)?;
        self.has_tree = true;
        Ok(())
    }

    /// The tree as the last attempt left it: what is on disk wins. A tree that is gone, or that the step
    /// has not worked in, is rebuilt from the step's snapshot.
    pub(super) fn ensure_tree(&mut self) -> Result<(), Instead> {
        let branch = self.branch();
        if !self.log.run().trees().has_work(&self.project.host, &self.step) {
            let (start, kept) = self.start_of(&branch)?;
            self.keep_leftovers(&start)?;
            snapshot::rebuild(&self.tree, &branch, &start, kept.as_ref())?;
            self.has_tree = true;
            return Ok(());
        }
        self.take_place()?;
        match self.tree.settled()? {
            TreeState::Damaged { why, .. } | TreeState::Foreign { why } => {
                return Err(self.foreign(&why));
            }
            TreeState::Missing | TreeState::HalfMade { .. } => {
                self.keep_moved(SnapshotReason::Cadence)?;
                let (start, kept) = self.start_of(&branch)?;
                snapshot::rebuild(&self.tree, &branch, &start, kept.as_ref())?;
            }
            // Also when the agent went to a branch of its own: that is where its work is.
            TreeState::Present { .. } | TreeState::Unlinked { .. } => {
                let last =
                    self.state().resume_snapshot().and_then(|kept| kept.snapshot.head.clone());
                let known = last.or_else(|| self.state().base.clone());
                // What a killed git has left would keep the agent's own from working.
                self.tree.clear_own_locks()?;
                self.tree.settle(&branch, known.as_ref())?;
            }
        }
        self.has_tree = true;
        Ok(())
    }

    /// Keeps what a reset to `next` would lose: the leftovers of the step that had the tree before, or of
    /// an earlier try.
    fn keep_leftovers(&mut self, next: &Oid) -> Result<(), Instead> {
        self.take_place()?;
        self.take_branch()?;
        match self.tree.settled()? {
            TreeState::Damaged { why, .. } | TreeState::Foreign { why } => Err(self.foreign(&why)),
            TreeState::Missing | TreeState::HalfMade { .. } => {
                self.keep_moved(SnapshotReason::Reset)
            }
            TreeState::Present { .. } | TreeState::Unlinked { .. } => {
                // Commits that the next start does not have are as much at risk as files.
                let landed = match self.tree.head()?.and_then(|head| head.commit) {
                    Some(head) => self.project.git.is_ancestor(&head, next)?,
                    None => true,
                };
                if !landed || self.tree.dirty()? || snapshot::has_omitted(&self.tree, next)? {
                    self.keep_before_reset(next)?;
                }
                Ok(())
            }
        }
    }

    /// The worktree that was made for whoever claims the step may have its branch checked out. The claim is
    /// this attempt's now: that one stays where it is, without the branch.
    fn take_branch(&self) -> Result<(), Instead> {
        let (root, handle) = (&self.settings.worktree_root, &self.log.run().opened.handle);
        let made = self.project.step_worktree(root, handle, &self.step);
        let made = Worktree::own_place(&self.project.git, &made);
        if self.tree.elsewhere(&self.branch()).as_deref() == Some(made.path()) {
            made.detach()?;
        }
        Ok(())
    }

    /// Another tree that somebody has moved to this place is left alone; one that was moved together with
    /// the repository is told where it is now.
    fn take_place(&self) -> Result<(), Instead> {
        match self.tree.moved_from() {
            Some(other) => Err(self.foreign(&format!("it is the worktree of {}", other.display()))),
            None => Ok(self.tree.mend(&self.branch())?),
        }
    }

    /// The commit to start from, and the snapshot to put on top of it.
    fn start_of(&self, branch: &str) -> Result<(Oid, Option<Oid>), Instead> {
        let git = &self.project.git;
        let Some(kept) = self.state().resume_snapshot().map(|kept| &kept.snapshot.commit) else {
            let known = self.tree.left_at(branch).or_else(|| self.state().base.clone());
            return Ok(match known {
                Some(start) => (start, None),
                None => (land::run_tip(&self.project, self.log.run())?, None),
            });
        };
        let parent = git.commit(&format!("{kept}^"))?;
        // Later commits on the branch that have all of the snapshot are newer: a conflict was solved,
        // perhaps.
        if let Some(own) = git.ref_target(&format!("refs/heads/{branch}"))?
            && own != parent
            && git.is_ancestor(&parent, &own)?
        {
            let missing = differing(git.call(), &own, kept)?;
            let changed = differing(git.call(), &parent, kept)?;
            if !changed.iter().any(|path| missing.contains(path)) {
                return Ok((own, None));
            }
        }
        Ok((parent, Some(kept.clone())))
    }

    /// Bytes of a worktree that somebody has moved away: they are kept from where they are, and stay
    /// there.
    fn keep_moved(&mut self, reason: SnapshotReason) -> Result<(), Instead> {
        let Some(moved) = self.tree.moved_to() else { return Ok(()) };
        let place = moved.path().display().to_string();
        self.note(&format!("the worktree was moved to {place}: its files are kept from there"));
        let home = std::mem::replace(&mut self.tree, moved);
        let kept = self.keep_snapshot(reason);
        self.tree = home;
        kept?;
        Ok(())
    }

    /// No destruction without a copy: what a reset would lose is kept and read back first. What no snapshot
    /// can hold is moved into this attempt's folder, and stays there.
    fn keep_before_reset(&mut self, next: &Oid) -> Result<(), Instead> {
        // Nothing new: then the step's own last snapshot has it all.
        let own = self.state().snapshot.as_ref().map(|kept| kept.snapshot.clone());
        if let Some(kept) = self.keep_snapshot(SnapshotReason::Reset)?.or(own) {
            snapshot::read_back(&self.project.git, &kept)?;
            let into = self.folder.omitted();
            for moved in snapshot::set_aside(&self.tree, (&kept, next), &into)? {
                let (path, place) = (names::shown(&moved.path), moved.place.display());
                self.note(&format!("{path} was moved out of the worktree: it is {place}"));
            }
        }
        crash::point("tree.kept");
        Ok(())
    }

    fn foreign(&self, why: &str) -> Instead {
        let path = self.tree.path();
        let way = shell::mv_aside(path).map_or_else(String::new, |away| format!(": `{away}`"));
        let shown = path.display();
        Instead::obstacle(format!(
            "{shown} is not this step's worktree ({why}); it is left alone{way}"
        ))
    }
}
