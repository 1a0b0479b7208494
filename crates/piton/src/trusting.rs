//! Asking for trust: nothing that a repository supplies is executed before its user has seen it.

use std::collections::BTreeMap;
use std::path::Path;

use piton_core::ids::AgentName;
use piton_core::plan::{Agent, Plan, executables, trust_hash};
use piton_engine::project::Project;
use piton_engine::trust::{Agreements, Asked, Trust};

use crate::error::{Detail, Kind, Problem};
use crate::text::{bold, green, plain, red, word};
use crate::ui::{Said, Ui};

/// How trust may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consent {
    /// Ask on the terminal; without one, refuse.
    Ask,
    /// It was given on the command line.
    Given,
}

/// What trust is about.
pub(crate) fn asked(
    project: &Project,
    plan_path: &Path,
    plan: &Plan,
    agents: &BTreeMap<AgentName, Agent>,
) -> Asked {
    let executables = executables(plan, agents);
    let hash = trust_hash(&executables);
    let repository = project.git.common_dir().to_owned();
    Asked { repository, plan: plan_path.to_owned(), executables, hash }
}

/// Goes on only if everything on the list was agreed to.
pub(crate) fn require(ui: &Ui, asked: &Asked, consent: Consent) -> Result<(), Problem> {
    let agreements = Agreements::of_user();
    let trust = match &agreements {
        Ok(agreements) => agreements.check(asked),
        // Without a place to look there is no agreement; `--trust` needs none.
        Err(_) if consent == Consent::Given => return Ok(()),
        Err(_) => return Err(agreements.expect_err("just matched").into()),
    };
    let (new, gone) = match trust {
        Ok(Trust::Trusted) => return Ok(()),
        Ok(Trust::Untrusted { new, gone, .. }) => (new, gone),
        Err(error) => return Err(error.into()),
    };
    if consent == Consent::Ask {
        show(ui, asked, &new, &gone);
        match ui.ask("Trust these and go on?") {
            Said::Yes => {}
            Said::No | Said::Nobody => return Err(refused(asked, &new)),
        }
    }
    if let Ok(agreements) = &agreements
        && let Err(error) = agreements.grant(asked)
    {
        let problem = Problem::from(error);
        ui.warn(
            Kind::Noticed,
            format!("trust is not remembered: {}", problem.message),
            problem.hint.clone(),
        );
    }
    Ok(())
}

/// The list, or what changed in it.
pub(crate) fn show(ui: &Ui, asked: &Asked, new: &[String], gone: &[String]) {
    let plan = asked.plan.display();
    if new.len() == asked.executables.len() {
        ui.talk(format!("{} would execute on this machine:", bold(&plan.to_string())));
        for entry in new {
            ui.talk(format!("  {}", plain(entry)));
        }
        return;
    }
    ui.talk(format!("What {} would execute has changed since you trusted it:", plan));
    for entry in gone {
        ui.talk(format!("  {} {}", red("-"), plain(entry)));
    }
    for entry in new {
        ui.talk(format!("  {} {}", green("+"), plain(entry)));
    }
}

fn refused(asked: &Asked, new: &[String]) -> Problem {
    let plan = word(&asked.plan.display().to_string());
    let row = |entry: &String| Detail { message: plain(entry), hint: None };
    let message = "commands that come with the repository have not been trusted";
    let data = serde_json::json!({ "plan": asked.plan, "untrusted": new });
    Problem::new(Kind::NotTrusted, message)
        .hint(format!("look at them, then: `piton trust {plan}`; or add --trust"))
        .with_details(new.iter().map(row).collect())
        .with_data(data)
}
