//! Makes a tree ready for work: files and folders of the user's checkout that the plan wants there, and
//! the plan's setup command, once for every worktree that is made. What fails is told as a failure of
//! the attempt, with its output.

use std::path::Path;

use piton_core::attempt::Happened;
use piton_core::event::{Failure, Stage};
use piton_core::exit::{Judged, judge};
use piton_core::ids::Hash;

use super::{Instead, Keeper};
use crate::attempt::child::Spec;
use crate::trust::Trusted;

impl Keeper {
    pub(super) fn set_up(&mut self, trusted: &Trusted) -> Result<(), Instead> {
        let plan = trusted.plan();
        let checkout = self.project.git.main_root().to_owned();
        for path in &plan.copy {
            self.tree.copy_in(&checkout, Path::new(path)).map_err(|why| unready(path, &why))?;
        }
        for path in &plan.link {
            self.tree.link_in(&checkout, Path::new(path)).map_err(|why| unready(path, &why))?;
        }
        let Some(command) = &plan.setup else { return Ok(()) };
        let by = Hash::of(command.as_bytes()).to_string();
        if self.tree.is_set_up(&by)? {
            return Ok(());
        }
        self.run_setup(trusted, command)?;
        self.tree.was_set_up(&by)?;
        Ok(())
    }

    fn run_setup(&mut self, trusted: &Trusted, command: &str) -> Result<(), Instead> {
        self.unless_stopped()?;
        let (output, max) = (self.folder.setup_log(), self.settings.transcript_max);
        let (folder, variables) = (self.tree.path().to_owned(), self.variables(None)?);
        let spec = Spec { variables, ..Spec::shell(command, folder, output, max) };
        let child = self.supervisor.spawn(trusted, "setup", spec)?;
        let finished = self.supervisor.watch(&mut self.log, child)?;
        let evidence = format!("setup: {}", finished.ended.exit);
        match judge(Stage::Unstarted, finished.ended, finished.tail, None) {
            Judged::Ended => Ok(()),
            Judged::Failed(Failure::Setup { why, tail }) => {
                let why = format!("`{command}` {why}");
                Err(Instead(Happened::Failed(Failure::Setup { why, tail })))
            }
            Judged::Failed(why) => Err(Instead(Happened::Failed(why))),
            Judged::Limited(_) => unreachable!("a setup command says nothing"),
            Judged::Interrupted(cause) => Err(Instead(Happened::Interrupted { cause, evidence })),
        }
    }
}

fn unready(path: &str, why: &str) -> Instead {
    let why = Failure::Setup { why: format!("{path}: {why}"), tail: String::new() };
    Instead(Happened::Failed(why))
}
