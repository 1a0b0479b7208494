//! Markdown plans with anchored steps (tug), generations 1 to 5: steps, substeps, needs, items by kind and
//! the status ledger. A step ends at the next heading of its level or above; what follows the last one
//! (exit criteria, follow-ons) belongs to the plan, not to that step.

use std::collections::BTreeMap;

use piton_core::event::FoundState;
use piton_core::ids::{ItemRef, StepId};
use piton_core::limits::{PLAN_STEPS_MAX, STEP_ITEMS_MAX, STEP_SUBSTEPS_MAX};
use piton_core::plan::shown;

use crate::draft::{DraftStep, DraftSubstep, Foreign, Part, Style, context_of, item, label};
use crate::lines::{
    Fences, Heading, Line, anchor, cells, heading, is_separator, lines, stem, task, unticked,
};
use crate::source::Findings;
use crate::task_list::substep_id;
use crate::{Counts, Hint, Located};

/// Which items are being listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Task,
    Test,
    Checkpoint,
    /// Plain lines, no items.
    Artifacts,
    Other,
}

/// A step or a substep as the file has it.
struct Section<'a> {
    at: usize,
    level: usize,
    /// What stands between `Step` and the title.
    number: &'a str,
    title: &'a str,
    anchor: String,
    needs: Vec<Located<&'a str>>,
    items: Vec<Boxed>,
    end: usize,
}

/// An item, its kind in words, and its box.
struct Boxed {
    text: String,
    is_done: bool,
    tick: std::ops::Range<usize>,
}

/// A row of the status ledger.
struct Row<'a> {
    step: &'a str,
    title: Option<&'a str>,
    status: (std::ops::Range<usize>, &'a str),
    commit: Option<(std::ops::Range<usize>, &'a str)>,
}

/// Whether a file has steps of this format.
pub(crate) fn has_steps(text: &str) -> bool {
    let mut structural = lines(text, Fences::Backticks).filter(|line| !line.is_code);
    structural.any(|line| step_heading(line.text).is_some())
}

pub(crate) fn read(text: &str, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    let file = File::scan(text, findings);
    let title = file.title.unwrap_or_else(|| stem(hint.path));
    let mut plan = Foreign::named(title);
    let mut sections = nested(file.sections);
    // One more than may be is a mistake already.
    sections.truncate(PLAN_STEPS_MAX + 1);
    for (step, _) in &sections {
        plan.name(&step.anchor);
    }
    let mut parents: BTreeMap<String, StepId> = BTreeMap::new();
    for (step, parts) in &sections {
        let Some(id) = plan.step_of(&step.anchor).cloned() else { continue };
        parents.extend(parts.iter().map(|part| (part.anchor.clone(), id.clone())));
    }
    let about = Prologue { text, title, purpose: file.purpose };
    for (step, parts) in &sections {
        add(&mut plan, &about, step, parts, &parents, findings);
    }
    ledger(&mut plan, &file.ledger, &sections, findings);
    plan.questions = file.questions;
    plan
}

/// What every step's prompt begins with.
struct Prologue<'a> {
    text: &'a str,
    title: &'a str,
    purpose: Option<&'a str>,
}

/// A file's parts, in their order.
#[derive(Default)]
struct File<'a> {
    title: Option<&'a str>,
    purpose: Option<&'a str>,
    sections: Vec<Section<'a>>,
    ledger: Vec<Row<'a>>,
    questions: usize,
}

