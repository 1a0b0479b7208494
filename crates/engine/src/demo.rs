//! The demo: a plan of five steps in a temporary repository, worked on by a tiny agent, while its
//! worker, keeper and agent are killed with SIGKILL. It ends in a check against a run that nobody
//! disturbed. Nothing in it is staged: the same binary, real processes, real kills.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use piton_core::event::{Event, Fact, Under};
use piton_core::ids::StepRef;
use piton_core::record::Cursor;
use piton_core::run::Run;
use piton_core::view::run_branch;
use piton_git::repo::Git;
use piton_store::sqlite::Access;
use rustix::process::Signal;

use crate::error::EngineError;
use crate::folder;
use crate::folder::KeeperRecord;
use crate::machine;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::runs::find;

/// The steps, each a file of so many lines written one by one.
const STEPS: [&str; 5] = ["outline", "draft", "figures", "review", "summary"];
const LINES: usize = 12;
const LINE_EVERY: Duration = Duration::from_millis(70);
/// Kill when so many lines are written: in the middle of the work.
const IN_THE_MIDDLE: usize = 4;
/// The demo gives up rather than hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A line of the timeline.
#[derive(Debug, Clone)]
pub struct Beat {
    /// Since the demo began.
    pub at: Duration,
    pub text: String,
}

/// One line of the closing check.
#[derive(Debug, Clone)]
pub struct DemoResult {
    pub what: String,
    pub holds: bool,
}

