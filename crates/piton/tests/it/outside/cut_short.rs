//! Completing that is killed, raced, overtaken or interrupted at each durable action.

use piton_testkit::crash::points_of;
use piton_testkit::runs::{events, events_named, lay_plan, told, view};
use piton_testkit::{Running, Who, alive, kill9};
use serde_json::Value;

use super::{Lab, SNAPSHOT_KEPT};

/// Completes `jwt` and is killed at a point; said again it ends the same, once.
fn killed_at(point: &str) {
    let lab = Lab::trusting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    // The branch has moved meanwhile, so that landing makes a merge.
    let (docs, other) = lab.claim("docs", &[]);
    let text = lab.commit(&docs, "docs.md", "how\n");
    let by = ["complete", "plan.toml", "docs", "--fence", &other, "--commit", &text];
    lab.data(&[&by[..], &["--force", "--reason", "x"]].concat());

    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let crash = lab.sandbox.crash_point(point, 1);
    let one = lab.sandbox.piton(&args).crash_at(&crash).spawn();
    assert_eq!(crash.wait_hit(), one.pid(), "{point}");
    one.kill9();
    let acknowledged = events(&lab.sandbox);
    let done = lab.data(&args);
    assert_eq!(done["truth"], "verified", "{point}");
    let all = events(&lab.sandbox);
    assert!(all.starts_with(&acknowledged), "{point}");
    for name in ["verified", "completed"] {
        let of_jwt = |event: &&Value| event["event"] == name && event["step"]["step"] == "jwt";
        assert_eq!(all.iter().filter(of_jwt).count(), 1, "{point}: {name}");
    }
    let (tip, list) = (lab.tip(), lab.sandbox.git(&["rev-list", "--merges", &lab.branch()]));
    assert_eq!((done["commit"].as_str(), list.lines().count()), (Some(tip.as_str()), 1), "{point}");
    assert_eq!(
        (lab.landed("auth.ts"), lab.landed("docs.md")),
        ("validateToken".into(), "how".into())
    );
    lab.assert_no_scratch();
    lab.sandbox.wait_no_processes();
}

/// Passed only where something conflicts: see `conflicts.rs`.
const UNLANDED_KEPT: &str = "land.unlanded-kept";

fn is_ours(point: &str, who: Who) -> bool {
    let shared = point.starts_with("land.") || point.starts_with("verify.");
    ![SNAPSHOT_KEPT, UNLANDED_KEPT].contains(&point) && (who == Who::Holder || shared)
}

at_every_point! {
    every_point_of_a_holder_has_its_test: points_of(is_ours), killed_at;
    killed_at_verify_spawned: "verify.spawned",
    killed_at_land_intended: "land.intended",
    killed_at_land_ref_moved: "land.ref-moved",
    killed_at_land_completed: "land.completed",
    killed_at_scratch_made: "complete.scratch-made",
    killed_at_verify_ran: "complete.verify-ran",
    killed_at_scratch_removed: "complete.scratch-removed",
    killed_at_verified: "complete.verified",
}

#[test]
fn force_claim_meanwhile_keeps_the_loser_from_landing() {
    for point in ["complete.verify-ran", "complete.verified", "land.intended", "land.ref-moved"] {
        let lab = Lab::trusting();
        let (jwt, fence) = lab.claim("jwt", &[]);
        let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
        let tip = lab.tip();
        let args =
            ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit, "--json"];
        let crash = lab.sandbox.crash_point(point, 1);
        let loser = lab.sandbox.piton(&args).crash_at(&crash).spawn();
        crash.wait_hit();
        let two = lab.tree("docs");
        let forced = lab.claim_from(&two, "jwt", &["--force"]);
        assert_eq!(forced["grounds"], "forced");
        crash.release();
        let (exit, code, _) = told(&loser.wait());
        assert_eq!((exit, code.as_str()), (5, "E049"), "{point}");
        assert_eq!(lab.tip(), tip, "{point}: the loser's commit is not on the run's branch");
        assert!(events_named(&lab.sandbox, "completed").is_empty(), "{point}");
        lab.assert_no_scratch();
        assert_eq!(lab.sandbox.git(&["cat-file", "-t", &commit]), "commit", "it is not lost");
    }
}

