//! `piton doctor`: looks at everything piton relies on and says what is wrong. Told to, it mends the files of
//! piton's own first.

use piton_engine::doctor::{GiveUp, Repaired, State, Symptom, examine, repair};
use serde_json::json;

use crate::describe::done_about;
use crate::error::{Kind, Problem};
use crate::exit::ExitStatus;
use crate::remedy;
use crate::text::{green, plain, red, table, yellow};
use crate::ui::Ui;
use crate::verb::{self, Answer};

/// Check git, the store, records and processes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton doctor                      look; change nothing
  piton doctor --repair             mend rights, and files that are none
  piton doctor --repair --yes       also go on without a damaged store

What is in the way is moved aside, never deleted.

Exit status: 0 when all is well, 74 when something kept is damaged, 1 otherwise.")]
pub(crate) struct Args {
    /// Mend the files of piton's own before looking
    #[arg(long)]
    repair: bool,

    /// Also move a store aside that cannot be read: its records are gone, the work stays in git
    #[arg(long, requires = "repair")]
    yes: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let repaired = match (args.repair, args.yes) {
        (false, _) => Vec::new(),
        (true, false) => repair(&verb::project()?, GiveUp::Nothing)?,
        (true, true) => repair(&verb::project()?, GiveUp::Records)?,
    };
    for Repaired { what, done } in &repaired {
        ui.line(format!("mended {}: {}", plain(what), plain(done)))?;
    }
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
    Ok(Answer::new(json!({ "repaired": repaired, "symptoms": rows })).exiting(exit))
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
    way.filter(|way| !way.contains("`piton doctor`"))
}
