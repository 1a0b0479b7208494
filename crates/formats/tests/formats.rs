//! Every format over own fixtures: what is read, what is found, what is written back, and that nothing given
//! breaks a reader.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]
#![expect(clippy::disallowed_methods, reason = "fixtures are files")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use piton_core::event::{Found, FoundState};
use piton_core::ids::StepId;
use piton_core::limits::PLAN_BYTES_MAX;
use piton_core::plan::{Need, Plan, PlanFormat, Work};
use piton_core::time::Millis;
use piton_formats::{
    Finding, Hint, Progress, Reading, Remembered, Written, compat_counts, converted, read, repaired,
};
use proptest::prelude::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name)).unwrap()
}

fn reading(name: &str) -> Reading {
    let hint = Hint { path: name, format: None };
    read(&fixture(name), &hint).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All that a reader made of a file, for people.
fn described(name: &str, bytes: &[u8]) -> String {
    let mut text = String::new();
    let reading = match read(bytes, &Hint { path: name, format: None }) {
        Ok(reading) => reading,
        Err(error) => {
            findings(&mut text, &error.findings);
            return text;
        }
    };
    let plan = &reading.plan;
    let format = reading.format.as_str();
    writeln!(text, "{format}: {} {:?}", plan.name, reading.counts).unwrap();
    writeln!(
        text,
        "isolation {:?}, jobs {:?}, inputs {:?}",
        plan.isolation, plan.jobs, plan.inputs
    )
    .unwrap();
    for (id, group) in &plan.groups {
        writeln!(text, "group {id}: {}", group.title).unwrap();
    }
    for step in plan.steps.iter() {
        let needs = step.needs.iter().map(|need| match need {
            Need::Group(id) => format!("[{id}]"),
            other => other.to_string(),
        });
        let needs = needs.collect::<Vec<_>>().join(" ");
        let group = step.group.as_ref().map_or(String::new(), |group| format!(" [{group}]"));
        writeln!(text, "\nstep {}{group}: {} <- {needs}", step.id, step.title).unwrap();
        let (kind, work) = match &step.work {
            Work::Run(script) => ("run", script.as_str()),
            work => ("prompt", work.prompt().unwrap_or_default()),
        };
        writeln!(text, "  {kind}: {}", work.trim_end().replace('\n', "\n    ")).unwrap();
        for (what, value) in
            [("verify", step.verify.clone()), ("timeout", step.timeout.map(|t| format!("{t:?}")))]
        {
            if let Some(value) = value {
                writeln!(text, "  {what}: {}", value.replace('\n', "\n    ")).unwrap();
            }
        }
        if step.retries > 0 || !step.env.is_empty() {
            writeln!(text, "  retries {}, env {:?}", step.retries, step.env).unwrap();
        }
        for item in &step.items {
            writeln!(text, "  - {item}").unwrap();
        }
        for substep in &step.substeps {
            writeln!(text, "  {}: {} {:?}", substep.id, substep.title, substep.items).unwrap();
        }
    }
    for Found { step, state, items, substeps, question, notes } in &reading.found {
        let items = items.iter().map(ToString::to_string).collect::<Vec<_>>();
        let substeps = substeps.iter().map(ToString::to_string).collect::<Vec<_>>();
        writeln!(text, "\nfound {step}: {state:?} {items:?} {substeps:?}").unwrap();
        for line in question.iter().chain(notes) {
            writeln!(text, "  {}", line.replace('\n', "\n  ")).unwrap();
        }
    }
    findings(&mut text, &reading.warnings);
    text
}

fn findings(text: &mut String, findings: &[Finding]) {
    for Finding { severity, line, column, excerpt, message, hint } in findings {
        writeln!(text, "\n{severity:?} {line}:{column} {message}").unwrap();
        writeln!(text, "  | {excerpt}\n  {}", hint.as_deref().unwrap_or_default()).unwrap();
    }
}

#[test]
fn every_format_is_read_with_its_traps() {
    let names = [
        "tasks.md",
        "tasks-empty.md",
        "crlf.md",
        "tug-v1.md",
        "tug-v1-good.md",
        "tug-v3.md",
        "auto-claude/subtasks.json",
        "auto-claude/chunks.json",
        "auto-claude/flat.json",
        "auto-claude/feature_list.json",
        "auto-claude/damaged.json",
        "epic/canonical.json",
        "epic/snake.json",
        "epic/inverted.yaml",
        "prodigy/plain.yml",
        "prodigy/conditional.yml",
        "prodigy/mapreduce.yml",
        "prodigy/session.json",
        "spec/index.md",
    ];
    for name in names {
        insta::assert_snapshot!(name.replace(['/', '.'], "-"), described(name, &fixture(name)));
    }
}

/// The same files without their mistakes.
#[test]
fn what_is_mended_can_be_used() {
    for (name, mistake) in
        [("epic/canonical.json", ", \"sprint-9.9\""), ("auto-claude/chunks.json", ", 9")]
    {
        let text = String::from_utf8(fixture(name)).unwrap();
        assert!(text.contains(mistake));
        let mended = text.replace(mistake, "");
        insta::assert_snapshot!(
            format!("{}-mended", name.replace(['/', '.'], "-")),
            described(name, mended.as_bytes())
        );
    }
}

/// piton's own format keeps everything; the others keep steps and their order.
#[test]
fn a_plan_survives_its_conversion() {
    for name in WRITTEN.iter().chain(&[
        "native.toml",
        "prodigy/plain.yml",
        "epic/inverted.yaml",
        "spec/index.md",
    ]) {
        let mut plan = reading(name).plan;
        plan.source = None;
        for step in plan.steps.iter() {
            assert!(step.work.prompt().is_some() || matches!(step.work, Work::Run(_)));
        }
        for (format, path) in [
            (PlanFormat::Toml, "p.toml"),
            (PlanFormat::Yaml, "p.yaml"),
            (PlanFormat::Json, "p.json"),
        ] {
            let text = converted(&plan, format).unwrap();
            let again = read(text.as_bytes(), &Hint { path, format: None });
            let again = again.unwrap_or_else(|error| panic!("{name} {path}: {error}\n{text}")).plan;
            let names = |plan: &Plan| {
                plan.steps
                    .iter()
                    .map(|step| (step.id.clone(), step.needs.clone(), step.items.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(names(&again), names(&plan), "{name} {path}");
            assert_eq!(converted(&again, format).unwrap(), text, "{name} {path}");
        }
        for (format, path) in [
            (PlanFormat::Markdown, "p.md"),
            (PlanFormat::Tug, "p.md"),
            (PlanFormat::AutoClaude, "implementation_plan.json"),
        ] {
            let text = converted(&plan, format).unwrap();
            let again = read(text.as_bytes(), &Hint { path, format: None });
            let again = again.unwrap_or_else(|error| panic!("{name} {path}: {error}\n{text}"));
            assert_eq!(
                (again.format, again.plan.steps.len()),
                (format, plan.steps.len()),
                "{name}\n{text}"
            );
        }
    }
}

#[test]
fn the_same_plan_in_three_syntaxes() {
    let [toml, yaml, json] = ["native.toml", "native.yaml", "native.json"].map(reading);
    assert_eq!(toml.plan, yaml.plan);
    assert_eq!(toml.plan, json.plan);
    assert_eq!(
        [toml.format, yaml.format, json.format],
        [PlanFormat::Toml, PlanFormat::Yaml, PlanFormat::Json]
    );
}

/// What a file is does not depend on its name, and a word in it proves nothing.
#[test]
fn a_format_is_found_by_what_is_read() {
    for name in [
        "tasks.md",
        "tug-v3.md",
        "auto-claude/flat.json",
        "epic/snake.json",
        "prodigy/plain.yml",
        "native.toml",
        "spec/index.md",
    ] {
        let known = reading(name).format;
        let found = read(&fixture(name), &Hint { path: "plan", format: None }).unwrap();
        assert_eq!(found.format, known, "{name}");
    }
    let words = b"# Notes\n\n- [ ] write `phases:`, `mode: mapreduce` and {\"subtasks\": []}\n";
    let notes = read(words, &Hint { path: "notes.md", format: None }).unwrap();
    assert_eq!(notes.format, PlanFormat::Markdown);
}

#[test]
fn the_original_tool_counts_otherwise() {
    let counts = |name: &str| format!("{:?}", compat_counts(&fixture(name)).unwrap());
    insta::assert_snapshot!(counts("tug-v1.md"), @"Counts { steps: 4, needs: 6, substeps: 2, items: 9, questions: 0 }");
    insta::assert_snapshot!(counts("tug-v3.md"), @"Counts { steps: 4, needs: 4, substeps: 0, items: 2, questions: 0 }");
}

#[test]
fn damaged_json_is_mended_on_request() {
    let mended = repaired(&fixture("auto-claude/damaged.json")).unwrap();
    insta::assert_snapshot!(String::from_utf8(mended.clone()).unwrap());
    assert!(read(&mended, &Hint { path: "implementation_plan.json", format: None }).is_ok());
    assert_eq!(repaired(&mended), None);
    assert_eq!(repaired(b"no json {"), None);
}

/// The states of every step, to be written back.
fn all_as(reading: &Reading, state: &FoundState) -> Vec<Progress> {
    let ids = reading.plan.steps.iter().map(|step| step.id.clone());
    let (started, since) = (Some(Millis(0)), Some(Millis(3_600_000)));
    let progress = |step: StepId| {
        let (state, items, substeps) = (state.clone(), vec![], vec![]);
        Progress { step, state, items, substeps, started, since }
    };
    ids.map(progress).collect()
}

/// The file with every step in this state; nobody has touched it since it was read.
fn written(reading: &Reading, state: &FoundState) -> Option<Vec<u8>> {
    let Written { bytes, by_hand } = reading.written(&all_as(reading, state), &[reading.marks()]);
    assert_eq!(by_hand, []);
    bytes
}

/// The lines that differ.
fn changed(before: &[u8], after: &[u8]) -> String {
    let lines = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (before, after) = (lines(before), lines(after));
    let (old, new): (Vec<&str>, Vec<&str>) =
        (before.split('\n').collect(), after.split('\n').collect());
    let gone = old.iter().filter(|line| !new.contains(line)).map(|line| format!("-{line}\n"));
    let come = new.iter().filter(|line| !old.contains(line)).map(|line| format!("+{line}\n"));
    gone.chain(come).collect()
}

const WRITTEN: [&str; 8] = [
    "tasks.md",
    "crlf.md",
    "tug-v1-good.md",
    "tug-v3.md",
    "auto-claude/subtasks.json",
    "auto-claude/flat.json",
    "auto-claude/feature_list.json",
    "epic/snake.json",
];

#[test]
fn progress_is_written_where_it_stands() {
    let mut text = String::new();
    for name in WRITTEN {
        let reading = reading(name);
        let before = fixture(name);
        let done = FoundState::Completed { commit: Some("0123456789abcdef".to_owned()) };
        let after = written(&reading, &done).unwrap();
        writeln!(text, "{name}\n{}", changed(&before, &after)).unwrap();
        let again = read(&after, &Hint { path: name, format: None }).unwrap();
        assert_eq!(again.plan, reading.plan, "progress is no part of a plan: {name}");
        assert_eq!(written(&again, &done), None, "{name}");
        let is_done = |found: &Found| matches!(found.state, FoundState::Completed { .. });
        assert_eq!(
            again.found.iter().filter(|found| is_done(found)).count(),
            again.plan.steps.len(),
            "{name}"
        );
        // And back: what was there is there again, but for words that mean the same.
        let back = written(&again, &FoundState::Pending).unwrap();
        let fresh = read(&back, &Hint { path: name, format: None }).unwrap();
        assert_eq!(fresh.plan, reading.plan, "{name}");
        assert!(fresh.found.iter().all(|found| found.state == FoundState::Pending), "{name}");
    }
    insta::assert_snapshot!(text);
}

/// What Auto-Claude remembers beside a plan becomes what is known of its steps, and grows with what piton does.
#[test]
fn what_auto_claude_remembers_is_taken_over_and_kept_up() {
    let plan = r#"{ "feature": "x", "subtasks": [
      { "id": "a", "status": "completed" }, { "id": "b", "status": "pending" }, { "id": "c", "status": "pending" } ] }"#;
    let attempts = r#"{
  "subtasks": {
    "b": {
      "attempts": [
        { "session": 1, "timestamp": "2025-12-20T10:00:00", "approach": "by hand", "success": false, "error": "no luck" }
      ],
      "status": "pending",
      "own": 1.50
    }
  },
  "stuck_subtasks": []
}
"#;
    let later =
        r#"{"subtasks": {"b": [{"timestamp": "t", "error": "no luck"}]}, "stuckSubtasks": []}"#;
    let commits =
        r#"{ "commits": [{ "hash": "964bc9a1", "subtask_id": "a" }], "last_good_commit": null }"#;
    let hint = Hint { path: "implementation_plan.json", format: None };
    let mut reading = read(plan.as_bytes(), &hint).unwrap();
    reading.recall(Some(attempts.as_bytes()), Some(commits.as_bytes()));
    let found = |reading: &Reading| {
        let rows = reading.found.iter();
        let rows = rows.map(|found| format!("{} {:?} {:?}", found.step, found.state, found.notes));
        rows.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(found(&reading), @r#"
    a Completed { commit: Some("964bc9a1") } []
    b Pending ["an attempt at 2025-12-20T10:00:00 failed; approach: by hand; error: no luck"]
    "#);
    let ended = |step: &str, error: Option<&str>, commit: Option<&str>| Remembered {
        step: StepId::new(step).unwrap(),
        number: 2,
        ended: Millis(0),
        error: error.map(str::to_owned),
        commit: commit.map(str::to_owned),
    };
    let all = [ended("b", None, Some("0123456789")), ended("c", Some("it \"broke\""), None)];
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    let written = text(reading.attempts_written(attempts.as_bytes(), &all));
    insta::assert_snapshot!("attempts-remembered", written);
    assert_eq!(reading.attempts_written(written.as_bytes(), &all), None, "once is enough");
    let written = text(reading.commits_written(commits.as_bytes(), &all));
    insta::assert_snapshot!("commits-remembered", written);
    assert_eq!(reading.commits_written(written.as_bytes(), &all), None, "once is enough");
    let written = text(reading.attempts_written(later.as_bytes(), &all));
    insta::assert_snapshot!("attempts-remembered-later", written);
    assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok());
    for damaged in
        ["", "[]", "{", "{\"subtasks\": 1}", "{\"subtasks\": {\"b\": 1}, \"commits\": {}}"]
    {
        reading.recall(Some(damaged.as_bytes()), Some(damaged.as_bytes()));
        reading.attempts_written(damaged.as_bytes(), &all);
        reading.commits_written(damaged.as_bytes(), &all);
    }
}

#[test]
fn hostile_files_are_survived() {
    let bomb = (1..30).fold("a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        let before = format!("*a{}, ", n - 1).repeat(8);
        format!("{text}a{n}: &a{n} [{before}]\n")
    });
    let deep = ["[", "{a: ", "- ", "{\"a\":[", "a = [", "> "].map(|piece| piece.repeat(100_000));
    let nested = (0..3_000).map(|n| format!("{}- [ ] x\n", " ".repeat(n))).collect::<String>();
    let large = "- [ ] a task like any other\n".repeat(PLAN_BYTES_MAX / 27);
    let wide = format!("[{}]", "{},".repeat(1_000_000));
    let more =
        [bomb, nested, large, wide, "\0".to_owned(), "#".repeat(1_000_000), "|".repeat(1_000_000)];
    for text in deep.iter().chain(&more) {
        for path in ["plan.yml", "plan.json", "plan.toml", "plan.md", "plan"] {
            let _ = read(text.as_bytes(), &Hint { path, format: None });
        }
    }
}

/// Bytes of a fixture with pieces of others put anywhere.
fn mutated() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let pieces = prop::sample::select(vec![
        "- [x] ",
        "\n",
        "  ",
        "#### Step 3: x {#step-1}\n",
        "| #step-1 | a | done | b |\n",
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        ":",
        "&a ",
        "*a",
        "<<: ",
        "\r\n",
        "\u{feff}",
        "ä",
        "null",
        "\"status\": \"done\"",
        "**Depends on:** #step-2\n",
        "```\n",
        "- shell: x\n",
        "${item.a}",
        "1e999",
        "\\",
        "|",
    ]);
    let cut = (any::<prop::sample::Index>(), 0..40usize, pieces);
    let all = prop::sample::select(WRITTEN.to_vec());
    (all, prop::collection::vec(cut, 1..6)).prop_map(|(name, cuts)| {
        let mut bytes = fixture(name);
        for (at, length, piece) in cuts {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, piece.bytes());
        }
        (name, bytes)
    })
}

