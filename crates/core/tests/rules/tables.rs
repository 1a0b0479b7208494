//! Truth tables of claimability and recovery: every reachable combination, one row each, kept as a
//! snapshot for people to review. A combination that the rules themselves refuse to reach has no row.

use piton_core::claim::{Claim, Granted, claimable};
use piton_core::decide::{Command, decide};
use piton_core::event::{Event, Grounds};
use piton_core::observed::{Observed, Sighting};
use piton_core::plan::{OnFailure, Plan};
use piton_core::recover::{Action, Because, recover};
use piton_core::refusal::Refusal;
use piton_core::run::Run;

use crate::history::{History, LEASE, at, corpse, entry_word, host, id, plan, told};

/// The step that the tables are about stands between `before`, which it needs, and `other`.
const STEP: &str = "it";

/// How the step came to where it stands.
struct State {
    label: &'static str,
    retries: u32,
    script: &'static str,
    held: Held,
}

/// Who has the step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Nobody,
    Keeper,
    /// Whoever works in worktree `x`.
    Outside,
}

const fn free(label: &'static str, script: &'static str) -> State {
    State { label, retries: 1, script, held: Held::Nobody }
}

const fn spent(label: &'static str, script: &'static str) -> State {
    State { label, retries: 0, script, held: Held::Nobody }
}

const fn held(label: &'static str, script: &'static str) -> State {
    State { label, retries: 1, script, held: Held::Keeper }
}

const fn outside(label: &'static str, script: &'static str) -> State {
    State { label, retries: 1, script, held: Held::Outside }
}

const STATES: &[State] = &[
    free("pending, needs unmet", ""),
    free("pending, needs met", "BEFORE"),
    free("failed exit, retries left", "BEFORE, AGENT, fail it exit"),
    free("failed verify, retries left", "BEFORE, AGENT, fail it verify"),
    free("failed timeout, retries left", "BEFORE, AGENT, fail it timeout"),
    free("failed landing, retries left", "BEFORE, AGENT, verify it, fail it landing"),
    spent("failed exit, retries used", "BEFORE, AGENT, fail it exit"),
    spent("failed landing, retries used", "BEFORE, AGENT, verify it, fail it landing"),
    free("interrupted unstarted", "BEFORE, claim it, interrupt it unstarted"),
    free("interrupted unstarted, asked", "BEFORE, claim it, stop it, interrupt it unstarted"),
    free("interrupted agent", "BEFORE, AGENT, interrupt it agent"),
    free("interrupted agent, asked", "BEFORE, AGENT, stop it, interrupt it agent"),
    free("interrupted agent, 2 idle", "BEFORE, AGENT, ROUND, interrupt it agent"),
    free("interrupted agent, 3 idle", "BEFORE, AGENT, ROUND, ROUND, interrupt it agent"),
    free("interrupted agent, obstacle", "BEFORE, AGENT, interrupt it agent obstacle"),
    free("interrupted verify", "BEFORE, AGENT, interrupt it verify"),
    free("interrupted verify, asked", "BEFORE, AGENT, stop it, interrupt it verify"),
    free("interrupted verify, 3 idle", "BEFORE, AGENT, CHECK, CHECK, interrupt it verify"),
    free("interrupted land", "BEFORE, AGENT, verify it, land it, interrupt it land"),
    free("interrupted land, asked", "BEFORE, AGENT, verify it, stop it, interrupt it land"),
    free("interrupted land, 3 idle", "BEFORE, AGENT, verify it, LAND, LAND, interrupt it land"),
    free("waiting", "BEFORE, AGENT, ask it which, suspend it"),
    free("waiting, answered", "BEFORE, AGENT, ask it which, suspend it, answer it one"),
    free("parked", "BEFORE, AGENT, verify it, park it"),
    free("parked, land again", "BEFORE, AGENT, verify it, park it, answer it land again"),
    free("parked, restart", "BEFORE, AGENT, verify it, park it, answer it restart"),
    free("interrupted, question open", "BEFORE, AGENT, ask it which, interrupt it agent"),
    State {
        label: "failed alike twice",
        retries: 3,
        script: "BEFORE, AGENT, fail it exit, claim it, start it, fail it exit",
        held: Held::Nobody,
    },
    spent("failed, retried", "BEFORE, AGENT, fail it verify, retry it"),
    free("failed landing, retried", "BEFORE, AGENT, verify it, fail it landing, retry it"),
    free(
        "interrupted agent, 3 idle, retried",
        "BEFORE, AGENT, ROUND, ROUND, interrupt it agent, retry it",
    ),
    free("interrupted land, retried", "BEFORE, AGENT, verify it, interrupt it land, retry it"),
    spent("failed, skipped", "BEFORE, AGENT, fail it exit, skip it unneeded"),
    spent("failed, reset", "BEFORE, AGENT, progress it 50, fail it exit, reset it"),
    free("completed", "BEFORE, AGENT, verify it, land it, complete it"),
    held("held, unstarted", "BEFORE, claim it"),
    held("held, agent", "BEFORE, AGENT"),
    held("held, question open", "BEFORE, AGENT, ask it which"),
    held("held, answer not read", "BEFORE, AGENT, ask it which, answer it one"),
    held("held, answer read", "BEFORE, AGENT, ask it which, answer it one, read it"),
    held("held, verify", "BEFORE, AGENT, interrupt it verify, claim it"),
    held("held, verified", "BEFORE, AGENT, verify it"),
    held("held, landing", "BEFORE, AGENT, verify it, land it"),
    held("held, land again", "BEFORE, AGENT, verify it, interrupt it land, claim it"),
    outside("outside, unstarted", "BEFORE, claim it from x"),
    outside("outside, started", "BEFORE, OUTSIDE"),
    outside("outside, after a keeper", "BEFORE, AGENT, interrupt it agent, claim it from x"),
    outside("outside, after a landing", "BEFORE, AGENT, verify it, LEAVE, claim it from x"),
    outside("outside, question open", "BEFORE, OUTSIDE, ask it which"),
    outside("outside, answered", "BEFORE, OUTSIDE, ask it which, answer it one"),
    outside("outside, verified", "BEFORE, OUTSIDE, verify it"),
    outside("outside, landing", "BEFORE, OUTSIDE, verify it, land it"),
];

