//! The attempt's worktree: whose work it finds there, what it keeps of it, and how it gets its own. One
//! worktree may serve many steps: the mark in its git directory, not the branch, says whose files they
//! are. [docs/worktrees.md] has every state that one can be found in.

use piton_core::event::SnapshotReason;
use piton_core::ids::{Oid, StepRef};
use piton_core::plan::Isolation;

use super::{End, Keeper};
use crate::attempt::Folder;
use crate::crash;
use crate::git::names;
use crate::land;
use crate::outside_snapshots;
use crate::shell;
use crate::snapshot::{self, Filling, MovedOut};
use crate::worktree::{SetAside, Tenant, TreeState};

/// Whose work is in the tree.
enum Whose {
    /// This step's: of this attempt or an earlier one.
    Own,
    /// Another step's of this run.
    Other(Tenant),
    /// Nobody has said: made for somebody who claims, or by an older piton.
    Unknown,
}

impl Keeper {
    fn tenant(&self) -> Tenant {
        Tenant { run: self.log.run().opened.run, step: self.step.clone(), fence: self.fence }
    }

    fn whose(&self) -> Whose {
        match self.tree.tenant() {
            Some(tenant) if tenant.step == self.step => Whose::Own,
            // A changed plan may have lost the step.
            Some(tenant) if self.log.run().step(&tenant.step.step).is_some() => {
                Whose::Other(tenant)
            }
            _ => Whose::Unknown,
        }
    }

    /// A tree at the tip of the run's branch, with whatever else was in it kept first.
    pub(super) fn start_over(&mut self, tip: &Oid) -> Result<(), End> {
        self.take_place()?;
        match self.tree.settled()? {
            TreeState::Foreign { why } => return Err(self.foreign(&why)),
            TreeState::Missing => {
                self.keep_moved(SnapshotReason::Reset)?;
            }
            TreeState::Present { head, .. } => {
                // Commits that the run's branch does not have are as much at risk as files.
                let landed = match &head {
                    Some(head) => self.project.git.is_ancestor(head, tip)?,
                    None => true,
                };
                if !landed || self.tree.dirty()? || snapshot::has_omitted(&self.tree, tip)? {
                    self.keep_before_reset(tip)?;
                }
            }
        }
        let former = self.former();
        let aside = self.tree.give(&self.tenant(), &self.branch(), tip)?;
        self.has_tree = true;
        remember(aside, former)
    }

    /// The tree as the last attempt left it: what is on disk wins; a tree that is gone, or that another
    /// step has used since, is rebuilt from its snapshot.
    pub(super) fn ensure_tree(&mut self) -> Result<(), End> {
        self.take_place()?;
        let branch = self.branch();
        let (state, whose) = (self.tree.settled()?, self.whose());
        let is_anothers = |on: &str| on != branch && on.starts_with("piton/");
        match (state, whose) {
            (TreeState::Foreign { why }, _) => return Err(self.foreign(&why)),
            (TreeState::Missing, _) => {
                self.keep_moved(SnapshotReason::Cadence)?;
                self.rebuild(&branch)?;
            }
            (TreeState::Present { .. }, Whose::Other(_)) => {
                self.swap(&branch)?;
            }
            (TreeState::Present { branch: Some(on), .. }, Whose::Unknown) if is_anothers(&on) => {
                self.swap(&branch)?;
            }
            // Also when the agent went to a branch of its own: that is where its work is.
            (TreeState::Present { .. }, Whose::Own | Whose::Unknown) => {
                let last =
                    self.state().resume_snapshot().and_then(|kept| kept.snapshot.head.clone());
                let known = last.or_else(|| self.state().base.clone());
                // What a killed git has left would keep the agent's own from working.
                self.tree.clear_own_locks()?;
                self.tree.settle(&branch, known.as_ref())?;
            }
        }
        self.tree.mark_tenant(&self.tenant())?;
        self.has_tree = true;
        self.move_back()
    }

    /// Keeps what another has in the worktree, and makes it this step's again.
    fn swap(&mut self, branch: &str) -> Result<(), End> {
        let (start, _) = self.start_of(branch, self.left()?)?;
        self.keep_before_reset(&start)?;
        self.rebuild(branch)
    }

