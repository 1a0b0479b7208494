//! What to type next, told by every kind of refusal and of every state of a run: pasted as it is told, it
//! works.

use std::path::Path;

use piton_testkit::Sandbox;
use piton_testkit::runs::{
    agent_step, commit_file, data, landed, lay_plan, plan, refused, step, tree, view,
};

use super::{assert_pasteable, commands, hint, paste};

const PLAN: &str = "\
[plan]
name = 'auth'

[[step]]
id = 'jwt'
items = ['signature check', 'expiry check']
substeps = [{ id = 'validate', title = 'validateToken' }, { id = 'refresh', title = 'r' }]

[[step]]
id = 'docs'

[[step]]
id = 'routes'
needs = ['jwt']
";

/// What a verb that has answered says to type next; it can be pasted.
#[track_caller]
fn advice(sandbox: &Sandbox, args: &[&str]) -> String {
    let told = sandbox.piton(args).output().success().stderr;
    let hints: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("hint: ")).collect();
    assert!(!hints.is_empty(), "{args:?} says nothing: {told}");
    let hints = hints.join("\n");
    assert_pasteable(&hints);
    hints
}

fn sandbox() -> (Sandbox, String, String) {
    let sandbox = crate::sandbox();
    lay_plan(&sandbox, PLAN);
    let (one, two) = (tree(&sandbox, "one"), tree(&sandbox, "two"));
    (sandbox, one, two)
}

#[test]
fn what_a_holder_is_told_can_be_pasted() {
    let (sandbox, one, two) = sandbox();
    let by = |tree: &str, args: &[&str]| data(&sandbox, &[args, &["--worktree", tree]].concat());
    hint(&sandbox, "E064", &["show"]);
    hint(&sandbox, "E071", &["claim", "plan.toml"]);
    data(&sandbox, &["open", "plan.toml"]);

    // Nobody has it, or somebody else.
    let pending = hint(&sandbox, "E050", &["start", "plan.toml", "jwt", "--worktree", &one]);
    assert_eq!(paste(&sandbox, &pending, 0)["step"], "jwt");
    hint(&sandbox, "E050", &["release", "plan.toml", "docs", "--force"]);
    let stranger = hint(&sandbox, "E049", &["start", "plan.toml", "jwt", "--worktree", &two]);
    paste(&sandbox, &stranger, 0);
    assert_eq!(paste(&sandbox, &stranger, 1)["claimed"], false);
    hint(&sandbox, "E071", &["start", "plan.toml", "jwt"]);
    hint(&sandbox, "E071", &["start", "plan.toml"]);
    hint(&sandbox, "E059", &["start", "plan.toml", "nope", "--worktree", &one]);
    hint(&sandbox, "E071", &["fail", "plan.toml", "jwt", "--worktree", &one]);
    hint(&sandbox, "E071", &["check", "jwt", "--done"]);

    // What is open.
    let complete = ["complete", "plan.toml", "jwt", "--worktree", &one];
    let parts = hint(&sandbox, "E052", &complete);
    assert_eq!(paste(&sandbox, &parts, 0)["substep"], "validate");
    let parts = hint(&sandbox, "E052", &complete);
    assert_eq!(paste(&sandbox, &parts, 0)["substep"], "refresh");
    let items = hint(&sandbox, "E051", &complete);
    hint(&sandbox, "E076", &["check", "plan.toml", "jwt", "9", "--done", "--worktree", &one]);
    let held = hint(&sandbox, "E073", &["reset", "plan.toml", "jwt"]);
    assert!(held.contains("piton release"), "{held}");

    // Questions.
    let asked =
        by(&one, &["ask", "plan.toml", "jwt", "Which?", "--choice", "it's a", "--choice", "b"]);
    let vain =
        ["ask", "plan.toml", "jwt", "Which?", "--choice", "it's a", "--choice", "b", "--wait=0s"];
    hint(&sandbox, "E084", &[&vain[..], &["--worktree", &one]].concat());
    assert_eq!(paste(&sandbox, &items, 0)["state"], "done");
    let open = hint(&sandbox, "E078", &complete);
    let question = asked["question"].as_str().expect("a name");
    hint(&sandbox, "E071", &["answer", question, "c"]);
    assert_eq!(paste(&sandbox, &open, 0)["answer"], "it's a");
    let other = hint(&sandbox, "E077", &["answer", question, "b"]);
    paste(&sandbox, &other, 0);
    hint(&sandbox, "E079", &["answer", "q999", "b"]);
    let unread = hint(&sandbox, "E078", &complete);
    assert_eq!(paste(&sandbox, &unread, 0)["questions"][0]["answer"], "it's a");

    // Who has lost it asks again, from where it was.
    let first = step(&view(&sandbox), "jwt")["fence"].to_string();
    by(&two, &["claim", "plan.toml", "--step", "jwt", "--force"]);
    let lost = hint(&sandbox, "E049", &["start", "plan.toml", "jwt", "--fence", &first]);
    by(&two, &["release", "plan.toml", "jwt"]);
    let again = paste(&sandbox, &lost, 1);
    assert_eq!((&again["claimed"], &again["step"]), (&true.into(), &"jwt".into()));
    assert_eq!(step(&view(&sandbox), "jwt")["attempts"][2]["worktree"], one.as_str());

    // What has ended.
    let fail = ["fail", "plan.toml", "jwt", "--reason", "no API", "--worktree", &one];
    data(&sandbox, &fail);
    let failed = hint(&sandbox, "E049", &["start", "plan.toml", "jwt", "--worktree", &one]);
    paste(&sandbox, &failed, 0);
    assert_eq!(paste(&sandbox, &failed, 1)["step"], "jwt");
    data(&sandbox, &fail);
    assert_eq!(data(&sandbox, &["retry"])["outcome"], "lifted", "others claim it");
    by(&one, &["claim", "plan.toml", "--step", "docs"]);
    by(&one, &["complete", "plan.toml", "docs"]);
    let done = hint(&sandbox, "E050", &["release", "plan.toml", "docs", "--worktree", &one]);
    let reset = hint(&sandbox, "E073", &["reset", "plan.toml", "docs"]);
    assert_eq!(paste(&sandbox, &done, 0)["reset"], true);
    assert_pasteable(&reset);
    let nothing = hint(&sandbox, "E060", &["resume"]);
    assert_eq!(paste(&sandbox, &nothing, 0)["claimed"], true);
    let nothing = hint(&sandbox, "E060", &["run", "plan.toml", "--trust"]);
    assert_eq!(paste(&sandbox, &nothing, 0)["claimed"], true);
    let alive = hint(&sandbox, "E073", &["open", "plan.toml", "--fresh"]);
    assert_eq!(paste(&sandbox, &alive, 1)["run"]["status"], "abandoned");
    data(&sandbox, &["open", "plan.toml"]);
    hint(&sandbox, "E073", &["log"]);
}

