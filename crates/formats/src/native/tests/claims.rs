//! The keys that concern claims: checklists, locks, and steps that piton does not start.

use super::*;
use piton_core::limits::{ITEM_CHARS_MAX, LOCK_SLOTS_MAX, STEP_ITEMS_MAX, STEP_SUBSTEPS_MAX};
use piton_core::plan::Work;

/// What follows [`GOOD`] in a plan with every key that there is.
pub(super) const CLAIMED: &str = r#"
[locks]
test-slot = 1
database  = 3

[[step]]
id       = "refresh"
needs    = ["routes"]
title    = "Token refresh"
verify   = "npm test -- refresh"
retries  = 1
items    = ["read the RFC", "rotate on use", "read the RFC"]
substeps = [
    { id = "store", title = "A place for tokens", items = ["schema", "index"] },
    { id = "renew" },
]
locks    = ["test-slot", "database"]

[[step]]
id    = "review"
needs = ["refresh"]
"#;

/// The lines, without `run` and `prompt`.
fn by_hand(lines: &str) -> String {
    format!("[plan]\nname = \"p\"\nagent = \"claude\"\n[[step]]\nid = \"a\"\n{lines}\n")
}

/// As many as asked for, each made from its number.
fn list(count: usize, entry: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| entry(n) + ", ").collect()
}

/// A run of an earlier version must find its plan unchanged.
#[test]
fn plans_without_the_newer_keys_keep_their_hash() {
    for (plan, before) in [
        (GOOD, "c5375988f7523113c7e1c466e24610b6914dd104a0dc0a1397c1c1b66c5066c4"),
        (&step_with(""), "77ef4726d377bfc5d9fd65f474dc93841148b4804461805f526dbd094010caaa"),
        (
            &step_with("items = []\nsubsteps = []\nlocks = []\n[locks]"),
            "77ef4726d377bfc5d9fd65f474dc93841148b4804461805f526dbd094010caaa",
        ),
    ] {
        assert_eq!(hash(plan).to_string(), before, "{plan}");
    }
}

#[test]
fn layout_of_checklists_and_locks_does_not_count() {
    let whole = format!("{GOOD}{CLAIMED}");
    let written_out = "locks = ['test-slot', 'database']\n\
        [[step.substeps]]\nid = 'store'\ntitle = 'A place for tokens'\nitems = ['schema', 'index']\n\
        [[step.substeps]]\nid = 'renew'\n";
    let inline = &CLAIMED[CLAIMED.find("substeps =").unwrap()..CLAIMED.rfind("\n[[").unwrap()];
    for (from, to) in [
        (inline, written_out),
        ("{ id = \"renew\" }", "{ title = 'renew', items = [], id = 'renew' }"),
        ("[\"test-slot\", \"database\"]", "['database', 'test-slot', 'database']"),
        ("test-slot = 1\ndatabase  = 3", "database = 0x3\n'test-slot' = +1"),
        ("id    = \"review\"", "id = 'review'\nitems = []\nsubsteps = []\nlocks = []"),
    ] {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from}");
        assert_eq!(hash(&text), hash(&whole), "{text}");
    }
}

