//! The keeper: one small process per attempt, from preparing the tree to `Completed`. It parents the
//! agent, outlives the worker, and holds `keeper.lock` throughout; when it dies, the kernel lets go
//! of the lock and the next command knows at once.

mod cadence;
mod checkout;
mod outputs;
mod setup;
mod skip;
mod stages;
mod tree;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::rc::Rc;

use piton_core::attempt::Happened;
use piton_core::decide::{Command, Request};
use piton_core::event::{Cause, Entry, Failure, Snapshot, SnapshotReason, Under};
use piton_core::ids::{AttemptId, Fence, Oid, RunId, StepRef};
use piton_core::plan::PlanStep;
use piton_core::refusal::Refusal;
use piton_core::run::{Attempt, Step};
use piton_core::view::step_branch;
use piton_git::crash;
use piton_git::repo::{Git, chain};
use piton_git::snapshot;
use piton_git::worktree::Worktree;
use piton_store::sqlite::Access;

use crate::attempt::supervise::Supervisor;
use crate::config::Settings;
use crate::error::EngineError;
use crate::error::LogError;
use crate::error::Unlanded;
use crate::folder::{Folder, KeeperRecord, Lock, adopt_lock};
use crate::machine;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::retention;
use crate::run::runs::settings_of;
use crate::run::step_snapshot;
use crate::trust::Trusted;

/// Which attempt to keep: what the worker passes to the process it starts.
#[derive(Debug, Clone)]
pub struct KeeperArgs {
    pub run: RunId,
    pub step: StepRef,
    pub fence: Fence,
    pub attempt: AttemptId,
}

/// What the keeper tells the worker once it is findable.
pub(crate) const READY: &str = "ready";

/// The main function of a keeper process. Its standard input is the locked `keeper.lock`, its
/// standard output the worker's ear until it is confirmed.
pub fn keep(from: &Path, args: &KeeperArgs) -> i32 {
    match Keeper::begin(from, args) {
        Ok(mut keeper) => keeper.work(),
        Err(error) => {
            let _worker_gone = writeln!(io::stdout(), "{}", chain(&error));
            1
        }
    }
}

/// What happened instead of a stage being done.
struct Instead(Happened);

impl Instead {
    /// Something that only a person can move: trying again would find it again.
    fn obstacle(evidence: impl Into<String>) -> Instead {
        Instead(Happened::Interrupted { cause: Cause::Obstacle, evidence: evidence.into() })
    }
}

impl<E: Into<EngineError>> From<E> for Instead {
    fn from(error: E) -> Instead {
        let error = match error.into() {
            EngineError::Unlanded(Unlanded::Conflict(conflict)) => {
                return Instead(Happened::Conflicted(conflict));
            }
            error => error,
        };
        Instead(match error.refusal() {
            Some(refusal) => Happened::Refused(refusal.clone()),
            None if error.is_unrelated() => {
                Happened::Failed(Failure::Landing { message: error.to_string() })
            }
            None => {
                let cause = match &error {
                    error if error.is_full_disk() => Cause::DiskFull,
                    error if error.is_obstacle() => Cause::Obstacle,
                    _ => Cause::Unknown,
                };
                Happened::Interrupted { cause, evidence: chain(&error) }
            }
        })
    }
}

struct Keeper {
    project: Project,
    log: Log,
    settings: Settings,
    step: StepRef,
    id: AttemptId,
    fence: Fence,
    entry: Entry,
    plan: PlanStep,
    folder: Folder,
    tree: Worktree,
    record: KeeperRecord,
    /// The worktree has this step's work, and nobody else's.
    has_tree: bool,
    /// What the step's work starts from, once the tree is prepared for it.
    base: Option<Oid>,
    /// Once it was looked up: what was begun is finished.
    trusted: Option<Rc<Trusted>>,
    supervisor: Supervisor,
    /// Held for as long as this process lives.
    _locks: [File; 2],
}

