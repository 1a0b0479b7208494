//! piton's rules, once. Plans, events, decisions and views as plain data and pure functions: no
//! clock, no files, no processes, no network, no randomness, no printing.
//!
//! Reading order, and no module uses a later one: [`ids`], [`time`], [`record`], [`agent`], [`dialect`], [`output`], [`plan`],
//! [`event`], [`exit`], [`refusal`], [`graph`], [`question`], [`run`] (fold), [`cache`], [`observed`], [`claim`],
//! [`decide`], [`attempt`] (its stages), [`recover`], [`view`].

pub mod ids;
pub mod limits;
pub mod time;

pub mod decided;
pub mod record;

pub mod agent;
pub mod dialect;
pub mod output;
pub mod packing;
pub mod plan;

pub mod event;
pub mod exit;
pub mod refusal;

pub mod checklist;
pub mod graph;
pub mod question;
pub mod run;

pub mod cache;
pub mod observed;

pub mod claim;
pub mod decide;

pub mod attempt;
pub mod recover;
pub mod retention;

pub mod brief;
pub mod view;

pub mod resume_view;
