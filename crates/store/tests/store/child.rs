//! Other processes: this test binary, started again with a role in its environment. A role talks to its
//! parent in lines that begin with a mark, because the test harness writes to the same pipe.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use piton_core::record::Cursor;
use piton_store::conformance::{bodies, new_run, run_id};
use piton_store::sqlite::{Access, SqliteStore};
use piton_store::{Runs, Store};

use crate::common::{fill_sample, fold_log_in, open, truth};

const ROLE: &str = "PITON_STORE_TEST_ROLE";
const FOLDER: &str = "PITON_STORE_TEST_FOLDER";
const MARK: &str = "@@ ";

/// A process in a role.
pub(crate) struct Other {
    child: Child,
    lines: BufReader<ChildStdout>,
    stdin: Option<ChildStdin>,
}

/// The command that starts a role; callers may change it.
pub(crate) fn role(binary: &Path, role: &str, dir: &Path) -> Command {
    let mut command = Command::new(binary);
    in_role(&mut command, role, dir);
    command
}

/// The same through a shell that first does something to itself.
pub(crate) fn role_after(shell: &str, role: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\"")]).arg(this_binary());
    in_role(&mut command, role, dir);
    command
}

fn in_role(command: &mut Command, role: &str, dir: &Path) {
    command.args(["--exact", "child::plays_its_role", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FOLDER, dir);
}

pub(crate) fn this_binary() -> PathBuf {
    std::env::current_exe().unwrap()
}

impl Other {
    pub(crate) fn start(mut command: Command) -> Other {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let stdin = child.stdin.take();
        Other { child, lines, stdin }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing it said; `None` when it ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(MARK) {
                return Some(line[at + MARK.len()..].trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    /// Kills it without warning, and says what it had said by then.
    pub(crate) fn kill(mut self) -> (Vec<String>, ExitStatus) {
        self.child.kill().unwrap();
        self.rest()
    }

    /// Lets it go on, by closing its standard input, and waits for its end.
    pub(crate) fn release(mut self) -> (Vec<String>, ExitStatus) {
        self.stdin = None;
        self.rest()
    }

    fn rest(mut self) -> (Vec<String>, ExitStatus) {
        let said = std::iter::from_fn(|| self.hear()).collect();
        (said, self.child.wait().unwrap())
    }
}

fn say(text: &str) {
    // Whole lines in one write, so that a kill cannot tear one.
    let mut out = stdout().lock();
    out.write_all(format!("\n{MARK}{text}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn wait_for_release() {
    stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Not a test of its own: does nothing unless it was started in a role.
#[test]
fn plays_its_role() {
    let (Some(role), Some(dir)) = (std::env::var_os(ROLE), std::env::var_os(FOLDER)) else {
        return;
    };
    let dir = Path::new(&dir);
    match role.to_str().unwrap() {
        "creates" => creates(dir),
        "appends" => appends(dir),
        "appends-fifty" => appends_fifty(dir),
        "holds-open" => holds_open(dir),
        "holds-lock" => holds_lock(dir),
        "looks" => looks(dir),
        "says-boot" => {
            say(&format!("{:?}", open(dir, Access::Look).now().unwrap().clock.unwrap().boot.0))
        }
        "makes-sample" => makes_sample(dir),
        other => panic!("no role {other}"),
    }
}

fn creates(dir: &Path) {
    say("begin");
    let store = open(dir, Access::Create);
    say("open");
    store.create_run(&new_run(1, "k"), &bodies(&[b"first"])).unwrap();
    say("created");
    wait_for_release();
}

/// Appends until it fails or is killed, and says each number once it is durable.
fn appends(dir: &Path) {
    let store = open(dir, Access::Existing);
    for number in 0.. {
        let body = format!("{}:{number}", std::process::id());
        match store.transact(run_id(1), Cursor::START, &mut |_| Some(bodies(&[body.as_bytes()]))) {
            Ok(_) => say(&format!("kept {body}")),
            Err(error) => return say(&format!("error {} {error:?}", error.code())),
        }
        if number % 16 == 15 {
            store.tidy();
        }
    }
}

fn appends_fifty(dir: &Path) {
    let store = open(dir, Access::Existing);
    let mut after = Cursor::START;
    for number in 0..50 {
        let body = format!("{}:{number}", std::process::id());
        let tail =
            store.transact(run_id(1), after, &mut |_| Some(bodies(&[body.as_bytes()]))).unwrap();
        after = tail.last().unwrap().cursor();
        store.tidy();
    }
    say("done");
}

fn holds_open(dir: &Path) {
    let store = open(dir, Access::Existing);
    let runs = store.runs(&Runs::All).unwrap();
    say(&format!("open {}", runs.len()));
    wait_for_release();
}

fn holds_lock(dir: &Path) {
    let store = open(dir, Access::Existing);
    store
        .transact(run_id(1), Cursor::START, &mut |_| {
            say("holding");
            wait_for_release();
            Some(bodies(&[b"held"]))
        })
        .unwrap();
    say("done");
}

/// Looks at a folder it must not be able to write to.
fn looks(dir: &Path) {
    let denied = fs::write(dir.join("probe"), b"x").unwrap_err().kind();
    say(&format!("writing is {denied:?}"));
    let read = SqliteStore::open(dir, Access::Look).and_then(|store| truth(&store));
    say(&format!("{:?}", read.map(|truth| format!("{truth:?}").len())));
}

/// How a folder of `tests/samples` is made, when the schema has changed.
fn makes_sample(dir: &Path) {
    fill_sample(&open(dir, Access::Create));
    fold_log_in(dir);
}
