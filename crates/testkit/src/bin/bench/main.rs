//! The one bench command: what piton's operations cost beside a floor that is measured in the same run,
//! in turns, because machines are noisy. Prints a table with the bars of docs/performance.md.
//!
//!     cargo run --release -p piton-testkit --bin bench [-- --check] [--short] [--only NAME]
//!
//! Reading order: this file, `report` (rows, bars, the table), `sample`, `floor` (what ours is compared
//! with), `lab` (what ours is measured on), `count` (flushes, memory, processor), then a file a subject.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use report::{Row, Verdict};

mod count;
mod floor;
mod lab;
mod report;
mod sample;

mod growth;
mod keeper;
mod looking;
mod recovery;
mod snapshot;
mod start;
mod transition;
mod verb;
mod writers;

/// What is measured with: the programs, and how patiently.
pub(crate) struct Bench {
    /// This program: its hidden modes are the floors that need a process of their own.
    own: PathBuf,
    piton: PathBuf,
    /// Fewer samples: seconds, not minutes.
    short: bool,
}

impl Bench {
    /// How many samples to take.
    fn samples(&self, full: usize, short: usize) -> usize {
        if self.short { short } else { full }
    }
}

/// A subject's name for `--only`, and what measures it.
type Subject = (&'static str, fn(&Bench) -> Vec<Row>);

const SUBJECTS: &[Subject] = &[
    ("start", start::measure),
    ("verb", verb::measure),
    ("transition", transition::one),
    ("steps", transition::steps),
    ("writers", writers::measure),
    ("growth", growth::measure),
    ("dead", looking::dead),
    ("status", looking::status),
    ("classify", looking::classify),
    ("recovery", recovery::measure),
    ("resume", recovery::resume),
    ("keeper", keeper::measure),
    ("snapshot", snapshot::measure),
];

/// How often a missed bar is measured again under `--check` before it is believed.
const TRIES: usize = 3;

struct Args {
    check: bool,
    short: bool,
    only: Option<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = floor::as_process(&words).or_else(|| writers::as_process(&words)) {
        return code;
    }
    match read(&words) {
        Ok(args) => run(&args),
        Err(complaint) => {
            say(&complaint);
            say("usage: bench [--check] [--short] [--only NAME]");
            ExitCode::from(2)
        }
    }
}

fn read(words: &[String]) -> Result<Args, String> {
    let mut args = Args { check: false, short: false, only: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--check" => args.check = true,
            "--short" => args.short = true,
            "--only" => {
                let name = words.next().filter(|name| SUBJECTS.iter().any(|(s, _)| s == name));
                let names: Vec<&str> = SUBJECTS.iter().map(|(name, _)| *name).collect();
                let one_of = format!("--only takes one of: {}", names.join(", "));
                args.only = Some(name.ok_or(one_of)?.clone());
            }
            other => return Err(format!("{other:?} is not understood")),
        }
    }
    Ok(args)
}

fn run(args: &Args) -> ExitCode {
    let own = std::env::current_exe().expect("the running program has a path");
    let installed = tempfile::tempdir().expect("a temporary folder");
    let install = |built: &Path| install(built, installed.path()).expect("programs can be copied");
    let (piton, own) = (install(&build_piton(&own)), install(&own));
    let bench = Bench { own, piton, short: args.short };
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let mut rows = Vec::new();
    for (name, measure) in SUBJECTS.iter().filter(|(name, _)| wanted(name)) {
        say(&format!("measuring {name} …"));
        rows.extend(measure_well(&bench, *measure, if args.check { TRIES } else { 1 }));
    }
    let mut out = io::stdout().lock();
    let printed = report::table(&rows).and_then(|text| out.write_all(text.as_bytes()));
    // A closed pipe is the reader's own wish.
    let _closed = printed.and_then(|()| writeln!(out, "\n{}", conditions()));
    let missed = rows.iter().filter(|row| row.verdict() == Verdict::Missed).count();
    let _closed = writeln!(out, "{}", report::closing(&rows));
    if args.check && missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Measures a subject; a bar that is missed is measured again, and the better measurement of it counts.
fn measure_well(bench: &Bench, measure: fn(&Bench) -> Vec<Row>, tries: usize) -> Vec<Row> {
    let mut rows = measure(bench);
    for _ in 1..tries {
        if rows.iter().all(|row| row.verdict() != Verdict::Missed) {
            break;
        }
        for (row, again) in rows.iter_mut().zip(measure(bench)) {
            if row.verdict() == Verdict::Missed {
                *row = again.measured_again();
            }
        }
    }
    rows
}

/// The piton of the present sources, beside this program.
fn build_piton(own: &Path) -> PathBuf {
    let dir = own.parent().expect("a program is in a folder");
    let profile = match dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--locked", "-p", "piton", "--profile", profile, "--target-dir"])
        .arg(dir.parent().expect("a profile's folder is in the target folder"))
        .status()
        .expect("cargo can be started");
    assert!(built.success(), "piton does not build");
    dir.join("piton")
}

/// Copies a program, as installing it does. What a linker has just written lies in the page cache in small
/// pieces, and each start maps them one by one: a third more time, which nobody pays who installed piton.
fn install(built: &Path, folder: &Path) -> io::Result<PathBuf> {
    let installed = folder.join(built.file_name().unwrap_or_default());
    std::fs::copy(built, &installed)?;
    Ok(installed)
}

/// What a reader needs to judge the milliseconds by.
fn conditions() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let dir = std::env::temp_dir();
    format!(
        "{cores} cores; files under {} ({}); SQLite {}; flushes {}.",
        dir.display(),
        count::file_system(&dir),
        rusqlite::version(),
        if count::has_strace() { "counted by strace" } else { "not counted: install strace" },
    )
}

/// Talk, not data.
fn say(text: &str) {
    let _nobody_listens = writeln!(io::stderr(), "{text}");
}
