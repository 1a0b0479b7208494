//! The published JSON schema of piton's own format against the reader: the same tables, the same keys, the same
//! choices. A key that a reader learns and the schema does not is found here.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]
#![expect(clippy::disallowed_methods, reason = "schema, sources and examples are files")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use piton_formats::parse;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn schema() -> Value {
    serde_json::from_str(&std::fs::read_to_string(root().join("docs/plan.schema.json")).unwrap())
        .unwrap()
}

/// The sources of the native reader.
fn sources() -> String {
    let native = root().join("crates/formats/src/native");
    let parts = std::fs::read_dir(&native).unwrap().map(|entry| entry.unwrap().path());
    let files = parts.filter(|path| path.is_file()).chain([native.with_extension("rs")]);
    files.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

fn quoted(text: &str) -> BTreeSet<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every `const NAME: Keys` with its known keys, by its name in small letters.
fn tables(sources: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut tables = BTreeMap::new();
    for part in sources.split("\nconst ").skip(1) {
        let Some((name, rest)) = part.split_once(": Keys") else { continue };
        if name.contains(char::is_whitespace) {
            continue;
        }
        let known = rest.split_once("known: &[").unwrap().1.split_once(']').unwrap().0;
        tables.insert(name.to_lowercase(), quoted(known));
    }
    tables
}

#[test]
fn every_key_of_the_reader_is_in_the_schema_and_conversely() {
    let schema = schema();
    let keys = |table: &Value| -> BTreeSet<String> {
        assert_eq!(table["additionalProperties"], false, "an unknown key is a mistake: {table}");
        table["properties"].as_object().unwrap().keys().cloned().collect()
    };
    let is_table = |(_, table): &(&String, &Value)| table.get("properties").is_some();
    let mut published: BTreeMap<String, BTreeSet<String>> = schema["$defs"]
        .as_object()
        .unwrap()
        .iter()
        .filter(is_table)
        .map(|(name, table)| (name.clone(), keys(table)))
        .collect();
    published.insert("file".to_owned(), keys(&schema));
    let read = tables(&sources());
    assert!(read.len() >= 6, "the tables of the reader were not found: {read:?}");
    assert_eq!(published, read, "docs/plan.schema.json (left) and crates/formats/src/native");
}

/// Where a value does not fit the schema; knows as much of JSON schemas as the published one uses.
fn misfits(schema: &Value, rule: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    for key in rule.as_object().unwrap().keys() {
        let is_known = [
            "$schema",
            "title",
            "description",
            "$defs",
            "$ref",
            "type",
            "enum",
            "required",
            "properties",
            "additionalProperties",
            "propertyNames",
            "items",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "pattern",
            "anyOf",
        ];
        assert!(is_known.contains(&key.as_str()), "this test does not know `{key}`");
    }
    if let Some(name) = rule["$ref"].as_str() {
        let named = schema.pointer(name.strip_prefix('#').unwrap()).unwrap();
        return misfits(schema, named, value, place, found);
    }
    if let Some(rules) = rule["anyOf"].as_array() {
        let fits = |rule: &Value| {
            let mut found = Vec::new();
            misfits(schema, rule, value, place, &mut found);
            found.is_empty()
        };
        if !rules.iter().any(fits) {
            found.push(place.to_owned());
        }
        return;
    }
    let is_type = match rule["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    let is_choice = rule["enum"].as_array().is_none_or(|all| all.contains(value));
    let number = value.as_i64().unwrap_or_default();
    let is_in_range = rule["minimum"].as_i64().is_none_or(|min| number >= min)
        && rule["maximum"].as_i64().is_none_or(|max| number <= max);
    if !is_type || !is_choice || !is_in_range {
        found.push(place.to_owned());
    }
    for required in rule["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            found.push(format!("{place}: no {required}"));
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{key}");
        match (rule["properties"].get(key), rule.get("additionalProperties")) {
            (Some(rule), _) => misfits(schema, rule, value, &place, found),
            (None, Some(Value::Bool(false))) => found.push(place),
            (None, Some(rule)) => misfits(schema, rule, value, &place, found),
            (None, None) => {}
        }
    }
    for (number, value) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(rule) = rule.get("items") {
            misfits(schema, rule, value, &format!("{place}[{number}]"), found);
        }
    }
}

fn check(plan: &str) -> Vec<String> {
    let value: Value = toml::from_str(plan).unwrap();
    let mut found = Vec::new();
    let schema = schema();
    misfits(&schema, &schema, &value, "plan", &mut found);
    found
}

/// The plans of the documentation and the examples fit, as the reader finds them good.
#[test]
fn documented_plans_fit() {
    let mut plans = Vec::new();
    let page = std::fs::read_to_string(root().join("docs/plan.md")).unwrap();
    plans.extend(
        page.split("```toml\n").skip(1).map(|part| part.split("```").next().unwrap().to_owned()),
    );
    for folder in std::fs::read_dir(root().join("examples")).unwrap() {
        let plan = folder.unwrap().path().join("plan.toml");
        plans.extend(std::fs::read_to_string(plan).ok());
    }
    let whole: Vec<&String> = plans.iter().filter(|plan| parse(plan.as_bytes()).is_ok()).collect();
    assert!(whole.len() >= 2, "the plans were not found");
    for plan in whole {
        assert_eq!(check(plan), Vec::<String>::new(), "{plan}");
    }
}

/// A place in the schema, its key, and a plan's head, step and rest with a row that has it.
type Case = (&'static str, &'static str, fn(&str) -> [String; 3]);

/// What the schema refuses, the reader refuses; every choice that it lists is one.
#[test]
fn choices_are_the_same() {
    let plan = |head: &str, step: &str, more: &str| {
        format!("[plan]\nname = 'p'\nagent = 'a'\n{head}\n[[step]]\nid = 's'\n{step}\n{more}")
    };
    let schema = schema();
    let choices = |place: &str| -> Vec<String> {
        let all = schema.pointer(&format!("/$defs/{place}/enum")).unwrap().as_array().unwrap();
        all.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let cases: [Case; 5] = [
        ("plan/properties/isolation", "isolation", |row| {
            [row.into(), "run = 'x'".into(), String::new()]
        }),
        ("plan/properties/on_failure", "on_failure", |row| {
            [row.into(), "run = 'x'".into(), String::new()]
        }),
        ("on_interrupt", "on_interrupt", |row| {
            [String::new(), format!("prompt = 'x'\n{row}"), String::new()]
        }),
        ("agent/properties/prompt", "prompt", |row| {
            [String::new(), "prompt = 'x'".into(), format!("[agent.a]\ncommand = ['a']\n{row}")]
        }),
        ("agent/properties/dialect", "dialect", |row| {
            [String::new(), "prompt = 'x'".into(), format!("[agent.a]\ncommand = ['a']\n{row}")]
        }),
    ];
    for (place, key, put) in cases {
        for word in choices(place).iter().map(String::as_str).chain(["something else"]) {
            let [head, step, more] = put(&format!("{key} = '{word}'"));
            let plan = plan(&head, &step, &more);
            let is_read = parse(plan.as_bytes()).is_ok();
            assert_eq!(is_read, word != "something else", "{plan}");
            assert_eq!(check(&plan).is_empty(), is_read, "{plan}");
        }
    }
}
