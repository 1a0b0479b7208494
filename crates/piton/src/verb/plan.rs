//! `piton plan`: looks at plans of any format. `check` says everything that is wrong with one and what this
//! machine lacks for it, `show` draws its steps, `convert` writes it in another format. Needs no
//! repository.

use std::path::{Path, PathBuf};

use piton_core::ids::StepId;
use piton_core::plan::{Need, Plan, PlanFormat};
use piton_engine::config::{self, Flags, Layers};
use piton_engine::formats;
use piton_engine::project::Project;
use piton_engine::run::plan_file::{self, PlanRead, ReadAs};
use piton_engine::run::preflight::preflight;
use serde_json::json;

use crate::error::{Kind, Problem, finding};
use crate::loops;
use crate::preflight;
use crate::remedy;
use crate::start;
use crate::text::{count, green, plain};
use crate::ui::Ui;
use crate::verb::{self, Answer, run};

/// Check a plan file
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: PlanVerb,
}

#[derive(Debug, clap::Subcommand)]
enum PlanVerb {
    /// List every mistake in a plan file, with line and remedy
    #[command(after_help = "\
Examples:
  piton plan check plan.toml
  piton plan check implementation_plan.json --json
  piton plan check notes.md --format markdown

Formats: toml, yaml and json (piton's own), markdown, tug, auto-claude, epic,
prodigy, specification. Exit status: 0 when the plan can be used, 65 when not.")]
    Check {
        /// The plan file [default: plan.toml, here or above]
        file: Option<PathBuf>,

        /// Its format, where it is not found out by itself
        #[arg(long, value_name = "FORMAT", value_parser = run::format)]
        format: Option<PlanFormat>,

        /// Count as the tool counts whose plan it is
        #[arg(long)]
        compat: bool,

        /// Mend damaged JSON in the file, and show what is changed
        #[arg(long)]
        repair: bool,
    },
    /// Draw the steps of a plan and what they need
    Show {
        /// The plan file [default: plan.toml, here or above]
        file: Option<PathBuf>,

        /// As a graph for Graphviz
        #[arg(long, conflicts_with = "mermaid")]
        dot: bool,

        /// As a graph for Mermaid
        #[arg(long)]
        mermaid: bool,
    },
    /// Print a plan in another format
    #[command(after_help = "\
Example:
  piton plan convert implementation_plan.json --to toml > plan.toml")]
    Convert {
        /// The plan file
        file: PathBuf,

        /// toml, yaml, json, markdown, tug or auto-claude
        #[arg(long, value_name = "FORMAT", value_parser = run::format)]
        to: PlanFormat,
    },
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    match &args.verb {
        PlanVerb::Check { file, format, compat, repair } => {
            let file = start::plan(file.as_deref())?;
            if *repair {
                mend(&file, ui)?;
            }
            let how = ReadAs { format: *format, ..ReadAs::default() };
            check(&file, &how, *compat, ui)
        }
        PlanVerb::Show { file, dot, mermaid } => {
            let read = plan_file::read_plan(&start::plan(file.as_deref())?, &ReadAs::default())?;
            let drawn = match (dot, mermaid) {
                (true, _) => dot_graph(read.plan()),
                (_, true) => mermaid_graph(read.plan()),
                _ => tree(read.plan()),
            };
            ui.line(drawn.trim_end())?;
            Ok(Answer::new(json!({ "plan": read.plan(), "drawn": drawn })))
        }
        PlanVerb::Convert { file, to } => {
            let read = plan_file::read_plan(file, &ReadAs::default())?;
            let text = formats::converted(read.plan(), *to).ok_or_else(|| {
                let message = format!("piton does not write {}", to.as_str());
                Problem::new(Kind::BadInput, message)
                    .hint("write toml, yaml, json, markdown, tug or auto-claude")
            })?;
            ui.line(text.trim_end())?;
            Ok(Answer::new(json!({ "format": to, "text": text })))
        }
    }
}

/// Mends damaged JSON, and shows the lines that change.
fn mend(file: &Path, ui: &Ui) -> Result<(), Problem> {
    let Some((before, after)) = plan_file::repair(file)? else { return Ok(()) };
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    for place in 0..old.len().max(new.len()) {
        let (old, new) = (old.get(place), new.get(place));
        if old != new {
            for (sign, line) in [("-", old), ("+", new)] {
                if let Some(line) = line {
                    ui.talk(format!("{sign} {}", plain(line)));
                }
            }
        }
    }
    Ok(())
}

/// What a step needs; `->` in a graph is "comes before".
struct Edge {
    from: String,
    to: String,
    /// The output that is needed, where it is not the whole step.
    output: Option<String>,
}

fn edges(plan: &Plan) -> Vec<Edge> {
    let edge = |index: usize| {
        let to = plan.steps[index].id.to_string();
        let needs = plan.needs_of(index).into_iter();
        let needs = needs.map(|need| (plan.steps[need].id.to_string(), None));
        let outputs = plan.steps[index].needs.iter().filter_map(|need| match need {
            Need::Output(of, name) => Some((of.to_string(), Some(name.to_string()))),
            Need::Step(_) | Need::Group(_) | Need::Loop(_) => None,
        });
        let all = needs.chain(outputs);
        all.map(|(from, output)| Edge { from, to: to.clone(), output }).collect::<Vec<_>>()
    };
    (0..plan.steps.len()).flat_map(edge).collect()
}

/// What closes each loop: its last step comes before its first, and how often at most.
fn loop_edges(plan: &Plan) -> impl Iterator<Item = (&StepId, &StepId, String)> {
    plan.loops.iter().filter_map(|(id, of)| {
        let (first, last) = (of.steps.first()?, of.steps.last()?);
        Some((last, first, format!("{id}, at most {}", of.max)))
    })
}

fn tree(plan: &Plan) -> String {
    let mut text = format!("{}\n", plain(&plan.name));
    let edges = edges(plan);
    for step in plan.steps.iter() {
        let own = edges.iter().filter(|edge| edge.to == step.id.as_str());
        let needs: Vec<String> = own
            .map(|edge| match &edge.output {
                Some(output) => format!("{}:{output}", edge.from),
                None => edge.from.clone(),
            })
            .collect();
        let after = match needs.is_empty() {
            true => String::new(),
            false => format!("  after {}", needs.join(", ")),
        };
        let group = step.group.as_ref().map_or(String::new(), |group| format!(" [{group}]"));
        text.push_str(&format!("  {}{group}  {}{after}\n", step.id, plain(&step.title)));
        for substep in &step.substeps {
            text.push_str(&format!("    {}  {}\n", substep.id, plain(&substep.title)));
        }
    }
    text.push_str(&loops::planned(plan));
    text
}

fn dot_graph(plan: &Plan) -> String {
    let quoted = |text: &str| format!("{:?}", plain(text));
    let nodes = plan
        .steps
        .iter()
        .map(|step| format!("  {} [label={}];\n", quoted(step.id.as_str()), quoted(&step.title)));
    let edges = edges(plan);
    let edges = edges.iter().map(|Edge { from, to, output }| {
        let label = output.as_ref().map(|output| format!(" [label={}]", quoted(output)));
        format!("  {} -> {}{};\n", quoted(from), quoted(to), label.unwrap_or_default())
    });
    let loops = loop_edges(plan).map(|(last, first, label)| {
        let (last, first) = (quoted(last.as_str()), quoted(first.as_str()));
        format!("  {last} -> {first} [label={}, style=dashed];\n", quoted(&label))
    });
    format!("digraph plan {{\n{}}}\n", nodes.chain(edges).chain(loops).collect::<String>())
}

fn mermaid_graph(plan: &Plan) -> String {
    let title = |text: &str| plain(text).replace(['"', '[', ']'], "'");
    let nodes =
        plan.steps.iter().map(|step| format!("  {}[\"{}\"]\n", step.id, title(&step.title)));
    let edges = edges(plan);
    let edges = edges.iter().map(|Edge { from, to, output }| match output {
        Some(output) => format!("  {from} -->|{output}| {to}\n"),
        None => format!("  {from} --> {to}\n"),
    });
    let loops = loop_edges(plan)
        .map(|(last, first, label)| format!("  {last} -. \"{label}\" .-> {first}\n"));
    format!("flowchart TD\n{}", nodes.chain(edges).chain(loops).collect::<String>())
}

fn check(file: &Path, how: &ReadAs, compat: bool, ui: &Ui) -> Result<Answer, Problem> {
    let read = plan_file::read_plan(file, how)?;
    let plan = read.plan();
    let counts = match compat {
        true => formats::compat_counts(read.bytes()).unwrap_or(read.counts),
        false => read.counts,
    };
    let mut parts = vec![count(counts.steps as u64, "step")];
    for (number, word) in
        [(counts.substeps, "substep"), (counts.items, "item"), (counts.questions, "open question")]
    {
        parts.extend((number > 0).then(|| count(number as u64, word)));
    }
    let (path, name) = (file.display(), plain(&plan.name));
    let format = match read.format.is_native() {
        true => String::new(),
        false => format!(" ({})", read.format.as_str()),
    };
    ui.line(format!("{} {path}{format}: {name} has {}", green("✓"), parts.join(", ")))?;
    warn(ui, file, &read);
    check_here(ui, plan, file);
    let data = json!({
        "path": piton_engine::git::repo::names::text(file),
        "format": read.format,
        "counts": counts,
        "name": plan.name,
        "hash": plan.hash(),
        "steps": plan.steps.iter().map(|step| &step.id).collect::<Vec<_>>(),
    });
    Ok(Answer::new(data))
}

/// What a run of the plan would not follow.
fn warn(ui: &Ui, file: &Path, read: &PlanRead) {
    let path = file.display().to_string();
    for found in &read.warnings {
        let detail = finding(&path, found);
        ui.warn(Kind::Noticed, detail.message, detail.hint);
    }
}

/// Warns of what a run would meet here: the plan itself may be right for another machine.
fn check_here(ui: &Ui, plan: &Plan, file: &Path) {
    let project = verb::project().ok();
    let root = project.as_ref().map(|project: &Project| project.git.main_root());
    let settings = match config::load(&Layers::of_process(root), &Flags::default()) {
        Ok(loaded) => loaded.settings,
        Err(error) => {
            let problem = Problem::from(error);
            return ui.warn(
                Kind::Noticed,
                problem.issues()[0].message.clone(),
                problem.hint.clone(),
            );
        }
    };
    if let Err(error) = plan_file::check_agents(plan, &settings) {
        let hint = remedy::of(&error);
        ui.warn(Kind::Noticed, error.to_string(), hint);
    }
    preflight::warn(ui, &preflight((plan, file), &settings, project.as_ref()));
}
