//! Reads what a step consists of: its items and its substeps with theirs.

use crate::draft::DraftSubstep;
use crate::fields::{Fields, Keys, is_one_line, wrong_type};
use crate::source::Findings;
use crate::value::{Located, Node, Value};
use piton_core::ids::SubstepId;
use piton_core::limits::{ITEM_CHARS_MAX, STEP_ITEMS_MAX, STEP_SUBSTEPS_MAX};

const SUBSTEP: Keys = Keys { known: &["id", "title", "items"], later: &[] };

/// The items and the substeps of a step.
pub(crate) fn parts(step: &mut Fields<'_, '_>) -> (Vec<String>, Vec<DraftSubstep>) {
    let (items, substeps) = (items(step), substeps(step));
    let count = items.len() + substeps.iter().map(|substep| substep.items.len()).sum::<usize>();
    if count > STEP_ITEMS_MAX {
        let message = format!("the step has {count} items; {STEP_ITEMS_MAX} are allowed");
        step.findings.add(step.place_of("items"), message, "make several steps of it");
    }
    (items, substeps)
}

fn items(fields: &mut Fields<'_, '_>) -> Vec<String> {
    let items = fields.texts("items").unwrap_or_default();
    items.into_iter().filter_map(|text| item(&text, fields.findings)).collect()
}

fn item(text: &Located<&str>, findings: &mut Findings) -> Option<String> {
    let at = text.at;
    if text.value.trim().is_empty() {
        findings.add(at, "the item is empty", "say what is to be done, or remove it");
        return None;
    }
    if text.value.chars().count() > ITEM_CHARS_MAX {
        let message = format!("the item is longer than {ITEM_CHARS_MAX} characters");
        findings.add(at, message, "shorten it, or make several items of it");
        return None;
    }
    is_one_line("the item", text, findings).then(|| text.value.to_owned())
}

fn substeps(step: &mut Fields<'_, '_>) -> Vec<DraftSubstep> {
    let Some(all) = array_of_substeps(step) else {
        return Vec::new();
    };
    if let Some(first_too_many) = all.get(STEP_SUBSTEPS_MAX) {
        let count = all.len();
        let message = format!("the step has {count} substeps; {STEP_SUBSTEPS_MAX} are allowed");
        let at = first_too_many.at();
        step.findings.add(at, message, "make several steps of it");
        return Vec::new();
    }
    let fields = all
        .iter()
        .filter_map(|value| Some(substep(&mut Fields::of("substep", value, step.findings)?)));
    fields.collect()
}

fn array_of_substeps<'a>(step: &mut Fields<'a, '_>) -> Option<&'a [Node]> {
    let value = step.table.get("substeps")?;
    match &value.value {
        Value::List(all) => Some(all),
        other => {
            let hint = "write substeps = [{ id = \"…\" }], or [[step.substeps]] below the step";
            let message = wrong_type("substeps", "an array of tables", other);
            step.findings.add(value.at(), message, hint);
            None
        }
    }
}

fn substep(fields: &mut Fields<'_, '_>) -> DraftSubstep {
    fields.only(&SUBSTEP);
    let id: Option<Located<SubstepId>> = fields.name("id");
    if !fields.has("id") {
        fields.findings.add(fields.at, "the substep has no id", "add id = \"…\"");
    }
    let id = id.map(|id| id.value);
    DraftSubstep {
        at: fields.place_of("id"),
        title: fields.label("title").or_else(|| id.as_ref().map(SubstepId::to_string)),
        id,
        items: items(fields),
    }
}
