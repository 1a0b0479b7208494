//! The run cache, through the real binary: with it, without it and with anything else in its place, verbs answer
//! the same; the doctor compares it with the log.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use piton_core::cache::{pack, unpack};
use piton_core::claim::Takeover;
use piton_core::ids::RunId;
use piton_core::run::Run;
use piton_engine::Access;
use piton_engine::outside::claims::{self, ClaimAsk};
use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::runs;
use piton_testkit::Sandbox;
use piton_testkit::runs::{data, fold_store, lay_plan, refused, store_file};
use serde_json::{Value, json};

const STEPS: usize = 300;
const DONE: usize = 250;
/// Claimed, started, noted, completed.
const RECORDS: u64 = 1 + 4 * DONE as u64;

/// Steps for people, every third of which needs the one before; two hold a lock.
fn steps() -> String {
    let step = |n: usize| {
        let needs = if n % 3 == 2 { format!("needs = ['s{}']\n", n - 1) } else { String::new() };
        let locks = if n % 100 == 99 { "locks = ['slot']\n" } else { "" };
        format!("[[step]]\nid = 's{n}'\ntitle = 'Step {n}'\n{needs}{locks}")
    };
    let head = "[plan]\nname = 'long'\n[locks]\nslot = 1\n".to_owned();
    head + &(0..STEPS).map(step).collect::<String>()
}

struct Long {
    sandbox: Sandbox,
    project: Project,
    run: RunId,
    handle: String,
    /// The run as it was when half of it was done.
    half: Run,
}

/// A run with a thousand records, brought into one file.
fn long() -> Long {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &steps());
    data(&sandbox, &["open", "plan.toml"]);
    let project = Project::discover(&sandbox.repo()).expect("a repository");
    let store = project.store(Access::Existing).expect("a store");
    let mut log = runs::find(&project, &store, None).expect("a run");
    let mut half = None;
    for n in 0..DONE {
        work_off(&project, &mut log);
        if n == DONE / 2 {
            half = Some(log.run().clone());
            fs::copy(cache_file(&sandbox), aside(&sandbox)).expect("a copy");
        }
    }
    assert_eq!(log.run().cursor.position.0, RECORDS);
    let (run, handle) = (log.run().opened.run, log.run().opened.handle.to_string());
    drop((log, store));
    fold_store(&sandbox);
    Long { sandbox, project, run, handle, half: half.expect("half of it was done") }
}

fn work_off(project: &Project, log: &mut Log) {
    let elsewhere = std::env::temp_dir();
    let lease = Duration::from_secs(60);
    let ask = ClaimAsk { step: None, worktree: &elsewhere, lease, takeover: Takeover::Forbid };
    let claim = claims::claim(project, log, &ask).expect("an answer").claim.expect("a claim");
    let under = piton_core::event::Under { step: claim.step.clone(), fence: claim.fence };
    claims::start(log, &under).expect("ours");
    let note = Some("going well".to_owned());
    let report = piton_core::event::Report { note, ..Default::default() };
    claims::checkpoint(project, log, &under, report).expect("ours");
    claims::complete(project, log, &under, None).expect("ours");
}

fn aside(sandbox: &Sandbox) -> PathBuf {
    sandbox.root().join("aside")
}

/// The cache of the only run.
fn cache_file(sandbox: &Sandbox) -> PathBuf {
    let state = fs::read_dir(sandbox.path(".git/piton")).expect("a folder");
    let mut files = state.map(|entry| entry.expect("an entry").path());
    files.find(|path| path.extension() == Some("cache".as_ref())).expect("a cache")
}

impl Long {
    /// Whether the cache is of use.
    fn is_cached(&self) -> bool {
        let store = self.project.store(Access::Look).expect("a store");
        store.cached(self.run).and_then(|bytes| unpack(&bytes)).is_some()
    }

    /// What verbs say; the store is then as it was before they were asked.
    fn answers(&self) -> Vec<Value> {
        let before = fs::read(store_file(&self.sandbox)).expect("a file");
        let cache = cache_file(&self.sandbox);
        let cached = fs::read(&cache).expect("a file");
        let head = fs::read(self.sandbox.path(".git/piton/store.head")).expect("a file");
        let ask = |words: &[&str]| data(&self.sandbox, words);
        let mut claim = ask(&["claim", &self.handle, "--worktree", "."]);
        let step = claim["step"].as_str().expect("a step").to_owned();
        claim["lease_expires"] = json!("then");
        let done = ask(&["complete", &self.handle, &step, "--worktree", "."]);
        let mut status = ask(&["status", &self.handle]);
        forget_times(&mut status);
        let answers = vec![claim, done, status, ask(&["ready", &self.handle])];
        for rest in ["store.db-wal", "store.db-shm"] {
            let _not_there = fs::remove_file(self.sandbox.path(".git/piton").join(rest));
        }
        fs::write(store_file(&self.sandbox), before).expect("a file");
        fs::write(self.sandbox.path(".git/piton/store.head"), head).expect("a file");
        fs::write(cache, cached).expect("a file");
        answers
    }
}

