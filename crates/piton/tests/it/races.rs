//! Real processes at the same step at the same moment. Whatever the order, a step has one owner and one
//! outcome, and whoever lost is told so. Each race shows that it was one: lifetimes overlapped, and both
//! orders were seen.
//!
//! 64 processes share 1,000 steps and a race is run 500 times in the ordinary run; with `PITON_FULL=1`
//! it is 10,000 of both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use piton_testkit::Sandbox;
use piton_testkit::runs::{events, lay_plan, why_not};
use serde_json::Value;

fn full() -> bool {
    std::env::var_os("PITON_FULL").is_some()
}

/// One race at a time: with another beside it nobody could say who was close.
static TRACK: Mutex<()> = Mutex::new(());

fn the_track() -> MutexGuard<'static, ()> {
    TRACK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A repository with a run of as many steps, all ready, and worktrees for those who claim.
struct Course {
    sandbox: Sandbox,
    run: String,
    trees: Vec<PathBuf>,
}

impl Course {
    fn new(steps: usize, trees: usize) -> Course {
        let sandbox = crate::sandbox();
        let step = |n: usize| format!("[[step]]\nid = '{}'\n", name(n));
        let steps: String = (0..steps).map(step).collect();
        lay_plan(&sandbox, &format!("[plan]\nname = 'race'\n{steps}"));
        let trees: Vec<PathBuf> =
            (0..trees).map(|n| sandbox.root().join(format!("tree-{n}"))).collect();
        for tree in &trees {
            let path = tree.to_str().expect("sandbox paths are text");
            sandbox.git(&["worktree", "add", "--quiet", "--detach", path]);
        }
        let opened = sandbox.piton(&["open", "plan.toml", "--json"]).output().success().json();
        let run = opened["data"]["run"]["run"].as_str().expect("an id").to_owned();
        Course { sandbox, run, trees }
    }

    /// `piton VERB RUN …`, with what it says for nobody but the test.
    fn piton(&self, verb: &str, more: &[&str]) -> Command {
        let args = [&[verb, &self.run], more, &["--json"]].concat();
        let mut command = self.sandbox.piton(&args).into_command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn claim(&self, tree: usize, step: &str, more: &[&str]) -> Command {
        let tree = self.trees[tree].to_str().expect("sandbox paths are text");
        self.piton("claim", &[&["--worktree", tree, "--step", step], more].concat())
    }

    /// What the log has of every step: name, fence and grounds of its events.
    fn told(&self) -> BTreeMap<String, Vec<Told>> {
        let mut told: BTreeMap<String, Vec<Told>> = BTreeMap::new();
        for event in events(&self.sandbox) {
            // What somebody had is kept before it is taken: that decides nothing.
            if let Some(step) = event["step"]["step"].as_str()
                && event["event"] != "checkpointed"
            {
                told.entry(step.to_owned()).or_default().push(Told::of(&event));
            }
        }
        told
    }
}

fn name(step: usize) -> String {
    format!("s{step}")
}

/// An event of a step, as far as a race is about it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Claimed { fence: u64, grounds: String, displaces: Option<u64>, worktree: String },
    Completed { fence: u64 },
    Released { fence: u64 },
}

impl Told {
    fn of(event: &Value) -> Told {
        let fence = event["fence"].as_u64();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match (event["event"].as_str(), fence) {
            (Some("claimed"), _) => Told::Claimed {
                fence: event["position"].as_u64().expect("a position"),
                grounds: text(&event["grounds"]),
                displaces: event["displaces"].as_u64(),
                worktree: text(&event["holder"]["external"]["worktree"]),
            },
            (Some("completed"), Some(fence)) => Told::Completed { fence },
            (Some("released"), Some(fence)) => Told::Released { fence },
            other => panic!("{other:?} has no place in a race"),
        }
    }
}

/// How a piton ended and what it said.
#[derive(Debug, Clone)]
struct Said {
    exit: i32,
    json: Value,
}

impl Said {
    #[track_caller]
    fn of(output: &Output) -> Said {
        let text = String::from_utf8_lossy(&output.stdout);
        let json = serde_json::from_str(&text).unwrap_or_else(|problem| {
            let talk = String::from_utf8_lossy(&output.stderr);
            panic!("{problem}: {:?}\n{text}\n{talk}", output.status)
        });
        Said { exit: output.status.code().expect("an exit status"), json }
    }

    #[track_caller]
    fn ok(&self) -> &Value {
        assert_eq!(self.exit, 0, "{:#}", self.json);
        &self.json["data"]
    }