#[test]
fn what_is_told_about_a_changed_plan_can_be_pasted() {
    let (sandbox, one, _) = sandbox();
    data(&sandbox, &["claim", "plan.toml", "--worktree", &one]);
    let changed = PLAN.replace("expiry check", "another check");
    sandbox.write("plan.toml", &changed);
    let claim = ["claim", "plan.toml", "--worktree", &one];
    for verb in [&claim[..], &["open", "plan.toml"], &["resume"]] {
        hint(&sandbox, "E048", verb);
    }
    let used = hint(&sandbox, "E083", &["open", "plan.toml", "--accept-plan"]);
    assert_eq!(paste(&sandbox, &used, 0)["released"], true);
    let accept = hint(&sandbox, "E048", &claim);
    assert_eq!(paste(&sandbox, &accept, 0)["claimed"], true, "with --accept-plan: {accept}");
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);

    sandbox.write("plan.toml", &changed.replace("name = 'auth'", "name = 'auth'\nbase = 'HEAD~1'"));
    let fixed = hint(&sandbox, "E083", &["open", "plan.toml", "--accept-plan"]);
    sandbox.write("plan.toml", &changed.replace("'routes'", "'others'"));
    let over = hint(&sandbox, "E048", &["open", "plan.toml"]);
    let old = view(&sandbox)["run"].clone();
    assert_ne!(paste(&sandbox, &over, 1)["run"]["run"], old, "started over: {over}");
    assert_ne!(paste(&sandbox, &fixed, 0)["run"]["run"], old, "started over: {fixed}");
}

