//! What holders outside of piton do: claims, completion with a commit, questions, outputs.

pub mod claims;
pub mod complete;
pub mod outputs;
pub mod outside_snapshots;
pub mod questions;
pub mod waiting;
