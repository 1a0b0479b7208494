//! Plans as data: what is read, what is found, what a change means.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::{Finding, parse};
use std::collections::BTreeMap;

use piton_core::agent::Agent;
use piton_core::ids::{AgentName, Hash};
use piton_core::limits::{PLAN_FINDINGS_MAX, PLAN_STEPS_MAX};
use piton_core::plan::{Plan, differences, executables, trust_hash};

mod any;
mod claims;
mod interruptions;
mod loops;
mod mistakes;

/// Every key but those that concern claims; `claims::CLAIMED` has these.
const GOOD: &str = r#"
[plan]
name      = "auth-system"
base      = "main"
agent     = "claude"
isolation = "run"

[inputs]
focus = "security"

[group.auth]
title = "Authentication"

[group.web]

[agent.claude]
command = ["claude", "-p"]
prompt  = "arg"
env     = { CLAUDE_MODE = "quiet" }

[[step]]
id      = "jwt"
group   = "auth"
title   = "JWT validation"
prompt  = "Implement JWT validation in src/auth.ts"
verify  = "npm test -- auth"
timeout = "1h 30m"
retries = 2

[[step]]
id    = "keys"
group = "auth"
run   = "make keys"
env   = { KEY_SIZE = "4096" }

[[step]]
id     = "routes"
group  = "web"
needs  = ["jwt", "auth", "jwt"]
agent  = "codex"
prompt = "Add the routes"
"#;

/// One step that does something, with these lines added to it.
fn step_with(lines: &str) -> String {
    format!("[plan]\nname = \"p\"\n[[step]]\nid = \"a\"\nrun = \"true\"\n{lines}\n")
}

/// Steps with these ids and needs.
fn steps(all: &[(&str, &[&str])]) -> String {
    let mut text = "[plan]\nname = \"p\"\n".to_owned();
    for (id, needs) in all {
        write!(text, "[[step]]\nid = \"{id}\"\nrun = \"true\"\nneeds = {needs:?}\n").unwrap();
    }
    text
}

/// What is found, as a person would see it.
fn found(input: impl AsRef<[u8]>) -> String {
    let findings = match parse(input.as_ref()) {
        Ok(_) => return "no findings".to_owned(),
        Err(error) => error.findings,
    };
    assert!(!findings.is_empty());
    let mut text = String::new();
    for Finding { line, column, message, hint, .. } in findings {
        writeln!(text, "{line}:{column} {message}").unwrap();
        writeln!(text, "    {}", hint.unwrap()).unwrap();
    }
    text
}

fn hash(input: &str) -> Hash {
    parse(input.as_bytes()).unwrap_or_else(|_| panic!("{}", found(input))).hash()
}

#[test]
fn a_plan_is_read_and_normalised() {
    let plan = parse(format!("{GOOD}{}", claims::CLAIMED).as_bytes()).unwrap();
    assert_snapshot!("plan", serde_json::to_string_pretty(&plan).unwrap());
}

