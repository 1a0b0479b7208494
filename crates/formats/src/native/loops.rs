//! `[loop.NAME]`: chains of steps that are repeated, every value read and checked alone.

use piton_core::ids::LoopId;
use piton_core::limits::ITERATIONS_MAX;

use crate::draft::DraftLoop;
use crate::fields::{Fields, Keys};
use crate::value::Located;

const LOOP: Keys =
    Keys { known: &["steps", "max", "until", "stale_limit", "until_items"], later: &[] };

pub(super) fn read(id: &LoopId, fields: &mut Fields<'_, '_>) -> Option<DraftLoop> {
    fields.only(&LOOP);
    let steps = fields.texts("steps").unwrap_or_default();
    if steps.is_empty() {
        let hint = "write steps = [\"review\", \"implement\"], in the order of the chain";
        fields.findings.add(fields.place_of("steps"), format!("loop `{id}` has no steps"), hint);
    }
    if !fields.has("max") {
        let hint = "add max = 10: nothing loops for ever";
        fields.findings.add(fields.at, format!("loop `{id}` has no `max`"), hint);
    }
    Some(DraftLoop {
        steps: steps
            .into_iter()
            .map(|step| Located { at: step.at, value: step.value.to_owned() })
            .collect(),
        max: fields.number("max", 1..=ITERATIONS_MAX),
        until: fields.script("until"),
        stale_limit: fields.number("stale_limit", 1..=ITERATIONS_MAX),
        until_items: fields.truth("until_items").unwrap_or(false),
    })
}