impl<'a> File<'a> {
    fn scan(text: &'a str, findings: &mut Findings) -> File<'a> {
        let mut file = File::default();
        let mut anchors: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut kind, mut open, mut in_ledger) = (Kind::Task, false, None);
        for line in lines(text, Fences::Backticks) {
            if line.is_code {
                continue;
            }
            if let Some((place, name)) = anchor(line.text)
                && anchors.insert(name, line.at).is_some()
            {
                let message = format!("the anchor `#{name}` is defined twice");
                findings.add(line.at + place, message, "give one of them another name");
            }
            if let Some(heading) = heading(line.text) {
                let section = section(&line);
                let is_ledger = heading.anchor == Some("step-status-ledger")
                    || heading.title.eq_ignore_ascii_case("step status ledger");
                in_ledger = (is_ledger && section.is_none()).then(Vec::new);
                if let Some(section) = section {
                    file.end(line.at);
                    file.sections.push(section);
                    (kind, open) = (Kind::Task, true);
                    continue;
                }
                let level = file.sections.last().map_or(0, |step| step.level);
                // Progress is no part of a step.
                if open && (heading.level <= level || in_ledger.is_some()) {
                    file.end(line.at);
                    open = false;
                }
                kind = kind_of_heading(heading.title).unwrap_or(kind);
                file.head(&heading);
                continue;
            }
            if let Some(columns) = &mut in_ledger {
                file.row(&line, columns);
            }
            if file.purpose.is_none() && file.sections.is_empty() {
                file.purpose = line.text.strip_prefix("**Purpose:**").map(str::trim);
            }
            if open && let Some(step) = file.sections.last_mut() {
                step.line(&line, &mut kind);
            }
        }
        file.end(text.len());
        file
    }

    /// Ends the section that is open.
    fn end(&mut self, at: usize) {
        if let Some(last) = self.sections.last_mut()
            && last.end == usize::MAX
        {
            last.end = at;
        }
    }

    fn head(&mut self, heading: &Heading<'a>) {
        if heading.level <= 2 && self.title.is_none() && self.sections.is_empty() {
            let title = heading.title.strip_prefix("Phase ").and_then(|rest| {
                let (number, title) = rest.split_once(':')?;
                let is_number = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
                is_number.then_some(title.trim())
            });
            self.title = Some(title.unwrap_or(heading.title));
        }
        if heading.level == 4 && heading.title.starts_with("[Q") && heading.title.contains("(OPEN")
        {
            self.questions += 1;
        }
    }

    /// A row of the ledger; its head says which column is which.
    fn row(&mut self, line: &Line<'a>, columns: &mut Vec<String>) {
        let Some(cells) = cells(line) else { return };
        if columns.is_empty() {
            columns.extend(cells.iter().map(|(_, text)| text.to_ascii_lowercase()));
            return;
        }
        if is_separator(&cells) {
            return;
        }
        let cell = |name: &str| {
            let column = columns.iter().position(|column| column == name)?;
            cells.get(column).cloned()
        };
        if let (Some((_, step)), Some(status)) = (cell("step"), cell("status")) {
            let title = cell("title").map(|(_, title)| title);
            self.ledger.push(Row { step, title, status, commit: cell("commit") });
        }
    }
}

impl<'a> Section<'a> {
    fn line(&mut self, line: &Line<'a>, kind: &mut Kind) {
        let text = line.text;
        if let Some(rest) = text.strip_prefix("**Depends on:**") {
            self.needs.extend(anchors_in(rest).map(|(place, value)| {
                let at = line.at + (text.len() - rest.len()) + place;
                Located { at, value }
            }));
        } else if let Some(marked) = kind_of_marker(text) {
            *kind = marked;
        } else if let Some(task) = task(line).filter(|_| lists_items(*kind)) {
            let is_done = matches!(task.mark, 'x' | 'X');
            match self.items.last_mut() {
                // What is nested belongs to the item above.
                Some(above) if task.indent > 0 => {
                    above.text.push_str("; ");
                    above.text.push_str(task.text);
                }
                _ => {
                    let text = format!("{}{}", prefix(*kind), task.text);
                    self.items.push(Boxed { text, is_done, tick: task.tick });
                }
            }
        }
    }
}

