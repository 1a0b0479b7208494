//! What git was in the middle of: an agent that continues finds it as it was and can go on with it; one
//! that starts over loses none of its commits; and half an operation is never taken for a result.

use piton_testkit::runs::{command_step, events_named, lay_plan, plan, view};

use crate::states::Left;

/// How an operation is begun so that it stops, what `git status` then says, and how it is ended.
struct Operation {
    name: &'static str,
    begin: &'static str,
    status: &'static str,
    finish: &'static str,
}

/// A branch `other` has changed the same file; the step's own branch has two commits.
const TWO_SIDES: &str = "echo mine > theirs.txt; git commit -q -a -m mine; \
                         git checkout -q -b other HEAD~1; echo other > theirs.txt; \
                         git commit -q -a -m other; git checkout -q -; \
                         echo second > second.txt; git add second.txt; git commit -q -m second; ";

const SOLVE: &str = "echo solved > theirs.txt; git add theirs.txt; ";

const OPERATIONS: [Operation; 8] = [
    Operation {
        name: "a rebase",
        begin: "git rebase -q other || true",
        status: "rebase in progress",
        finish: "GIT_EDITOR=true git rebase --continue",
    },
    Operation {
        name: "a rebase",
        begin: "GIT_SEQUENCE_EDITOR=\"sed -i 1s/pick/edit/\" git rebase -q -i HEAD~2",
        status: "rebase in progress",
        finish: "echo solved > theirs.txt; git commit -q -a --amend --no-edit; \
                 GIT_EDITOR=true git rebase --continue",
    },
    Operation {
        name: "a rebase",
        begin: "git rebase -q --apply other || true",
        status: "rebase in progress",
        finish: "GIT_EDITOR=true git rebase --continue",
    },
    Operation {
        name: "a merge",
        begin: "git merge -q other || true",
        status: "You have unmerged paths",
        finish: "git commit -q --no-edit",
    },
    Operation {
        name: "a cherry-pick",
        begin: "git cherry-pick other || true",
        status: "You are currently cherry-picking",
        finish: "git commit -q --no-edit",
    },
    Operation {
        name: "a revert",
        begin: "echo again > theirs.txt; git commit -q -a -m again; git revert HEAD~2 || true",
        status: "You are currently reverting",
        finish: "git commit -q --no-edit",
    },
    Operation {
        name: "applying patches (git am)",
        begin: "git format-patch -q --stdout main..other > ../patch; git am -q -3 ../patch || true",
        status: "You are in the middle of an am session",
        finish: "git am --continue",
    },
    Operation {
        name: "a bisection",
        begin: "git bisect start HEAD HEAD~2",
        status: "You are currently bisecting",
        finish: "git bisect reset; echo solved > theirs.txt",
    },
];

impl Operation {
    fn first(&self) -> String {
        format!("{{ {TWO_SIDES}{}; }} >/dev/null 2>&1; echo precious > work.txt", self.begin)
    }

    fn second(&self) -> String {
        let solve = if self.name == "a bisection" { "" } else { SOLVE };
        format!("set -e; {solve}{}", self.finish)
    }
}

#[test]
fn an_agent_that_continues_goes_on_in_what_git_was_in_the_middle_of() {
    for operation in &OPERATIONS {
        let left = Left::with(&operation.first(), &operation.second(), &[]);
        let status = left.git_there(&["status"]);
        assert!(status.contains(operation.status), "{}: {status}", operation.name);
        let row = left.assert_told("in_progress");
        assert!(operation.name.contains(row["operation"].as_str().expect("text")), "{row:#}");
        left.resume().success();
        let status = left.found("status");
        assert!(status.contains(operation.status), "{}: {status}", operation.name);
        let prompt = left.sandbox.read(left.sandbox.mark("prompt"));
        assert!(prompt.contains(&format!("in the middle of {}", operation.name)), "{prompt}");
        left.assert_landed(&[("theirs.txt", "solved"), ("second.txt", "second")]);
        left.assert_landed(&[("work.txt", "precious")]);
    }
}

