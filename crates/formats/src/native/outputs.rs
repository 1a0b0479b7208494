//! What a step publishes, and what that must be: `outputs` and `require`.

use std::collections::{BTreeMap, BTreeSet};

use piton_core::ids::OutputName;
use piton_core::limits::STEP_OUTPUTS_MAX;
use piton_core::output::Bound;
use piton_core::plan::shown;

use crate::fields::{Fields, name_of};
use crate::value::Node;

/// What is required is declared with that.
pub(super) fn read(
    fields: &mut Fields<'_, '_>,
) -> (BTreeSet<OutputName>, BTreeMap<OutputName, Bound>) {
    let texts = fields.texts("outputs").unwrap_or_default().into_iter();
    let mut outputs: BTreeSet<OutputName> =
        texts.filter_map(|text| name_of(text.at, text.value, fields.findings)).collect();
    let require = require(fields);
    outputs.extend(require.keys().cloned());
    if outputs.len() > STEP_OUTPUTS_MAX {
        let message =
            format!("the step has {} outputs; {STEP_OUTPUTS_MAX} are allowed", outputs.len());
        fields.findings.add(
            fields.place_of("outputs"),
            message,
            "make one output of several values",
        );
    }
    (outputs, require)
}

fn require(fields: &mut Fields<'_, '_>) -> BTreeMap<OutputName, Bound> {
    let Some(table) = fields.table("require") else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    for (key, value) in table.table {
        let name = name_of(key.at, &key.text, table.findings);
        let text = value.as_text();
        let bound = text.and_then(|text| text.parse::<Bound>().ok());
        if bound.is_none() {
            let message = format!("{} is not a bound", text.map_or_else(|| kind(value), shown));
            let hint = "write a comparison and a number, such as \">= 0.8\"";
            table.findings.add(value.at(), message, hint);
        }
        all.extend(name.zip(bound));
    }
    all
}

fn kind(value: &Node) -> String {
    value.value.kind().to_owned()
}
