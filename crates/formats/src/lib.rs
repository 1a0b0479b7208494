//! Plans out of files: piton's own format in TOML, YAML and JSON, and those of other tools. Bytes and a
//! file's name become a plan, what the file says of progress, and findings with their lines; progress
//! goes back into the same bytes. Nothing else is touched.

use std::collections::BTreeMap;
use std::path::Path;

use piton_core::event::Found;
use piton_core::ids::StepId;
use piton_core::limits::PLAN_STEPS_MAX;
use piton_core::plan::{Plan, PlanFormat, PlanSource};

pub use convert::converted;
pub use fields::{Fields, Keys};
pub use memory::{ATTEMPTS_FILE, COMMITS_FILE, Remembered};
pub use native::agents;
pub use progress::Progress;
pub use source::{Finding, PlanError, Severity};
pub use value::Located;
pub use work_names::{PLAN_FILES, SPEC_FOLDERS, WorkNames, work_names};
pub use write::{ByHand, Marks, Written};

use draft::{Foreign, Place, Style};
use source::{Findings, Source};
use value::Node;

mod auto_claude;
mod check;
mod convert;
mod cycles;
mod draft;
mod epic;
mod fields;
mod lines;
mod memory;
mod native;
mod prodigy;
mod progress;
mod source;
mod specification;
mod task_list;
mod tug;
mod value;
mod work_names;
mod write;

/// How a file is to be read.
#[derive(Debug, Clone, Default)]
pub struct Hint<'a> {
    /// The file's name: its end tells the syntax where the text does not.
    pub path: &'a str,
    /// The format, where it is not to be found out.
    pub format: Option<PlanFormat>,
}

/// What a file says.
pub struct Reading {
    pub format: PlanFormat,
    pub plan: Plan,
    /// Progress, as the file claims it.
    pub found: Vec<Found>,
    /// What a run does not follow.
    pub warnings: Vec<Finding>,
    pub counts: Counts,
    source: Source,
    places: Vec<Place>,
    /// Names of other tools' steps.
    names: BTreeMap<String, StepId>,
}

/// How much a file holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    pub steps: usize,
    pub needs: usize,
    pub substeps: usize,
    pub items: usize,
    pub questions: usize,
}

impl Reading {
    /// The step that another tool calls so.
    fn step_named(&self, name: &str) -> Option<StepId> {
        self.names.get(name).cloned()
    }

    /// What another tool calls each step.
    fn foreign_names(&self) -> BTreeMap<&StepId, &str> {
        self.names.iter().map(|(name, step)| (step, name.as_str())).collect()
    }
}

/// Reads a plan in any format.
pub fn read(bytes: &[u8], hint: &Hint<'_>) -> Result<Reading, PlanError> {
    let source = Source::new(bytes).map_err(|finding| PlanError { findings: vec![finding] })?;
    let mut findings = Findings::default();
    let read = read_text(&source, hint, &mut findings);
    match read {
        Some((format, plan, mut foreign)) if findings.is_sound() => {
            let counts = counts(&plan, foreign.questions);
            let warnings = source.locate(findings);
            let names = foreign.names();
            let Foreign { found, places, .. } = foreign;
            Ok(Reading { format, plan, found, warnings, counts, source, places, names })
        }
        _ => Err(PlanError { findings: source.locate(findings) }),
    }
}

/// Reads a plan in piton's own format, as TOML.
pub fn parse(bytes: &[u8]) -> Result<Plan, PlanError> {
    let hint = Hint { format: Some(PlanFormat::Toml), ..Hint::default() };
    read(bytes, &hint).map(|reading| reading.plan)
}

/// Reads any TOML file by its tables; every mistake in it is a finding.
pub fn read_toml<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut Fields<'_, '_>) -> T,
) -> Result<T, PlanError> {
    let source = Source::new(bytes).map_err(|finding| PlanError { findings: vec![finding] })?;
    let mut findings = Findings::default();
    let root = value::toml::read(&source, &mut findings);
    let read = root
        .as_ref()
        .and_then(|root| Fields::of("file", root, &mut findings))
        .map(|mut file| read(&mut file));
    match read {
        Some(read) if findings.is_sound() => Ok(read),
        _ => Err(PlanError { findings: source.locate(findings) }),
    }
}

/// What the tool that made a file counted in it, where its rules differ from a faithful reading.
pub fn compat_counts(bytes: &[u8]) -> Option<Counts> {
    let source = Source::new(bytes).ok()?;
    Some(tug::compat_counts(&source.text))
}

/// The bytes of a damaged JSON file, mended; `None` where nothing is to be mended, or nothing can be.
pub fn repaired(bytes: &[u8]) -> Option<Vec<u8>> {
    let source = Source::new(bytes).ok()?;
    let edits = value::json::repairs(&source.text)?;
    (!edits.is_empty()).then(|| source.edited(edits))
}

