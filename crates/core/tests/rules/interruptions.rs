//! What a plan says about interruptions: how a step that was cut off goes on, when a person is asked
//! first, and that what they say is followed once.

use piton_core::brief::{TreeFacts, prompt};
use piton_core::event::Entry;
use piton_core::observed::{Observed, Sighting};
use piton_core::question::QuestionState;
use piton_core::recover::{Action, recover};
use piton_core::view::{RunStatus, StepStatus, view};

use crate::history::{History, LEASE, at, check_in, corpse, entry_word, host, id, plan};

/// How the step came to where it stands; the answer is given only where something is asked.
const STATES: [(&str, &str); 11] = [
    ("cut off at work", "WORK, interrupt it agent, ANSWER"),
    ("killed at work", "WORK, bury it none, ANSWER"),
    ("stopped at work, resumed", "WORK, stop it, interrupt it agent, ANSWER, resume"),
    ("lost at work", "WORK, wait 61, expire it, ANSWER"),
    ("never begun", "claim it, interrupt it unstarted, ANSWER"),
    ("cut off, next one never begun", "WORK, interrupt it agent, ANSWER, claim it, bury it none"),
    ("had ended", "WORK, bury it 0, ANSWER"),
    ("was verified", "WORK, verify it, interrupt it land, ANSWER"),
    ("failed", "WORK, fail it exit, ANSWER"),
    ("failed, next one never begun", "WORK, fail it exit, claim it, bury it none, ANSWER"),
    ("asked itself", "WORK, ask it which, suspend it, answer it one"),
];

const WAYS: [(&str, &str); 6] = [
    ("", ""),
    ("then=continue", ""),
    ("then=restart", ""),
    ("then=ask", ""),
    ("then=ask", "continue"),
    ("then=ask", "restart"),
];

fn history(row: &str) -> History {
    History::open(plan(&format!("it {row} retries=1\nother agent")))
}

/// What recovery does about the step after this.
fn after(row: &str, script: &str, answer: &str) -> String {
    let mut history = history(row);
    let script = script.replace("WORK", "claim it, start it, checkpoint it 2");
    for command in script.split(',').map(str::trim) {
        let asked = history.run.questions().any(|(_, asked)| asked.is_open());
        match command {
            "ANSWER" if asked && !answer.is_empty() => history.play(&format!("answer it {answer}")),
            "ANSWER" if answer.is_empty() => {}
            // Nothing was asked that could be answered: the same as without.
            "ANSWER" => return "–".to_owned(),
            // A question keeps everybody from it.
            command => match history.try_play(command) {
                Ok(()) => {}
                Err(_) if asked => return "waits".to_owned(),
                Err(refusal) => return refusal.to_string(),
            },
        }
    }
    done(&history, &Sighting::Elsewhere)
}

fn done(history: &History, sighting: &Sighting) -> String {
    let observed = Observed { host: host("there"), ..history.seeing(sighting) };
    let mends = recover(&history.run, &observed, &history.leases, &history.now);
    match &mends.iter().find(|mend| mend.step.step == id("it")).unwrap().action {
        Action::Start { entry, .. } => entry_word(*entry).to_owned(),
        Action::AwaitAnswer { .. } => "waits".to_owned(),
        Action::Expire { .. } => "expire".to_owned(),
        other => format!("{other:?}"),
    }
}

fn table(row: &str) -> String {
    let head = ["", "–", "continue", "restart", "ask", "…, continue", "…, restart"];
    let mut rows = vec![aligned(&head.map(str::to_owned))];
    for (label, script) in STATES {
        let answers = WAYS.map(|(way, answer)| after(&format!("{row} {way}"), script, answer));
        let cells: Vec<String> = [label.to_owned()].into_iter().chain(answers).collect();
        rows.push(aligned(&cells));
    }
    rows.join("\n")
}

fn aligned(cells: &[String]) -> String {
    let rest = cells[1..].iter().map(|cell| format!("{cell:<14}")).collect::<String>();
    format!("{:<30}{rest}", cells[0]).trim_end().to_owned()
}