    fn is_ok(&self) -> bool {
        self.exit == 0
    }

    fn code(&self) -> &str {
        self.json["issues"][0]["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn lost(&self) {
        assert_eq!((self.exit, self.code()), (5, "E049"), "{:#}", self.json);
    }
}

#[track_caller]
fn say(mut command: Command) -> Said {
    Said::of(&command.output().expect("piton starts"))
}

#[track_caller]
fn fence(said: &Said) -> u64 {
    let data = said.ok();
    assert_eq!(data["claimed"], true, "{data:#}");
    data["fence"].as_u64().expect("a fence")
}

/// A claim that one of many has made, and how long the process that made it lived.
struct Made {
    contender: usize,
    from: Instant,
    to: Instant,
    answer: Value,
}

/// Claims and completes until there is nothing left.
fn contend(course: &Course, contender: usize) -> Vec<Made> {
    let tree = course.trees[contender].to_str().expect("sandbox paths are text");
    let mut made = Vec::new();
    loop {
        let from = Instant::now();
        let said = say(course.piton("claim", &["--worktree", tree]));
        let answer = said.ok().clone();
        made.push(Made { contender, from, to: Instant::now(), answer: answer.clone() });
        if answer["claimed"] == false {
            return made;
        }
        let (step, fence) = (answer["step"].as_str().expect("a step"), answer["fence"].to_string());
        say(course.piton("complete", &[step, "--fence", &fence])).ok();
    }
}

/// The most that lived at one moment.
fn most_at_once(made: &[Made]) -> i64 {
    let mut edges: Vec<(Instant, i64)> =
        made.iter().flat_map(|made| [(made.from, 1), (made.to, -1)]).collect();
    edges.sort();
    let mut alive = 0;
    edges.iter().fold(0, |most, (_, change)| {
        alive += change;
        most.max(alive)
    })
}

#[test]
fn sixty_four_processes_that_claim_give_each_step_one_owner() {
    let _alone = the_track();
    const CONTENDERS: usize = 64;
    let steps = if full() { 10_000 } else { 1_000 };
    let course = Course::new(steps, CONTENDERS);
    let start = Barrier::new(CONTENDERS);
    let made: Vec<Made> = std::thread::scope(|scope| {
        let one = |contender: usize| {
            let (course, start) = (&course, &start);
            scope.spawn(move || {
                start.wait();
                contend(course, contender)
            })
        };
        let all: Vec<_> = (0..CONTENDERS).map(one).collect();
        all.into_iter().flat_map(|one| one.join().expect("a contender without an error")).collect()
    });

    let told = course.told();
    assert_eq!(told.len(), steps, "every step was somebody's");
    let mut fences = BTreeSet::new();
    for (step, told) in &told {
        let [Told::Claimed { fence, grounds, displaces: None, .. }, Told::Completed { fence: by }] =
            told.as_slice()
        else {
            panic!("{step} has more than one owner, or none: {told:?}");
        };
        assert_eq!((grounds.as_str(), fence), ("free", by));
        assert!(fences.insert(*fence), "{fence} was given twice");
    }
    let given: Vec<&Made> = made.iter().filter(|made| made.answer["claimed"] == true).collect();
    assert_eq!(given.len(), steps, "as many were told so");
    for made in &given {
        let step = made.answer["step"].as_str().expect("a step");
        let Told::Claimed { fence, worktree, .. } = &told[step][0] else { unreachable!() };
        assert_eq!(made.answer["fence"].as_u64(), Some(*fence));
        assert_eq!(*worktree, course.trees[made.contender].to_str().expect("text"));
    }
    assert_eq!(
        made.len(),
        steps + CONTENDERS,
        "in the end everybody was told that nothing is left"
    );

    let most = most_at_once(&made);
    assert!(most >= CONTENDERS as i64 / 2, "only {most} claimed at once");
    let owners: BTreeSet<usize> = given.iter().map(|made| made.contender).collect();
    assert!(owners.len() > CONTENDERS / 2, "{} of them got anything", owners.len());
}

/// Who of the two came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Left,
    Right,
}

/// The head start that makes a race a close one: whoever won last time starts a little later. So both
/// orders are seen, and most rounds fall into the few moments where it matters.
struct HeadStart {
    /// Of the left one, in microseconds.
    us: i64,
    won: [u32; 2],
}

impl HeadStart {
    const STEP_US: i64 = 400;
    const MOST_US: i64 = 200_000;

    fn new() -> HeadStart {
        HeadStart { us: 0, won: [0, 0] }
    }