fn read_text(
    source: &Source,
    hint: &Hint<'_>,
    findings: &mut Findings,
) -> Option<(PlanFormat, Plan, Foreign)> {
    let syntax = hint.format.map_or_else(|| syntax(source, hint.path), syntax_of);
    let root = match syntax {
        Syntax::Toml => Some(value::toml::read(source, findings)?),
        Syntax::Json => Some(value::json::read(&source.text, findings)?),
        Syntax::Yaml => Some(yaml_or_json(source, findings)?),
        Syntax::Markdown => None,
    };
    let format = hint.format.unwrap_or_else(|| match &root {
        Some(root) => structured(root, syntax),
        None => markdown(&source.text),
    });
    let mut foreign = match (format, &root) {
        (PlanFormat::Toml | PlanFormat::Yaml | PlanFormat::Json, Some(root)) => {
            let mut own = Foreign::default();
            own.draft = native::draft(&mut Fields::of("file", root, findings)?);
            own
        }
        (PlanFormat::AutoClaude, Some(root)) => auto_claude::read(root, hint, findings),
        (PlanFormat::Epic, Some(root)) => epic::read(root, hint, findings),
        (PlanFormat::Prodigy, Some(root)) => prodigy::read(root, hint, findings),
        (PlanFormat::Tug, _) => tug::read(&source.text, hint, findings),
        (PlanFormat::Specification, _) => specification::read(&source.text, hint, findings),
        (_, _) => task_list::read(&source.text, hint, findings),
    };
    if foreign.draft.steps.is_empty() && findings.is_sound() {
        let message = format!("no step is found in this file, read as {}", format.as_str());
        findings.add(0, message, "check the file, or name its format with --format");
    }
    if let Some(first_too_many) = foreign.draft.steps.get(PLAN_STEPS_MAX) {
        let message = format!("the plan has more than {PLAN_STEPS_MAX} steps");
        findings.add(first_too_many.at, message, "split the plan into smaller ones");
        return None;
    }
    if syntax == Syntax::Yaml && !source.text.trim_start().starts_with(['{', '[']) {
        // A key more in a block is a line more.
        let adds_key = |place: &Place| matches!(place.style, Style::NoStatus | Style::NoTime(_));
        foreign.places.retain(|place| !adds_key(place));
    }
    let draft = std::mem::take(&mut foreign.draft);
    let mut plan = check::plan(draft, source, findings)?;
    if !format.is_native() {
        plan.source = Some(PlanSource { format, agent: None, write_back: true });
    }
    Some((format, plan, foreign))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Toml,
    Json,
    Yaml,
    Markdown,
}

fn syntax_of(format: PlanFormat) -> Syntax {
    match format {
        PlanFormat::Toml => Syntax::Toml,
        PlanFormat::Json => Syntax::Json,
        PlanFormat::AutoClaude | PlanFormat::Epic | PlanFormat::Yaml | PlanFormat::Prodigy => {
            Syntax::Yaml
        }
        PlanFormat::Markdown | PlanFormat::Tug | PlanFormat::Specification => Syntax::Markdown,
    }
}

/// By the file's name, else by what can be read.
fn syntax(source: &Source, path: &str) -> Syntax {
    let end = Path::new(path).extension().and_then(|end| end.to_str()).unwrap_or_default();
    let reads = |read: &dyn Fn(&mut Findings) -> Option<Node>| {
        let mut findings = Findings::default();
        read(&mut findings).filter(|_| findings.is_sound())
    };
    match end.to_ascii_lowercase().as_str() {
        "toml" => Syntax::Toml,
        "json" => Syntax::Json,
        "yml" | "yaml" => Syntax::Yaml,
        "md" | "markdown" => Syntax::Markdown,
        _ if reads(&|findings| value::json::read(&source.text, findings)).is_some() => Syntax::Json,
        _ if reads(&|findings| value::toml::read(source, findings)).is_some() => Syntax::Toml,
        _ if lines::has_task_or_heading(&source.text) => Syntax::Markdown,
        _ => match reads(&|findings| value::yaml::read(source, findings)) {
            Some(root) if root.as_text().is_none() => Syntax::Yaml,
            _ => Syntax::Toml,
        },
    }
}

/// Where only the format is known: JSON is mostly YAML, but its own reader says better what is wrong.
fn yaml_or_json(source: &Source, findings: &mut Findings) -> Option<Node> {
    match source.text.trim_start().starts_with(['{', '[']) {
        true => value::json::read(&source.text, findings),
        false => value::yaml::read(source, findings),
    }
}

/// By the keys of a structured file.
fn structured(root: &Node, syntax: Syntax) -> PlanFormat {
    let has = |key: &str| root.get(key).is_some();
    match syntax {
        _ if has("plan") || has("step") || syntax == Syntax::Toml => {}
        _ if prodigy::is_session(root) => return PlanFormat::Prodigy,
        _ if epic::is_epic(root) => return PlanFormat::Epic,
        _ if auto_claude::is_plan(root) => return PlanFormat::AutoClaude,
        _ if prodigy::is_workflow(root) => return PlanFormat::Prodigy,
        _ => {}
    }
    match syntax {
        Syntax::Json => PlanFormat::Json,
        Syntax::Yaml => PlanFormat::Yaml,
        Syntax::Toml | Syntax::Markdown => PlanFormat::Toml,
    }
}

/// By the headings of a Markdown file.
fn markdown(text: &str) -> PlanFormat {
    match text {
        _ if specification::is_index(text) => PlanFormat::Specification,
        _ if tug::has_steps(text) => PlanFormat::Tug,
        _ => PlanFormat::Markdown,
    }
}

fn counts(plan: &Plan, questions: usize) -> Counts {
    let mut counts = Counts { steps: plan.steps.len(), questions, ..Counts::default() };
    for step in plan.steps.iter() {
        counts.needs += step.needs.len();
        counts.substeps += step.substeps.len();
        counts.items += step.items.len();
        counts.items += step.substeps.iter().map(|substep| substep.items.len()).sum::<usize>();
    }
    counts
}
