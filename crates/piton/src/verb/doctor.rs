//! `piton doctor`: looks at everything piton relies on and says what is wrong. Repairs nothing.

use piton_engine::doctor::{State, examine};
use serde_json::json;

use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::text::{green, plain, red, table, yellow};
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Check git, the store, the records and what is left running; change nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton doctor

Exit status: 0 when nothing is bad, 74 when something kept is damaged, 1
otherwise.")]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let symptoms = examine(&verb::here()?);
    let sign = |state: State| match state {
        State::Good => green("✓ good"),
        State::Note => yellow("! note"),
        State::Bad | State::Damaged => red("✗ bad"),
    };
    let row = |symptom: &piton_engine::doctor::Symptom| {
        vec![sign(symptom.state), symptom.what.clone(), plain(&symptom.detail)]
    };
    for line in table(&symptoms.iter().map(row).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    for symptom in &symptoms {
        if let Some(next) = &symptom.next {
            ui.hint(format!("{}: {next}", symptom.what));
        }
    }
    let any = |state: State| symptoms.iter().any(|symptom| symptom.state == state);
    let exit = match (any(State::Damaged), any(State::Bad)) {
        (true, _) => ExitStatus::Corrupt,
        (false, true) => ExitStatus::Failed,
        (false, false) => ExitStatus::Ok,
    };
    if ui.is_json() {
        for bad in symptoms.iter().filter(|symptom| symptom.state >= State::Bad) {
            let message = format!("{}: {}", bad.what, bad.detail);
            ui.report(&Problem::new(Kind::Unwell, message).hinted(bad.next.clone()));
        }
    }
    Ok(Answer::new(json!({ "symptoms": symptoms })).exiting(exit))
}
