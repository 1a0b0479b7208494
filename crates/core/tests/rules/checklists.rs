//! Checklists: substeps and items as they are worked off, what completion asks of them, and what is
//! open again when somebody else takes the step. What holders report is here too.

use piton_core::decide::{Command, Request, completable};
use piton_core::event::{Report, ReportedFile, Under};
use piton_core::ids::Fence;
use piton_core::refusal::Refusal;

use crate::history::{History, answer, at, check_in, plan};

/// `a` has two items of its own, and a substep with two and one with none; `b` needs it.
fn history() -> History {
    History::open(plan(
        "a agent retries=1 items=2 parts=one:2,two
         b agent needs=a",
    ))
}

/// After `log`, `command` is answered by `expect`.
#[track_caller]
fn check(log: &str, command: &str, expect: &str) {
    check_in(history(), log, command, expect);
}

const PARTS: &str = "substep a one, substep a two";
const ITEMS: &str = "check a 1 2 one.1 one.2";

#[test]
fn parts_are_worked_off_under_a_claim() {
    for claim in ["claim a", "claim a from x"] {
        check(claim, "substep a one", "substep completed a one");
        check(claim, "substep a two", "substep completed a two");
        check(claim, "check a 1", "items done a 1");
        check(claim, "check a 2 one.2", "items done a 2 one.2");
        check(claim, "defer a one.1", "items deferred a one.1");
        check(claim, "gap a forgotten", "item added a forgotten");
        check(&format!("{claim}, gap a forgotten"), "check a 3", "items done a 3");
    }
}

#[test]
fn parts_that_do_not_exist_are_refused() {
    check("claim a from x", "substep a three", "no: step a has no substep three");
    check("claim a from x", "check a 3", "no: step a has no item 3");
    check("claim a from x", "check a 1 one.3", "no: step a has no item one.3");
    check("claim a from x", "defer a two.1", "no: step a has no item two.1");
    check("claim a from x, gap a more", "check a 4", "no: step a has no item 4");
}

#[test]
fn a_substep_is_completed_once() {
    check("claim a from x, substep a one", "substep a one", "nothing");
    check("claim a from x, check a 1", "check a 1", "items done a 1");
}

/// Whether `a` could be completed after `log`, in words.
fn could(log: &str, waive: Option<&str>) -> String {
    let mut history = history();
    history.play(log);
    let under = Under { step: at("a"), fence: history.fence("a") };
    match completable(&history.run, &under, waive) {
        Ok(()) => "yes".to_owned(),
        Err(refusal) => format!("no: {refusal}"),
    }
}

#[test]
fn whether_a_step_could_be_completed_is_known_before_anything_lands() {
    assert_eq!(could("claim a from x", None), "no: step a has open substeps: one, two");
    assert_eq!(could("claim a from x", Some("enough")), "yes");
    let parts = format!("claim a from x, {PARTS}");
    assert_eq!(could(&parts, None), "no: step a has open items: 1, 2, one.1, one.2");
    assert_eq!(could(&format!("{parts}, {ITEMS}"), None), "yes");
    assert_eq!(could("claim a", Some("enough")), "no: step a is not verified", "its keeper does");
    let mut history = history();
    history.play("claim a from x, claim a from y force");
    let under = Under { step: at("a"), fence: Fence(2) };
    let refusal = completable(&history.run, &under, Some("enough")).expect_err("it is lost");
    assert!(matches!(refusal, Refusal::StaleFence { .. }), "{refusal}");
}

#[test]
fn a_part_that_is_done_is_worth_going_on_from() {
    check("claim a, start a, substep a one, bury a none", "claim a", "claimed a continue");
    check("claim a, start a, check a 1, bury a none", "claim a", "claimed a continue");
    check("claim a, start a, defer a 1, bury a none", "claim a", "claimed a fresh");
    check("claim a, start a, gap a more, bury a none", "claim a", "claimed a fresh");
}

#[test]
fn strict_completion_wants_every_substep_and_every_item() {
    let substeps = "no: step a has open substeps: one, two";
    check("claim a from x", "finish a", substeps);
    check(&format!("claim a from x, {ITEMS}"), "finish a", substeps);
    let one = "no: step a has open substeps: two";
    check(&format!("claim a from x, {ITEMS}, substep a one"), "finish a", one);
    let items = "no: step a has open items: 1, 2, one.1, one.2";
    check(&format!("claim a from x, {PARTS}"), "finish a", items);
    let last = format!("claim a from x, {PARTS}, check a 1 2 one.1");
    check(&last, "finish a", "no: step a has open items: one.2");
    let done = format!("claim a from x, {PARTS}, {ITEMS}");
    check(&done, "finish a", "completed a");
    check(&format!("{done}, verify a, land a"), "complete a", "completed a");
    let gap = format!("{done}, gap a forgotten");
    check(&gap, "finish a", "no: step a has open items: 3");
    check(&format!("{gap}, check a 3"), "finish a", "completed a");
}

