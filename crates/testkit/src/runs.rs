//! What tests ask about runs of the real binary: plans for the fake agent, what `piton` shows of a run,
//! who keeps it, and which files were touched meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::piton::{Output, Running};
use crate::processes::{Process, alive, kill9};
use crate::sandbox::{Sandbox, toml_string};
use crate::wait::{DEADLINE, wait_for};

/// A plan with the fake agent as its agent, for steps made by [`agent_step`] and [`command_step`].
#[track_caller]
pub fn plan(sandbox: &Sandbox, steps: &[String]) -> String {
    plan_with(sandbox, "", steps)
}

/// The same with further lines in `[plan]`.
#[track_caller]
pub fn plan_with(sandbox: &Sandbox, lines: &str, steps: &[String]) -> String {
    let program = toml_string(&sandbox.fake_agent().display().to_string());
    format!(
        "[plan]\nname = 'test'\nagent = 'fake'\n{lines}\n\
         [agent.fake]\ncommand = [{program}, '--prompt']\nprompt = 'file'\n{}",
        steps.concat()
    )
}

/// A step of the fake agent: `{name}` in its script is the mark of that name, and actions are
/// separated by `; `. `more` is further lines of the step's table.
pub fn agent_step(sandbox: &Sandbox, id: &str, script: &str, more: &str) -> String {
    let script = marked(sandbox, script);
    let prompt: String = script.split("; ").map(|action| format!("fake: {action}\n")).collect();
    format!("[[step]]\nid = '{id}'\nprompt = {}\n{more}\n", toml_string(&prompt))
}

/// A step of a plain command, with marks as in [`agent_step`].
pub fn command_step(sandbox: &Sandbox, id: &str, command: &str, more: &str) -> String {
    format!("[[step]]\nid = '{id}'\nrun = {}\n{more}\n", toml_string(&marked(sandbox, command)))
}

/// A text with every `{name}` replaced by the path of that mark.
pub fn marked(sandbox: &Sandbox, text: &str) -> String {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').expect("a mark's name ends with }");
        whole.push_str(before);
        whole.push_str(sandbox.mark(name).to_str().expect("sandbox paths are text"));
        rest = after;
    }
    whole + rest
}

/// Puts a plan into the repository as `plan.toml`, where no snapshot and no commit sees it.
#[track_caller]
pub fn lay_plan(sandbox: &Sandbox, text: &str) {
    sandbox.write("plan.toml", text);
    sandbox.write(".gitignore", "plan.toml\npiton.toml\n");
    sandbox.commit("ready");
}

/// Commits a file in a worktree; the commit's id.
#[track_caller]
pub fn commit_file(sandbox: &Sandbox, tree: &Path, file: &str, text: &str) -> String {
    sandbox.write(tree.join(file), text);
    sandbox.git_in(tree, &["add", "-A"]);
    sandbox.git_in(tree, &["commit", "--quiet", "-m", &format!("write {file}")]);
    sandbox.git_in(tree, &["rev-parse", "HEAD"])
}

/// What a verb answers with `--json`.
#[track_caller]
pub fn data(sandbox: &Sandbox, args: &[&str]) -> Value {
    let out = sandbox.piton(args).arg("--json").output().success().json();
    assert_eq!(out["status"], "ok");
    out["data"].clone()
}

/// How a verb that is refused says so: its exit status, code and message.
#[track_caller]
pub fn refused(sandbox: &Sandbox, args: &[&str]) -> (i32, String, String) {
    told(&sandbox.piton(args).arg("--json").output())
}

/// As [`refused`], of a verb that has answered.
#[track_caller]
pub fn told(out: &Output) -> (i32, String, String) {
    let told = out.json();
    assert_eq!(told["status"], "error", "{out}");
    let issue = |name: &str| told["issues"][0][name].as_str().unwrap_or_default().to_owned();
    (out.code.expect("an exit status"), issue("code"), issue("message"))
}

/// Why a step was not to be had, as `claim` and `ready` tell it.
#[track_caller]
pub fn why_not<'answer>(answer: &'answer Value, step: &str) -> &'answer str {
    let rows = answer["blocked"].as_array().unwrap_or_else(|| panic!("nothing blocked: {answer}"));
    let row = rows.iter().find(|row| row["step"] == step);
    let why = row.and_then(|row| row["why"].as_str());
    why.unwrap_or_else(|| panic!("nothing about {step}: {answer}"))
}

/// A worktree for somebody who claims, made once; its path.
#[track_caller]
pub fn tree(sandbox: &Sandbox, name: &str) -> String {
    let path = sandbox.root().join(name).to_str().expect("sandbox paths are text").to_owned();
    if !sandbox.exists(&path) {
        sandbox.git(&["worktree", "add", "--quiet", "--detach", &path]);
    }
    path
}