/// What a step runs, and whether its last snapshot found changes.
const WORKS: [(&str, &str); 3] = [("command", "2"), ("agent", "0"), ("agent", "2")];

const RUNS: [(&str, &str); 5] = [
    ("going", ""),
    ("stopped", "stop run"),
    ("beside a failure", "claim other, start other, fail other exit"),
    (ENDED, "claim other, start other, fail other exit"),
    (
        "three failed alike",
        "claim x, start x, fail x exit, claim y, start y, fail y exit,
         claim other, start other, fail other exit",
    ),
];
/// The plan wants nothing started after a failure.
const ENDED: &str = "ended by a failure";

const TREES: [(&str, &str); 2] = [("free", ""), ("taken", "claim other")];

const SIGHTINGS: [&str; 8] = [
    "alive",
    "dead, no exit",
    "dead, exit 0",
    "dead, exit 1",
    "dead, exit 143",
    "dead, signal 9",
    LEASED,
    OVER,
];
const LEASED: &str = "elsewhere, leased";
const OVER: &str = "elsewhere, over";

/// The state in a run of its own, or the refusal that shows it cannot be reached.
fn reach(
    state: &State,
    (work, changed): (&str, &str),
    tree: &str,
    (run, run_script): (&str, &str),
) -> Result<History, Refusal> {
    let retries = state.retries;
    let recipe = plan(&format!(
        "before command
         it {work} needs=before retries={retries}
         other agent
         x command
         y command"
    ));
    let on_failure = if run == ENDED { OnFailure::Stop } else { OnFailure::Continue };
    let mut history = History::open(Plan { on_failure, ..recipe });
    let script = state
        .script
        .replace("BEFORE", "claim before, start before, verify before, complete before")
        .replace("AGENT", &format!("claim it, start it, checkpoint it {changed}"))
        .replace("ROUND", "interrupt it agent, claim it, start it")
        .replace("CHECK", "interrupt it verify, claim it")
        .replace("LAND", "interrupt it land, claim it")
        .replace("LEAVE", "interrupt it land")
        .replace("OUTSIDE", &format!("claim it from x, start it, checkpoint it {changed}"));
    history.play(&script);
    history.try_play(tree)?;
    history.try_play(run_script)?;
    Ok(history)
}

