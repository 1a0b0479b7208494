//! The snapshots of a run whose records are gone: their refs and messages are all that is known of it.

use piton_core::ids::{Fence, Handle, StepRef};
use piton_core::time::Millis;
use piton_git::snapshot;

use super::{KnownBy, KnownSnapshot, base_in_git, in_order};
use crate::error::EngineError;
use crate::project::Project;
use crate::run::step_snapshot::reason_in;

/// Every snapshot that has a ref with the run's name, oldest first.
pub fn list_gone(project: &Project, handle: &Handle) -> Result<Vec<KnownSnapshot>, EngineError> {
    let mut found = Vec::new();
    for (refname, commit, seconds) in project.git.commits_under(&format!("refs/piton/{handle}/"))? {
        let (message, omitted) = snapshot::describe(&project.git, &commit)?;
        let n = refname.rsplit('/').next().unwrap_or_default().to_owned();
        let Some((step, fence)) = of_step(&message) else { continue };
        let base = base_in_git(project, &commit);
        found.push(KnownSnapshot {
            step,
            fence,
            n,
            at: Millis(seconds.saturating_mul(1000)),
            reason: reason_in(&message),
            changed: snapshot::changed_paths(&project.git, &base, &commit)?.len() as u64,
            omitted,
            commit,
            refname,
            known_by: KnownBy::Ref,
        });
    }
    in_order(&mut found);
    Ok(found)
}

/// Whose work a snapshot is, by what it says itself.
fn of_step(message: &str) -> Option<(StepRef, Fence)> {
    let (name, fence) = (trailer(message, "Piton-Step")?, trailer(message, "Piton-Fence")?);
    Some((name.parse().ok()?, Fence(fence.parse().ok()?)))
}

fn trailer<'text>(message: &'text str, name: &str) -> Option<&'text str> {
    let named = |line: &'text str| line.strip_prefix(name)?.strip_prefix(": ");
    message.lines().find_map(named).map(str::trim)
}
