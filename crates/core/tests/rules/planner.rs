//! A planner: what it produced becomes the rest of the plan with its completion, and only so.

use std::sync::Arc;

use piton_core::decide::{Command, Request};
use piton_core::decided::KeyChange;
use piton_core::event::Under;
use piton_core::plan::{Plan, PlanFrom};

use crate::history::{History, at, check_in, id, oid, plan, told};

fn planning() -> Plan {
    let plan_from = Some(PlanFrom { step: id("plan"), file: "made.md".to_owned(), before: None });
    Plan { plan_from, ..plan("look command\nplan agent needs=look") }
}

/// The planner is verified and lands.
const LANDING: &str = "claim look, start look, verify look, land look, complete look, \
                       claim plan, start plan, verify plan, land plan";

fn with_plan(history: &History, step: &str, plan: Plan) -> Command {
    let under = Under { step: at(step), fence: history.fence(step) };
    let end = Box::new(Request::Complete { commit: Some(oid(4)), waive: None });
    Command::Under(under, Request::WithPlan { end, plan: Arc::new(plan) })
}

#[test]
fn what_was_produced_follows_the_planner() {
    let mut history = History::open(planning());
    history.play(LANDING);
    let produced = plan("a agent\nb command needs=a");
    let whole = planning().with_produced(&produced).unwrap();
    let command = with_plan(&history, "plan", whole.clone());
    let said: Vec<String> = history.submit(&command).unwrap().iter().map(told).collect();
    assert_eq!(said, ["completed plan", "plan accepted"]);
    assert_eq!(history.key, KeyChange::Kept, "the run goes on");
    assert!(!history.run.is_completed());
    assert!(history.submit(&command).unwrap().is_empty(), "said again it is harmless");
    let needs: Vec<String> = (0..4)
        .map(|index| {
            history
                .run
                .needs_of(index)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(needs, ["", "look", "plan", "plan a"]);
    assert_eq!(history.run.plan().planner(), None);
    assert!(whole.with_produced(&produced).is_err(), "a planner plans once");
    assert_eq!(history.replayed(), history.run);
}

#[test]
fn only_the_planner_brings_a_plan_and_only_that_of_its_run() {
    let mut history = History::open(planning());
    history.play("claim look, start look, verify look, land look");
    let whole = planning().with_produced(&plan("a agent")).unwrap();
    let refused =
        "the changed plan has another planner, which was recorded when the run was opened";
    let command = with_plan(&history, "look", whole.clone());
    assert_eq!(history.submit(&command).unwrap_err().to_string(), refused);
    history.play("complete look, claim plan, start plan, verify plan, land plan");
    let other = Plan { jobs: Some(2), ..planning() }.with_produced(&plan("a agent")).unwrap();
    let command = with_plan(&history, "plan", other);
    assert_eq!(history.submit(&command).unwrap_err().to_string(), refused);
    check_in(History::open(planning()), LANDING, "complete plan", "completed plan");
}

#[test]
fn a_plan_that_does_not_fit_says_why() {
    let with = |change: fn(&mut Plan)| {
        let mut produced = plan("a agent in=g");
        change(&mut produced);
        planning().with_produced(&produced).map(|plan| plan.steps.len())
    };
    assert_eq!(with(|_| {}), Ok(3));
    let table: [fn(&mut Plan); 3] = [
        |plan| plan.setup = Some("make".to_owned()),
        |plan| plan.copy.push(".env".to_owned()),
        |plan| plan.plan_from = planning().plan_from,
    ];
    for change in table {
        assert!(with(change).unwrap_err().contains("belongs into the plan that is run"));
    }
    for (taken, produced) in [("look", "look agent"), ("plan", "a agent in=plan")] {
        let why = planning().with_produced(&plan(produced)).unwrap_err();
        assert_eq!(why, format!("`{taken}` is a name of the plan that is run"));
    }
}