/// `### Step 3: Title {#anchor}`, with any number that begins with a digit.
fn step_heading(line: &str) -> Option<(Heading<'_>, &str, &str)> {
    let heading = heading(line)?;
    let rest = heading.title.strip_prefix("Step ")?.trim_start();
    let ends = |c: char| c == ':' || c.is_whitespace();
    let number = &rest[..rest.find(ends).unwrap_or(rest.len())];
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    if !(3..=5).contains(&heading.level) || !is_number {
        return None;
    }
    let title = rest[number.len()..].trim_start_matches(':').trim();
    Some((heading, number, title))
}

fn section<'a>(line: &Line<'a>) -> Option<Section<'a>> {
    let (heading, number, title) = step_heading(line.text)?;
    let named = || format!("step-{}", number.to_ascii_lowercase().replace('.', "-"));
    Some(Section {
        at: line.at,
        level: heading.level,
        number,
        title,
        anchor: heading.anchor.map_or_else(named, str::to_owned),
        needs: Vec::new(),
        items: Vec::new(),
        end: usize::MAX,
    })
}

/// Every `#name` of a line, with its place.
fn anchors_in(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.match_indices('#').filter_map(|(at, _)| {
        let name = &line[at + 1..];
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = &name[..name.find(|c| !fits(c)).unwrap_or(name.len())];
        (!name.is_empty()).then_some((at + 1, name))
    })
}

fn kind_of_marker(line: &str) -> Option<Kind> {
    let markers = [
        ("**Tasks:**", Kind::Task),
        ("**Tests:**", Kind::Test),
        ("**Checkpoint:**", Kind::Checkpoint),
        ("**Checkpoints:**", Kind::Checkpoint),
        ("**Artifacts:**", Kind::Artifacts),
    ];
    markers.iter().find(|(marker, _)| line.starts_with(marker)).map(|(_, kind)| *kind)
}

fn kind_of_heading(title: &str) -> Option<Kind> {
    let title = title.to_ascii_lowercase();
    match title.as_str() {
        _ if title.contains("checkpoint") => Some(Kind::Checkpoint),
        "tasks" => Some(Kind::Task),
        "tests" => Some(Kind::Test),
        "artifacts" => Some(Kind::Artifacts),
        "references" | "rollback" => Some(Kind::Other),
        _ => None,
    }
}

/// Boxes below other marks are plain text.
fn lists_items(kind: Kind) -> bool {
    !matches!(kind, Kind::Artifacts | Kind::Other)
}

fn prefix(kind: Kind) -> &'static str {
    match kind {
        Kind::Test => "test: ",
        Kind::Checkpoint => "checkpoint: ",
        Kind::Task | Kind::Artifacts | Kind::Other => "",
    }
}

/// Steps with their substeps. A summary is folded into its step; `Step 4.1` belongs to step 4, if there is
/// one.
fn nested(sections: Vec<Section<'_>>) -> Vec<(Section<'_>, Vec<Section<'_>>)> {
    let mut steps: Vec<(Section<'_>, Vec<Section<'_>>)> = Vec::new();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for mut section in sections {
        let whole = section.number.split('.').next().unwrap_or_default();
        let parent = last.get(whole).and_then(|place| steps.get_mut(*place));
        match parent {
            Some((step, _)) if section.number == whole && section.title == "Summary" => {
                step.items.append(&mut section.items);
                step.end = step.end.max(section.end);
            }
            Some((_, parts)) if section.number != whole => parts.push(section),
            _ => {
                last.insert(section.number, steps.len());
                steps.push((section, Vec::new()));
            }
        }
    }
    steps
}

