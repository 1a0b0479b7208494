//! Truth tables of claimability and recovery: every reachable combination, one row each, kept as a
//! snapshot for people to review. A combination that the rules themselves refuse to reach has no row.

use piton_core::claim::claimable;
use piton_core::decide::{Command, Refusal, decide};
use piton_core::event::{Event, Grounds};
use piton_core::ids::StepRef;
use piton_core::recover::{Action, Because, Sighting, recover};

use crate::history::{History, LEASE, corpse, entry_word, id, plan, told};

/// The step that the tables are about stands between `before`, which it needs, and `other`.
const STEP: &str = "it";

/// How the step came to where it stands.
struct State {
    label: &'static str,
    retries: u32,
    script: &'static str,
    held: bool,
}

const fn free(label: &'static str, script: &'static str) -> State {
    State { label, retries: 1, script, held: false }
}

const fn spent(label: &'static str, script: &'static str) -> State {
    State { label, retries: 0, script, held: false }
}

const fn held(label: &'static str, script: &'static str) -> State {
    State { label, retries: 1, script, held: true }
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
    free("interrupted verify", "BEFORE, AGENT, interrupt it verify"),
    free("interrupted verify, asked", "BEFORE, AGENT, stop it, interrupt it verify"),
    free("interrupted verify, 3 idle", "BEFORE, AGENT, CHECK, CHECK, interrupt it verify"),
    free("interrupted land", "BEFORE, AGENT, verify it, land it, interrupt it land"),
    free("interrupted land, asked", "BEFORE, AGENT, verify it, stop it, interrupt it land"),
    free("interrupted land, 3 idle", "BEFORE, AGENT, verify it, LAND, LAND, interrupt it land"),
    free("completed", "BEFORE, AGENT, verify it, land it, complete it"),
    held("held, unstarted", "BEFORE, claim it"),
    held("held, agent", "BEFORE, AGENT"),
    held("held, verify", "BEFORE, AGENT, interrupt it verify, claim it"),
    held("held, verified", "BEFORE, AGENT, verify it"),
    held("held, landing", "BEFORE, AGENT, verify it, land it"),
    held("held, land again", "BEFORE, AGENT, verify it, interrupt it land, claim it"),
];

/// What a step runs, and whether its last snapshot found changes.
const WORKS: [(&str, &str); 3] = [("command", "2"), ("agent", "0"), ("agent", "2")];

const RUNS: [(&str, &str); 3] = [
    ("going", ""),
    ("stopped", "stop run"),
    ("failed", "claim other, start other, fail other exit"),
];

const TREES: [(&str, &str); 2] = [("free", ""), ("taken", "claim other")];

const SIGHTINGS: [&str; 8] = [
    "alive",
    "dead, no exit",
    "dead, exit 0",
    "dead, exit 1",
    "dead, exit 143",
    "dead, signal 9",
    "elsewhere, leased",
    "elsewhere, over",
];

/// The state in a run of its own, or the refusal that shows it cannot be reached.
fn reach(
    state: &State,
    (work, changed): (&str, &str),
    tree: &str,
    run: &str,
) -> Result<History, Refusal> {
    let retries = state.retries;
    let mut history = History::open(plan(&format!(
        "before command
         it {work} needs=before retries={retries}
         other agent"
    )));
    let script = state
        .script
        .replace("BEFORE", "claim before, start before, verify before, complete before")
        .replace("AGENT", &format!("claim it, start it, checkpoint it {changed}"))
        .replace("ROUND", "interrupt it agent, claim it, start it")
        .replace("CHECK", "interrupt it verify, claim it")
        .replace("LAND", "interrupt it land, claim it");
    history.play(&script);
    history.try_play(tree)?;
    history.try_play(run)?;
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
    for state in STATES {
        for (run, run_script) in RUNS {
            if state.held {
                for seen in SIGHTINGS {
                    rows.extend(row(state, [run, seen], |work| {
                        let mut history = reach(state, work, "", run_script)?;
                        if seen == "elsewhere, over" {
                            history.pass(LEASE);
                        }
                        Ok(answer(&history, &sighting(seen)))
                    }));
                }
            } else {
                for (tree, tree_script) in TREES {
                    rows.extend(row(state, [run, tree], |work| {
                        let history = reach(state, work, tree_script, run_script)?;
                        Ok(answer(&history, &Sighting::Elsewhere))
                    }));
                }
            }
        }
    }
    aligned(&rows)
}