#[test]
fn half_an_operation_is_no_result() {
    for operation in &OPERATIONS {
        // The second agent ends well and leaves it as it is.
        let left = Left::after(&operation.first());
        let told = left.resume().expect_code(4);
        assert!(told.stderr.contains("is not finished"), "{}: {told}", operation.name);
        let look = format!("hint: `git -C {} status`", left.tree.display());
        assert!(told.stderr.contains(&look), "{}: {told}", operation.name);
        assert_eq!(events_named(&left.sandbox, "claimed").len(), 2, "asked at once: {told}");
        let run = view(&left.sandbox);
        assert_eq!(run["completed"], 0, "{}", operation.name);
        assert!(left.git_there(&["status"]).contains(operation.status), "{}", operation.name);
        // A person finishes it, and the step is verified and lands; no agent is started again.
        let script = left.sandbox.write(left.sandbox.mark("by-hand.sh"), &operation.second());
        let by_hand = left.sandbox.command("sh").arg(script).current_dir(&left.tree).output();
        assert!(by_hand.expect("sh").status.success(), "{}", operation.name);
        left.sandbox.piton(&["resume"]).output().success();
        left.assert_landed(&[("theirs.txt", "solved"), ("second.txt", "second")]);
        left.assert_landed(&[("work.txt", "precious")]);
        assert_eq!(left.sandbox.lines(left.sandbox.mark("starts")), 2);
    }
}

#[test]
fn a_merge_that_is_solved_and_not_committed_is_finished() {
    let merge = &OPERATIONS[3];
    let left = Left::with(&merge.first(), SOLVE.trim_end_matches("; "), &[]);
    left.resume().success();
    left.assert_landed(&[("theirs.txt", "solved"), ("work.txt", "precious")]);
    left.assert_lands("other");
}

#[test]
fn a_command_that_starts_over_loses_no_commit_of_it() {
    for operation in &OPERATIONS {
        let sandbox = crate::sandbox();
        sandbox.write("theirs.txt", "base\n");
        sandbox.write(sandbox.mark("first.sh"), &operation.first());
        let command = "if test -e {again}; then git status > {status}; else touch {again}; \
                       sh {first.sh}; git branch -D -q other; touch {ready}; sleep 600; fi";
        let steps = [command_step(&sandbox, "work", command, "")];
        lay_plan(&sandbox, &plan(&sandbox, &steps));
        let worker = sandbox.piton(&["run", "plan.toml", "--trust"]).spawn();
        sandbox.wait_exists(sandbox.mark("ready"));
        let handle = view(&sandbox)["handle"].as_str().expect("a handle").to_owned();
        let tree = piton_testkit::runs::worktree(&sandbox);
        assert!(sandbox.git_in(&tree, &["status"]).contains(operation.status));
        let branch = format!("piton/{handle}/step/work");
        let mut commits = vec![sandbox.git(&["rev-parse", &branch])];
        commits.push(sandbox.git_in(&tree, &["rev-parse", "HEAD"]));
        let onto = ["rev-parse", "--verify", "-q", "MERGE_HEAD"];
        if operation.name == "a merge" {
            commits.push(sandbox.git_in(&tree, &onto));
        }
        drop(worker.kill9());
        assert!(sandbox.kill_all());
        sandbox.piton(&["resume"]).output().success();
        assert!(sandbox.read(sandbox.mark("status")).contains("working tree clean"));
        // Whatever the reflogs forget: a ref has it.
        sandbox.git(&["reflog", "expire", "--expire=all", "--expire-unreachable=all", "--all"]);
        sandbox.git(&["-c", "gc.auto=0", "gc", "-q", "--prune=now"]);
        for commit in &commits {
            sandbox.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]);
        }
        let refs = sandbox.git(&["for-each-ref", "--format=%(refname)", "refs/piton"]);
        let has = |name: &str| {
            sandbox.try_git(&["show", &format!("{name}:work.txt")]).is_ok_and(|is| is == "precious")
        };
        assert!(refs.lines().any(has), "{}: {refs}", operation.name);
    }
}
