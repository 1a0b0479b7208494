//! What removes or replaces something, and can be undone: clean, abandon, purge, restore.

pub mod abandon;
pub mod branches;
pub mod clean;
pub mod purge;
pub mod restore;
pub mod undo;