#[test]
fn what_is_told_of_a_run_can_be_pasted() {
    let sandbox = crate::sandbox();
    let empty = data(&sandbox, &[]);
    let script = "count {starts}; nth {starts} 1: sh piton ask 'Which?'; exit 3";
    let steps = [agent_step(&sandbox, "jwt", script, "retries = 0")];
    lay_plan(&sandbox, &plan(&sandbox, &steps));
    hint(&sandbox, "E063", &["run", "plan.toml"]);
    let waiting = hint(&sandbox, "E066", &["run", "plan.toml", "--trust"]);
    let asked = data(&sandbox, &["questions"]);
    let (shown, all) = (data(&sandbox, &["show"]), data(&sandbox, &["status", "--ended"]));
    assert_eq!(all["runs"][0]["status"], "waiting");
    let commands = [&empty["next"], &shown["next"], &asked["questions"][0]["commands"]];
    for command in commands.into_iter().flat_map(|list| list.as_array().expect("a list")) {
        let command = command.as_str().expect("a command");
        assert_pasteable(&format!("`{command}`"));
    }
    // What only its reader can say stands for that, and is no answer.
    let (exit, _, message) = refused(&sandbox, &["answer", "q5", "…"]);
    assert!(exit == 2 && message.contains("stands for your answer"), "{message}");
    let waiting = waiting.replace("'…'", "'this one'");
    assert_eq!(paste(&sandbox, &waiting, 0)["state"], "answered");
    // Told, it asks no more, and fails.
    hint(&sandbox, "E069", &["resume"]);
    let failed = hint(&sandbox, "E069", &["resume"]);
    assert!(failed.starts_with("try it again: `piton retry "), "{failed}");
    assert_eq!(hint(&sandbox, "E069", &["retry"]), failed, "it fails as before");
    assert_eq!(view(&sandbox)["status"], "failed");
}

#[test]
fn what_is_told_instead_of_a_run_or_a_step_can_be_pasted() {
    let (sandbox, one, two) = sandbox();
    for verb in ["ready", "status", "show", "resume"] {
        let none = hint(&sandbox, "E064", &[verb, "plan.toml"]);
        assert!(none.contains("`piton run plan.toml`"), "{verb}: {none}");
    }
    let none = hint(&sandbox, "E064", &["ready", "plan.toml"]);
    assert_eq!(paste(&sandbox, &none, 1)["step"], "jwt");
    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", "."]);
    let docs = ["claim", "plan.toml", "--step", "docs", "--worktree", &one];
    let claimed = sandbox.piton(&docs).output().success().stdout;
    assert!(claimed.contains(": claimed docs\n"), "its id is said once: {claimed}");
    data(&sandbox, &["release", "plan.toml", "docs", "--worktree", &one]);

    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let parted = hint(&sandbox, "E064", &["show", &format!("{}/jwt", &handle[..6])]);
    assert_eq!(paste(&sandbox, &parted, 0)["run"]["steps"].as_array().expect("steps").len(), 1);
    hint(&sandbox, "E064", &["show", &format!("{handle}/no/such")]);

    let pending = sandbox.piton(&["show", "plan.toml", "routes"]).output().success().stdout;
    assert!(!pending.contains("last good commit"), "it has begun nowhere: {pending}");

    // Somebody has it.
    data(&sandbox, &["claim", "plan.toml", "--step", "jwt", "--worktree", &one]);
    let mine = ["claim", "plan.toml", "--step", "jwt", "--worktree", &two];
    assert_eq!(paste(&sandbox, &advice(&sandbox, &mine), 1)["grounds"], "forced");
    data(&sandbox, &["ask", "plan.toml", "jwt", "Which?", "--worktree", &two]);
    for verb in [&mine[..], &["ready"]] {
        let asked = advice(&sandbox, verb);
        let questions = format!("`piton questions {handle}`");
        assert!(asked.contains(&questions), "{verb:?}: {asked}");
    }
    data(&sandbox, &["fail", "plan.toml", "jwt", "--reason", "x", "--worktree", &two]);
    let again = advice(&sandbox, &["reset", "plan.toml", "jwt"]);
    assert_eq!(paste(&sandbox, &again, 0)["step"], "jwt");
}

#[test]
fn what_is_told_of_snapshots_can_be_pasted() {
    let (sandbox, one, _) = sandbox();
    data(&sandbox, &["claim", "plan.toml", "--step", "jwt", "--worktree", &one]);
    sandbox.write(format!("{one}/auth.ts"), "precious\n");
    data(&sandbox, &["checkpoint", "plan.toml", "jwt", "--worktree", &one]);
    sandbox.write(format!("{one}/auth.ts"), "precious and newer\n");
    data(&sandbox, &["checkpoint", "plan.toml", "jwt", "--worktree", &one]);
    let newest = paste(&sandbox, &advice(&sandbox, &["snapshot", "list"]), 0);
    assert_eq!(newest["snapshot"]["n"], "2", "{newest:#}");

    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    let restored = sandbox.root().join(format!("{handle}-jwt"));
    let restore = ["snapshot", "restore", &handle, "--at", "2/1", "auth.ts"];
    let in_use = hint(&sandbox, "E097", &restore);
    assert_eq!(paste(&sandbox, &in_use, 1)["files"], 1, "{in_use}");
    assert_eq!(sandbox.read(restored.join("auth.ts")), "precious\n");
    std::fs::remove_dir_all(&restored).expect("just written");

    data(&sandbox, &["release", "plan.toml", "jwt", "--worktree", &one]);
    let purged = advice(&sandbox, &["abandon", &handle, "--purge", "--yes"]);
    assert!(purged.contains(&format!("`piton snapshot list {handle}`")), "{purged}");
    let gone = advice(&sandbox, &["snapshot", "list", &handle]);
    paste(&sandbox, &gone, 0);
    assert_eq!(sandbox.read(restored.join("auth.ts")), "precious and newer\n");
}