    /// The worktree of another run, or of another step, that somebody has moved to this place is left
    /// alone; one that was moved together with the repository is told where it is now.
    fn take_place(&self) -> Result<(), End> {
        if let Some(tenant) = self.tree.tenant() {
            let own_run = tenant.run == self.log.run().opened.run;
            let apart = self.log.run().plan().isolation == Isolation::Step;
            if !own_run || (apart && tenant.step != self.step && self.tree.is_displaced()) {
                let whose = match own_run {
                    true => format!("step {}", tenant.step),
                    false => format!("another run, {}", tenant.run),
                };
                return Err(self.foreign(&format!("its files are the work of {whose}")));
            }
        }
        Ok(self.tree.mend()?)
    }

    fn rebuild(&mut self, branch: &str) -> Result<(), End> {
        let kept = self.left()?;
        if let Some(kept) = &kept
            && self.is_left_at(kept)?
        {
            self.tree.keep_position(branch, kept)?;
        }
        let (start, kept) = self.start_of(branch, kept)?;
        // What was moved out comes back whole: a snapshot has only some of it.
        let since = self.state().restarted_at();
        let out = outside_snapshots::moved_out(&self.project, &self.step, self.state()).into_iter();
        let coming = out.filter(|(fence, _)| Some(*fence) >= since);
        let without: Vec<Vec<u8>> = coming.map(|(_, moved)| moved.path).collect();
        let filling = kept.as_ref().map(|snapshot| Filling { snapshot, without: &without });
        let former = self.former();
        self.tree.hand_to(&self.tenant())?;
        remember(snapshot::rebuild(&self.tree, branch, &start, filling)?, former)
    }

    /// What earlier attempts of this step made and the tree does not have, for its agent.
    pub(super) fn still_out(&self) -> Vec<String> {
        let out = outside_snapshots::moved_out(&self.project, &self.step, self.state()).into_iter();
        let row = |moved: MovedOut| {
            format!("{}: it is {}", names::shown(&moved.path), moved.place.display())
        };
        out.map(|(_, moved)| row(moved)).collect()
    }

    /// Puts back what was moved out when another step got the worktree: only now, when the worktree is
    /// whole and this step's, so that nobody else ever finds it there.
    fn move_back(&self) -> Result<(), End> {
        let state = self.state();
        let past = state.history.iter().rev().map(|past| &past.attempt);
        let since = state.restarted_at();
        for attempt in past.take_while(|attempt| Some(attempt.fence) >= since) {
            let folder = self.project.folder(attempt.id);
            let done = snapshot::move_back(&self.tree, &self.step, &folder.omitted())?;
            for MovedOut { path, place, .. } in &done.left {
                let (path, place) = (names::shown(path), place.display());
                self.note(&format!("{path} is not put back, something is there: it is {place}"));
            }
        }
        Ok(())
    }

    /// Whether git's entry for a folder that is gone still stands where this step's snapshot was taken.
    fn is_left_at(&self, kept: &Oid) -> Result<bool, End> {
        let is_own =
            |tenant: Tenant| tenant.run == self.log.run().opened.run && tenant.step == self.step;
        if !self.tree.left_by().is_some_and(is_own) {
            return Ok(false);
        }
        Ok(self.tree.head_left() == Some(self.project.git.commit(&format!("{kept}^"))?))
    }

    /// The newest snapshot of this step's own work: recorded, or taken by another step when it got the
    /// worktree.
    fn left(&self) -> Result<Option<Oid>, End> {
        let state = self.state();
        let recorded = state.resume_snapshot();
        let number = |name: &str| name.rsplit('/').next().and_then(|n| n.parse::<u64>().ok());
        let newest = recorded.map(|kept| (kept.fence, number(&kept.snapshot.refname).unwrap_or(0)));
        let since = newest.map(|(fence, _)| fence).max(state.restarted_at());
        for past in state.history.iter().rev().map(|past| &past.attempt) {
            if Some(past.fence) < since {
                break;
            }
            let found =
                outside_snapshots::newest_of(&self.project, &self.log, &self.step, past.fence)?;
            if let Some((number, commit)) = found
                && newest.is_none_or(|newest| (past.fence, number) > newest)
            {
                return Ok(Some(commit));
            }
        }
        Ok(recorded.map(|kept| kept.snapshot.commit.clone()))
    }

