//! `piton doctor`: looks at everything piton relies on and says what is wrong. Repairs nothing.

use piton_engine::doctor::{State, Symptom, examine};
use serde_json::json;

use crate::describe::done_about;
use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::remedy;
use crate::text::{green, plain, red, table, yellow};
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Check git, the store, records and processes; change nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  piton doctor

Exit status: 0 when all is well, 74 when something kept is damaged, 1 otherwise.")]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let symptoms = examine(&verb::here()?);
    let sign = |state: State| match state {
        State::Good => green("✓ good"),
        State::Note => yellow("! note"),
        State::Bad | State::Damaged => red("✗ bad"),
    };
    let row = |symptom: &Symptom| {
        vec![sign(symptom.state), symptom.what.clone(), plain(&detail(symptom))]
    };
    for line in table(&symptoms.iter().map(row).collect::<Vec<_>>()) {
        ui.line(line)?;
    }
    for symptom in &symptoms {
        if let Some(next) = next(symptom) {
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
            let message = format!("{}: {}", bad.what, detail(bad));
            ui.report(&Problem::new(Kind::Unwell, message).hinted(next(bad)));
        }
    }
    let row = |symptom: &Symptom| {
        let Symptom { what, state, .. } = symptom;
        json!({ "what": what, "state": state, "detail": detail(symptom), "next": next(symptom) })
    };
    let rows: Vec<_> = symptoms.iter().map(row).collect();
    Ok(Answer::new(json!({ "symptoms": rows })).exiting(exit))
}

/// What was found, and what a run that goes on does about it.
fn detail(Symptom { detail, condition, .. }: &Symptom) -> String {
    match condition {
        Some(condition) => format!("{detail}: resuming {}", done_about(condition)),
        None => detail.clone(),
    }
}

/// What can be done about a symptom. Its reader has asked the doctor already.
fn next(symptom: &Symptom) -> Option<String> {
    let met = || remedy::of(symptom.error.as_ref()?);
    let way = symptom.remedy.as_ref().map(remedy::words).or_else(met);
    way.filter(|way| !way.contains("piton doctor"))
}