#[test]
fn what_is_deferred_is_not_open_and_stays_deferred() {
    let deferred = format!("claim a from x, {PARTS}, check a 1 2 one.1, defer a one.2");
    check(&deferred, "finish a", "completed a");
    let mut history = history();
    history.play(&format!("{deferred}, finish a"));
    assert_eq!(items(&history), "1 done, 2 done, one.1 done, one.2 deferred");
}

#[test]
fn a_keeper_lands_nothing_while_anything_is_open() {
    let substeps = "no: step a has open substeps: one, two";
    check("claim a, start a", "verify a", substeps);
    check(&format!("claim a, start a, {PARTS}, {ITEMS}"), "verify a", "verified a");
    // A gap that is found while it lands refuses the completion.
    let late = format!("claim a, start a, {PARTS}, {ITEMS}, verify a, land a, gap a more");
    check(&late, "complete a", "no: step a has open items: 3");
}

#[test]
fn nothing_lands_for_somebody_who_was_lost_while_anything_was_open() {
    let verified = "claim a from x, start a, checkpoint a 2, verify a, land a";
    check(&format!("{verified}, wait 60"), "claim a", "claimed a continue, lease over");
    check(&format!("{verified}, interrupt a land"), "claim a", "claimed a continue");
    let done = format!("{PARTS}, {ITEMS}");
    check(&format!("{verified}, {done}, wait 60"), "claim a", "claimed a land, lease over");
    let kept = format!("claim a, start a, checkpoint a 2, {done}, verify a");
    check(&format!("{kept}, bury a none"), "claim a", "claimed a land");
    check(&format!("{kept}, gap a more, bury a none"), "claim a", "claimed a continue");
}

#[test]
fn a_waived_completion_records_what_was_skipped() {
    check("claim a from x", "waive a", "completed a without one two 1 2 one.1 one.2");
    let some = "claim a from x, substep a one, check a 1 one.1 one.2, defer a 2";
    check(some, "waive a", "completed a without two");
    let done = format!("claim a from x, {PARTS}, {ITEMS}");
    check(&done, "waive a", "completed a");
    check("claim a from x, waive a", "waive a@2", "nothing");
    check("claim a from x, waive a", "finish a@2", "nothing");
    check("claim a from x, waive a", "claim b from x", "claimed b fresh");
    check(
        "claim a from x, verify a, land a",
        "waive a",
        "completed a without one two 1 2 one.1 one.2",
    );
}

/// Every item with what became of it.
fn items(history: &History) -> String {
    let (plan, state) = history.run.step(&at("a")).unwrap();
    let told = state.checklist.items(plan).map(|item| {
        let mark = match item.mark {
            None => "open",
            Some(piton_core::event::Mark::Done) => "done",
            Some(piton_core::event::Mark::Deferred { .. }) => "deferred",
        };
        format!("{} {mark}", item.item)
    });
    told.collect::<Vec<_>>().join(", ")
}

fn open_substeps(history: &History) -> Vec<String> {
    let (plan, state) = history.run.step(&at("a")).unwrap();
    state.checklist.open_substeps(plan).iter().map(ToString::to_string).collect()
}

/// Substep `two` is completed; of each place one item is done, and one deferred.
const WORKED: &str = "claim a from x, substep a two, check a 1 one.1, defer a 2 one.2";

/// After the parts were worked off and `then`, the items are these; what was completed stays.
#[track_caller]
fn check_items(then: &str, expect: &str) {
    let mut history = history();
    history.play(WORKED);
    history.play(then);
    assert_eq!(items(&history), expect, "after {then:?}");
    assert_eq!(open_substeps(&history), ["one"], "after {then:?}");
}

#[test]
fn release_opens_what_is_not_done_and_keeps_what_is() {
    let open = "1 done, 2 open, one.1 done, one.2 open";
    check_items("", "1 done, 2 deferred, one.1 done, one.2 deferred");
    check_items("release a", open);
    check_items("force-release a", open);
    check_items("release a, claim a from y", open);
    check_items("gap a more, check a 3, release a", &format!("1 done, 2 open, 3 done, {BELOW}"));
    check_items("gap a more, defer a 3, release a", &format!("1 done, 2 open, 3 open, {BELOW}"));
}