#[test]
fn what_is_told_of_a_run_that_is_done_can_be_pasted() {
    let sandbox = crate::sandbox();
    let asks = "echo ignored > piton.toml; echo a > a.txt; piton ask 'Which port?' > b.txt";
    let text = format!("[plan]\nname = 'port'\n[[step]]\nid = 'a'\nrun = {asks:?}\n");
    lay_plan(&sandbox, &text);
    sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(4);
    let shown = sandbox.piton(&["show"]).output().success().stdout;
    assert!(shown.contains("\n? a  waiting"), "{shown}");
    assert!(!shown.contains("\n    a\n"), "its id is not said again: {shown}");
    data(&sandbox, &["answer", "a", "8080"]);
    sandbox.piton(&["resume"]).output().success();
    assert_eq!(data(&sandbox, &["questions"])["questions"].as_array().map(Vec::len), Some(0));
    let asked = data(&sandbox, &["questions", "--all"]);
    assert_eq!(asked["questions"][0]["answer"], "8080", "{asked:#}");
    data(&sandbox, &["merge"]);
    let clean = advice(&sandbox, &["clean", "--completed"]);
    assert!(clean.contains("`piton clean --completed --apply`"), "{clean}");
    assert_eq!(paste(&sandbox, &clean, 0)["applied"], true);
}

#[test]
fn what_waits_beside_a_failure_is_told_and_can_be_pasted() {
    let sandbox = crate::sandbox();
    let text = "[plan]\nname = 'both'\n\
                [[step]]\nid = 'asks'\nrun = 'piton ask Which?'\n\
                [[step]]\nid = 'fails'\nrun = 'exit 3'\n\
                [[step]]\nid = 'later'\nneeds = ['asks']\nrun = 'true'\n";
    lay_plan(&sandbox, text);
    let told = sandbox.piton(&["run", "plan.toml", "--trust"]).output().expect_code(1).stderr;
    let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
    assert!(told.contains(": Which?\n"), "{told}");
    assert!(told.contains(&format!("`piton questions {handle}`")), "{told}");
    assert_pasteable(&told);
    let overview = sandbox.piton(&[]).output().success().stdout;
    assert!(overview.contains(&format!("  piton answer {handle} q")), "{overview}");

    // The branch of a step is where piton has worked on it.
    data(&sandbox, &["reset", &handle, "fails"]);
    let there = hint(&sandbox, "E062", &["worktree", "create", &handle, "fails"]);
    assert_eq!(paste(&sandbox, &there, 0)["step"], "fails");

    let later = hint(&sandbox, "E073", &["log", &handle, "later"]);
    assert_eq!(paste(&sandbox, &later, 0)["run"]["steps"][0]["status"], "blocked");
    let fails = hint(&sandbox, "E071", &["log", &handle, "fails", "--attempt", "7"]);
    paste(&sandbox, &fails, 0);
}

#[test]
fn what_is_told_of_a_completion_that_is_refused_keeps_its_commit() {
    let (sandbox, one, _) = sandbox();
    let text =
        PLAN.replace("id = 'docs'", "id = 'docs'\nitems = ['say how']\nverify = 'test -f docs.md'");
    lay_plan(&sandbox, &text);
    data(&sandbox, &["trust", "plan.toml", "--yes"]);
    data(&sandbox, &["claim", "plan.toml", "--step", "docs", "--worktree", &one]);
    let commit = commit_file(&sandbox, Path::new(&one), "docs.md", "how\n");
    let complete = ["complete", "plan.toml", "docs", "--worktree", &one, "--commit", &commit];
    let open = hint(&sandbox, "E051", &complete);
    data(&sandbox, &["ask", "plan.toml", "docs", "Which?", "--worktree", &one]);
    paste(&sandbox, &open, 0);
    let asked = hint(&sandbox, "E078", &complete);
    for told in [&open, &asked] {
        assert!(told.contains(&format!("--commit {commit}")), "{told}");
    }
    let last = commands(&asked).len() - 1;
    let done = paste(&sandbox, &asked, last);
    assert_eq!(done["truth"], "verified");
    assert_eq!(landed(&sandbox, "docs.md"), "how");
}
