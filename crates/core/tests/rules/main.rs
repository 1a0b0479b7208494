//! Tests of the rules: truth tables, decisions as data, properties over random histories, and the
//! format of event bodies. States are reached by real commands through `decide` and folded from the
//! records they leave; nothing is mocked.

#![expect(clippy::unwrap_used, reason = "in a test an unexpected answer is the failure")]

mod failures;
mod history;

mod bodies;
mod checklists;
mod claims;
mod decisions;
mod interruptions;
mod limits;
mod loops;
mod outputs;
mod packed;
mod planner;
mod plans;
mod properties;
mod questions;
mod resuming;
mod retention;
mod tables;
mod trees;