/// No row when the combination cannot be reached.
fn row(
    state: &State,
    labels: [&str; 2],
    answer: impl Fn((&str, &str)) -> Result<String, Refusal>,
) -> Option<Vec<String>> {
    let answers: Result<Vec<String>, Refusal> = WORKS.into_iter().map(answer).collect();
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
    let table = table(|history, sighting| {
        let step = StepRef::first(id(STEP));
        let answer = claimable(&history.run, &step, sighting, &history.leases, &history.now);
        assert_eq!(answer, claimed(history, sighting), "the claim and the question agree");
        match answer {
            Ok(granted) if granted.grounds == Grounds::LeaseOver => {
                format!("{}, lease over", entry_word(granted.entry))
            }
            Ok(granted) => entry_word(granted.entry).to_owned(),
            Err(refusal) => refused(&refusal),
        }
    });
    insta::assert_snapshot!("claimable", table);
}

/// What a claim from another host is given for the step.
fn claimed(history: &History, sighting: &Sighting) -> Result<piton_core::claim::Granted, Refusal> {
    let Command::Claim(mut claim) = history.command("claim it there") else { unreachable!() };
    claim.sighting = sighting.clone();
    let decided = decide(&history.run, &Command::Claim(claim), &history.leases, &history.now)?;
    match Event::from_body(&decided.bodies()[0]).unwrap() {
        Event::Claimed(given) => {
            Ok(piton_core::claim::Granted { entry: given.entry, grounds: given.grounds })
        }
        other => panic!("a claim is answered by {}", told(&other)),
    }
}

fn refused(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Completed(_) => "no: completed".to_owned(),
        Refusal::HeldAlive { .. } => "no: held alive".to_owned(),
        Refusal::HeldDead { .. } => "no: bury first".to_owned(),
        Refusal::HeldElsewhere { .. } => "no: leased".to_owned(),
        Refusal::NeedsUnmet { .. } => "no: needs unmet".to_owned(),
        Refusal::TreeBusy { .. } => "no: tree taken".to_owned(),
        Refusal::StepStopped(_) => "no: step stopped".to_owned(),
        Refusal::RunStopped => "no: run stopped".to_owned(),
        Refusal::RetriesUsed(_) => "no: retries used".to_owned(),
        Refusal::RunFailed(_) => "no: run failed".to_owned(),
        Refusal::NeedsPerson { .. } => "no: ask".to_owned(),
        other => panic!("a claim is not refused with: {other}"),
    }
}

#[test]
fn what_recovery_does() {
    let table = table(|history, sighting| {
        let observed = history.seeing(sighting);
        let mends = recover(&history.run, &observed, &history.leases, &history.now);
        done(&mends.iter().find(|mend| mend.step.step == id(STEP)).unwrap().action)
    });
    insta::assert_snapshot!("recovery", table);
}

fn done(action: &Action) -> String {
    match action {
        Action::Skip => "skip".to_owned(),
        Action::Adopt { .. } => "adopt".to_owned(),
        Action::Bury { then, .. } => format!("bury, {}", done(then)),
        Action::Enter { entry, because } => {
            let because = match because {
                Because::NeedsMet => "needs met",
                Because::Interrupted(cause) => cause.as_str(),
                Because::Failed(_) => "failed",
                Because::HolderLost => "holder lost",
            };
            format!("{} ({because})", entry_word(*entry))
        }
        Action::AwaitLease { .. } => "await lease".to_owned(),
        Action::AwaitNeeds { needs } => {
            let names: Vec<&str> = needs.iter().map(piton_core::ids::StepId::as_str).collect();
            format!("await {}", names.join(" "))
        }
        Action::AwaitTree { by } => format!("await tree of {by}"),
        Action::StayStopped => "stay stopped".to_owned(),
        Action::StayFailed => "stay failed".to_owned(),
        Action::Ask { .. } => "ask".to_owned(),
    }
}