/// Every write of a holder of step `jwt`, each with what it needs beside its claim.
pub const WRITES: [&[&str]; 12] = [
    &["start", "plan.toml", "jwt"],
    &["heartbeat", "plan.toml", "jwt"],
    &["checkpoint", "plan.toml", "jwt", "--note", "x"],
    &["check", "plan.toml", "jwt", "1", "--done"],
    &["item", "add", "plan.toml", "jwt", "gap"],
    &["substep", "complete", "plan.toml", "jwt", "validate"],
    &["ask", "plan.toml", "jwt", "which one?"],
    &["ask", "plan.toml", "jwt", "--read"],
    &["complete", "plan.toml", "jwt"],
    &["complete", "plan.toml", "jwt", "--force", "--reason", "x"],
    &["fail", "plan.toml", "jwt", "--reason", "x"],
    &["release", "plan.toml", "jwt"],
];

/// Neither by its fence nor, where it is known, by its worktree may a holder that lost its claim on step
/// `jwt` write anything.
#[track_caller]
pub fn assert_fenced(sandbox: &Sandbox, fence: &str, tree: Option<&str>) {
    let before = events(sandbox);
    let completed = step(&view(sandbox), "jwt")["status"] == "completed";
    let by_tree = tree.map(|tree| ["--worktree", tree]);
    let head = sandbox.git(&["rev-parse", "HEAD"]);
    let deliver = ["complete", "plan.toml", "jwt", "--commit", &head];
    for write in WRITES.into_iter().chain([&deliver[..]]) {
        for by in [["--fence", fence]].into_iter().chain(by_tree) {
            let (exit, code, message) = refused(sandbox, &[write, &by[..]].concat());
            // Whoever asks: what is completed cannot be released.
            let wanted = match write[0] {
                "release" if completed => (1, "E050"),
                _ => (5, "E049"),
            };
            assert_eq!((exit, code.as_str()), wanted, "{write:?} {by:?}: {message}");
        }
    }
    assert_eq!(events(sandbox), before, "nothing was written");
}

/// What `piton show --json` shows of the only run.
#[track_caller]
pub fn view(sandbox: &Sandbox) -> Value {
    sandbox.piton(&["show", "--json"]).output().success().json()["data"]["run"].clone()
}

/// The branch of the only run.
#[track_caller]
pub fn branch(sandbox: &Sandbox) -> String {
    view(sandbox)["branch"].as_str().expect("a branch").to_owned()
}

/// A file as the only run has landed it.
#[track_caller]
pub fn landed(sandbox: &Sandbox, path: &str) -> String {
    sandbox.git(&["show", &format!("{}:{path}", branch(sandbox))])
}

/// The files that the only run has landed.
#[track_caller]
pub fn landed_files(sandbox: &Sandbox) -> String {
    sandbox.git(&["ls-tree", "-r", "--name-only", &branch(sandbox)])
}

/// One step of a view.
#[track_caller]
pub fn step<'view>(view: &'view Value, id: &str) -> &'view Value {
    let steps = view["steps"].as_array().expect("a view has steps");
    steps.iter().find(|step| step["step"] == id).expect("a step of the plan")
}

/// The log of the only run.
#[track_caller]
pub fn events(sandbox: &Sandbox) -> Vec<Value> {
    let listed = sandbox.piton(&["events", "--json"]).output().success().json();
    listed["data"]["events"].as_array().expect("a list of events").clone()
}

/// The events of one name.
#[track_caller]
pub fn events_named(sandbox: &Sandbox, name: &str) -> Vec<Value> {
    events(sandbox).into_iter().filter(|event| event["event"] == name).collect()
}

/// Waits until the log has an event of this name and returns the newest.
#[track_caller]
pub fn wait_event(sandbox: &Sandbox, name: &str) -> Value {
    wait_for(DEADLINE, &format!("an event {name}"), || {
        let all = events(sandbox);
        all.iter().rfind(|event| event["event"] == name).cloned().ok_or(all)
    })
}

/// How often each step was completed.
#[track_caller]
pub fn completions(sandbox: &Sandbox) -> BTreeMap<String, u32> {
    let mut completions = BTreeMap::new();
    for event in events_named(sandbox, "completed") {
        let step = event["step"]["step"].as_str().expect("a step").to_owned();
        *completions.entry(step).or_default() += 1;
    }
    completions
}

/// The bytes of a file in the newest snapshot of a step, read from its ref.
#[track_caller]
pub fn kept(sandbox: &Sandbox, id: &str, path: &str) -> String {
    let view = view(sandbox);
    let name = step(&view, id)["snapshot"]["refname"].as_str().expect("a snapshot").to_owned();
    assert!(name.starts_with("refs/piton/"), "{name}");
    sandbox.git(&["cat-file", "blob", &format!("{name}:{path}")])
}

/// The first tree of the run's pool.
#[track_caller]
pub fn worktree(sandbox: &Sandbox) -> PathBuf {
    pool_tree(sandbox, 1)
}

