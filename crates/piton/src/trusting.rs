//! Asking for trust: nothing that a repository supplies is executed before its user has seen it.

use std::collections::BTreeMap;
use std::path::Path;

use piton_core::ids::AgentName;
use piton_core::plan::{Agent, Plan, executables, trust_hash};
use piton_engine::project::Project;
use piton_engine::shell::word;
use piton_engine::trust::{Agreements, Asked, Trust};

use crate::error::{Detail, Kind, Problem};
use crate::text::{bold, green, plain, red};
use crate::typed::again;
use crate::ui::{Said, Ui};

/// How trust may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consent {
    /// Ask on the terminal; without one, refuse.
    Ask,
    /// It was given on the command line.
    Given,
}

impl Consent {
    /// From `--trust`.
    pub(crate) fn asked(trust: bool) -> Consent {
        if trust { Consent::Given } else { Consent::Ask }
    }
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
        let list = listed(asked, &new, &gone);
        if !ui.can_ask() {
            return Err(refused(asked, new).with_details(list));
        }
        show(ui, asked, &list);
        if ui.ask("Trust these and go on?") != Said::Yes {
            return Err(refused(asked, new));
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

/// Shows the list, or what changed in it.
pub(crate) fn show(ui: &Ui, asked: &Asked, list: &[Detail]) {
    ui.talk(format!("{} would execute on this machine:", bold(&asked.plan.display().to_string())));
    for row in list {
        let sign = row.message.chars().next();
        ui.talk(match sign {
            Some('+') => format!("  {}", green(&row.message)),
            Some('-') => format!("  {}", red(&row.message)),
            _ => format!("  {}", row.message),
        });
    }
}

/// Everything; or, where an earlier list was trusted, what came (`+`) and what went (`-`).
pub(crate) fn listed(asked: &Asked, new: &[String], gone: &[String]) -> Vec<Detail> {
    let rows = |entries: &[String], sign: &str| -> Vec<Detail> {
        let row =
            |entry: &String| Detail { message: format!("{sign}{}", plain(entry)), hint: None };
        entries.iter().map(row).collect()
    };
    match new.len() == asked.executables.len() && gone.is_empty() {
        true => rows(new, ""),
        false => [rows(gone, "- "), rows(new, "+ ")].concat(),
    }
}

fn refused(asked: &Asked, new: Vec<String>) -> Problem {
    let plan = word(&asked.plan.display().to_string());
    let message = "commands that come with the repository have not been trusted";
    let data = serde_json::json!({ "plan": asked.plan, "untrusted": new });
    Problem::new(Kind::NotTrusted, message)
        .hint(format!("look at them, then: `piton trust {plan}`; or `{}`", again("--trust")))
        .with_data(data)
}