#[test]
fn bad_items() {
    assert_snapshot!(found(step_with("items = ['', \" \\t\", \"a\\nb\", 3, \"\\u0000\", ['x'], 'fine']")), @r#"
    6:10 the item is empty
        say what is to be done, or remove it
    6:14 the item is empty
        say what is to be done, or remove it
    6:21 the item contains a line break or another control character
        write it in one line of plain text
    6:29 `items` must be a string, not an integer
        put it in "quotes"
    6:32 there is a NUL character in `items`
        remove it
    6:42 `items` must be a string, not an array
        put it in "quotes"
    "#);
    assert_snapshot!(found(step_with("items = 'signature check'")), @r#"
    6:9 `items` must be an array of strings, not a string
        write items = ["…"]
    "#);
    assert_snapshot!(found(step_with("items = [{ text = 'x' }]\nitem = ['x']")), @r#"
    6:10 `items` must be a string, not a table
        put it in "quotes"
    7:1 unknown key `item`
        did you mean `items`?
    "#);
    let long = |length: usize| step_with(&format!("items = ['{}']", "ä".repeat(length)));
    assert_snapshot!(found(long(ITEM_CHARS_MAX)), @"no findings");
    assert_snapshot!(found(long(ITEM_CHARS_MAX + 1)), @"
    6:10 the item is longer than 500 characters
        shorten it, or make several items of it
    ");
}

#[test]
fn too_many_items() {
    let items = |own: usize, of_substep: usize| {
        let text = |n: usize| format!("'{n}'");
        let (own, of_substep) = (list(own, text), list(of_substep, text));
        step_with(&format!(
            "title = 'x'\nsubsteps = [{{ id = 'b', items = [{of_substep}] }}]\nitems = [{own}]"
        ))
    };
    assert_snapshot!(found(items(STEP_ITEMS_MAX, 0)), @"no findings");
    assert_snapshot!(found(items(STEP_ITEMS_MAX + 1, 0)), @"
    8:9 the step has 201 items; 200 are allowed
        make several steps of it
    ");
    assert_snapshot!(found(items(STEP_ITEMS_MAX, 1)), @"
    8:9 the step has 201 items; 200 are allowed
        make several steps of it
    ");
    assert_snapshot!(found(items(1, STEP_ITEMS_MAX - 1)), @"no findings");
}

#[test]
fn bad_substeps() {
    assert_snapshot!(found(step_with("substeps = ['validate', 1]")), @"
    6:13 `substep` must be a table, not a string
        make `substep` a table of keys and values
    6:25 `substep` must be a table, not an integer
        make `substep` a table of keys and values
    ");
    assert_snapshot!(found(step_with("substeps = 'validate'")), @r#"
    6:12 `substeps` must be an array of tables, not a string
        write substeps = [{ id = "…" }], or [[step.substeps]] below the step
    "#);
    assert_snapshot!(found(step_with("[step.substeps]\nid = 'validate'")), @r#"
    6:1 `substeps` must be an array of tables, not a table
        write substeps = [{ id = "…" }], or [[step.substeps]] below the step
    "#);
    assert_snapshot!(found(step_with("substeps = [{}, { id = 1 }, { id = 'A b' }, { id = '!' }]")), @r#"
    6:13 the substep has no id
        add id = "…"
    6:24 `id` must be a string, not an integer
        put it in "quotes"
    6:36 `A b` is not a valid substep id
        did you mean `a-b`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    6:52 `!` is not a valid substep id
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    "#);
    assert_snapshot!(found(step_with("[[step.substeps]]\nid = 'b'\ntitel = 'x'\nverify = 'x'\n[[step.substeps]]\nid = 'c'\ntitle = ''\nitems = ['']")), @"
    8:1 unknown key `titel`
        did you mean `title`?
    9:1 unknown key `verify`
        the keys here are: id, title, items
    12:9 `title` is empty
        give it a text; an optional key can be left out
    13:10 the item is empty
        say what is to be done, or remove it
    ");
    assert_snapshot!(found(step_with("[[substeps]]\nid = 'b'")), @"
    6:3 unknown key `substeps`
        the keys here are: $schema, plan, inputs, group, agent, locks, loop, step
    ");
}

#[test]
fn double_substeps() {
    let twice = "substeps = [{ id = 'b' }, { id = 'c' }, { id = 'B' },\n{ id = 'b' }]";
    assert_snapshot!(found(step_with(twice)), @"
    6:48 `B` is not a valid substep id
        did you mean `b`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    6:48 substep `b` is defined twice
        the first is in line 6; give this one another id
    7:8 substep `b` is defined twice
        the first is in line 6; give this one another id
    ");
    let in_two_steps = steps(&[("a", &[]), ("b", &[])])
        .replace("needs = []", "substeps = [{ id = 'a' }, { id = 'b' }]");
    assert_snapshot!(found(in_two_steps), @"no findings");
}

#[test]
fn too_many_substeps() {
    let substeps = |count: usize| {
        step_with(&format!("substeps = [{}]", list(count, |n| format!("{{ id = 's{n}' }}"))))
    };
    assert_snapshot!(found(substeps(STEP_SUBSTEPS_MAX)), @"no findings");
    assert_snapshot!(found(substeps(STEP_SUBSTEPS_MAX + 1)), @"
    6:1603 the step has 101 substeps; 100 are allowed
        make several steps of it
    ");
}

#[test]
fn bad_locks() {
    let held = |held: &str, locks: &str| step_with(&format!("locks = {held}\n[locks]\n{locks}"));
    assert_snapshot!(found(held("['test-solt', 'gpu']", "test-slot = 1")), @"
    6:10 unknown lock `test-solt`
        did you mean `test-slot`?
    6:23 unknown lock `gpu`
        add gpu = 1 to [locks]
    ");
    assert_snapshot!(found(step_with("locks = ['test-slot']")), @"
    6:10 unknown lock `test-slot`
        add test-slot = 1 to [locks]
    ");
    assert_snapshot!(found(held("['Test Slot', 'GPU', 1, '']", "gpu = 1")), @r#"
    6:10 `Test Slot` is not a valid lock name
        did you mean `test-slot`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    6:23 `GPU` is not a valid lock name
        did you mean `gpu`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    6:30 `locks` must be a string, not an integer
        put it in "quotes"
    6:33 `` is not a valid lock name
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    "#);
    assert_snapshot!(found(held("'gpu'", "gpu = 1")), @r#"
    6:9 `locks` must be an array of strings, not a string
        write locks = ["…"]
    "#);
    assert_snapshot!(found(held("['a', 'b', 'c', 'd']", "a = 0\nb = 1001\nc = '1'\nd = -1")), @"
    8:5 `a` must be a whole number from 1 to 1000
        write a = 2, for example
    9:5 `b` must be a whole number from 1 to 1000
        write b = 2, for example
    10:5 `c` must be a whole number from 1 to 1000
        write c = 2, for example
    11:5 `d` must be a whole number from 1 to 1000
        write d = 2, for example
    ");
    assert_snapshot!(found(held("['gpu']", "GPU = 0\n'a b' = 0\n\"\\u001b\" = 0\nx.y = 1")), @r#"
    8:1 `GPU` is not a valid lock name
        did you mean `gpu`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    8:7 `GPU` must be a whole number from 1 to 1000
        write GPU = 2, for example
    9:1 `a b` is not a valid lock name
        did you mean `a-b`? use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    10:1 `\u{1b}` is not a valid lock name
        use 1 to 64 of a-z, 0-9, '_' and '-', starting with a letter or digit
    11:1 `x` must be a whole number from 1 to 1000
        write x = 2, for example
    "#);
    assert_snapshot!(found(held("['a', 'b']", &format!("a = 1\nb = {LOCK_SLOTS_MAX}"))), @"no findings");
    assert_snapshot!(found(format!("locks = ['gpu']\n{}", step_with(""))), @"
    1:9 `locks` must be a table, not an array
        make `locks` a table of keys and values
    ");
    assert_snapshot!(found(step_with("[step.locks]\ngpu = 1")), @r#"
    6:1 `locks` must be an array of strings, not a table
        write locks = ["…"]
    "#);
    assert_snapshot!(found(step_with("").replace("[[step]]", "locks = ['gpu']\n[[step]]")), @"
    3:1 unknown key `locks`
        the keys here are: name, base, agent, isolation, jobs, setup, copy, link, on_interrupt, on_failure, plan_from, on_limit
    ");
}

#[test]
fn unknown_locks_without_end_are_counted() {
    let locks = list(PLAN_STEPS_MAX, |n| format!("'l{n}'"));
    let known: String = (0..PLAN_STEPS_MAX).map(|n| format!("k{n} = 1\n")).collect();
    let error =
        parse(step_with(&format!("locks = [{locks}]\n[locks]\n{known}")).as_bytes()).unwrap_err();
    assert_eq!(error.findings.len(), PLAN_FINDINGS_MAX + 1);
}

#[test]
fn steps_that_others_claim() {
    let plan = parse(by_hand("verify = 'make test'\nretries = 2\nitems = ['x']").as_bytes());
    assert_eq!(plan.unwrap().steps[0].work, Work::ByHand);
    let told = "[plan]\nname = 'x'\n[[step]]\nid = 'a'\nprompt = 'think'\n";
    let plan = parse(told.as_bytes()).unwrap();
    assert_eq!(plan.steps[0].work, Work::Told("think".to_owned()));
    assert_eq!(Plan::from_bytes(&plan.to_bytes()).unwrap(), plan);
    assert_snapshot!(found(format!("{told}timeout = '1h'")), @"
    6:11 nothing is started for this step, so `timeout` has no meaning
        add `agent`, or remove `timeout`
    ");
    assert_snapshot!(found(by_hand("agent = 'claude'\ntimeout = '1h'")), @r#"
    6:9 the step has an agent, but no prompt
        add prompt = "what the agent shall do", or remove `agent`
    "#);
    assert_snapshot!(found(by_hand("timeout = '1h'\nenv = { A = 'b' }\nverify = 'make test'")), @"
    6:11 nothing is started for this step, so `timeout` has no meaning
        add `run` or `prompt`, or remove `timeout`
    7:7 nothing is started for this step, so `env` has no meaning
        add `run` or `prompt`, or remove `env`
    ");
    assert_snapshot!(found(by_hand("prmopt = 'x'")), @"
    6:1 unknown key `prmopt`
        did you mean `prompt`?
    ");
}

#[test]
fn only_what_piton_starts_is_a_matter_of_trust() {
    let (old, new) = (GOOD.to_owned(), format!("{GOOD}{CLAIMED}"));
    let listed = |text: &str| {
        executables(&parse(text.as_bytes()).unwrap(), &BTreeMap::new(), &BTreeMap::new())
    };
    let (old, new) = (listed(&old), listed(&new));
    let more: Vec<&String> = new.iter().filter(|line| !old.contains(line)).collect();
    assert_eq!(more, ["step refresh: verify: npm test -- refresh"]);
}

/// Changes of meaning, and the lines that tell them to people.
#[test]
fn every_change_of_a_checklist_or_lock_counts() {
    let whole = format!("{GOOD}{CLAIMED}");
    let items = "[\"read the RFC\", \"rotate on use\", \"read the RFC\"]";
    let store =
        "{ id = \"store\", title = \"A place for tokens\", items = [\"schema\", \"index\"] }";
    let long = format!("['{}']", "é".repeat(ITEM_CHARS_MAX));
    let changes = [
        ("test-slot = 1", "test-slot = 2"),
        ("database  = 3", "database = 3\ngpu = 1"),
        ("[\"test-slot\", \"database\"]", "[\"database\"]"),
        ("needs = [\"refresh\"]", "needs = [\"refresh\"]\nlocks = [\"test-slot\", \"database\"]"),
        (items, "['read the RFC', 'rotate on use', 'read the RFC', 'log it']"),
        (items, "['read the RFC', 'rotate on use']"),
        (items, "['rotate on use', 'read the RFC']"),
        (items, "['read the RFC', 'log it', 'rotate on use', 'read the RFC']"),
        (items, "['read the RFC', 'rotate daily', 'read the RFC']"),
        (items, "['rotate on use', 'read the RFC', 'read the RFC']"),
        (items, "['plan', 'rotate on use', 'code', 'test']"),
        (items, "['read the RFC', 'read the RFC', 'read the RFC', 'read the RFC']"),
        (items, "[]"),
        (items, &long),
        ("\"A place for tokens\"", "\"Tokens\""),
        ("[\"schema\", \"index\"]", "[\"schema\", \"migration\", \"index\"]"),
        (store, "{ id = 'shelf' }"),
        ("{ id = \"renew\" },", ""),
        ("{ id = \"renew\" }", "{ id = 'renew' }, { id = 'revoke' }"),
        ("id = \"store\"", "id = \"renew\"} , {id = \"store\""),
        ("needs = [\"refresh\"]", "needs = [\"refresh\"]\nrun = 'make review'"),
        ("needs = [\"refresh\"]", "needs = [\"refresh\"]\nprompt = 'Review it'"),
        ("run   = \"make keys\"\nenv   = { KEY_SIZE = \"4096\" }", ""),
    ];
    let old = parse(whole.as_bytes()).unwrap();
    let mut told = String::new();
    for (from, to) in changes {
        let mut text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from}");
        if to.starts_with("id = \"renew\"") {
            text = text.replace("    { id = \"renew\" },\n", "");
        }
        let new = parse(text.as_bytes()).unwrap_or_else(|_| panic!("{}", found(&text)));
        assert_ne!(new.hash(), old.hash(), "{to}");
        let lines = differences(&old, &new);
        assert!(!lines.is_empty(), "{to}");
        writeln!(told, "{}", lines.join("; ")).unwrap();
    }
    assert_snapshot!(told, @"
    lock test-slot: 1 → 2
    lock gpu: added
    step refresh: lock test-slot removed
    step review: lock database added; step review: lock test-slot added
    step refresh: item 4 added: `log it`
    step refresh: item 3 removed: `read the RFC`
    step refresh: item 1 removed: `read the RFC`
    step refresh: item 2 added: `log it`
    step refresh: item 2 changed: `rotate daily`
    step refresh: item 1 changed: `rotate on use`; step refresh: item 2 changed: `read the RFC`
    step refresh: item 1 changed: `plan`; step refresh: item 3 changed: `code`; step refresh: item 4 added: `test`
    step refresh: item 2 changed: `read the RFC`; step refresh: item 3 added: `read the RFC`
    step refresh: item 1 removed: `read the RFC`; step refresh: item 2 removed: `rotate on use`; step refresh: item 3 removed: `read the RFC`
    step refresh: item 1 changed: `éééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé…`; step refresh: item 2 removed: `rotate on use`; step refresh: item 3 removed: `read the RFC`
    step refresh: substep store: title changed
    step refresh: substep store: item 2 added: `migration`
    step refresh: substep shelf added; step refresh: substep store removed
    step refresh: substep renew removed
    step refresh: substep revoke added
    step refresh: order of substeps changed
    step review: can be started now
    step review: can be started now
    step keys: has nothing to start any more; step keys: env changed
    ");
}
