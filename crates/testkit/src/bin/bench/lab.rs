//! A repository with a store, and runs in any state, made through the library: what ours is measured on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::sync::Arc;
use std::time::Duration;

use piton_core::claim::{Claim, Takeover, Which};
use piton_core::decide::{Command, Request};
use piton_core::event::{
    Failure, Holder, LandingIntent, Omission, Repository, RunOpened, Snapshot, SnapshotReason,
    Under,
};
use piton_core::ids::{AttemptId, Fence, Handle, Hash, Oid, RunId, StepId, StepRef};
use piton_core::observed::Observed;
use piton_core::plan::Plan;
use piton_engine::config::{self, Flags, Layers, Settings};
use piton_engine::project::Project;
use piton_engine::run::log::{Log, Opened};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{NewRun, RunKey, Store};
use piton_testkit::Sandbox;
use uuid::Uuid;

use crate::Bench;

pub(crate) struct Lab {
    pub(crate) sandbox: Sandbox,
    pub(crate) project: Project,
    pub(crate) store: Arc<dyn Store>,
    settings: Settings,
    base: Oid,
    piton: PathBuf,
}

impl Lab {
    pub(crate) fn new(bench: &Bench) -> Lab {
        let sandbox = Sandbox::with_binary(&bench.piton);
        let project = Project::discover(&sandbox.repo()).expect("the sandbox has a repository");
        let store = project.store(Access::Create).expect("a store");
        let layers = Layers { user: None, repository: None, env: &|_| None };
        let settings = config::load(&layers, &Flags::default()).expect("defaults").settings;
        let base = Oid::new(sandbox.git(&["rev-parse", "HEAD"])).expect("a commit");
        Lab { sandbox, project, store, settings, base, piton: bench.piton.clone() }
    }

    /// As [`Lab::new`], with runs in its store that were made in memory: no figure depends on how they
    /// came there, and thousands of durable commits would take minutes.
    pub(crate) fn prepared<T>(bench: &Bench, set_up: impl FnOnce(&Lab) -> T) -> (Lab, T) {
        let mut lab = Lab::new(bench);
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let dir = dir.expect("a temporary folder");
        let durable = SqliteStore::open(dir.path(), Access::Create).expect("a store");
        lab.store = Arc::new(durable);
        let made = set_up(&lab);
        lab.warm_up();
        let empty = lab.project.state.clone();
        fs::remove_dir_all(&empty)
            .and_then(|()| copy(dir.path(), &empty))
            .expect("the store moves");
        lab.store = lab.project.store(Access::Existing).expect("the store");
        (lab, made)
    }

    /// `piton ARGS…` in the repository.
    pub(crate) fn piton(&self, args: &[&str]) -> Program {
        let mut command = self.sandbox.command(&self.piton);
        command.args(args);
        command
    }

    /// Opens a run of a plan under a key; `replaces` loses it.
    pub(crate) fn open(&self, plan: &Arc<Plan>, key: &str, replaces: Option<RunId>) -> Log {
        let run = RunId(Uuid::now_v7());
        let settings = self.settings.to_bytes();
        let handle = Handle::new(format!("bench-{}", run.0.simple())).expect("a handle");
        let name = handle.to_string();
        let opened = RunOpened {
            run,
            handle,
            plan: plan.hash(),
            plan_path: format!("{key}.toml"),
            opened_in: None,
            repository: Repository { root: self.base.clone(), remote: None },
            base: self.base.clone(),
            base_branch: None,
            inputs: plan.inputs.clone(),
            settings: Hash::of(&settings),
            host: self.project.host.clone(),
        };
        let key = RunKey(format!("{}:{key}.toml", self.base));
        let new = NewRun { run, name, key, replaces };
        let opened =
            Log::open(Arc::clone(&self.store), &new, Arc::clone(plan), &settings, opened, &[]);
        match opened.expect("a run can be opened") {
            Opened::New(log) => log,
            Opened::Existing(run) => panic!("run {run} holds the key"),
        }
    }

    /// As [`Lab::new`], with a write-ahead log that has its working size.
    pub(crate) fn warm(bench: &Bench) -> Lab {
        let lab = Lab::new(bench);
        lab.warm_up();
        lab
    }

    /// Brings the write-ahead log to its working size: flushing a file that still grows takes longer.
    fn warm_up(&self) {
        let mut log = self.open(&plan_of(1), "warm", None);
        let (fence, _lock) = self.hold(&mut log, &step(1));
        self.start(&mut log, &step(1), fence);
        let command = checkpoint(&log, &step(1), fence, 0);
        (0..200).for_each(|_| tell(&mut log, command.clone()));
        self.complete(&mut log, &step(1), fence);
        self.store.tidy();
    }

    /// Flushes what setting up has left to the kernel, so that nobody's measured flush pays for it.
    pub(crate) fn settle(&self) {
        let state = &self.project.state;
        for path in [state.join("store.head"), state.join("write.lock"), state.clone()] {
            File::open(path).and_then(|file| file.sync_all()).expect("a file of the store");
        }
    }