const BELOW: &str = "one.1 done, one.2 open";

#[test]
fn release_and_reclaim_keep_what_was_deferred_in_a_completed_substep() {
    let mut history = history();
    history.play("claim a from x, defer a one.1, substep a one");
    history.play("claim a from x");
    assert_eq!(items(&history), "1 open, 2 open, one.1 deferred, one.2 open");
    assert_eq!(open_substeps(&history), ["two"]);
    history.play("defer a 1, release a");
    assert_eq!(items(&history), "1 open, 2 open, one.1 deferred, one.2 open");
    assert_eq!(open_substeps(&history), ["two"]);
}

#[test]
fn auto_reclaim_and_every_other_claim_open_deferred_items_of_unfinished_substeps() {
    let open = "1 done, 2 deferred, one.1 done, one.2 open";
    check_items("claim a from x", open);
    check_items("claim a from y force", open);
    check_items("wait 60, claim a from y", open);
    check_items("wait 60, claim a", open);
    check_items("interrupt a agent, claim a from x", open);
    check_items("fail a reported, claim a from x", open);
    check_items("fail a reported, claim a", open);
    let finished = "1 done, 2 deferred, one.1 done, one.2 deferred";
    let mut history = history();
    history.play(&format!("{WORKED}, substep a one, claim a from x"));
    assert_eq!(items(&history), finished);
}

#[test]
fn reset_opens_what_is_not_done_and_keeps_what_is() {
    let open = "1 done, 2 open, one.1 done, one.2 open";
    check_items("interrupt a agent, reset a", open);
    check_items("fail a reported, reset a", open);
    check_items("waive a, reset a wrong", open);
}

/// Reports under the current claim of `a`, and tells what is known then.
fn reported(history: &mut History, report: Report) -> Report {
    let (step, fence) = (at("a"), history.fence("a"));
    let report = Some(Box::new(report));
    history
        .submit(&Command::Under(
            Under { step, fence },
            Request::Checkpoint { snapshot: None, report },
        ))
        .unwrap();
    history.run.step(&at("a")).unwrap().1.report.clone()
}

fn file(path: &str, line: Option<u32>) -> ReportedFile {
    ReportedFile { path: path.to_owned(), line, done: None, confidence: None }
}

#[test]
fn reports_merge_field_by_field() {
    let mut history = history();
    history.play("claim a from x");
    let text = |text: &str| Some(text.to_owned());
    let full = Report {
        progress: Some(40),
        confidence: text("0.8"),
        note: text("half way"),
        task: text("tokens"),
        eta: text("20m"),
        done: text("parsing"),
        next: text("expiry"),
        session: text("s-1"),
        files: vec![file("a.rs", Some(1)), file("b.rs", None)],
        data: text("{}"),
    };
    assert_eq!(reported(&mut history, full.clone()), full);
    assert_eq!(reported(&mut history, Report::default()), full, "nothing said changes nothing");
    for later in [
        Report { progress: Some(10), ..Report::default() },
        Report { confidence: text("0.2"), ..Report::default() },
        Report { note: text("stuck"), ..Report::default() },
        Report { task: text("keys"), ..Report::default() },
        Report { eta: text("2h"), ..Report::default() },
        Report { done: text("expiry"), ..Report::default() },
        Report { next: text("rotation"), ..Report::default() },
        Report { session: text("s-2"), ..Report::default() },
        Report { data: text("[1]"), ..Report::default() },
    ] {
        let before = history.run.step(&at("a")).unwrap().1.report.clone();
        let after = reported(&mut history, later.clone());
        assert_ne!(after, before, "{later:?} is heard");
        assert_eq!(reported(&mut history, before.clone()), before, "and nothing else changed");
        reported(&mut history, later);
    }
    let files = vec![file("a.rs", Some(7)), file("c.rs", None)];
    let after = reported(&mut history, Report { files, ..Report::default() });
    let known: Vec<_> = after.files.iter().map(|file| (file.path.as_str(), file.line)).collect();
    assert_eq!(known, [("b.rs", None), ("a.rs", Some(7)), ("c.rs", None)]);
}

#[test]
fn a_report_outlives_its_claim() {
    let mut history = history();
    history.play("claim a from x, note a half way");
    for then in ["claim a from x", "release a", "claim a", "interrupt a agent", "reset a"] {
        history.play(then);
        let (_, state) = history.run.step(&at("a")).unwrap();
        assert_eq!(state.report.note.as_deref(), Some("half way"), "after {then}");
    }
    assert_eq!(answer(&mut history, "claim a from y"), "claimed a fresh");
}
