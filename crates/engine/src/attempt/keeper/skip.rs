//! Whether a step's work is there already, in a tree that was just prepared: its `skip_if` command says so, or the
//! plan that it would produce is there.
//! Only an attempt that begins from the base asks: what an earlier attempt left is unfinished work.

use std::time::Instant;

use piton_core::attempt::Happened;
use piton_core::event::{Check, Entry, Stage};
use piton_core::exit::{Judged, judge};
use piton_core::ids::Hash;

use super::{Instead, Keeper};
use crate::attempt::child::Spec;
use crate::attempt::planner::{Produced, produced};
use crate::error::EngineError;
use crate::trust::Trusted;

impl Keeper {
    /// What was found in a tree that was prepared.
    pub(super) fn found_done(&mut self, trusted: &Trusted) -> Result<Happened, Instead> {
        let Some(base) = self.base.clone().filter(|_| self.entry == Entry::Fresh) else {
            return Ok(Happened::Done);
        };
        // A planner need not produce again what can be run.
        let produced = produced(&self.project, self.log.run(), &self.step, &base)?;
        if let Produced::Plan(plan) = produced {
            return Ok(Happened::Found { check: None, plan: Some(plan) });
        }
        Ok(match self.passed(trusted)? {
            // Without its plan a planner is not done, whatever its command says.
            Some(_) if !matches!(produced, Produced::Nothing) => Happened::Done,
            Some(check) => Happened::Found { check: Some(check), plan: None },
            None => Happened::Done,
        })
    }

    /// The command that passed, where one did.
    fn passed(&mut self, trusted: &Trusted) -> Result<Option<Check>, Instead> {
        let Some(command) = self.plan.skip_if.clone() else { return Ok(None) };
        self.unless_stopped()?;
        let (output, max) = (self.folder.skip_if_log(), self.settings.transcript_max);
        let (folder, variables) = (self.tree.path().to_owned(), self.variables(None)?);
        let spec = Spec { variables, ..Spec::shell(&command, folder, output.clone(), max) };
        let began = Instant::now();
        let child = self.supervisor.spawn(trusted, "skip_if", spec)?;
        let finished = self.supervisor.watch(&mut self.log, child)?;
        let exit = finished.ended.exit;
        match judge(Stage::Verify, finished.ended, finished.tail, None) {
            Judged::Ended => {
                let printed = std::fs::read(&output);
                let printed = printed.map_err(EngineError::io("skip-if.log cannot be read"))?;
                let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                Ok(Some(Check { command, exit, output: Hash::of(&printed), ms }))
            }
            Judged::Failed(_) | Judged::Limited(_) => Ok(None),
            Judged::Interrupted(cause) => {
                let evidence = format!("skip_if: {exit}");
                Err(Instead(Happened::Interrupted { cause, evidence }))
            }
        }
    }
}