    /// Claims a step as a keeper of this host does; the lock is held until it is dropped.
    pub(crate) fn hold(&self, log: &mut Log, step: &StepRef) -> (Fence, File) {
        let attempt = AttemptId(Uuid::now_v7());
        let lock = self.project.folder(attempt).create().expect("an attempt's folder");
        (self.claim(log, step, attempt), lock)
    }

    pub(crate) fn claim(&self, log: &mut Log, step: &StepRef, attempt: AttemptId) -> Fence {
        let (host, boot) = (self.project.host.clone(), self.project.boot.clone());
        let claim = Claim {
            which: Which::Step(step.clone()),
            attempt,
            holder: Holder::Keeper { host, boot },
            until: log.now().expect("a clock").after(Duration::from_secs(60)),
            observed: Observed { host: self.project.host.clone(), ..Observed::default() },
            takeover: Takeover::Forbid,
            pid: None,
        };
        tell(log, Command::Claim(claim));
        Fence(log.run().cursor.position.0)
    }

    pub(crate) fn start(&self, log: &mut Log, step: &StepRef, fence: Fence) {
        tell(
            log,
            Command::Under(
                Under { step: step.clone(), fence },
                Request::Start { base: Some(self.base.clone()), answers: Vec::new(), pid: None },
            ),
        );
    }

    /// From `Started` to `Completed`: three transitions.
    pub(crate) fn complete(&self, log: &mut Log, step: &StepRef, fence: Fence) {
        let (commit, tree) = (self.base.clone(), self.base.clone());
        let step = || step.clone();
        let (step_ref, check, commits, omitted) = (step(), None, 0, Vec::new());
        let verify = Command::Under(
            Under { step: step_ref, fence },
            Request::Verify { commit, tree, check, commits, omitted, iteration: None },
        );
        tell(log, verify);
        let (onto, to) = (self.base.clone(), self.base.clone());
        tell(
            log,
            Command::Under(
                Under { step: step(), fence },
                Request::Land(LandingIntent { onto, to }),
            ),
        );
        let commit = Some(self.base.clone());
        tell(
            log,
            Command::Under(
                Under { step: step(), fence },
                Request::Complete { commit, waive: None },
            ),
        );
    }

    /// Everything that the log says about a step that went well: five transitions.
    pub(crate) fn work_off(&self, log: &mut Log, step: &StepRef) {
        let fence = self.claim(log, step, AttemptId(Uuid::now_v7()));
        self.start(log, step, fence);
        self.complete(log, step, fence);
    }

    pub(crate) fn fail(&self, log: &mut Log, step: &StepRef) {
        let fence = self.claim(log, step, AttemptId(Uuid::now_v7()));
        self.start(log, step, fence);
        let why = Failure::Timeout { ms: 1 };
        tell(log, Command::Under(Under { step: step.clone(), fence }, Request::Fail { why }));
    }
}

/// The lasting files of a store, with what is kept beside it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        if name != "store.db-shm" && name != "write.lock" {
            fs::copy(from.join(&name), to.join(&name))?;
            File::open(to.join(&name))?.sync_all()?;
        }
    }
    Ok(())
}

/// Submits a command that the rules allow.
pub(crate) fn tell(log: &mut Log, command: Command) {
    log.submit(&command).expect("the command is allowed");
}

/// A checkpoint with this much about files that were left out.
pub(crate) fn checkpoint(log: &Log, step: &StepRef, fence: Fence, detail: usize) -> Command {
    let omitted = match detail {
        0 => Vec::new(),
        n => vec![Omission { path: "x".repeat(n), why: "measured".to_owned() }],
    };
    let opened = &log.run().opened;
    let snapshot = Snapshot {
        commit: opened.base.clone(),
        tree: opened.base.clone(),
        refname: format!("refs/piton/{}/{step}/{fence}/1", opened.handle),
        changed: 3,
        omitted,
        reason: SnapshotReason::Cadence,
        head: None,
        commits: 0,
    };
    Command::Under(
        Under { step: step.clone(), fence },
        Request::Checkpoint { snapshot: Some(snapshot), report: None },
    )
}

/// A plan of plain commands, each of which needs the one before.
pub(crate) fn plan_of(steps: usize) -> Arc<Plan> {
    Arc::new(piton_engine::formats::parse(plan_text(steps).as_bytes()).expect("the plan is sound"))
}

/// Such a plan as a file.
pub(crate) fn plan_text(steps: usize) -> String {
    let mut text = "[plan]\nname = \"bench\"\n".to_owned();
    for n in 1..=steps {
        text.push_str(&format!(
            "[[step]]\nid = \"s{n}\"\ntitle = \"Step number {n} of the bench\"\n"
        ));
        text.push_str("run = \"exec sleep 600\"\nverify = \"test -s result.txt\"\n");
        if n > 1 {
            text.push_str(&format!("needs = [\"s{}\"]\n", n - 1));
        }
    }
    text
}

/// A step of such a plan, counted from one.
pub(crate) fn step(n: usize) -> StepRef {
    StepRef::first(StepId::new(format!("s{n}")).expect("a name"))
}
