//! Running a verify command: the same for a keeper's work and for a commit from outside.

use std::time::Instant;

use piton_core::event::{Cause, Check, Exit, Failure, Stage};
use piton_core::exit::{Judged, judge};
use piton_core::ids::Hash;
use piton_git::crash;

use crate::attempt::child::Spec;
use crate::attempt::supervise::{Finished, Supervisor};
use crate::error::EngineError;
use crate::run::log::Log;
use crate::trust::Trusted;

/// What came of it.
pub(crate) enum Verdict {
    Passed(Check),
    Failed { why: Failure, tail: String, check: Check },
    Interrupted { cause: Cause, exit: Exit },
}

/// Runs `command` as `spec` says and judges it.
pub(crate) fn run(
    supervisor: &mut Supervisor,
    log: &mut Log,
    trusted: &Trusted,
    (command, spec): (String, Spec),
) -> Result<Verdict, EngineError> {
    let (began, output) = (Instant::now(), spec.output.clone());
    let child = supervisor.spawn(trusted, "verify", spec)?;
    crash::point("verify.spawned");
    let Finished { ended, tail, .. } = supervisor.watch(log, child)?;
    let exit = ended.exit;
    let printed = std::fs::read(&output);
    let printed = printed.map_err(EngineError::io("verify.log cannot be read"))?;
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let check = Check { command, exit, output: Hash::of(&printed), ms };
    Ok(match judge(Stage::Verify, ended, tail.clone(), None) {
        Judged::Ended => Verdict::Passed(check),
        Judged::Failed(why) => Verdict::Failed { why, tail, check },
        Judged::Limited(_) => unreachable!("a verify command says nothing"),
        Judged::Interrupted(cause) => Verdict::Interrupted { cause, exit },
    })
}