fn add(
    plan: &mut Foreign,
    about: &Prologue<'_>,
    step: &Section<'_>,
    parts: &[Section<'_>],
    parents: &BTreeMap<String, StepId>,
    findings: &mut Findings,
) {
    let Some(id) = plan.step_of(&step.anchor).cloned() else { return };
    let title = if step.title.is_empty() { step.number } else { step.title };
    let mut draft = DraftStep::prompted(step.at, title, prompt(about, step, parts));
    for need in step.needs.iter().chain(parts.iter().flat_map(|part| &part.needs)) {
        let known = plan.step_of(need.value).or_else(|| parents.get(need.value));
        match known {
            // What a substep needs of its own step is the order of substeps.
            Some(known) if *known == id => {}
            Some(known) => draft.needs.push(Located { at: need.at, value: known.to_string() }),
            None => {
                let message = format!("no step has the anchor {}", shown(need.value));
                findings.add(need.at, message, "name the anchor of a step, such as #step-1");
            }
        }
    }
    let mut done = (Vec::new(), Vec::new());
    let listed = step.items.len() + parts.iter().map(|part| part.items.len()).sum::<usize>();
    let mut left = STEP_ITEMS_MAX;
    if listed > left {
        let message = format!("the step has {listed} items; the first {left} are followed");
        findings.warn(step.at, message, "make several steps of it");
    }
    draft.items = items(plan, &id, None, step, &mut left, &mut done.0);
    for part in parts.iter().take(STEP_SUBSTEPS_MAX + 1) {
        let substep = substep_id(&part.anchor, &draft.substeps);
        let name = Some(&substep);
        let before = done.0.len();
        let items = items(plan, &id, name, part, &mut left, &mut done.0);
        if !items.is_empty() && done.0.len() - before == items.len() {
            done.1.push(substep.clone());
        }
        let title = Some(label(part.title, part.number));
        draft.substeps.push(DraftSubstep { at: part.at, id: Some(substep), title, items });
    }
    let is_done = done.0.len() == listed && listed > 0;
    plan.add(&id, draft);
    if !done.0.is_empty() {
        let state = match is_done {
            true => FoundState::Completed { commit: None },
            false => FoundState::Pending,
        };
        let found = plan.found(&id, state);
        (found.items, found.substeps) = done;
    }
}

fn items(
    plan: &mut Foreign,
    id: &StepId,
    substep: Option<&piton_core::ids::SubstepId>,
    section: &Section<'_>,
    left: &mut usize,
    done: &mut Vec<ItemRef>,
) -> Vec<String> {
    let mut texts = Vec::new();
    for boxed in section.items.iter().take(*left) {
        texts.push(item(&boxed.text));
        let number = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        let item = ItemRef::new(substep.cloned(), number);
        plan.place(id, Part::Item(item.clone()), boxed.tick.clone(), Style::Tick);
        done.extend(boxed.is_done.then_some(item));
    }
    *left -= texts.len();
    texts
}

/// The section as it stands, below what the plan is about.
fn prompt(about: &Prologue<'_>, step: &Section<'_>, parts: &[Section<'_>]) -> String {
    let mut prompt = format!("Plan: {}\n", context_of(about.title));
    if let Some(purpose) = about.purpose {
        prompt.push_str(&format!("Purpose: {}\n", context_of(purpose)));
    }
    // With a summary behind them, the step's own text has its parts.
    let rest = parts.iter().filter(|part| part.at >= step.end);
    for section in std::iter::once(step).chain(rest) {
        let text = about.text[section.at..section.end.min(about.text.len())].trim_end();
        let text = unticked(text.trim_end_matches("---").trim_end(), Fences::Backticks);
        prompt.push_str(&format!("\n{text}\n"));
    }
    prompt
}

/// What the ledger says of the steps, by their anchors. It wins over ticks.
fn ledger(
    plan: &mut Foreign,
    rows: &[Row<'_>],
    sections: &[(Section<'_>, Vec<Section<'_>>)],
    findings: &mut Findings,
) {
    let mut titles: BTreeMap<&str, &str> = BTreeMap::new();
    for (step, _) in sections {
        titles.entry(step.title).or_insert(&step.anchor);
    }
    let known = plan.found.iter().enumerate();
    let mut found: BTreeMap<StepId, usize> =
        known.map(|(place, found)| (found.step.step.clone(), place)).collect();
    for row in rows {
        let name = row.step.trim_matches('`').trim_start_matches('#');
        let by_title = || plan.step_of(titles.get(row.title?)?);
        let known = plan.step_of(name).or_else(by_title).cloned();
        let (span, raw) = row.status.clone();
        let Some(id) = known else {
            let message =
                format!("the ledger names {}, and no step has that anchor", shown(row.step));
            findings.warn(span.start, message, "correct the row, or remove it");
            continue;
        };
        let (state, is_exact) = status(raw, row.commit.as_ref().map(|(_, text)| *text));
        if !is_exact {
            let read_as = match state {
                FoundState::Pending => "pending",
                FoundState::InProgress => "in progress",
                FoundState::Completed { .. } => "done",
                FoundState::Failed { .. } => "failed",
                FoundState::Skipped { .. } => "left out",
            };
            let message = format!("the status {} is read as {read_as}", shown(raw));
            findings.warn(span.start, message, "write pending, in progress or done");
        }
        plan.place(&id, Part::Whole, span, Style::Cell);
        if let Some((span, _)) = &row.commit {
            plan.place(&id, Part::Whole, span.clone(), Style::Commit);
        }
        match found.get(&id) {
            Some(place) => plan.found[*place].state = state,
            None if state != FoundState::Pending => {
                found.insert(id.clone(), plan.found.len());
                plan.found(&id, state);
            }
            None => {}
        }
    }
}

/// A status by its first word, and whether it is one of the format's own.
fn status(raw: &str, commit: Option<&str>) -> (FoundState, bool) {
    let text = raw.trim_matches(['*', '`', '_', ' ']).to_lowercase();
    let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let is_exact = matches!(text.as_str(), "pending" | "in progress" | "done");
    let hash = |text: &&str| text.len() >= 7 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let state = match word {
        "done" | "complete" | "completed" | "landed" | "shipped" => {
            let commit = commit.map(|text| text.trim_matches('`')).filter(hash);
            FoundState::Completed { commit: commit.map(str::to_owned) }
        }
        "in" | "partial" | "partially" | "started" | "active" | "wip" => FoundState::InProgress,
        "retired" | "closed" | "deferred" | "dropped" | "skipped" | "cancelled" | "superseded" => {
            FoundState::Skipped { reason: raw.to_owned() }
        }
        "blocked" | "failed" => FoundState::Failed { reason: raw.to_owned() },
        _ => FoundState::Pending,
    };
    (state, is_exact)
}

/// What the original tool counts: nothing but a step's heading ends a step, summaries are steps, and only
/// boxes in the first column are items.
pub(crate) fn compat_counts(text: &str) -> Counts {
    let mut counts = Counts::default();
    let mut kind = Kind::Task;
    for line in lines(text, Fences::Backticks).filter(|line| !line.is_code) {
        let line_text = line.text;
        if let Some((_, number, _)) = step_heading(line_text) {
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            match number.split_once('.') {
                None if is_number(number) => counts.steps += 1,
                Some((whole, part)) if is_number(whole) && is_number(part) => counts.substeps += 1,
                _ => continue,
            }
            kind = Kind::Task;
        } else if let Some(heading) = heading(line_text) {
            kind = kind_of_heading(heading.title).unwrap_or(kind);
        } else if counts.steps == 0 {
            continue;
        } else if let Some(rest) = line_text.strip_prefix("**Depends on:**") {
            counts.needs += anchors_in(rest).count();
        } else if let Some(marked) = kind_of_marker(line_text) {
            kind = marked;
        } else if lists_items(kind)
            && ["- [ ] ", "- [x] ", "- [X] "].iter().any(|boxed| line_text.starts_with(boxed))
        {
            counts.items += 1;
        }
    }
    counts
}