impl Keeper {
    fn begin(from: &Path, args: &KeeperArgs) -> Result<Keeper, EngineError> {
        let lock = adopt_lock()?;
        let project = Project::discover(from)?;
        let folder = project.folder(args.attempt);
        let held =
            folder.keeper().map_err(EngineError::io("the keeper's lock cannot be probed"))?;
        if held != Lock::Held {
            let detail = "it does not hold its lock".to_owned();
            return Err(EngineError::KeeperLost { step: args.step.clone(), detail });
        }
        Git::check_version()?;
        detach_from_terminal()?;
        crash::point("keeper.adopted");

        let step = args.step.clone();
        let store = project.store(Access::Existing)?;
        let log = Log::load(store, args.run)?;
        let settings = settings_of(&log)?;
        let attempt = own_attempt(&log, &step, args)?.clone();
        let (plan, _) = log.run().step(&step).expect("an attempt's step is in the plan");
        let plan = plan.clone();
        let tree_lock = inheritable_tree_lock(&folder)?;
        let record = KeeperRecord {
            run: args.run,
            step: step.clone(),
            fence: args.fence,
            boot: project.boot.clone(),
            keeper: machine::process(std::process::id().cast_signed())
                .ok_or(io::ErrorKind::NotFound.into())
                .map_err(EngineError::io("this process cannot be seen"))?,
            agent: None,
        };
        folder.write_keeper(&record).map_err(EngineError::io("keeper.json cannot be written"))?;
        crash::point("keeper.findable");

        let supervisor = Supervisor::start(&log, &step, &attempt, settings.grace)?;
        confirm()?;
        crash::point("keeper.confirmed");
        let path = project.place_of(&settings.worktree_root, log.run(), &attempt);
        let path = path.ok_or(Refusal::NotClaimed { step: step.clone(), given: args.fence })?;
        let tree = Worktree::own_place(&project.git, &path);
        Ok(Keeper {
            project,
            log,
            settings,
            step,
            id: args.attempt,
            fence: args.fence,
            entry: attempt.entry,
            plan,
            folder,
            tree,
            record,
            has_tree: false,
            base: None,
            trusted: None,
            supervisor,
            _locks: [lock, tree_lock],
        })
    }

    fn work(&mut self) -> i32 {
        let code = self.stages();
        self.unlock_tree();
        self.log.store().tidy();
        self.keep_house();
        code
    }

    /// When all is done and told: old snapshots go, and what others left behind. Nothing depends on it.
    fn keep_house(&self) {
        if !retention::is_due(&self.project) {
            return;
        }
        let old = retention::old_snapshots(&self.project, &self.log);
        let _the_next_time = old.and_then(|old| retention::prune(&self.project, &old));
        snapshot::sweep(&self.project.git);
    }

    /// Records how the attempt ended, unless its claim is lost; its bytes are kept first.
    fn end(&mut self, request: Option<Request>) -> i32 {
        // Before that the files are somebody else's, and stay as they are.
        if self.has_tree
            && let Err(error) = self.keep_snapshot(SnapshotReason::End)
        {
            let why = chain(&error);
            self.note(&format!("the last snapshot failed: {why}"));
            let _the_claim_is_lost = self.submit(Request::ReportUnkept { why });
        }
        let Some(request) = request else {
            self.note("the claim was taken: nothing more is recorded under this fence");
            return 5;
        };
        if let Request::Interrupt(interruption) = &request {
            self.note(&interruption.evidence);
        }
        let is_conflict = matches!(request, Request::RaiseConflict(_));
        let is_done = matches!(request, Request::FindDone { .. } | Request::WithPlan { .. });
        match self.submit(request) {
            Ok(()) => {
                if is_done {
                    self.put_away();
                }
                if is_conflict {
                    crash::point("keeper.parked");
                }
                0
            }
            // The next command finds this process gone and records what it sees.
            Err(error) => {
                self.note(&chain(&error));
                1
            }
        }
    }

    fn under(&self) -> Under {
        Under { step: self.step.clone(), fence: self.fence }
    }

    /// Writes under the attempt's claim.
    fn submit(&mut self, request: Request) -> Result<(), LogError> {
        self.log.submit(&Command::Under(self.under(), request)).map(drop)
    }

    fn state(&self) -> &Step {
        let (_, state) = self.log.run().step(&self.step).expect("the plan has our step");
        state
    }

    /// While this attempt works in it, nobody's `git worktree prune` or `remove` takes the tree away.
    fn lock_tree(&self) -> Result<(), EngineError> {
        Ok(self.tree.lock(&lock_reason(&self.log, &self.step, self.id))?)
    }

    fn unlock_tree(&self) {
        if let Err(error) = self.tree.unlock(&lock_reason(&self.log, &self.step, self.id)) {
            self.note(&format!("the worktree stays locked: {}", chain(&error)));
        }
    }

    fn branch(&self) -> String {
        step_branch(&self.log.run().opened.handle, &self.step)
    }

