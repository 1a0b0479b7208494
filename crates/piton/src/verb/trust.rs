//! `piton trust`: shows what a plan would execute and records that its user agrees.

use std::path::PathBuf;

use piton_engine::config::{self, Flags, Layers};
use piton_engine::git::shell::word;
use piton_engine::run::plan_file;
use piton_engine::trust::{Trust, TrustList};
use serde_json::json;

use crate::error::{Kind, Problem, trust_rows};
use crate::start;
use crate::text::{green, plain};
use crate::trust_prompt;
use crate::ui::{Said, Ui};
use crate::verb::{self, Answer, run::Reading};

/// Show what a plan executes, and trust it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton trust plan.toml          show the list and ask
  piton trust plan.toml --yes    without asking, as in CI

The list of commands is trusted, for this repository: a change asks again.")]
pub(crate) struct Args {
    /// The plan [default: plan.toml, here or above]
    plan: Option<PathBuf>,

    #[command(flatten)]
    reading: Reading,

    /// Trust it without asking
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let plan = start::plan(args.plan.as_deref())?;
    let read = plan_file::read_plan(&plan, &args.reading.how())?;
    let project = verb::project()?;
    let layers = Layers::of_process(Some(project.git.main_root()));
    let settings = config::load(&layers, &Flags::default())?.settings;
    let read = read.assigned(&settings);
    let list = TrustList::new(&project, &plan, read.plan(), &settings.agents)?;
    let data = |trusted: bool| json!({ "plan": piton_engine::git::repo::names::text(&list.plan), "hash": list.hash, "executables": list.executables, "trusted": trusted });
    let (new, gone) = match list.look_up()? {
        Trust::Untrusted { new, gone } => (new, gone),
        Trust::Trusted => {
            ui.line(format!("{} is trusted already:", plan.display()))?;
            for entry in &list.executables {
                ui.line(format!("  {}", plain(entry)))?;
            }
            return Ok(Answer::new(data(true)));
        }
    };
    trust_prompt::show(ui, &list, &trust_rows(&new, &gone));
    let said = if args.yes { Said::Yes } else { ui.ask("Trust these?") };
    match said {
        Said::Yes => {
            list.grant()?;
            ui.line(format!("{} {} is trusted", green("✓"), plan.display()))?;
            Ok(Answer::new(data(true)))
        }
        Said::No => {
            Err(Problem::new(Kind::NotTrusted, "nothing was trusted").with_data(data(false)))
        }
        Said::Nobody => {
            let plan = word(&plan.display().to_string());
            Err(Problem::new(Kind::NotTrusted, "there is no terminal to ask on")
                .hint(format!("look at the list, then: `piton trust {plan} --yes`"))
                .with_data(data(false)))
        }
    }
}
