//! A plan as packed bytes: its JSON, but for the steps, which stay packed until they are asked for.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Plan, PlanStep};
use crate::packing::{Pack, PackedList};

pub(crate) fn serialize<S: Serializer>(plan: &Arc<Plan>, to: S) -> Result<S::Ok, S::Error> {
    let head = Plan { steps: PackedList::from_iter(Vec::<PlanStep>::new()), ..Plan::clone(plan) };
    (head.to_bytes(), &plan.steps).serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Plan>, D::Error> {
    let (head, steps): (&[u8], _) = Deserialize::deserialize(from)?;
    let head = Plan::from_bytes(head).map_err(D::Error::custom)?;
    Ok(Arc::new(Plan { steps, ..head }))
}

/// As JSON, because that leaves fields out, which other packed bytes cannot.
impl Pack for PlanStep {
    fn pack(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a step has only string keys and finite values")
    }

    fn unpack(packed: &[u8]) -> PlanStep {
        serde_json::from_slice(packed).expect("the cache holds what was packed")
    }
}