/// A tree of the run's pool.
#[track_caller]
pub fn pool_tree(sandbox: &Sandbox, number: u32) -> PathBuf {
    let view = view(sandbox);
    let handle = view["handle"].as_str().expect("a handle");
    sandbox.path(".piton/worktrees").join(handle).join(number.to_string())
}

/// The folder of an attempt.
pub fn attempt_folder(sandbox: &Sandbox, attempt: &Value) -> PathBuf {
    let id = attempt.as_str().expect("an attempt's id");
    sandbox.path(".git/piton/attempts").join(id)
}

/// The keepers that live.
pub fn keepers(sandbox: &Sandbox) -> Vec<u32> {
    let is_keeper = |process: &Process| {
        process.command.contains(" keeper ") && process.command.contains("--attempt")
    };
    let found = sandbox.processes_with_env("PITON_ATTEMPT=");
    let keepers: Vec<&Process> = found.iter().filter(|process| is_keeper(process)).collect();
    // What a keeper has just forked looks like it until it becomes its program.
    let forked = |of: &Process| keepers.iter().any(|keeper| keeper.pid == of.parent);
    keepers.iter().filter(|keeper| !forked(keeper)).map(|keeper| keeper.pid).collect()
}

/// The one keeper that lives.
#[track_caller]
pub fn keeper(sandbox: &Sandbox) -> u32 {
    match keepers(sandbox).as_slice() {
        [one] => *one,
        other => panic!("one keeper was expected: {other:?} {:#?}", sandbox.processes()),
    }
}

/// Starts a run and waits until its agent is at work, which makes the marks `ready` and `agent`; the agent's
/// process.
#[track_caller]
pub fn at_work(sandbox: &Sandbox, args: &[&str]) -> (Running, u32) {
    let worker = sandbox.piton(args).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    assert!(alive(agent), "the agent is at work");
    (worker, agent)
}

/// Kills worker, keeper and agent of a run at work.
#[track_caller]
pub fn all_killed(sandbox: &Sandbox, args: &[&str]) {
    let (worker, agent) = at_work(sandbox, args);
    let keeper = keeper(sandbox);
    drop(worker.kill9());
    kill9(keeper);
    kill9(agent);
    // A shell around the agent ends with it, a moment later.
    sandbox.wait_no_processes();
}

/// Kills the worker and the keeper of a run; its agent lives on.
#[track_caller]
pub fn orphaned(sandbox: &Sandbox, worker: Running) {
    let keeper = keeper(sandbox);
    drop(worker.kill9());
    kill9(keeper);
}

/// Waits until a process is dead.
#[track_caller]
pub fn wait_dead(pid: u32) {
    crate::wait_until(DEADLINE, &format!("the end of process {pid}"), || !alive(pid));
}

/// Everything below a folder as it is on disk: what a verb that only looks must leave as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDisk(BTreeMap<PathBuf, Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    inode: u64,
    mode: u32,
    modified: (i64, i64),
    bytes: Option<blake3::Hash>,
}

impl OnDisk {
    /// Reads a folder that nobody writes to. A folder in it that may not be entered counts as itself.
    #[track_caller]
    pub fn of(folder: &Path) -> OnDisk {
        let mut found = BTreeMap::new();
        let mut left = vec![folder.to_owned()];
        while let Some(path) = left.pop() {
            let meta = fs::symlink_metadata(&path).expect("a path just listed");
            if meta.is_dir() {
                match fs::read_dir(&path) {
                    Ok(listed) => left.extend(listed.map(|entry| entry.expect("an entry").path())),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
                }
            }
            let bytes = meta.is_file().then(|| blake3::hash(&fs::read(&path).expect("a file")));
            let modified = (meta.mtime(), meta.mtime_nsec());
            let entry = Entry { inode: meta.ino(), mode: meta.mode(), modified, bytes };
            found.insert(path.strip_prefix(folder).expect("below it").to_owned(), entry);
        }
        OnDisk(found)
    }

    /// How many paths there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Paths that came, went or changed in any way since.
    pub fn differences(&self, later: &OnDisk) -> Vec<PathBuf> {
        let all = self.0.keys().chain(later.0.keys());
        let mut paths: Vec<PathBuf> =
            all.filter(|path| self.0.get(*path) != later.0.get(*path)).cloned().collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// The file that keeps the runs.
pub fn store_file(sandbox: &Sandbox) -> PathBuf {
    sandbox.path(".git/piton/store.db")
}

/// Brings everything into the store's one file and removes its log, as a backup would have it.
#[track_caller]
pub fn fold_store(sandbox: &Sandbox) {
    sql(&store_file(sandbox), "PRAGMA wal_checkpoint(TRUNCATE)");
    assert!(!sandbox.exists(".git/piton/store.db-wal"), "the last one to close it removes the log");
}

/// Does something to a database that piton would never do.
#[track_caller]
pub fn sql(database: &Path, statements: &str) {
    let connection = rusqlite::Connection::open(database).expect("a database");
    connection.execute_batch(statements).expect("statements");
    connection.close().expect("a database can be closed");
}