#[test]
fn how_a_command_goes_on() {
    insta::assert_snapshot!(table("command"), @"
                                  –             continue      restart       ask           …, continue   …, restart
    cut off at work               fresh         continue      fresh         waits         continue      fresh
    killed at work                fresh         continue      fresh         waits         continue      fresh
    stopped at work, resumed      fresh         continue      fresh         waits         continue      fresh
    lost at work                  fresh         continue      fresh         waits         continue      fresh
    never begun                   fresh         fresh         fresh         fresh         –             –
    cut off, next one never begun fresh         continue      fresh         waits         continue      fresh
    had ended                     verify        verify        verify        verify        –             –
    was verified                  land          land          land          land          –             –
    failed                        fresh         fresh         fresh         fresh         –             –
    failed, next one never begun  fresh         fresh         fresh         fresh         –             –
    asked itself                  fresh         fresh         fresh         fresh         fresh         fresh
    ");
}

#[test]
fn how_an_agent_goes_on() {
    insta::assert_snapshot!(table("agent"), @"
                                  –             continue      restart       ask           …, continue   …, restart
    cut off at work               continue      continue      fresh         waits         continue      fresh
    killed at work                continue      continue      fresh         waits         continue      fresh
    stopped at work, resumed      continue      continue      fresh         waits         continue      fresh
    lost at work                  continue      continue      fresh         waits         continue      fresh
    never begun                   fresh         fresh         fresh         fresh         –             –
    cut off, next one never begun continue      continue      fresh         waits         continue      fresh
    had ended                     verify        verify        verify        verify        –             –
    was verified                  land          land          land          land          –             –
    failed                        continue      continue      continue      continue      –             –
    failed, next one never begun  continue      continue      continue      continue      –             –
    asked itself                  continue      continue      continue      continue      continue      continue
    ");
}

/// After `log`, `command` is answered by `expect`; the step is a command that asks.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history("command then=ask"), log, command, expect);
}

/// The question is the fifth record: the run, the claim, the start, the interruption, the question.
const CUT: &str = "claim it, start it, interrupt it agent";

#[test]
fn the_question_comes_with_the_interruption() {
    let both = "interrupted it at agent: unknown, asked it how it goes on";
    check("claim it, start it", "interrupt it agent", both);
    let both = "interrupted it at agent: reboot, asked it how it goes on";
    check("claim it, start it", "bury it none", both);
    check("claim it", "interrupt it agent", "interrupted it at unstarted: unknown");
    check("claim it", "bury it none", "interrupted it at unstarted: reboot");
    check("claim it, start it", "bury it 0", "interrupted it at verify: reboot");
    check("claim it, start it", "bury it 1", "failed it: ended with exit 1");
    check("claim it, start it, verify it", "bury it none", "interrupted it at land: reboot");
    let quiet = history("command then=restart");
    check_in(quiet, "claim it, start it", "bury it none", "interrupted it at agent: reboot");
}

#[test]
fn nothing_begins_before_the_answer_and_the_answer_is_followed_once() {
    let open =
        |text: &str| text.starts_with("no: step it waits for the answer to q5: it was interrupted");
    let mut history = history("command then=ask");
    history.play(CUT);
    for claim in ["claim it", "claim it there", "claim it from x", "claim it from x force"] {
        let refusal = history.say(claim).unwrap_err();
        assert!(open(&format!("no: {refusal}")), "{refusal}");
    }
    check(CUT, "answer it continue", "answered it q5 continue");
    check(CUT, "answer it 2", "answered it q5 restart");
    check(CUT, "answer it yes", "no: q5 has these answers: continue, restart, stop");
    let told = format!("{CUT}, answer it continue");
    check(&told, "answer it continue", "nothing");
    check(&told, "answer it restart", "no: q5 was answered already: continue");
    check(&told, "claim it", "claimed it continue");
    // Whoever dies before anything began has followed nothing.
    let died = format!("{told}, claim it, bury it none");
    check(&died, "claim it", "claimed it continue");
    check(&format!("{died}, claim it"), "start it", "started it told q5");
    // Whoever began has: the next interruption is asked about on its own.
    let again = "interrupted it at agent: reboot, asked it how it goes on";
    check(&format!("{told}, claim it, start it"), "bury it none", again);
}

#[test]
fn asked_as_often_as_it_is_cut_off_it_needs_no_other_yes() {
    let mut history = history("command then=ask");
    for _ in 0..5 {
        history.play("claim it, start it, bury it none, answer it restart");
    }
    history.play("claim it, start it, verify it, land it, complete it");
    let (_, state) = history.run.step(&at("it")).unwrap();
    let applied = |state: &QuestionState| matches!(state, QuestionState::Applied { .. });
    assert!(state.questions.len() == 5 && state.questions.iter().all(|q| applied(&q.state)));
}

#[test]
fn who_says_stop_is_asked_again_when_the_run_goes_on() {
    check(CUT, "answer it stop", "answered it q5 stop, stop requested run");
    let stopped = format!("{CUT}, answer it stop");
    check(&stopped, "claim it", "no: the run is stopped");
    check(&stopped, "answer it stop", "nothing");
    check(&stopped, "answer it restart", "no: q5 was answered already: stop");
    check(&stopped, "resume", "resumed, asked it how it goes on");
    let resumed = format!("{stopped}, resume");
    check(&resumed, "resume", "nothing");
    check(&resumed, "answer it restart", "answered it q9 restart");
    check(&format!("{resumed}, answer it continue"), "claim it", "claimed it continue");
    // A run that is stopped for another reason keeps its question.
    check(&format!("{CUT}, stop run"), "resume", "resumed");
    check(&format!("{CUT}, stop run, answer it continue"), "resume", "resumed");
}

#[test]
fn a_holder_that_is_lost_is_asked_about_and_not_displaced() {
    let mut history = history("command then=ask");
    history.play("claim it, start it");
    assert!(history.say("expire it").unwrap_err().to_string().contains("its lease is not over"));
    history.pass(LEASE);
    assert_eq!(done(&history, &Sighting::Elsewhere), "expire");
    let refusal = history.say("claim it there").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "step it was lost at work, and a person is asked before it goes on"
    );
    // Whoever works outside sees to it themselves.
    let mut outside = self::history("command then=ask");
    outside.play("claim it, start it, wait 61, claim it from x there");
    // And what they took over and never began is asked about all the same.
    outside.play("wait 61");
    assert_eq!(done(&outside, &Sighting::Elsewhere), "expire");
    outside.play("expire it");
    assert_eq!(done(&outside, &Sighting::Elsewhere), "waits");

    let lost = "claim it, start it, wait 61";
    let both = "interrupted it at agent: host_lost, asked it how it goes on";
    check(lost, "expire it", both);
    check(
        &format!("{lost}, expire it"),
        "expire it",
        "no: step it is not claimed, and fence 2 is over",
    );
    check("claim it, wait 61", "expire it", "nothing");
    check_in(self::history("command"), lost, "expire it", "nothing");
    check_in(self::history("command"), lost, "claim it there", "claimed it fresh, lease over");
}

