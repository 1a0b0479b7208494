//! Holders that are stopped (SIGSTOP) past their lease, in real time: somebody else has the step by then,
//! and has completed it. When they go on, nothing of what they write is taken, and nothing of what they
//! made is lost.

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use piton_testkit::processes::{freeze, is_frozen};
use piton_testkit::runs::{
    agent_step, assert_fenced, attempt_folder, data, events, events_named, keeper, lay_plan, plan,
    step, tree, view, wait_dead, why_not, worktree,
};
use piton_testkit::{Sandbox, Signal, alive, signal};
use serde_json::Value;

const PLAN: &str = "\
[plan]
name = 'auth'
[[step]]
id = 'jwt'
items = ['signature check']
substeps = [{ id = 'validate', title = 'validateToken' }]
";

/// What the snapshots of a fence hold of a file, in the order of their names.
fn kept(sandbox: &Sandbox, run: &Value, step: &str, fence: &str, file: &str) -> Vec<String> {
    let handle = run["handle"].as_str().expect("a handle");
    let under = format!("refs/piton/{handle}/{step}/{fence}/");
    let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", &under]);
    let blob = |name: &str| sandbox.try_git(&["cat-file", "blob", &format!("{name}:{file}")]).ok();
    refs.lines().filter_map(blob).collect()
}

/// A script that works in its worktree for as long as its claim is good. When it hears that it is not, it
/// tries to keep what it has; its exit status is that of this last write.
fn script(sandbox: &Sandbox, tree: &str, fence: &str) -> Child {
    let loops = "n=0; checkpoint() { piton checkpoint \"$RUN\" jwt --fence $FENCE --progress 10; }; \
                 while piton heartbeat \"$RUN\" jwt --fence $FENCE --lease 1s; \
                 do n=$((n + 1)); echo $n > work.txt; checkpoint || break; done; \
                 echo late > late.txt; checkpoint";
    let mut shell = sandbox.command("sh");
    shell.args(["-c", loops]).current_dir(tree).process_group(0);
    shell.env("RUN", view(sandbox)["run"].as_str().expect("an id")).env("FENCE", fence);
    shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a shell")
}

#[test]
fn a_script_that_was_frozen_past_its_lease_is_refused_and_its_work_is_kept() {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, PLAN);
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    let claim = |tree: &str| {
        data(
            &sandbox,
            &["claim", "plan.toml", "--worktree", tree, "--step", "jwt", "--lease", "1s"],
        )
    };
    let first = claim(&one);
    assert_eq!(first["claimed"], true);
    let fence = first["fence"].to_string();
    let mut holder = script(&sandbox, &one, &fence);
    sandbox.wait_until("a few checkpoints", || events_named(&sandbox, "checkpointed").len() > 2);
    assert_eq!(claim(&two)["claimed"], false, "it beats");

    freeze(holder.id());
    let mut taken = Value::Null;
    sandbox.wait_until("the lease to be over", || {
        taken = claim(&two);
        taken["claimed"] == true
    });
    assert_eq!((&taken["grounds"], &taken["displaces"]), (&"lease_over".into(), &first["fence"]));
    assert!(is_frozen(holder.id()), "it was frozen all the time");
    assert_fenced(&sandbox, &fence, Some(&one));
    let by = ["complete", "plan.toml", "jwt", "--worktree", &two, "--force", "--reason", "x"];
    data(&sandbox, &by);
    assert_fenced(&sandbox, &fence, Some(&one));

    // It goes on where it was, with work that nobody has seen.
    let before = events(&sandbox);
    assert!(is_frozen(holder.id()));
    assert!(signal(holder.id(), Signal::CONT));
    let status = holder.wait().expect("its end");
    assert_eq!(status.code(), Some(5), "it was told");
    assert_eq!(events(&sandbox), before, "and nothing was written");
    let kept = |file: &str| kept(&sandbox, &view(&sandbox), "jwt", &fence, file);
    let last = sandbox.read(format!("{one}/work.txt"));
    assert!(kept("work.txt").contains(&last.trim().to_owned()), "{last} is not kept");
    // Also what it had not told anybody when it was refused.
    assert_eq!(kept("late.txt"), ["late"]);
}