/// What depends on when and as which attempt a step was worked on, not on how the run was loaded.
fn forget_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in [
                "from",
                "to",
                "at",
                "since",
                "changed_at",
                "active_at",
                "heartbeat_at",
                "lease_expires",
                "attempt",
            ] {
                if let Some(field) = fields.get_mut(name) {
                    *field = json!("then");
                }
            }
            fields.values_mut().for_each(forget_times);
        }
        Value::Array(all) => all.iter_mut().for_each(forget_times),
        _ => {}
    }
}

#[test]
fn verbs_answer_the_same_whatever_became_of_the_cache() {
    let long = long();
    assert!(long.is_cached());
    let expected = long.answers();
    assert_eq!(expected[0]["step"], format!("s{DONE}"));
    assert_eq!(expected[0]["total_remaining"], STEPS - DONE);
    let file = cache_file(&long.sandbox);
    let newest = fs::read(&file).expect("a file");
    let put = |bytes: &[u8]| fs::write(&file, bytes).expect("a file");

    // As a folder that was restored in part would have it: true, but long ago.
    let old = fs::read(aside(&long.sandbox)).expect("a copy");
    assert_ne!(old, newest);
    put(&old);
    assert!(long.is_cached());
    assert_eq!(long.answers(), expected, "the cache of when half was done");

    let mut flipped = newest.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    let cut = &newest[..newest.len() - 1];
    let other = b"something else altogether, for which nobody has asked".repeat(9);
    for (what, bytes) in
        [("a flipped bit", &flipped[..]), ("cut", cut), ("other", &other), ("", b"")]
    {
        put(bytes);
        assert!(!long.is_cached(), "{what}: it is of no use");
        assert_eq!(long.answers(), expected, "{what}");
    }
    fs::remove_file(&file).expect("it is there");
    assert!(!long.is_cached());
    // The next append writes it again.
    let claim = data(&long.sandbox, &["claim", &long.handle, "--worktree", "."]);
    assert_eq!(claim["step"], expected[0]["step"]);
    assert!(long.is_cached());
}

#[test]
fn a_link_in_place_of_the_cache_is_not_followed() {
    let long = long();
    let file = cache_file(&long.sandbox);
    let elsewhere = long.sandbox.root().join("elsewhere");
    fs::rename(&file, &elsewhere).expect("it moves");
    std::os::unix::fs::symlink(&elsewhere, &file).expect("a link");
    let before = fs::read(&elsewhere).expect("a file");
    assert!(!long.is_cached());
    for _ in 0..3 {
        data(&long.sandbox, &["claim", &long.handle, "--worktree", "."]);
    }
    assert_eq!(fs::read(&elsewhere).expect("a file"), before);
}

#[test]
fn the_doctor_compares_the_cache_with_the_log() {
    let long = long();
    long.sandbox.piton(&["doctor"]).output().success();
    // Nothing that happens by accident: a run as it was earlier, said to be the newest.
    let store = long.project.store(Access::Existing).expect("a store");
    let log = Log::load(Arc::clone(&store), long.run).expect("a run");
    let mut forged = long.half.clone();
    forged.cursor = log.run().cursor;
    store.cache(long.run, &pack(None, &forged));
    let told = long.sandbox.piton(&["doctor", "--json"]).output().expect_code(74);
    assert!(told.stdout.contains("its cache differs from its log"), "{told}");
}

#[test]
fn an_unchanged_plan_is_claimed_from_without_git() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &steps());
    let claim = |step: &str| {
        sandbox.piton(&["claim", "plan.toml", "--worktree", ".", "--step", step, "--json"])
    };
    claim("s0").output().success();
    let without_git = || claim("s1").env("PATH", "/nowhere").output();
    without_git().success();
    assert_eq!(data(&sandbox, &["open", "plan.toml"])["opened"], false);

    // Other bytes: the plan has to be read, and where the run belongs asked of git.
    sandbox.write("plan.toml", &format!("# a remark\n{}", steps()));
    assert_ne!(without_git().code, Some(0), "git was not needed");
    claim("s3").output().success();
    without_git().success();

    sandbox.write("plan.toml", &steps().replace("Step 7", "Step seven"));
    let (_, code, _) = refused(&sandbox, &["claim", "plan.toml", "--worktree", "."]);
    assert_eq!(code, "E048");
}

#[test]
fn whoever_works_outside_of_git_needs_none() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, &steps());
    data(&sandbox, &["open", "plan.toml"]);
    let elsewhere = sandbox.root().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    let from = ["--worktree", elsewhere.to_str().expect("text")];
    data(&sandbox, &[&["claim", "plan.toml", "--step", "s0"], &from[..]].concat());
    for words in [
        &["claim", "plan.toml", "--step", "s0"][..],
        &["heartbeat", "plan.toml", "s0"],
        &["checkpoint", "plan.toml", "s0", "--note", "halfway"],
    ] {
        let words = [words, &from].concat();
        sandbox.piton(&words).env("PATH", "/nowhere").output().success();
    }
}
