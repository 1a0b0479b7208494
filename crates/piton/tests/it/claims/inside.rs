//! What piton's variables answer inside an attempt, where no arguments are needed.

use piton_testkit::runs::{
    agent_step, command_step, events_named, lay_plan, plan, step, tree, view,
};
use piton_testkit::{Output, Sandbox};

use super::{claim, fence, sandbox};

/// Runs a plan whose one agent says these things to piton.
#[track_caller]
fn inside(commands: &[&str], more: &str) -> (Sandbox, Output) {
    let sandbox = crate::sandbox();
    let said: Vec<String> = commands.iter().map(|command| format!("sh {command}")).collect();
    let script = format!("write work.txt ähm; {}", said.join("; "));
    let steps =
        [agent_step(&sandbox, "jwt", &script, more), command_step(&sandbox, "end", "true", "")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    let out = sandbox
        .piton(&["run", "plan.toml", "--auto-continue", "--trust", "--snapshot-every", "1s"])
        .output();
    (sandbox, out)
}

#[test]
fn inside_an_attempt_no_arguments_are_needed() {
    let more = "items = ['a', 'b']\nsubsteps = [{ id = 'validate', title = 'v' }]";
    let (sandbox, out) = inside(
        &[
            "piton claim --json > {claim}",
            "piton checkpoint --note 'half of it' --progress 50",
            "piton heartbeat --json > {beat}",
            "piton check 1 2 --done",
            "piton substep complete validate",
            "piton item add 'one more'",
            "piton check 3 --done",
            "piton complete --json > {complete} || true",
            "piton release --json > {release} || true",
            "piton release --force --json > {force} || true",
        ],
        more,
    );
    out.success();
    let claim = sandbox.read_json(sandbox.mark("claim"))["data"].clone();
    assert_eq!((&claim["claimed"], &claim["step"]), (&true.into(), &"jwt".into()));
    let claims = events_named(&sandbox, "claimed");
    assert_eq!(claims[0]["position"], claim["fence"], "no second claim was made");
    assert_eq!(claims.len(), 2, "one a step");
    assert_eq!(sandbox.read_json(sandbox.mark("beat"))["data"]["beat"], "continue");
    let refused = sandbox.read_json(sandbox.mark("complete"));
    assert_eq!(refused["status"], "error", "piton completes it itself");
    for release in ["release", "force"] {
        let refused = sandbox.read_json(sandbox.mark(release));
        assert_eq!(refused["issues"][0]["code"], "E073", "it would be taken up again, for ever");
    }
    let run = view(&sandbox);
    let jwt = step(&run, "jwt");
    assert_eq!(
        (&jwt["status"], &jwt["report"]["note"]),
        (&"completed".into(), &"half of it".into())
    );
    let reported = events_named(&sandbox, "checkpointed");
    let own = reported.iter().find(|event| event["report"]["progress"] == 50).expect("the report");
    let name = own["snapshot"]["refname"].as_str().expect("its bytes are kept");
    assert_eq!(sandbox.git(&["cat-file", "blob", &format!("{name}:work.txt")]), "ähm");
}

#[test]
fn the_environment_names_a_run_as_an_argument_does() {
    let sandbox = sandbox();
    let claimed = claim(&sandbox, &tree(&sandbox, "one"), &[]);
    let handle = claimed["handle"].as_str().expect("a handle");
    for run in [&handle[..=handle.len() / 2], ""] {
        let piton = sandbox.piton(&["heartbeat", "--json"]).env("PITON_STEP", "jwt");
        let piton = piton.env("PITON_FENCE", fence(&claimed));
        let piton = if run.is_empty() { piton } else { piton.env("PITON_RUN", run) };
        assert_eq!(piton.output().success().json()["data"]["beat"], "continue", "{run:?}");
    }
}
