//! Reads a plan from TOML, once, at the edge: every mistake is a finding with its line and a remedy.

use std::fmt;

use crate::plan::Plan;

/// A mistake in a plan file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// 1-based.
    pub line: usize,
    pub column: usize,
    pub message: String,
    pub hint: Option<String>,
}

/// Why a plan cannot be used: at least one finding, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    pub findings: Vec<Finding>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.findings.as_slice() {
            [one] => write!(f, "line {}: {}", one.line, one.message),
            many => write!(
                f,
                "{} mistakes, the first in line {}: {}",
                many.len(),
                many[0].line,
                many[0].message
            ),
        }
    }
}

impl std::error::Error for PlanError {}

/// Reads a plan in piton's own format.
pub fn parse(bytes: &[u8]) -> Result<Plan, PlanError> {
    let _ = bytes;
    Err(PlanError { findings: vec![] })
}
