//! Trouble that is nobody's work: a branch deleted or moved under a run, a program that is not there,
//! what an agent leaves behind when its keeper dies, a keeper that does not get ready. No step pays for
//! it with a retry, nothing is lost, and a person is told what to do.

use piton_testkit::runs::{branch, view};
use piton_testkit::{Sandbox, Signal, toml_string};

use crate::sandbox;

/// Two steps; the second waits for the mark `go` the first time it is started.
fn interrupted_after_one_step(sandbox: &Sandbox) {
    let (starts, here) = (sandbox.mark("starts"), sandbox.mark("here"));
    let two = format!(
        "count {s}; nth {s} 1: touch {h}; nth {s} 1: hang; write two.txt two",
        s = starts.display(),
        h = here.display()
    );
    sandbox.write(
        "plan.toml",
        &format!(
            "[plan]\nname = 'branches'\n[[step]]\nid = 'one'\nrun = 'echo one > one.txt'\n\
             [[step]]\nid = 'two'\nneeds = ['one']\nrun = {}\n",
            toml_string(&sandbox.fake(&two))
        ),
    );
    let run = sandbox.piton(&["run", "plan.toml", "--trust", "--grace", "100ms"]).spawn();
    sandbox.wait_exists(here);
    run.signal(Signal::INT);
    run.wait().expect_code(130);
}

#[test]
fn a_deleted_run_branch_is_made_again_from_what_was_landed() {
    let sandbox = sandbox();
    interrupted_after_one_step(&sandbox);
    let branch = branch(&sandbox);
    sandbox.git(&["branch", "-D", &branch]);
    assert!(sandbox.try_git(&["rev-parse", "--verify", &branch]).is_err(), "it is really gone");
    sandbox.piton(&["resume"]).output().success();
    let files = sandbox.git(&["ls-tree", "--name-only", &branch]);
    assert!(files.contains("one.txt") && files.contains("two.txt"), "{files}");
}

#[test]
fn a_run_branch_that_lost_a_landed_step_asks_and_goes_on_once_it_is_back() {
    let sandbox = sandbox();
    interrupted_after_one_step(&sandbox);
    let branch = branch(&sandbox);
    let landed = sandbox.git(&["rev-parse", &branch]).trim().to_owned();
    sandbox.git(&["branch", "-f", &branch, "main"]);
    let asked = sandbox.piton(&["resume"]).output().expect_code(4);
    assert!(asked.stderr.contains(&format!("git branch -f {branch} {landed}")), "{asked}");
    assert_eq!(sandbox.git(&["rev-parse", &branch]), sandbox.git(&["rev-parse", "main"]));
    sandbox.git(&["branch", "-f", &branch, &landed]);
    sandbox.piton(&["resume"]).output().success();
    let files = sandbox.git(&["ls-tree", "--name-only", &branch]);
    assert!(files.contains("one.txt") && files.contains("two.txt"), "{files}");
}

#[test]
fn a_program_that_is_not_there_costs_no_retry() {
    let sandbox = sandbox();
    sandbox.write(
        "plan.toml",
        "[plan]\nname = 'absent'\nagent = 'absent'\n[agent.absent]\ncommand = ['absent-agent']\n\
         [[step]]\nid = 'a'\nprompt = 'work'\n",
    );
    let asked = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(4);
    assert!(asked.stderr.contains("absent-agent cannot be started"), "{asked}");
    let log = sandbox.piton(&["log"]).output().success();
    assert!(log.stderr.contains("absent-agent") || log.stdout.contains("absent-agent"), "{log}");
    assert_eq!(view(&sandbox)["steps"][0]["failures"], 0);
    assert_eq!(view(&sandbox)["status"], "waiting");
    let program = sandbox.bin().join("absent-agent");
    sandbox.write(&program, "#!/bin/sh\necho done > done.txt\n");
    sandbox.command("chmod").arg("+x").arg(&program).status().expect("chmod runs");
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(view(&sandbox)["status"], "completed");
}

#[test]
fn a_worker_obeys_while_its_keeper_is_not_ready() {
    let sandbox = sandbox();
    sandbox.write("plan.toml", "[plan]\nname = 'deaf'\n[[step]]\nid = 'a'\nrun = 'true'\n");
    let point = sandbox.crash_point("keeper.adopted", 1);
    let mut run = sandbox.piton(&["run", "plan.toml", "--trust"]).crash_at(&point).spawn();
    point.wait_hit();
    for _ in 0..3 {
        let before = run.stderr().len();
        run.signal(Signal::INT);
        sandbox
            .wait_until("the worker heard it", || !run.is_running() || run.stderr().len() > before);
    }
    run.wait().expect_code(130);
    point.release();
    sandbox.wait_no_processes();
    sandbox.piton(&["resume"]).output().success();
}

#[test]
fn a_run_branch_that_somebody_checked_out_is_not_moved_under_them() {
    let sandbox = sandbox();
    interrupted_after_one_step(&sandbox);
    let branch = branch(&sandbox);
    sandbox.git(&["checkout", "--quiet", &branch]);
    let before = sandbox.git(&["rev-parse", &branch]);
    let asked = sandbox.piton(&["resume"]).output().expect_code(4);
    assert!(asked.stderr.contains("is checked out in"), "{asked}");
    assert_eq!(sandbox.git(&["rev-parse", &branch]), before, "it did not move");
    assert_eq!(sandbox.git(&["status", "--porcelain", "--untracked-files=no"]), "");
    sandbox.git(&["checkout", "--quiet", "main"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(sandbox.lines(sandbox.mark("starts")), 2, "what had ended was not started again");
}