/// The agent: goes on from whatever is in its file, one line at a time.
pub fn agent(prompt: &Path) -> Result<(), EngineError> {
    let text = fs::read_to_string(prompt).map_err(EngineError::io("the prompt cannot be read"))?;
    let file = text.lines().find_map(|line| line.strip_prefix("Write "));
    let file = PathBuf::from(file.unwrap_or("notes.txt").trim());
    for number in lines(&file) + 1..=LINES {
        let failed = || EngineError::io(format!("{} cannot be written", file.display()));
        let mut open =
            fs::File::options().create(true).append(true).open(&file).map_err(failed())?;
        writeln!(open, "{} line {number}", file.display()).map_err(failed())?;
        std::thread::sleep(LINE_EVERY);
    }
    Ok(())
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

/// Runs the demo in an empty folder with this binary.
pub fn demo(
    home: &Path,
    piton: &Path,
    hear: &mut dyn FnMut(Beat),
) -> Result<Vec<DemoResult>, EngineError> {
    let began = Instant::now();
    let mut say = |text: String| hear(Beat { at: began.elapsed(), text });
    let undisturbed = Stage::build(&home.join("undisturbed"), piton)?;
    let disturbed = Stage::build(&home.join("disturbed"), piton)?;
    say(format!("two repositories, the same plan of {} steps; one is left alone", STEPS.len()));
    let mut quiet = undisturbed.start(&["run", "plan.toml", "--trust"])?;
    let mut watcher = disturbed.start(&["run", "plan.toml", "--trust"])?;

    let scene = disturbed.in_the_middle("draft")?;
    watcher.kill9();
    let (lines, pid) = (scene.lines, watcher.pid());
    say(format!("draft has {lines} of {LINES} lines: kill -9 piton run (process {pid})"));
    disturbed.await_lines("draft", scene.lines + 1)?;
    let lines = disturbed.lines("draft");
    say(format!("the run continues without it: {lines} lines"));

    let scene = disturbed.in_the_middle("figures")?;
    say(format!("figures has {} lines: kill -9 keeper {}", scene.lines, scene.keeper));
    machine::send(scene.keeper, Signal::KILL);
    let taken = disturbed.await_next_attempt(&scene)?;
    say(format!(
        "the worker noticed; the step continues after {} ms: {}",
        taken.ms(),
        taken.kept()
    ));

    let scene = disturbed.in_the_middle("review")?;
    say(format!("review has {} lines: kill -9 agent {}", scene.lines, scene.agent));
    machine::send(scene.agent, Signal::KILL);
    let taken = disturbed.await_next_attempt(&scene)?;
    say(format!(
        "the keeper noticed; the step continues after {} ms: {}",
        taken.ms(),
        taken.kept()
    ));

    let scene = disturbed.in_the_middle("summary")?;
    let all = [scene.worker, scene.keeper, scene.agent];
    let [a, b, c] = all;
    let lines = scene.lines;
    say(format!("summary, {lines} lines: kill -9 worker {a}, keeper {b}, agent {c}"));
    for process in all {
        machine::send(process, Signal::KILL);
    }
    say("nothing runs any more: piton resume".to_owned());
    let resumed = disturbed.start(&["resume"])?.wait()?;
    say("the run is completed".to_owned());
    let alone = quiet.wait()?;
    verdicts(&undisturbed, &disturbed, alone && resumed)
}

/// A repository with a plan, and how to look at what happens there.
struct Stage {
    folder: PathBuf,
    piton: PathBuf,
}

/// A moment in which a step is being worked on.
struct Scene {
    step: &'static str,
    lines: usize,
    worker: i32,
    keeper: i32,
    agent: i32,
    attempts: usize,
}

/// How a step went on after a kill.
struct Taken {
    after: Duration,
    before: usize,
    now: usize,
}

impl Taken {
    fn ms(&self) -> u128 {
        self.after.as_millis()
    }

    fn kept(&self) -> String {
        match self.now {
            now if now >= self.before => "no line lost".to_owned(),
            now => format!("{} of {} lines are missing", self.before - now, self.before),
        }
    }
}

impl Stage {
    fn build(folder: &Path, piton: &Path) -> Result<Stage, EngineError> {
        let failed = || EngineError::io(format!("{} cannot be made", folder.display()));
        fs::create_dir_all(folder).map_err(failed())?;
        fs::write(folder.join("plan.toml"), plan(piton)).map_err(failed())?;
        Git::init(folder, "the plan")?;
        Ok(Stage { folder: folder.to_owned(), piton: piton.to_owned() })
    }

    /// Starts a verb of the real binary, with its own place for trust.
    fn start(&self, words: &[&str]) -> Result<Playing, EngineError> {
        let child = Command::new(&self.piton)
            .args(words)
            .current_dir(&self.folder)
            .env("XDG_STATE_HOME", self.folder.join(".git/state"))
            .env("PITON_SNAPSHOT_EVERY", "1s")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(EngineError::io("piton cannot be started"))?;
        Ok(Playing(child))
    }

    /// The run as its log tells it now.
    fn log(&self) -> Result<(Project, Log), EngineError> {
        let project = Project::discover(&self.folder)?;
        let store = project.store(Access::Look)?;
        let log = find(&project, &store, None)?;
        Ok((project, log))
    }

    /// One step follows the other, so that the pool has one tree.
    fn file(&self, run: &Run, step: &str) -> PathBuf {
        let trees = self.folder.join(".piton/worktrees").join(run.opened.handle.as_str());
        trees.join("1").join(format!("{step}.txt"))
    }

    fn lines(&self, step: &str) -> usize {
        self.log().map_or(0, |(_, log)| lines(&self.file(log.run(), step)))
    }

    /// Waits until a step's agent is in the middle of its work.
    fn in_the_middle(&self, step: &'static str) -> Result<Scene, EngineError> {
        self.until(&format!("step {step} in the middle of its work"), || {
            let (project, log) = self.log().ok()?;
            let id = step.parse::<StepRef>().ok()?;
            let (_, state) = log.run().step(&id)?;
            let attempt = state.attempt()?;
            let record: KeeperRecord = project.folder(attempt.id).read_keeper()?;
            let written = lines(&self.file(log.run(), step));
            let agent = record.agent.filter(|_| written >= IN_THE_MIDDLE)?;
            Some(Scene {
                step,
                lines: written,
                worker: record.keeper.parent,
                keeper: record.keeper.pid,
                agent: agent.pid,
                attempts: state.history.len(),
            })
        })
    }

    fn await_lines(&self, step: &str, count: usize) -> Result<(), EngineError> {
        self.until("more lines", || (self.lines(step) >= count).then_some(()))
    }

    /// Waits until another attempt of the step has been started; says what it started from.
    fn await_next_attempt(&self, scene: &Scene) -> Result<Taken, EngineError> {
        let began = Instant::now();
        self.until("the next attempt", || {
            let (_, log) = self.log().ok()?;
            let (_, state) = log.run().step(&scene.step.parse::<StepRef>().ok()?)?;
            let started = state.attempt().is_some_and(|attempt| attempt.started_at.is_some());
            (state.history.len() > scene.attempts && (started || state.is_completed()))
                .then_some(())
        })?;
        let (after, now) = (began.elapsed(), self.lines(scene.step));
        Ok(Taken { after, before: scene.lines, now })
    }

    fn until<T>(&self, what: &str, seen: impl Fn() -> Option<T>) -> Result<T, EngineError> {
        let began = Instant::now();
        loop {
            if let Some(found) = seen() {
                return Ok(found);
            }
            if began.elapsed() > PATIENCE {
                let what = format!("the demo waited in vain for {what}");
                return Err(EngineError::Io { what, source: std::io::ErrorKind::TimedOut.into() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Playing(Child);

impl Playing {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill9(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }

    fn wait(&mut self) -> Result<bool, EngineError> {
        let status = self.0.wait().map_err(EngineError::io("piton cannot be waited for"))?;
        Ok(status.success())
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn plan(piton: &Path) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("[plan]\nname = \"demo\"\nagent = \"demo\"\n\n[agent.demo]\n");
    let program = piton.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let _ = writeln!(text, "command = [\"{program}\", \"demo-agent\"]\nprompt = \"file\"");
    let mut before: Option<&str> = None;
    for step in STEPS {
        let _ = writeln!(text, "\n[[step]]\nid = \"{step}\"\nprompt = \"Write {step}.txt\"");
        let _ = writeln!(text, "verify = \"test $(grep -c line {step}.txt) -eq {LINES}\"");
        if let Some(before) = before {
            let _ = writeln!(text, "needs = [\"{before}\"]");
        }
        before = Some(step);
    }
    text
}

/// What must hold, read from the log and from git.
fn verdicts(
    undisturbed: &Stage,
    disturbed: &Stage,
    both_ended_well: bool,
) -> Result<Vec<DemoResult>, EngineError> {
    let (project, log) = disturbed.log()?;
    let (other, other_log) = undisturbed.log()?;
    let run = log.run().opened.run;
    let mut completions: BTreeMap<StepRef, usize> = BTreeMap::new();
    for record in log.store().read(run, Cursor::START)? {
        if let Ok(Event::Under(Under { step, .. }, Fact::Completed { .. })) =
            Event::from_body(&record.body)
        {
            *completions.entry(step).or_default() += 1;
        }
    }
    let once = completions.len() == STEPS.len() && completions.values().all(|count| *count == 1);
    let tree = |project: &Project, log: &Log| {
        let branch = run_branch(&log.run().opened.handle);
        let tip = project.git.commit(&format!("refs/heads/{branch}"))?;
        project.git.tree_of(&tip)
    };
    let (ours, theirs) = (tree(&project, &log)?, tree(&other, &other_log)?);
    let attempts: usize = log.run().steps().map(|(_, _, step)| step.history.len()).sum();
    let left = log.run().steps().flat_map(|(_, _, step)| &step.history);
    let left = left.map(|past| past.attempt.id);
    let left: usize = left.map(|id| folder::of_attempt(id, &project.folder(id)).len()).sum();
    let holds = |what: String, holds: bool| DemoResult { what, holds };
    Ok(vec![
        holds("both runs ended well".into(), both_ended_well),
        holds(
            format!("{} steps, each completed exactly once, in {attempts} attempts", STEPS.len()),
            once,
        ),
        holds(
            format!("the final tree {} equals that of the undisturbed run", ours.short()),
            ours == theirs,
        ),
        holds("no process is left".into(), left == 0),
    ])
}