    /// Starts both, and waits for their ends.
    fn race(&self, left: &mut Command, right: &mut Command) -> (Said, Said) {
        let (first, second) = if self.us < 0 { (right, left) } else { (left, right) };
        let begun = Instant::now();
        let started = first.spawn().expect("piton starts");
        while begun.elapsed() < Duration::from_micros(self.us.unsigned_abs()) {
            std::hint::spin_loop();
        }
        let late = second.spawn().expect("piton starts");
        let said =
            |child: std::process::Child| Said::of(&child.wait_with_output().expect("an end"));
        let (first, second) = (said(started), said(late));
        if self.us < 0 { (second, first) } else { (first, second) }
    }

    fn learn(&mut self, first: First) {
        let (won, by) = match first {
            First::Left => (0, -HeadStart::STEP_US),
            First::Right => (1, HeadStart::STEP_US),
        };
        self.won[won] += 1;
        self.us = (self.us + by).clamp(-HeadStart::MOST_US, HeadStart::MOST_US);
    }

    #[track_caller]
    fn saw_both(&self) {
        let [left, right] = self.won;
        assert!(left.min(right) > 0, "a race that is always won by one is none: {left}:{right}");
    }
}

/// As many rounds of a race, each on a step of its own; runs are kept short.
fn rounds(ordinary: usize, round: impl Fn(&Course, &str, &HeadStart) -> First) -> Vec<Course> {
    const STEPS: usize = 250;
    let mut left = if full() { 10_000 } else { ordinary };
    let mut start = HeadStart::new();
    let mut courses = Vec::new();
    while left > 0 {
        let steps = left.min(STEPS);
        let course = Course::new(steps, 2);
        for step in 0..steps {
            let first = round(&course, &name(step), &start);
            start.learn(first);
        }
        courses.push(course);
        left -= steps;
    }
    start.saw_both();
    courses
}

#[test]
fn force_claim_against_complete_has_one_outcome() {
    let _alone = the_track();
    let courses = rounds(500, |course, step, start| {
        let old = fence(&say(course.claim(0, step, &[]))).to_string();
        let mut force = course.claim(1, step, &["--force"]);
        let mut complete = course.piton("complete", &[step, "--fence", &old]);
        let (forced, completed) = start.race(&mut force, &mut complete);
        let answer = forced.ok();
        if answer["claimed"] == true {
            assert_eq!((&answer["step"], &answer["grounds"]), (&step.into(), &"forced".into()));
            assert_eq!(answer["displaces"].to_string(), old);
            completed.lost();
            First::Left
        } else {
            let why = why_not(answer, step);
            assert!(why.contains("completed"), "the loser is told: {answer:#}");
            completed.ok();
            First::Right
        }
    });
    assert_one_outcome(&courses, "forced");
}

/// Every step was completed by its first holder, or taken from it on these grounds; never both.
#[track_caller]
fn assert_one_outcome(courses: &[Course], taken: &str) {
    for (step, told) in courses.iter().flat_map(Course::told) {
        match told.as_slice() {
            [Told::Claimed { fence, .. }, Told::Completed { fence: by }] if fence == by => {}
            [
                Told::Claimed { fence, .. },
                Told::Claimed { grounds, displaces: Some(displaced), .. },
            ] if fence == displaced && grounds == taken => {}
            other => panic!("{step}: {other:?}"),
        }
    }
}

#[test]
fn release_against_heartbeat_leaves_no_lease_behind() {
    let _alone = the_track();
    let courses = rounds(200, |course, step, start| {
        let held = fence(&say(course.claim(0, step, &[]))).to_string();
        let mut release = course.piton("release", &[step, "--fence", &held]);
        let mut beat = course.piton("heartbeat", &[step, "--fence", &held]);
        let (released, beat) = start.race(&mut release, &mut beat);
        assert_eq!(released.ok()["released"], true);
        if beat.is_ok() {
            assert_eq!(beat.ok()["beat"], "continue");
            First::Right
        } else {
            assert_eq!(beat.json["data"]["beat"], "fenced", "{:#}", beat.json);
            First::Left
        }
    });
    for course in &courses {
        let told = course.told();
        for (step, told) in &told {
            let [Told::Claimed { fence, .. }, Told::Released { fence: by }] = told.as_slice()
            else {
                panic!("{step}: {told:?}");
            };
            assert_eq!(fence, by);
        }
        // A heartbeat that came too late has brought nothing back: everything can be had at once.
        let ready = say(course.piton("ready", &[]));
        assert_eq!(ready.ok()["ready"].as_array().map(Vec::len), Some(told.len()));
    }
}