    /// The commit to start from, and what to put on top of it.
    fn start_of(&self, branch: &str, kept: Option<Oid>) -> Result<(Oid, Option<Oid>), End> {
        let git = &self.project.git;
        let Some(kept) = kept else {
            let known = self.tree.left_at(branch).or_else(|| self.state().base.clone());
            return Ok(match known {
                Some(start) => (start, None),
                None => (land::run_tip(&self.project, self.log.run())?, None),
            });
        };
        let parent = git.commit(&format!("{kept}^"))?;
        // Somebody has gone on since from what it stands on: a conflict was solved, perhaps; or there
        // were commits and no snapshot any more.
        if let Some(own) = git.ref_target(&format!("refs/heads/{branch}"))?
            && own != parent
            && !self.tree.has_position(&kept)
            && git.is_ancestor(&parent, &own)?
        {
            if git.tree_of(&kept)? == git.tree_of(&parent)? {
                return Ok((own, None));
            }
            let together = snapshot::carried(git, &kept, (&parent, &own))?;
            return Ok((own, Some(together)));
        }
        Ok((parent, Some(kept)))
    }

    /// Bytes of a worktree that somebody has moved away: they are kept from where they are, and stay
    /// there.
    fn keep_moved(&mut self, reason: SnapshotReason) -> Result<(), End> {
        let Some(moved) = self.tree.moved_to() else { return Ok(()) };
        let place = moved.path().display().to_string();
        self.note(&format!("the worktree was moved to {place}: its files are kept from there"));
        let home = std::mem::replace(&mut self.tree, moved);
        let kept = self.keep_snapshot(reason);
        self.tree = home;
        kept?;
        Ok(())
    }

    /// No destruction without a copy: what a reset would lose is kept and read back first. Under the
    /// fence of the step whose work it is, where that is another's; else under this one.
    fn keep_before_reset(&mut self, next: &Oid) -> Result<(), End> {
        let kept = match self.whose() {
            Whose::Other(tenant) => {
                let kept =
                    outside_snapshots::of_previous(&self.project, &self.log, &self.tree, &tenant)?;
                let handle = &self.log.run().opened.handle;
                let branch = piton_core::view::step_branch(handle, &tenant.step);
                self.tree.keep_position(&branch, &kept.commit)?;
                Some(kept)
            }
            Whose::Own | Whose::Unknown => {
                // Nothing new: then the step's own last snapshot has it all.
                let own = self.state().snapshot.as_ref().map(|kept| kept.snapshot.clone());
                self.keep_snapshot(SnapshotReason::Reset)?.or(own)
            }
        };
        if let Some(kept) = kept {
            snapshot::read_back(&self.project.git, &kept)?;
            let (into, step) = match self.former() {
                Some((folder, step)) => (folder.omitted(), Some(step)),
                None => (self.folder.omitted(), None),
            };
            for moved in snapshot::set_aside(&self.tree, (&kept, next), &into, step.as_ref())? {
                let (path, place) = (names::shown(&moved.path), moved.place.display());
                self.note(&format!("{path} was moved out of the worktree: it is {place}"));
            }
        }
        crash::point("tree.kept");
        Ok(())
    }

    /// The step whose work is in the worktree, and the folder of its attempt, in which what no snapshot
    /// can hold is kept. Of one that was left half made, or by nobody known, it cannot be said.
    fn former(&self) -> Option<(Folder, StepRef)> {
        let Tenant { step, fence, .. } = self.tree.tenant().filter(|_| self.tree.is_ours())?;
        let (_, state) = self.log.run().step(&step.step)?;
        let past = state.history.iter().map(|past| &past.attempt);
        let attempt = past.chain(state.attempt()).find(|attempt| attempt.fence == fence)?;
        Some((self.project.folder(attempt.id), step))
    }

    fn foreign(&self, why: &str) -> End {
        let path = self.tree.path();
        let (shown, away) = (path.display(), shell::mv_aside(path));
        End::obstacle(format!(
            "{shown} is not this step's worktree ({why}); it is left alone: `{away}`"
        ))
    }
}

/// What was ignored by the rules of whoever had the worktree, and is theirs; nobody's is only kept.
fn remember(aside: Vec<SetAside>, former: Option<(Folder, StepRef)>) -> Result<(), End> {
    match former {
        Some((folder, step)) => Ok(snapshot::remember(aside, &folder.omitted(), &step)?),
        None => Ok(()),
    }
}
