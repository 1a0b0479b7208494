//! piton's rules, once. Plans, events, decisions and views as plain data and pure functions: no
//! clock, no files, no processes, no network, no randomness, no printing.
//!
//! Reading order: [`ids`], [`time`], [`record`], [`plan`], [`event`], [`run`] (fold), [`decide`],
//! [`recover`], [`view`].

pub mod decided;
pub mod ids;
pub mod limits;
pub mod plan;
pub mod record;
pub mod time;