fn sighting(text: &str) -> Sighting {
    match text {
        "alive" => Sighting::Alive,
        "dead, no exit" => Sighting::Dead(corpse("none")),
        "dead, exit 0" => Sighting::Dead(corpse("0")),
        "dead, exit 1" => Sighting::Dead(corpse("1")),
        "dead, exit 143" => Sighting::Dead(corpse("143")),
        "dead, signal 9" => Sighting::Dead(corpse("signal-9")),
        _ => Sighting::Elsewhere,
    }
}

/// Rows for every combination, with one column of answers for each kind of work.
fn table(answer: impl Fn(&History, &Sighting) -> String) -> String {
    let head =
        ["step", "run", "tree or sighting", "command", "agent, no changes", "agent, changes"];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    for_every_situation(|state, run, beside| {
        let answers = WORKS
            .into_iter()
            .map(|work| Ok(answer(&situation(state, work, run, beside)?, &sighting(beside))));
        rows.extend(row(state, [run.0, beside], answers.collect()));
    });
    aligned(&rows)
}

/// Every state in every run, beside a tree that is free or taken, or beside what is seen of its holder.
fn for_every_situation(mut each: impl FnMut(&State, (&str, &str), &'static str)) {
    for state in STATES {
        let beside: Vec<&str> = match state.held {
            Held::Keeper => SIGHTINGS.to_vec(),
            Held::Outside => vec![LEASED, OVER],
            Held::Nobody => TREES.map(|(tree, _)| tree).to_vec(),
        };
        for run in RUNS {
            for beside in &beside {
                each(state, run, beside);
            }
        }
    }
}

fn situation(
    state: &State,
    work: (&str, &str),
    run: (&str, &str),
    beside: &str,
) -> Result<History, Refusal> {
    let tree = TREES.iter().find(|(tree, _)| *tree == beside).map_or("", |(_, script)| script);
    let mut history = reach(state, work, tree, run)?;
    if beside == OVER {
        history.pass(LEASE);
    }
    Ok(history)
}

/// No row when the combination cannot be reached.
fn row(
    state: &State,
    labels: [&str; 2],
    answers: Result<Vec<String>, Refusal>,
) -> Option<Vec<String>> {
    let labels = [state.label, labels[0], labels[1]].map(str::to_owned);
    Some(labels.into_iter().chain(answers.ok()?).collect())
}

fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap();
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join(" | ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn who_may_claim_which_step() {
    let table = table(|history, sighting| asked(history, "claim it there", sighting));
    insta::assert_snapshot!("claimable", table);
}

/// Who asks beside a keeper on another host, for an agent's step with changes.
const ASKERS: [(&str, &str); 5] = [
    ("a keeper here", "claim it"),
    ("x", "claim it from x"),
    ("y", "claim it from y"),
    ("y by force", "claim it from y force"),
    ("x on another host", "claim it from x there"),
];

#[test]
fn who_may_claim_which_step_from_outside() {
    let head = ["step", "run", "tree or sighting"].into_iter().chain(ASKERS.map(|(who, _)| who));
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
    for_every_situation(|state, run, beside| {
        let answers = ASKERS.into_iter().map(|(_, command)| {
            let history = situation(state, ("agent", "2"), run, beside)?;
            Ok(asked(&history, command, &sighting(beside)))
        });
        rows.extend(row(state, [run.0, beside], answers.collect()));
    });
    insta::assert_snapshot!("claimable_outside", aligned(&rows));
}

/// What a claim is answered; without force that is also the answer to a mere question.
fn asked(history: &History, command: &str, sighting: &Sighting) -> String {
    let Command::Claim(mut claim) = history.command(command) else { unreachable!() };
    let host = claim.holder.host().clone();
    claim.observed = Observed { host, ..history.seeing(sighting) };
    let answer = claimed(history, &claim);
    if claim.takeover == piton_core::claim::Takeover::Forbid {
        let step = at(STEP);
        let asker = history.asker(&claim.holder, &claim.observed);
        assert_eq!(claimable(&history.run, &step, &asker), answer, "question and claim agree");
    }
    match answer {
        Ok(Granted { entry, grounds }) => {
            let grounds = match grounds {
                Grounds::Free => "",
                Grounds::LeaseOver => ", lease over",
                Grounds::SameOwner => ", same owner",
                Grounds::Forced => ", forced",
            };
            format!("{}{grounds}", entry_word(entry))
        }
        Err(refusal) => refused(&refusal),
    }
}

/// What a claim is given.
fn claimed(history: &History, claim: &Claim) -> Result<Granted, Refusal> {
    let claim = Command::Claim(claim.clone());
    let decided = decide(&history.run, &claim, &history.leases, &history.now)?;
    match Event::from_body(&decided.bodies()[0]).unwrap() {
        Event::Claimed(given) => Ok(Granted { entry: given.entry, grounds: given.grounds }),
        other => panic!("a claim is answered by {}", told(&other)),
    }
}

fn refused(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Completed(_) => "no: completed".to_owned(),
        Refusal::Skipped(_) => "no: skipped".to_owned(),
        Refusal::HeldAlive { .. } => "no: held alive".to_owned(),
        Refusal::HeldDead { .. } => "no: bury first".to_owned(),
        Refusal::HeldElsewhere { .. } => "no: leased".to_owned(),
        Refusal::NeedsUnmet { .. } => "no: needs unmet".to_owned(),
        Refusal::JobsBusy { .. } => "no: job taken".to_owned(),
        Refusal::LockBusy { .. } => "no: lock taken".to_owned(),
        Refusal::StepStopped(_) => "no: step stopped".to_owned(),
        Refusal::RunStopped => "no: run stopped".to_owned(),
        Refusal::RunAbandoned => "no: run abandoned".to_owned(),
        Refusal::RetriesUsed(_) => "no: retries used".to_owned(),
        Refusal::RunFailed(_) => "no: run failed".to_owned(),
        Refusal::Obstructed { .. } => "no: ask".to_owned(),
        Refusal::AskFirst { .. } => "no: ask first".to_owned(),
        Refusal::QuestionOpen { .. } => "no: question open".to_owned(),
        other => panic!("a claim is not refused with: {other}"),
    }
}