#[test]
fn the_smallest_plan() {
    let plan = parse(step_with("").as_bytes()).unwrap();
    assert_snapshot!(String::from_utf8(plan.to_bytes()).unwrap(), @r#"
    {"name":"p","isolation":"run","steps":[{"id":"a","title":"a","work":{"run":"true"},"retries":0}]}
    "#);
}

#[test]
fn layout_does_not_count() {
    let same = [
        GOOD.replace('\n', "\r\n"),
        format!("\u{feff}{GOOD}"),
        GOOD.replace('\n', " # a comment\n"),
        GOOD.replace('=', "  =\t"),
        GOOD.replace("[\"jwt\", \"auth\", \"jwt\"]", "['auth',\n 'jwt',]"),
        GOOD.replace("isolation = \"run\"", "").replace("\"1h 30m\"", "'90 minutes'"),
        GOOD.replace("[group.web]", "[group.web]\ntitle = \"web\""),
        GOOD.replace("1h 30m", "1h 30m 0.0001s"),
        GOOD.replace("retries = 2", "retries = 0b10"),
        GOOD.replace(
            "id    = \"keys\"\ngroup = \"auth\"",
            "group = 'auth'\ntitle='keys'\nid='keys'",
        ),
        GOOD.replace("agent     = \"claude\"", "")
            .replace("verify  =", "agent = 'claude'\nverify ="),
    ];
    for text in same {
        assert_ne!(text, GOOD);
        assert_eq!(hash(&text), hash(GOOD), "{text}");
    }
    let lines = "run = '''\na\nb\n'''";
    let plan =
        |newline: &str| step_with("").replace("run = \"true\"", lines).replace('\n', newline);
    assert_eq!(hash(&plan("\n")), hash(&plan("\r\n")));
}

/// Changes of meaning, and the lines that tell them to people.
#[test]
fn every_change_of_meaning_counts() {
    let changes = [
        ("\"auth-system\"", "\"other\""),
        ("\"main\"", "\"dev\""),
        ("base      = \"main\"", ""),
        ("agent     = \"claude\"", "agent = \"gemini\""),
        ("\"security\"", "\"speed\""),
        ("focus =", "aim ="),
        ("\"Authentication\"", "\"Login\""),
        ("[group.web]", "[group.web]\n[group.docs]"),
        ("\"claude\", \"-p\"", "\"claude\""),
        ("\"arg\"", "\"file\""),
        ("\"quiet\"", "\"loud\""),
        ("[agent.claude]", "[agent.other]"),
        ("\"JWT validation\"", "\"JWT\""),
        ("Implement", "Write"),
        ("npm test -- auth", "npm test"),
        ("verify  = \"npm test -- auth\"", ""),
        ("1h 30m", "1h 30m 1ms"),
        ("timeout = \"1h 30m\"", ""),
        ("retries = 2", "retries = 3"),
        ("make keys", "make all"),
        ("4096", "2048"),
        ("run   = \"make keys\"", "prompt = \"make keys\""),
        ("[\"jwt\", \"auth\", \"jwt\"]", "[\"jwt\"]"),
        ("group  = \"web\"", ""),
        ("id     = \"routes\"", "id = \"pages\""),
        ("prompt = \"Add the routes\"", "run = 'x'"),
    ];
    let old = parse(GOOD.as_bytes()).unwrap();
    assert_eq!(differences(&old, &old), Vec::<String>::new());
    let mut told = String::new();
    for (from, to) in changes {
        let mut text = GOOD.replacen(from, to, 1);
        if to == "run = 'x'" {
            text = text.replace("agent  = \"codex\"", "");
        }
        let new = parse(text.as_bytes()).unwrap_or_else(|_| panic!("{}", found(&text)));
        assert_ne!(new.hash(), old.hash(), "{to}");
        let lines = differences(&old, &new);
        assert!(!lines.is_empty(), "{to}");
        writeln!(told, "{}", lines.join("; ")).unwrap();
    }
    assert_snapshot!(told, @"
    plan: name auth-system → other
    plan: base main → dev
    plan: base main → none
    step jwt: agent claude → gemini
    input focus: value changed
    input aim: added; input focus: removed
    group auth: title changed
    group docs: added
    agent claude: command changed
    agent claude: prompt arg → file
    agent claude: env changed
    agent other: added; agent claude: removed
    step jwt: title changed
    step jwt: prompt changed
    step jwt: verify changed
    step jwt: verify changed
    step jwt: timeout 1h 30m → 1h 30m 1ms
    step jwt: timeout 1h 30m → none
    step jwt: retries 2 → 3
    step keys: run changed
    step keys: env changed
    step keys: run → prompt
    step routes: needs changed
    step routes: group web → none
    step pages: added; step routes: removed
    step routes: prompt → run
    ");
}

#[test]
fn the_order_of_steps_counts() {
    let plan = |ids: &[&str]| {
        let all: Vec<(&str, &[&str])> = ids.iter().map(|id| (*id, [].as_slice())).collect();
        parse(steps(&all).as_bytes()).unwrap()
    };
    let (old, new) = (plan(&["a", "b", "c"]), plan(&["b", "d", "a"]));
    assert_ne!(plan(&["a", "b"]).hash(), plan(&["b", "a"]).hash());
    assert_snapshot!(differences(&old, &new).join("\n"), @"
    step d: added
    step c: removed
    plan: order of steps changed
    ");
}

#[test]
fn what_a_repository_would_execute() {
    let plan = parse(GOOD.as_bytes()).unwrap();
    let agent = |program: &str| Agent {
        command: vec![program.to_owned(), "a \"b\"\n".to_owned()],
        env: BTreeMap::from([("PATH".to_owned(), "/evil:\"".to_owned())]),
        ..Agent::default()
    };
    let name = |name: &str| AgentName::new(name).unwrap();
    let agents = BTreeMap::from([(name("codex"), agent("codex")), (name("claude"), agent("no"))]);
    let all = executables(&plan, &agents, &BTreeMap::new());
    assert_snapshot!(all.join("\n"), @r#"
    step jwt: verify: npm test -- auth
    step keys: run: make keys
    step keys: env: KEY_SIZE="4096"
    agent claude: ["claude","-p"]
    agent claude: prompt: "arg"
    agent claude: env: CLAUDE_MODE="quiet"
    agent codex: ["codex","a \"b\"\n"]
    agent codex: env: PATH="/evil:\""
    "#);
    assert_ne!(
        trust_hash(&all),
        trust_hash(&executables(&plan, &BTreeMap::new(), &BTreeMap::new()))
    );
}

#[test]
fn trust_does_not_depend_on_how_entries_are_cut() {
    let list =
        |entries: &[&str]| -> Vec<String> { entries.iter().map(|e| (*e).to_owned()).collect() };
    assert_ne!(trust_hash(&list(&["a", "b"])), trust_hash(&list(&["a\nb"])));
    assert_ne!(trust_hash(&list(&["a", "b"])), trust_hash(&list(&["a\",\"b"])));
    assert_ne!(trust_hash(&list(&[])), trust_hash(&list(&[""])));
    let plan = parse(GOOD.as_bytes()).unwrap();
    let other = parse(GOOD.replace("Implement", "Write").as_bytes()).unwrap();
    let trust = |plan| trust_hash(&executables(plan, &BTreeMap::new(), &BTreeMap::new()));
    assert_eq!(trust(&plan), trust(&other), "a prompt is no executable");
}