#[test]
fn who_gives_it_back_or_resets_it_has_said_enough() {
    check("claim it, start it, force-release it", "claim it", "claimed it fresh");
    check(&format!("{CUT}, reset it"), "claim it", "claimed it fresh");
    check(
        &format!("{CUT}, reset it"),
        "answer q5 restart",
        "no: q5 is void: its answer is not needed any more",
    );
}

#[test]
fn the_question_says_what_each_answer_does_and_what_is_kept() {
    let asked = |row: &str, log: &str| {
        let mut history = history(row);
        history.play(log);
        let (_, asked) = history.run.questions().next().unwrap();
        asked.text.clone()
    };
    let work = "claim it, start it, checkpoint it 2, bury it none";
    insta::assert_snapshot!(asked("command then=ask", work), @"
    it was interrupted (reboot) at 1970-01-01T00:16:40.000Z while its command ran: how does it go on?
    2 changed files are kept as refs/piton/run/step/1/2; what it did elsewhere stays done.
    continue: the command is run again in the tree as it was left
    restart: the command is run again from the step's base; what is in the tree is kept first
    stop: nothing more is begun, and resuming asks again
    ");
    insta::assert_snapshot!(asked("agent then=ask", CUT), @"
    it was interrupted (unknown) at 1970-01-01T00:16:40.000Z while its agent worked: how does it go on?
    No changed file was found in its worktree; what it did elsewhere stays done.
    continue: the agent goes on in the tree as it was left
    restart: the agent begins again from the step's base; what is in the tree is kept first
    stop: nothing more is begun, and resuming asks again
    ");
}

#[test]
fn an_agent_is_told_what_happened_and_not_how_the_question_went() {
    let mut history = history("agent then=ask");
    history.play("claim it, start it, checkpoint it 2, bury it none, answer it restart, claim it");
    let told = prompt(&history.run, &at("it"), Entry::Fresh, &TreeFacts::default()).unwrap();
    assert!(told.text.contains("interrupted (reboot)"), "{}", told.text);
    let aside = "- Its changes were set aside, kept as refs/piton/run/step/1/2; the tree is at the step's start again.\n";
    assert!(told.text.contains(aside), "{}", told.text);
    assert!(!told.text.contains("Asked:"), "{}", told.text);
}

#[test]
fn who_begins_again_is_told_that_the_conversation_before_was_about_another_tree() {
    let told_as = [
        ("continue", Entry::Continue, "\n  - session: s-1\n"),
        ("restart", Entry::Fresh, "\n  - session, about another tree than this: s-1\n"),
    ];
    for (then, entry, named) in told_as {
        let mut history = history(&format!("agent then={then}"));
        history.play("claim it, start it, checkpoint it 2, session it s-1, bury it none, claim it");
        let (_, state) = history.run.step(&at("it")).unwrap();
        assert_eq!(state.attempt().unwrap().entry, entry);
        let told = prompt(&history.run, &at("it"), entry, &TreeFacts::default()).unwrap();
        assert!(told.text.contains(named), "{}", told.text);
    }
}

/// What is not recorded yet has no question that could be answered.
#[test]
fn a_death_that_is_only_seen_shows_as_an_interruption() {
    let mut history = history("command then=ask");
    history.play("claim it, start it");
    let seen = |history: &History| {
        let observed = history.seeing(&Sighting::Dead(corpse("none")));
        let view = view(&history.run, &observed, &history.leases, &history.now);
        let step = view.steps.into_iter().next().unwrap();
        (view.status, step.status, step.questions.len())
    };
    let (run, step, questions) = seen(&history);
    assert!(matches!(run, RunStatus::Interrupted { .. }), "{run:?}");
    assert!(matches!(step, StepStatus::Interrupted { recorded: false, .. }), "{step:?}");
    assert_eq!(questions, 0);
    history.play("bury it none");
    let (_, step, questions) = seen(&history);
    assert!(matches!(step, StepStatus::Waiting { .. }), "{step:?}");
    assert_eq!(questions, 1);
}
