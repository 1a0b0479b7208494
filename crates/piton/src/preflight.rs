//! The words for what is found before a run starts.

use piton_core::ids::StepId;
use piton_engine::run::preflight::Hindrance;

use crate::error::Kind;
use crate::text::{count, plain};
use crate::ui::Ui;

/// How many steps a line names.
const STEPS_NAMED: usize = 3;

/// Warns of each finding.
pub(crate) fn warn(ui: &Ui, found: &[Hindrance]) {
    for finding in found {
        let (message, hint) = words(finding);
        ui.warn(Kind::Noticed, message, hint);
    }
}

fn words(finding: &Hindrance) -> (String, Option<String>) {
    match finding {
        Hindrance::NoAgent { agent, program } => (
            format!("agent {agent}: there is no program {} in PATH", plain(program)),
            Some(format!("install it, or change `command` of [agent.{agent}]")),
        ),
        Hindrance::NoProgram { program, steps } => {
            let message =
                format!("no program {} in PATH, used by {}", plain(program), named(steps));
            (message, None)
        }
        Hindrance::Uncommitted { count: all, named } => {
            let more = if *all > named.len() { ", …" } else { "" };
            let changes = count(*all as u64, "uncommitted change");
            (format!("agents will not see {changes}: {}{more}", plain(&named.join(", "))), None)
        }
        Hindrance::LittleSpace { free } => {
            (format!("the disk has only {} MB free", free >> 20), None)
        }
    }
}

fn named(steps: &[StepId]) -> String {
    let names: Vec<&str> = steps.iter().take(STEPS_NAMED).map(StepId::as_str).collect();
    match steps.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
