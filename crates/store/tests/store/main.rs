//! The stores from outside, one file a subject.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up should stop")]

mod child;
mod common;
mod conformance;
mod damage;
mod differential;
mod looking;
mod sample;
mod trust;
mod writers;
