//! Accepting a plan that was changed under its run: shown, trusted, recorded. Without `--accept-plan` it
//! is refused.

use piton_engine::project::Project;
use piton_engine::run::log::Log;
use piton_engine::run::plan_file;
use piton_engine::run::plan_file::Changed;
use piton_engine::run::runs;
use piton_engine::tidy::abandon::living;
use piton_engine::trust::TrustList;

use crate::error::Problem;
use crate::hints::About;
use crate::text::{bold, plain};
use crate::trust_prompt::{self, Consent};
use crate::ui::Ui;

/// For verbs that execute nothing of a plan, and may have to go on with a changed one.
#[derive(Debug, clap::Args)]
pub(crate) struct Accepting {
    /// Accept the plan as it is now, if it changed under its run
    #[arg(long)]
    accept_plan: bool,

    /// Trust what the plan executes, without asking
    #[arg(long, requires = "accept_plan")]
    trust: bool,
}

impl Accepting {
    pub(crate) fn on_change(&self) -> OnChange {
        OnChange::asked(self.accept_plan, Consent::asked(self.trust))
    }
}

/// What to do about a changed plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnChange {
    Refuse,
    /// It is the run's plan from here on, once what it executes is trusted.
    Accept(Consent),
}

impl OnChange {
    /// From `--accept-plan`.
    pub(crate) fn asked(accept: bool, consent: Consent) -> OnChange {
        if accept { OnChange::Accept(consent) } else { OnChange::Refuse }
    }
}

/// Goes on with a changed plan, or refuses to.
pub(crate) fn settle(
    ui: &Ui,
    project: &Project,
    log: &mut Log,
    changed: Changed,
    on_change: OnChange,
) -> Result<(), Problem> {
    let OnChange::Accept(consent) = on_change else {
        let living = living(project, log)?;
        return Err(About::run(project, log).changed(changed, &living));
    };
    let agents = runs::settings_of(log)?.agents;
    let file = plan_file::plan_file(project, log.run());
    let list = TrustList::new(project, &file, changed.plan(), &agents)?;
    trust_prompt::require(ui, &list, consent)?;
    let told: Vec<String> = changed.differences().iter().map(|line| plain(line)).collect();
    plan_file::accept(project, log, changed)
        .map_err(|error| About::run(project, log).problem(error))?;
    ui.talk(format!("{}: goes on with the changed plan", bold(log.run().opened.handle.as_str())));
    for line in told {
        ui.talk(format!("  {line}"));
    }
    Ok(())
}