/// JSON without what progress writes: all else has to stay.
fn without_progress(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(table) => {
            let is_progress = |key: &str| {
                let keys =
                    ["status", "planStatus", "passes", "started_at", "completed_at", "updated_at"];
                keys.contains(&key)
            };
            let kept = table.into_iter().filter(|(key, _)| !is_progress(key));
            Value::Object(kept.map(|(key, value)| (key, without_progress(value))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(without_progress).collect()),
        other => other,
    }
}

/// The text without what progress writes.
fn rest(bytes: &[u8]) -> String {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(value) => without_progress(value).to_string(),
        Err(_) => {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let line = |line: &str| match line.trim_start().starts_with('|') {
                // A row of a ledger, by its first two cells.
                true => line.split('|').take(3).collect::<Vec<_>>().join("|"),
                false => line
                    .replace("[x]", "[ ]")
                    .replace("[X]", "[ ]")
                    .replace("[/]", "[ ]")
                    .replace("[-]", "[ ]")
                    .replace("[?]", "[ ]"),
            };
            text.split('\n').map(line).collect::<Vec<_>>().join("\n")
        }
    }
}

proptest! {
    /// Any progress, in any format: it reads as it was written, the plan is the same, and so is all the rest.
    #[test]
    fn progress_survives_its_way(name in prop::sample::select(WRITTEN.to_vec()), seed in any::<u64>()) {
        let reading = reading(name);
        let mut random = seed;
        let states = [
            FoundState::Pending,
            FoundState::Completed { commit: None },
            FoundState::InProgress,
            FoundState::Failed { reason: "no".to_owned() },
        ];
        let mut progress = all_as(&reading, &FoundState::Pending);
        for step in &mut progress {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            step.state = states[usize::try_from(random >> 62).unwrap()].clone();
        }
        let before = fixture(name);
        let Written { bytes, by_hand } = reading.written(&progress, &[reading.marks()]);
        prop_assert_eq!(by_hand, vec![]);
        let after = bytes.unwrap_or_else(|| before.clone());
        let again = read(&after, &Hint { path: name, format: None });
        let again = again.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&again.plan, &reading.plan);
        prop_assert_eq!(rest(&after), rest(&before));
        prop_assert_eq!(again.written(&progress, &[again.marks()]).bytes, None);
        for step in &progress {
            let found = again.found.iter().find(|found| found.step.step == step.step);
            let is_done = found.is_some_and(|found| matches!(found.state, FoundState::Completed { .. }));
            prop_assert_eq!(is_done, matches!(step.state, FoundState::Completed { .. }), "{}", step.step);
        }
    }

    /// Whatever is given: no panic; findings are in the file; what is read can be written and read again.
    #[test]
    fn any_change_of_a_plan_is_survived((name, bytes) in mutated()) {
        let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
        let hint = Hint { path: name, format: None };
        let findings = match read(&bytes, &hint) {
            Ok(reading) => {
                let done = FoundState::Completed { commit: None };
                if let Some(written) = written(&reading, &done) {
                    let again = read(&written, &hint);
                    let again = again.map_err(|error| TestCaseError::fail(error.to_string()))?;
                    prop_assert_eq!(&again.plan, &reading.plan);
                }
                reading.warnings
            }
            Err(error) => {
                prop_assert!(!error.findings.is_empty());
                error.findings
            }
        };
        for finding in findings {
            prop_assert!((1..=lines).contains(&finding.line), "{finding:?}");
        }
        repaired(&bytes);
        compat_counts(&bytes);
    }

    #[test]
    fn any_text_is_survived(text in "[-\\[\\]{}:,#*&|\" xa0-9\n`$]{0,200}") {
        for path in ["plan.yml", "plan.json", "plan.md", "plan"] {
            let _ = read(text.as_bytes(), &Hint { path, format: None });
        }
        for format in PlanFormat::ALL {
            let _ = read(text.as_bytes(), &Hint { path: "plan", format: Some(format) });
        }
    }
}
