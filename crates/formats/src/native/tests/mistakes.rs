//! Every mistake in a plan is found, each with its place and a way out.

use super::*;
use piton_core::limits::{PLAN_BYTES_MAX, PLAN_FINDINGS_MAX, PLAN_STEPS_MAX};

#[test]
fn bytes_that_are_no_text() {
    assert_snapshot!(found(b"[plan]\nname = \"\xc3\xa4\xc3\xb6\xff\"\n"), @"
    2:11 the file is not valid UTF-8
        save it with the encoding UTF-8
    ");
    assert_snapshot!(found(b"\xff\xfe[\0p\0"), @"
    1:1 the file is not valid UTF-8
        save it with the encoding UTF-8
    ");
    assert_snapshot!(found(b"\xef\xbb\xbf[plan]\nname = \"a\0b\""), @"
    2:10 there is a NUL character
        remove it
    ");
    assert_snapshot!(found(vec![b'#'; PLAN_BYTES_MAX + 1]), @"
    1:1 the file is larger than 4194304 bytes
        split the plan into smaller ones
    ");
    assert_snapshot!(found(vec![b'#'; PLAN_BYTES_MAX]), @r#"
    1:1 the plan has no name
        start the file with [plan] and name = "…"
    1:1 the plan has no steps
        add a [[step]] with an id and a run or a prompt
    "#);
}

#[test]
fn broken_toml() {
    assert_snapshot!(found("[plan]\nname = \"p\nbase = \"main\"\n[[step]\nid = 'a'\n"), @r#"
    2:10 invalid basic string, expected `"`
        write key = "value" below a [table]; the rules are at https://toml.io
    4:8 unclosed array table, expected `]`
        write key = "value" below a [table]; the rules are at https://toml.io
    "#);
    assert_snapshot!(found("[plan]\nname = p\nnäme\n[plan]\nx = 1\nx = 2"), @r#"
    2:8 string values must be quoted, expected literal string
        write key = "value" below a [table]; the rules are at https://toml.io
    3:2 invalid unquoted key, expected letters, numbers, `-`, `_`
        write key = "value" below a [table]; the rules are at https://toml.io
    "#);
    assert_snapshot!(found("run = \"\"\"\n\n"), @r#"
    3:1 invalid multi-line basic string, expected `"`
        write key = "value" below a [table]; the rules are at https://toml.io
    "#);
    assert_snapshot!(found("\u{feff}ä = = 1"), @r#"
    1:1 invalid unquoted key, expected letters, numbers, `-`, `_`
        write key = "value" below a [table]; the rules are at https://toml.io
    "#);
    assert_snapshot!(found(format!("x = {}", "[".repeat(100_000))), @"
    1:261 tables and arrays are nested too deeply, or brackets are not closed
        close every bracket that is open here
    ");
    assert_snapshot!(found(format!("x{} = 1", ".x".repeat(100_000))), @"
    1:514 tables and arrays are nested too deeply, or brackets are not closed
        close every bracket that is open here
    ");
}

#[test]
fn nothing_there() {
    assert_snapshot!(found(""), @r#"
    1:1 the plan has no name
        start the file with [plan] and name = "…"
    1:1 the plan has no steps
        add a [[step]] with an id and a run or a prompt
    "#);
    assert_snapshot!(found("[plan]\n[[step]]\n"), @r#"
    1:1 the plan has no name
        add name = "…" to [plan]
    2:1 the step has no id
        add id = "…"
    "#);
    assert_snapshot!(found("plan = 'x'\nstep = []"), @"
    1:8 `plan` must be a table, not a string
        make `plan` a table of keys and values
    2:8 the plan has no steps
        add a [[step]] with an id and a run or a prompt
    ");
    assert_snapshot!(found("[plan]\nname = 'x'\n[step]\nid = 'a'"), @"
    3:1 `step` must be an array of tables
        write [[step]], with two brackets on each side
    ");
    assert_snapshot!(found("step = [1, {}]\ngroup.a = 1\nagent.b = 'claude'\ninputs = []"), @r#"
    1:1 the plan has no name
        start the file with [plan] and name = "…"
    1:9 `step` must be a table, not an integer
        make `step` a table of keys and values
    1:12 the step has no id
        add id = "…"
    2:11 `group.a` must be a table, not an integer
        make `group.a` a table of keys and values
    3:11 `agent.b` must be a table, not a string
        make `agent.b` a table of keys and values
    4:10 `inputs` must be a table, not an array
        make `inputs` a table of keys and values
    "#);
}

#[test]
fn unknown_keys() {
    assert_snapshot!(found(step_with("vrify = 'x'\nTitle = 'x'\nowner = 'me'\n\"\\u001b[31m\" = 1")), @r"
    6:1 unknown key `vrify`
        did you mean `verify`?
    7:1 unknown key `Title`
        did you mean `title`?
    8:1 unknown key `owner`
        the keys here are: id, title, kind, group, needs, run, prompt, agent, verify, skip_if, timeout, retries, env, items, substeps, locks, outputs, require, on_interrupt, idempotent, on_limit
    9:1 unknown key `\u{1b}[31m`
        the keys here are: id, title, kind, group, needs, run, prompt, agent, verify, skip_if, timeout, retries, env, items, substeps, locks, outputs, require, on_interrupt, idempotent, on_limit
    ");
    assert_snapshot!(found("name = 'x'\n[plan]\nnmae = 'x'\n[[steps]]\nid = 'a'\n"), @r#"
    1:1 unknown key `name`
        the keys here are: $schema, plan, inputs, group, agent, locks, loop, step
    1:1 the plan has no steps
        add a [[step]] with an id and a run or a prompt
    2:1 the plan has no name
        add name = "…" to [plan]
    3:1 unknown key `nmae`
        did you mean `name`?
    4:3 unknown key `steps`
        did you mean `step`?
    "#);
    assert_snapshot!(found(step_with("[group.g]\ntitel = 'x'\n[agent.c]\ncommand = ['c']\njobs = 1")), @"
    7:1 unknown key `titel`
        did you mean `title`?
    10:1 unknown key `jobs`
        the keys here are: command, start, resume, fork, prompt, dialect, env, account
    ");
    assert_snapshot!(found(step_with(&format!("{} = 1", "k".repeat(1000)))), @"
    6:1 unknown key `kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk…`
        the keys here are: id, title, kind, group, needs, run, prompt, agent, verify, skip_if, timeout, retries, env, items, substeps, locks, outputs, require, on_interrupt, idempotent, on_limit
    ");
}

#[test]
fn keys_of_later_versions() {
    assert_snapshot!(found(step_with("max_wall = []\nskip_if = ['x']\nneeds = ['a:out']\nplan_form = 1")), @r#"
    6:1 `max_wall` is not supported by this version of piton
        remove it
    7:11 `skip_if` must be a string, not an array
        put it in "quotes"
    8:10 step `a` needs an output of its own
        remove this need
    9:1 unknown key `plan_form`
        the keys here are: id, title, kind, group, needs, run, prompt, agent, verify, skip_if, timeout, retries, env, items, substeps, locks, outputs, require, on_interrupt, idempotent, on_limit
    "#);
    assert_snapshot!(found("[plan]\nname = 'x'\njobs = 3\nisolation = 'step'\n[loop.improve]\nmax = 1\n[labels]\nx = 1\n[[step]]\nid = 'a'\nrun = 'x'"), @r#"
    5:1 loop `improve` has no steps
        write steps = ["review", "implement"], in the order of the chain
    7:2 `labels` is not supported by this version of piton
        remove it
    "#);
}

#[test]
fn bad_values_of_the_plan() {
    let plan = |lines: &str| format!("[plan]\n{lines}\n[[step]]\nid = 'a'\nrun = 'x'\n");
    assert_snapshot!(found(plan("name = ' '\nbase = ''\nagent = 'Claude Code'\nisolation = 'all'")), @r#"
    2:8 `name` is empty
        give it a text; an optional key can be left out
    3:8 `base` is empty
        give it a text; an optional key can be left out
    4:9 `Claude Code` is not a valid agent name
        did you mean `claude-code`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    5:13 `all` is not an isolation
        write isolation = "run" or isolation = "step"
    "#);
    assert_snapshot!(found(plan("name = \"a\\nb\"\nbase = '--upload-pack=x'\nagent = 1\nisolation = true")), @r#"
    2:8 `name` contains a line break or another control character
        write it in one line of plain text
    3:8 `--upload-pack=x` is not a branch, tag or commit
        name one that exists, such as "main"
    4:9 `agent` must be a string, not an integer
        put it in "quotes"
    5:13 `isolation` must be a string, not a boolean
        put it in "quotes"
    "#);
    assert_snapshot!(found(plan("name = 'x'\nsetup = ''\ncopy = ['.env', '../x', '/x', '.git/config', '.env']\nlink = 'x'")), @r#"
    3:9 `setup` is empty
        give it a text; an optional key can be left out
    4:17 `../x` is not a path inside the repository
        write it from the repository's root, such as ".env" or "app/.env"
    4:25 `/x` is not a path inside the repository
        write it from the repository's root, such as ".env" or "app/.env"
    4:31 `.git/config` is not a path inside the repository
        write it from the repository's root, such as ".env" or "app/.env"
    4:46 `.env` is listed twice
        remove one of them
    5:8 `link` must be an array of strings, not a string
        write link = ["…"]
    "#);
    assert_snapshot!(found(plan("name = 'x'\non_failure = 'ask'")), @r#"
    3:14 `ask` is not a way to go on after a failure
        write on_failure = "continue" or on_failure = "stop"
    "#);
    assert_snapshot!(found(plan("name = 'x'\njobs = 3")), @r#"
    3:8 steps come one at a time, so that `jobs` has no meaning
        add isolation = "step" to [plan]
    "#);
    assert_snapshot!(found(plan("name = 'x'\nisolation = 'step'\njobs = 65")), @"
    4:8 `jobs` must be a whole number from 1 to 64
        write jobs = 2, for example
    ");
    assert_snapshot!(found(plan(&format!("name = '{}'", "ä".repeat(201)))), @"
    2:8 `name` is longer than 200 characters
        shorten it
    ");
    assert_snapshot!(found(plan(&format!("name = '{}'", "ä".repeat(200)))), @"no findings");
    assert_snapshot!(found(plan("name = 'x'\n[inputs]\n9a = 'x'\nfocus = 1\n'a b' = ''\n_A9 = ''")), @r#"
    4:1 `9a` is not a valid name for a value
        use letters, digits and '_', not starting with a digit
    5:9 `focus` must be a string, not an integer
        put it in "quotes"
    6:1 `a b` is not a valid name for a value
        use letters, digits and '_', not starting with a digit
    "#);
}

#[test]
fn bad_agents_and_groups() {
    assert_snapshot!(found(step_with("[agent.a]\n[agent.b]\ncommand = []\n[agent.c]\ncommand = ['', 'x']\n[agent.d]\ncommand = 'claude -p'\n")), @r#"
    6:1 the agent has no command
        write command = ["program", "argument"]
    8:11 the agent has no command
        write command = ["program", "argument"]
    10:11 the agent has no command
        write command = ["program", "argument"]
    12:11 `command` must be an array of strings, not a string
        write command = ["…"]
    "#);
    assert_snapshot!(found(step_with("[agent.C]\ncommand = ['c', 1]\nprompt = 'mail'\nenv = { PITON_RUN = 'x', 'a=b' = 'c', A = 1 }\n")), @r#"
    6:8 `C` is not a valid agent name
        did you mean `c`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    7:17 `command` must be a string, not an integer
        put it in "quotes"
    8:10 `mail` is not a value of `prompt`
        `prompt` is one of "stdin", "arg", "file"
    9:9 `PITON_RUN` is reserved for piton
        use a name without PITON_
    9:26 `a=b` is not a valid name for a value
        use letters, digits and '_', not starting with a digit
    9:43 `A` must be a string, not an integer
        put it in "quotes"
    "#);
    assert_snapshot!(found(step_with("group = 'atuh'\n[group.auth]\ntitle = ''\n[group.'Web UI']\n")), @"
    6:9 unknown group `atuh`
        did you mean `auth`?
    8:9 `title` is empty
        give it a text; an optional key can be left out
    9:8 `Web UI` is not a valid group id
        did you mean `web-ui`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    ");
    assert_snapshot!(found(step_with("group = 'web'\n")), @"
    6:9 unknown group `web`
        add [group.web] with a title
    ");
}

#[test]
fn bad_values_of_a_step() {
    assert_snapshot!(found(step_with("title = \"a\\u001bb\"\nverify = ' '\ntimeout = 90\nretries = -1\nenv = []\nneeds = 'b'")), @r#"
    6:9 `title` contains a line break or another control character
        write it in one line of plain text
    7:10 `verify` is empty
        give it a text; an optional key can be left out
    8:11 `timeout` is not a duration
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    9:11 `retries` must be a whole number from 0 to 100
        write retries = 2, for example
    10:7 `env` must be a table, not an array
        make `env` a table of keys and values
    11:9 `needs` must be an array of strings, not a string
        write needs = ["…"]
    "#);
    assert_snapshot!(found(step_with("timeout = 'soon'\nretries = 101")), @r#"
    6:11 `timeout` is not a duration
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    7:11 `retries` must be a whole number from 0 to 100
        write retries = 2, for example
    "#);
    assert_snapshot!(found(step_with("timeout = '0s'\nretries = '2'")), @r#"
    6:11 `timeout` must be longer than 0
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    7:11 `retries` must be a whole number from 0 to 100
        write retries = 2, for example
    "#);
    assert_snapshot!(found(step_with("timeout = '5m ago'\nretries = 1.5")), @r#"
    6:11 `timeout` must be longer than 0
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    7:11 `retries` must be a whole number from 0 to 100
        write retries = 2, for example
    "#);
    assert_snapshot!(found(step_with("timeout = '721h'\nretries = 99999999999999999999")), @r#"
    6:11 `timeout` must be at most 30 days (720h)
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    7:11 `retries` must be a whole number from 0 to 100
        write retries = 2, for example
    "#);
    assert_snapshot!(found(step_with("verify = \"a\\u0000b\"\nneeds = [\"\\u0000\"]\nenv = { PITON_FENCE = '1', A = \"\\u0000\" }")), @"
    6:10 there is a NUL character in `verify`
        remove it
    7:10 there is a NUL character in `needs`
        remove it
    8:9 `PITON_FENCE` is reserved for piton
        use a name without PITON_
    8:32 there is a NUL character in `A`
        remove it
    ");
    assert_snapshot!(found(step_with("timeout = '0.9ms'")), @r#"
    6:11 `timeout` must be longer than 0
        write hours, minutes and seconds, such as "90m", "1h 30m" or "45s"
    "#);
    assert_snapshot!(found(step_with("timeout = '720h'\nretries = 0x64\nneeds = []\nenv = {}")), @"no findings");
}

#[test]
fn what_a_step_does() {
    assert_snapshot!(found(step_with("prompt = 'x'")), @"
    3:1 the step has both `run` and `prompt`
        keep one of them, or make two steps
    ");
    assert_snapshot!(found(step_with("agent = 'claude'")), @"
    6:9 a step with `run` has no agent
        remove `agent`, or write `prompt` instead of `run`
    ");
    assert_snapshot!(found("[plan]\nname = 'x'\n[[step]]\nid = 'a'\nagent = 'x'\n[[step]]\nid = 'b'\nprompt = 'x'\n[[step]]\nid = 'c'\nrun = ''"), @r#"
    5:9 the step has an agent, but no prompt
        add prompt = "what the agent shall do", or remove `agent`
    11:7 `run` is empty
        give it a text; an optional key can be left out
    "#);
    assert_snapshot!(found("[plan]\nname = 'x'\nagent = '!'\n[[step]]\nid = 'a'\nprompt = 'x'\n"), @"
    3:9 `!` is not a valid agent name
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    ");
}

#[test]
fn bad_and_double_ids() {
    assert_snapshot!(found(steps(&[("JWT", &[]), ("jwt", &["JWT"]), ("a b", &[]), ("é", &[]), ("jwt", &[]), ("", &[])])), @"
    4:6 `JWT` is not a valid step id
        did you mean `jwt`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    8:6 step `jwt` is defined twice
        the first is in line 4; give this one another id
    10:10 unknown need `JWT`
        did you mean `jwt`?
    12:6 `a b` is not a valid step id
        did you mean `a-b`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    16:6 `é` is not a valid step id
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    20:6 step `jwt` is defined twice
        the first is in line 4; give this one another id
    24:6 `` is not a valid step id
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    ");
    assert_snapshot!(found(steps(&[("a", &[]), (&"x".repeat(65), &["a"])])), @"
    8:6 `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` is not a valid step id
        did you mean `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    ");
}

#[test]
fn unknown_needs() {
    assert_snapshot!(found(steps(&[("jwt", &["jwt"]), ("routes", &["jtw", "JWT", "database", "", "jwt:x"])])), @r#"
    6:10 step `jwt` needs itself
        remove this need
    10:10 unknown need `jtw`
        did you mean `jwt`?
    10:17 unknown need `JWT`
        did you mean `jwt`?
    10:24 unknown need `database`
        name a step, a group or a loop of this plan
    10:36 unknown need ``
        name a step, a group or a loop of this plan
    10:40 step `jwt` declares no output `x`
        add outputs = ["x"] to step `jwt`
    "#);
    let both = steps(&[("auth", &[]), ("b", &["auth", "web"])]) + "[group.auth]\n[group.web]\n";
    assert_snapshot!(found(both), @r#"
    10:10 the need `auth` is both a step and a group
        rename one of them
    10:18 the needed group `web` has no steps
        add group = "web" to its steps, or remove this need
    "#);
}

#[test]
fn circles() {
    assert_snapshot!(found(steps(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])])), @"
    4:6 steps need each other in a circle: a → b → c → a
        remove one of these needs
    ");
    assert_snapshot!(found(steps(&[("a", &["b"]), ("b", &["a"]), ("c", &["d", "a"]), ("d", &["c"])])), @"
    4:6 steps need each other in a circle: a → b → a
        remove one of these needs
    12:6 steps need each other in a circle: c → d → c
        remove one of these needs
    ");
    let own_group = step_with("group = 'g'\nneeds = ['g']\n[group.g]");
    assert_snapshot!(found(own_group), @"
    4:6 steps need each other in a circle: a → group g → a
        remove one of these needs
    ");
    let through_group = steps(&[("a", &["g"]), ("b", &["a"])]) + "group = 'g'\n[group.g]";
    assert_snapshot!(found(through_group), @"
    4:6 steps need each other in a circle: a → group g → b → a
        remove one of these needs
    ");
    let two_groups = "[group.g]\n[group.h]\n[[step]]\nid = 'a'\nrun = 'x'\ngroup = 'g'\nneeds = ['h']\n[[step]]\nid = 'b'\nrun = 'x'\ngroup = 'h'\nneeds = ['g']\n[plan]\nname = 'x'";
    assert_snapshot!(found(two_groups), @"
    4:6 steps need each other in a circle: a → group h → b → group g → a
        remove one of these needs
    ");
}

#[test]
fn a_long_circle_is_cut_in_the_middle() {
    let ids: Vec<String> = (0..PLAN_STEPS_MAX).map(|n| format!("s{n}")).collect();
    let needs: Vec<[&str; 1]> =
        (0..ids.len()).map(|n| [ids[(n + 1) % ids.len()].as_str()]).collect();
    let all: Vec<(&str, &[&str])> =
        ids.iter().zip(&needs).map(|(id, needs)| (id.as_str(), needs.as_slice())).collect();
    assert_snapshot!(found(steps(&all)), @"
    4:6 steps need each other in a circle: s0 → s1 → s2 → s3 → s4 → s5 → s6 → s7 → s8 → s9 → s10 → s11 → s12 → s13 → s14 → … → s19985 → s19986 → s19987 → s19988 → s19989 → s19990 → s19991 → s19992 → s19993 → s19994 → s19995 → s19996 → s19997 → s19998 → s19999 → s0
        remove one of these needs
    ");
}

#[test]
fn as_many_steps_as_there_may_be() {
    let chain = |count: usize| {
        let mut text = "plan.name = 'chain'\nstep = [".to_owned();
        for n in 0..count {
            let needs = if n + 1 < count { format!("'s{}'", n + 1) } else { String::new() };
            write!(text, "{{ id = 's{n}', run = 'x', needs = [{needs}] }}, ").unwrap();
        }
        text + "]"
    };
    let plan = parse(chain(PLAN_STEPS_MAX).as_bytes()).unwrap();
    assert_eq!(plan.steps.len(), PLAN_STEPS_MAX);
    assert_eq!(plan.needs_of(7), [8]);
    let found = found(chain(PLAN_STEPS_MAX + 1));
    assert_snapshot!(found, @"
    2:977793 the plan has 20001 steps; 20000 are allowed
        split the plan into smaller ones
    ");
}

#[test]
fn mistakes_without_end_are_counted() {
    let mut text = step_with("");
    for n in 1..PLAN_STEPS_MAX {
        let other = PLAN_STEPS_MAX * 2 + n;
        write!(text, "[[step]]\nid = 's{n}'\nrun = 'x'\nneeds = ['s{other}', 'group-{n}']\n")
            .unwrap();
    }
    let error = parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.findings.len(), PLAN_FINDINGS_MAX + 1);
    let last = error.findings.last().unwrap();
    assert_eq!(last.message, "38998 more mistakes are not listed");

    let one_line =
        format!("plan.name = 'x'\nstep = [{}]", "{ id = 'ä', x = 1 }, ".repeat(PLAN_STEPS_MAX));
    let error = parse(one_line.as_bytes()).unwrap_err();
    assert_eq!(error.findings.len(), PLAN_FINDINGS_MAX + 1);
    assert_eq!((error.findings[2].line, error.findings[2].column), (2, 37));

    for garbage in ["=\n", "[", "]", "\"", "'''", "a.", "{", "x = [\n", "[[a]]\n", "a=", "\r"] {
        let text = garbage.repeat(PLAN_BYTES_MAX / garbage.len());
        assert!(parse(text.as_bytes()).is_err());
    }
}

/// Each level may have a path of its own, so that tables can be thousands deep.
#[test]
fn deep_tables_do_not_exhaust_the_stack() {
    let path = "x.".repeat(79) + "x";
    let deep = format!("{}1{}", format!("{{ {path} = ").repeat(79), " }".repeat(79));
    let text = format!("[{path}]\n{path} = {deep}\n");
    assert!(parse(text.as_bytes()).is_err());
}

#[test]
fn errors_are_told_in_a_line() {
    assert_snapshot!(parse(b"").unwrap_err(), @"2 mistakes, the first in line 1: the plan has no name");
    assert_snapshot!(parse(step_with("vrify = 'x'").as_bytes()).unwrap_err(), @"line 6: unknown key `vrify`");
}
