//! What holders outside of piton do: claims, completion with a commit, questions.

pub mod claims;
pub mod complete;
pub mod outside_snapshots;
pub mod questions;
