//! What holds for any bytes, read as any format. Shared by the mutation run and the targets of cargo-fuzz.

use piton_core::event::FoundState;
use piton_core::limits::PLAN_BYTES_MAX;
use piton_core::plan::PlanFormat;
use piton_core::time::Millis;
use piton_formats::{Hint, Progress, Reading, compat_counts, read, repaired};

/// Nothing panics; findings are in the file; what is read can be written, and reads as the same plan.
pub(crate) fn survive(bytes: &[u8], format: PlanFormat) {
    let hint = Hint { path: "plan", format: Some(format) };
    let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
    let findings = match read(bytes, &hint) {
        Ok(reading) => {
            check_written(&reading, &hint);
            reading.warnings
        }
        Err(error) => {
            assert!(!error.findings.is_empty(), "refused without a reason");
            error.findings
        }
    };
    for finding in findings {
        assert!((1..=lines).contains(&finding.line), "{finding:?} of {lines} lines");
        assert!(!finding.message.contains('\n'), "{finding:?}");
    }
    if let Some(mended) = repaired(bytes) {
        assert_eq!(repaired(&mended), None, "mended once is enough");
    }
    compat_counts(bytes);
}

/// Every step done, then every step open.
fn check_written(reading: &Reading, hint: &Hint<'_>) {
    for state in [FoundState::Completed { commit: None }, FoundState::Pending] {
        let progress = reading.plan.steps.iter().map(|step| Progress {
            step: step.id.clone(),
            state: state.clone(),
            items: Vec::new(),
            substeps: Vec::new(),
            started: Some(Millis(0)),
            since: Some(Millis(1)),
        });
        let progress: Vec<Progress> = progress.collect();
        let Some(bytes) = reading.written(&progress, &[reading.marks()]).bytes else { continue };
        if bytes.len() > PLAN_BYTES_MAX {
            continue;
        }
        let again = read(&bytes, hint).unwrap_or_else(|error| {
            panic!("what was written is not read: {error}\n{}", String::from_utf8_lossy(&bytes))
        });
        assert_eq!(again.plan, reading.plan, "progress is no part of a plan");
        assert_eq!(again.written(&progress, &[again.marks()]).bytes, None, "written twice");
    }
}