#[test]
fn what_recovery_does() {
    let table = table(|history, sighting| {
        let elsewhere = *sighting == Sighting::Elsewhere;
        let host = host(if elsewhere { "there" } else { "here" });
        let observed = Observed { host, ..history.seeing(sighting) };
        let mends = recover(&history.run, &observed, &history.leases, &history.now);
        done(&history.run, &mends.iter().find(|mend| mend.step.step == id(STEP)).unwrap().action)
    });
    insta::assert_snapshot!("recovery", table);
}

fn done(run: &Run, action: &Action) -> String {
    match action {
        Action::Skip => "skip".to_owned(),
        Action::Adopt { .. } => "adopt".to_owned(),
        Action::Bury { then, .. } => format!("bury, {}", done(run, then)),
        Action::Start { entry, because } => {
            let because = match because {
                Because::NeedsMet => "needs met",
                Because::Interrupted(cause) => cause.as_str(),
                Because::Failed(_) => "failed",
                Because::HolderLost => "holder lost",
                Because::Answered => "answered",
                Because::Reset => "reset",
                Because::LimitOver => "limit over",
            };
            format!("{} ({because})", entry_word(*entry))
        }
        Action::Expire { .. } => "expire, ask".to_owned(),
        Action::AwaitLease { .. } => "await lease".to_owned(),
        Action::AwaitNeeds => {
            let needs = run.unmet(run.index_of(&at(STEP)).unwrap());
            let names: Vec<String> = needs.iter().map(ToString::to_string).collect();
            format!("await {}", names.join(" "))
        }
        Action::AwaitFailed { by } => format!("await {by}"),
        Action::AwaitTree { by } => format!("await tree of {by}"),
        Action::AwaitJobs { jobs } => format!("await one of {jobs} jobs"),
        Action::AwaitLock { lock, .. } => format!("await lock {lock}"),
        Action::AwaitLimit { .. } => "await limit".to_owned(),
        Action::AwaitHolder => "await holder".to_owned(),
        Action::LeaveOut => "leave out".to_owned(),
        Action::StayStopped => "stay stopped".to_owned(),
        Action::StayFailed => "stay failed".to_owned(),
        Action::AwaitAnswer { .. } => "await answer".to_owned(),
        Action::Ask { .. } => "ask".to_owned(),
    }
}