/// A plan whose verify waits for a file.
fn waiting() -> Lab {
    let lab = Lab::of("");
    let (ready, go) = (lab.sandbox.mark("ready"), lab.sandbox.mark("go"));
    let (ready, go) = (ready.display(), go.display());
    let verify = format!("touch {ready}; until test -f {go}; do sleep 0.01; done");
    let plan = format!("[plan]\nname = 'x'\n[[step]]\nid = 'jwt'\nverify = '{verify}'\n");
    lay_plan(&lab.sandbox, &plan);
    lab.data(&["trust", "plan.toml", "--yes"]);
    lab
}

#[test]
fn the_lease_is_renewed_while_verify_runs() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &["--lease", "1s"]);
    let expiry = view(&lab.sandbox)["steps"][0]["attempts"][0]["lease_expires"].clone();
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let one = lab.sandbox.piton(&args).spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    let two = lab.sandbox.root().join("two");
    std::fs::create_dir(&two).expect("a folder");
    let other = ["claim", "plan.toml", "--worktree", two.to_str().expect("text")];
    lab.sandbox.wait_until("two leases to have passed", || {
        let asked = lab.data(&other);
        assert_eq!(asked["claimed"], false, "{asked}");
        let run = view(&lab.sandbox);
        let now = run["steps"][0]["attempts"][0]["lease_expires"].as_str().map(str::to_owned);
        let later = |from: &Value| seconds(now.as_deref()) - seconds(from.as_str());
        later(&expiry) > 2.0
    });
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    one.wait().success();
    assert_eq!(view(&lab.sandbox)["status"], "completed");
}

/// A time's seconds of the day.
fn seconds(time: Option<&str>) -> f64 {
    let time = time.and_then(|time| time.split('T').nth(1)).expect("a time");
    let parts = time.trim_end_matches('Z').split(':').map(|part| part.parse::<f64>());
    parts.fold(0.0, |sum, part| sum * 60.0 + part.expect("a number"))
}

#[test]
fn an_interrupted_verify_leaves_nothing_running() {
    for (signal, exit) in [("INT", 130), ("TERM", 143)] {
        let lab = waiting();
        let (jwt, fence) = lab.claim("jwt", &[]);
        let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
        let args =
            ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit, "--json"];
        let one = lab.sandbox.piton(&args).spawn();
        lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
        let kill = lab
            .sandbox
            .command("kill")
            .args([format!("-{signal}"), one.pid().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
        let (status, code, _) = told(&one.wait());
        assert_eq!((status, code.as_str()), (exit, "E072"));
        lab.sandbox.wait_no_processes();
        lab.assert_no_scratch();
        assert!(events_named(&lab.sandbox, "verified").is_empty());
    }
}

#[test]
fn two_who_complete_the_same_claim_do_it_once() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let both: Vec<Running> = (0..2).map(|_| lab.sandbox.piton(&args).spawn()).collect();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    assert!(both.iter().all(|one| alive(one.pid())));
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    for one in both {
        one.wait().success();
    }
    assert_eq!(events_named(&lab.sandbox, "verified").len(), 1);
    assert_eq!(events_named(&lab.sandbox, "completed").len(), 1);
    lab.assert_no_scratch();
}

#[test]
fn a_verify_that_outlived_its_holder_is_ended_by_the_next_one() {
    let lab = waiting();
    let (jwt, fence) = lab.claim("jwt", &[]);
    let commit = lab.commit(&jwt, "auth.ts", "validateToken\n");
    let args = ["complete", "plan.toml", "jwt", "--fence", &fence, "--commit", &commit];
    let one = lab.sandbox.piton(&args).spawn();
    lab.sandbox.wait_exists(lab.sandbox.mark("ready"));
    let left = lab.sandbox.processes_with_env("PITON_ATTEMPT=");
    kill9(one.pid());
    assert!(!left.is_empty() && left.iter().any(|process| alive(process.pid)), "it goes on alone");
    let two = lab.sandbox.root().join("two");
    lab.sandbox.git(&["worktree", "add", "--quiet", "--detach", two.to_str().expect("text")]);
    let forced = lab.claim_from(&two, "jwt", &["--force"])["fence"].to_string();
    lab.sandbox.write(lab.sandbox.mark("go"), "");
    lab.data(&["complete", "plan.toml", "jwt", "--fence", &forced, "--commit", &commit]);
    assert!(left.iter().all(|process| !alive(process.pid)), "{left:?}");
    lab.assert_no_scratch();
}
