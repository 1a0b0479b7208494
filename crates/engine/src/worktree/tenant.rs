//! Whose work is in a worktree: a mark in its git directory names run, step and fence, from before the
//! step's first file to after whoever comes next has kept its bytes. A branch's name does not tell it:
//! agents detach HEAD, and make branches of their own.

use std::fs;
use std::path::Path;
use std::str::FromStr as _;

use piton_core::ids::{Fence, RunId, StepId, StepRef};

use super::Worktree;
use crate::git::GitError;

/// The mark's file in a worktree's git directory.
const TENANT: &str = "piton-tenant";
/// What it is called until it is whole.
const HALF: &str = "piton-tenant.new";
/// The first word of a mark that this version reads.
const VERSION: &str = "1";

/// The attempt that a worktree's files are the work of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub run: RunId,
    pub step: StepRef,
    pub fence: Fence,
}

impl Worktree {
    /// Whose work is here; nobody's where there is no mark, or none that can be read.
    pub fn tenant(&self) -> Option<Tenant> {
        Tenant::of(&self.git_dir().ok()?)
    }

    /// Says whose work it is from now on.
    pub(crate) fn mark_tenant(&self, tenant: &Tenant) -> Result<(), GitError> {
        tenant.mark(&self.git_dir()?)
    }
}

impl Tenant {
    /// By the mark in a worktree's git directory.
    pub(super) fn of(dir: &Path) -> Option<Tenant> {
        Tenant::read(&fs::read_to_string(dir.join(TENANT)).ok()?)
    }

    /// Whole or not at all.
    pub(super) fn mark(&self, dir: &Path) -> Result<(), GitError> {
        let (half, whole) = (dir.join(HALF), dir.join(TENANT));
        let written = fs::write(&half, self.text()).and_then(|()| fs::rename(&half, &whole));
        written.map_err(|source| GitError::io("write", &whole, source))
    }

    fn text(&self) -> String {
        let StepRef { step, iteration } = &self.step;
        format!("{VERSION} {} {step} {iteration} {}\n", self.run, self.fence)
    }

    fn read(text: &str) -> Option<Tenant> {
        let words: Vec<&str> = text.strip_suffix('\n')?.split(' ').collect();
        let &[VERSION, run, step, iteration, fence] = words.as_slice() else { return None };
        let step = StepRef { step: StepId::new(step).ok()?, iteration: iteration.parse().ok()? };
        Some(Tenant { run: RunId::from_str(run).ok()?, step, fence: Fence(fence.parse().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks are read by later versions: this one was written by the first.
    const SAMPLE: &str = "1 019a8f3e-7c52-7aa1-b0c4-0f7c2c9f5d11 jwt 3 17\n";

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let tenant = Tenant::read(SAMPLE).expect("a mark");
        assert_eq!(
            (tenant.step.to_string(), tenant.fence.to_string()),
            ("jwt#3".into(), "17".into())
        );
        assert_eq!(tenant.text(), SAMPLE);
    }

    #[test]
    fn what_is_no_whole_mark_names_nobody() {
        let cut = &SAMPLE[..SAMPLE.len() - 1];
        let newer = SAMPLE.replacen('1', "2", 1);
        for text in ["", cut, newer.as_str(), "1 x jwt 1 17\n", "1\n", "garbage\n"] {
            assert_eq!(Tenant::read(text), None, "{text:?}");
        }
    }
}
