//! One attempt at a step, from its first process to its landing or its burial.

pub mod bury;
pub(crate) mod child;
pub(crate) mod iteration;
pub mod keeper;
pub mod land;
pub(crate) mod lease;
pub mod places;
pub(crate) mod planner;
pub(crate) mod signals;
pub(crate) mod supervise;
mod transcript;
pub(crate) mod verify;