    /// Takes a snapshot, if anything changed, and records it.
    fn keep_snapshot(&mut self, reason: SnapshotReason) -> Result<Option<Snapshot>, EngineError> {
        if self.tree.state()?.dir().is_none() {
            return Ok(None);
        }
        let ask = step_snapshot::ask(&self.log, (&self.step, self.fence), reason);
        let taken = snapshot::keep(&self.tree, &ask)?;
        if let Some(taken) = &taken {
            self.record_snapshot(taken.clone())?;
        }
        if let Some((branch, step)) = self.shown_branch() {
            step_snapshot::show(&self.project.git, &branch, &step);
        }
        Ok(taken)
    }

    fn record_snapshot(&mut self, snapshot: Snapshot) -> Result<(), EngineError> {
        record_snapshot(&mut self.log, (&self.step, self.fence), snapshot)
    }

    /// The branch that shows the step's snapshots, where there is to be one, and the folder of the step's
    /// refs.
    fn shown_branch(&self) -> Option<(String, String)> {
        let template = snapshot::Template::parse(&self.settings.snapshot_branch).ok()?;
        let name = template.name(&self.log.run().opened.handle, &self.step);
        let own = step_snapshot::folder(&self.log, &self.step, self.fence);
        Some((name, snapshot::step_of(&own).to_owned()))
    }

    fn note(&self, message: &str) {
        note(message);
    }
}

/// For whoever looks into the attempt's folder later.
fn note(message: &str) {
    let _best_effort = writeln!(io::stderr(), "{message}");
}

fn record_snapshot(
    log: &mut Log,
    (step, fence): (&StepRef, Fence),
    snapshot: Snapshot,
) -> Result<(), EngineError> {
    crash::point("keeper.snapshot-kept");
    let (step, snapshot) = (step.clone(), Some(snapshot));
    let recorded = log.submit(&Command::Under(
        Under { step, fence },
        Request::Checkpoint { snapshot, report: None },
    ));
    crash::point("keeper.checkpointed");
    match recorded {
        // A refused holder may still keep bytes under its own fence: they are found by ref.
        Ok(_) | Err(LogError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Who a worktree is locked for, as `git worktree list` shows it.
pub(crate) fn lock_reason(log: &Log, step: &StepRef, attempt: AttemptId) -> String {
    format!("step {step} of {} (attempt {attempt})", log.run().opened.handle)
}

/// A session of its own: what a terminal sends does not reach this process or its agent. And the
/// nearest living ancestor of everything the agent starts, so that nothing escapes by re-parenting.
fn detach_from_terminal() -> Result<(), EngineError> {
    let failed = |error: rustix::io::Errno| EngineError::Io {
        what: "the keeper cannot leave its terminal".into(),
        source: error.into(),
    };
    rustix::process::setsid().map_err(failed)?;
    #[cfg(target_os = "linux")]
    {
        let own = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(own)).map_err(failed)?;
    }
    Ok(())
}

fn inheritable_tree_lock(folder: &Folder) -> Result<File, EngineError> {
    let lock = folder.lock_tree().map_err(EngineError::io("tree.lock cannot be taken"))?;
    rustix::io::fcntl_setfd(&lock, rustix::io::FdFlags::empty())
        .map_err(|error| EngineError::io("tree.lock cannot be passed on")(error.into()))?;
    Ok(lock)
}

/// Tells the worker that it may let go, and closes the pipe.
fn confirm() -> Result<(), EngineError> {
    let mut ear = io::stdout();
    // A worker that died meanwhile does not matter: the attempt goes on and is adopted.
    let _worker_gone = writeln!(ear, "{READY}").and_then(|()| ear.flush());
    let nothing = File::options().write(true).open("/dev/null");
    let nothing = nothing.map_err(EngineError::io("/dev/null"))?;
    rustix::stdio::dup2_stdout(&nothing)
        .map_err(|error| EngineError::io("standard output")(error.into()))
}

fn own_attempt<'log>(
    log: &'log Log,
    step: &StepRef,
    args: &KeeperArgs,
) -> Result<&'log Attempt, EngineError> {
    let unknown = || Refusal::UnknownStep(step.clone());
    let (_, state) = log.run().step(step).ok_or_else(unknown)?;
    let ours = |attempt: &&Attempt| attempt.fence == args.fence && attempt.id == args.attempt;
    let lost = || Refusal::NotClaimed { step: step.clone(), given: args.fence };
    Ok(state.attempt().filter(ours).ok_or_else(lost)?)
}
