//! Any bytes as a plan of the format `auto-claude`: read without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use piton_core::plan::PlanFormat;

#[path = "../../crates/formats/tests/survive/mod.rs"]
mod survive;

fuzz_target!(|bytes: &[u8]| survive::survive(bytes, PlanFormat::AutoClaude));
