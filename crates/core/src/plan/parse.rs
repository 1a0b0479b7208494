//! Reads plans and other TOML files, once, at the edge: every mistake is a finding with its line and a
//! remedy. Bytes become text (`source`) and tables (the TOML parser); of a plan, a draft (`read`) and a
//! plan (`check`).

use std::fmt;

use toml::de::DeTable;

use crate::limits::RECOVERED_BYTES_MAX;
use crate::plan::fields::Fields;
use crate::plan::nesting::too_deep;
use crate::plan::source::{Findings, Source};
use crate::plan::{Plan, check, read};

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// 1-based.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    pub message: String,
    pub hint: Option<String>,
}

/// Why a file cannot be used: at least one finding, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    pub findings: Vec<Finding>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.findings.as_slice() {
            [] => write!(f, "the plan cannot be used"),
            [one] => write!(f, "line {}: {}", one.line, one.message),
            [first, ..] => {
                let count = self.findings.len();
                write!(f, "{count} mistakes, the first in line {}: {}", first.line, first.message)
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Reads a plan in piton's own format.
pub fn parse(bytes: &[u8]) -> Result<Plan, PlanError> {
    read_with(bytes, |source, file| {
        let draft = read::draft(file);
        check::plan(draft, source, file.findings)
    })
}

/// Reads any TOML file by its tables; every mistake in it is a finding.
pub fn read_toml<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut Fields<'_, '_>) -> T,
) -> Result<T, PlanError> {
    read_with(bytes, |_, file| Some(read(file)))
}

fn read_with<T>(
    bytes: &[u8],
    read: impl FnOnce(&Source, &mut Fields<'_, '_>) -> Option<T>,
) -> Result<T, PlanError> {
    let source = Source::new(bytes).map_err(|finding| PlanError { findings: vec![finding] })?;
    let mut findings = Findings::default();
    let read = tables(&source, &mut findings).and_then(|root| {
        let mut file = Fields { table: &root, at: 0, findings: &mut findings };
        read(&source, &mut file)
    });
    match read {
        Some(read) if findings.is_empty() => Ok(read),
        _ => Err(PlanError { findings: source.locate(findings) }),
    }
}

/// The file as TOML.
fn tables<'a>(source: &'a Source, findings: &mut Findings) -> Option<DeTable<'a>> {
    if let Some(at) = too_deep(&source.text) {
        let message = "tables and arrays are nested too deeply, or brackets are not closed";
        findings.add(at, message, "close every bracket that is open here");
        return None;
    }
    match DeTable::parse(&source.text) {
        Ok(root) => Some(root.into_inner()),
        Err(first) => {
            find_broken_toml(first, source, findings);
            None
        }
    }
}

/// The first mistake of every line: what follows it there is mostly its consequence.
fn find_broken_toml(first: toml::de::Error, source: &Source, findings: &mut Findings) {
    let mut errors = match source.text.len() {
        0..=RECOVERED_BYTES_MAX => DeTable::parse_recoverable(&source.text).1,
        _ => vec![first],
    };
    let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    errors.sort_by_key(place);
    errors.dedup_by_key(|error| source.line(place(error)));
    for error in errors {
        findings.add(place(&error), error.message(), toml_hint(error.message()));
    }
}

fn toml_hint(message: &str) -> &'static str {
    match message {
        "duplicate key" => "keep one of the two",
        _ => "write key = \"value\" below a [table]; the rules are at https://toml.io",
    }
}