#[test]
fn a_keeper_on_another_host_that_was_frozen_past_its_lease_ends_and_its_work_is_kept() {
    let sandbox = crate::sandbox();
    let script = "write work.txt half; pid {agent}; touch {ready}; hang";
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "jwt", script, "")]));
    let one = tree(&sandbox, "one");
    let there = sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust", "--lease", "1s"]);
    let worker = there.env("PITON_HOST_ID", "there").spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    let zombie = keeper(&sandbox);
    let claim = || data(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    let early = claim();
    assert_eq!(early["claimed"], false, "it beats");
    assert!(why_not(&early, "jwt").contains("there"), "{early}");

    freeze(zombie);
    sandbox.write(worktree(&sandbox).join("late.txt"), "late");
    let mut taken = Value::Null;
    sandbox.wait_until("the lease to be over", || {
        taken = claim();
        taken["claimed"] == true
    });
    assert_eq!((&taken["grounds"], &taken["reclaimed"]), (&"lease_over".into(), &true.into()));
    assert!(is_frozen(zombie) && alive(agent), "nobody here can reach it");
    data(&sandbox, &["complete", "plan.toml", "jwt", "--worktree", &one]);
    let (before, run) = (events(&sandbox), view(&sandbox));
    assert_eq!(run["status"], "completed");

    assert!(is_frozen(zombie));
    assert!(signal(zombie, Signal::CONT));
    wait_dead(zombie);
    assert!(!alive(agent), "it ended its agent first");
    assert_eq!(events(&sandbox), before, "its writes are refused");
    let claims = events_named(&sandbox, "claimed");
    let folder = attempt_folder(&sandbox, &claims[0]["attempt"]);
    let notes = sandbox.read(folder.join("keeper.log"));
    assert!(notes.contains("the claim was taken"), "{notes}");
    let fence = claims[0]["position"].to_string();
    assert!(kept(&sandbox, &run, "jwt", &fence, "work.txt").contains(&"half".to_owned()));
    assert!(kept(&sandbox, &run, "jwt", &fence, "late.txt").contains(&"late".to_owned()));
    for (file, text) in [("work.txt", "half"), ("late.txt", "late")] {
        assert_eq!(
            sandbox.read(worktree(&sandbox).join(file)).trim(),
            text,
            "it was left as it was"
        );
    }
    worker.wait().success();
    sandbox.wait_no_processes();
}

#[test]
fn force_claim_alone_takes_a_step_from_a_keeper_of_this_host_that_is_frozen_past_its_lease() {
    let sandbox = crate::sandbox();
    let script = "write work.txt half; pid {agent}; touch {ready}; hang";
    lay_plan(&sandbox, &plan(&sandbox, &[agent_step(&sandbox, "jwt", script, "")]));
    let one = tree(&sandbox, "one");
    let worker =
        sandbox.piton(&["run", "plan.toml", "--auto-continue", "--trust", "--lease", "1s"]).spawn();
    sandbox.wait_exists(sandbox.mark("ready"));
    let agent = sandbox.wait_pid(sandbox.mark("agent"));
    let frozen = keeper(&sandbox);
    freeze(frozen);
    drop(worker.kill9());
    let believed = || {
        let run = view(&sandbox);
        step(&run, "jwt")["attempts"][0]["lease_expires"].as_str().expect("a time").to_owned()
    };
    let claim = |more: &[&str]| {
        data(&sandbox, &[&["claim", "plan.toml", "--worktree", &one], more].concat())
    };
    let last = believed();
    sandbox.wait_until("the lease to be over", || {
        assert_eq!(claim(&[])["claimed"], false, "its lock is held");
        piton_testkit::now() > last
    });
    assert_eq!((claim(&[])["claimed"].clone(), believed()), (false.into(), last), "and stays held");
    assert!(is_frozen(frozen));

    let forced = claim(&["--force"]);
    assert_eq!((&forced["grounds"], &forced["reclaimed"]), (&"forced".into(), &true.into()));
    assert!(!alive(frozen) && !alive(agent), "they are gone before the answer");
    let fence = events_named(&sandbox, "claimed")[0]["position"].to_string();
    let kept = kept(&sandbox, &view(&sandbox), "jwt", &fence, "work.txt");
    assert!(kept.contains(&"half".to_owned()), "{kept:?}");
    data(&sandbox, &["complete", "plan.toml", "jwt", "--worktree", &one]);
    sandbox.wait_no_processes();
}
