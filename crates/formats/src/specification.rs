//! The `index.md` of a specification workflow: its phases as steps, found as far as the loop status says,
//! with the gap queue as the checklist of the clarifying step. Tables are read by the names of their
//! columns, because these vary.

use std::collections::BTreeMap;

use piton_core::event::FoundState;
use piton_core::ids::ItemRef;
use piton_core::limits::STEP_ITEMS_MAX;
use piton_core::plan::shown;
use piton_core::time::timestamp;

use crate::draft::{DraftStep, Foreign, Part, Style, item};
use crate::lines::{Fences, Heading, cells, heading, is_separator, lines, stem};
use crate::progress::Progress;
use crate::source::Findings;
use crate::{Hint, Located};

/// The phases, in their order, with what is to be done.
const PHASES: [(&str, &str, &str); 9] = [
    ("scaffold", "A1 Scaffold", "Create the folder and the files of the specification."),
    ("write-spec", "A2 Write the specification", "Write the specification from the description."),
    ("validate", "A3 Validate", "Check the specification and list what is missing."),
    ("checklist", "A4 Checklist", "Build the checklist of the specification."),
    ("classify", "A5 Classify gaps", "Give every gap a priority: Critical, Important or Minor."),
    (
        "clarify",
        "B Clarify gaps",
        "Close every Critical and Important gap; ask at most three questions at a time.",
    ),
    ("traceability", "C1 Traceability", "Trace every requirement to its checks and gaps."),
    ("report", "C2 Report", "Write the completion report, with what stays deferred."),
    ("final-state", "C3 Final state", "Bring index.md to its final state."),
];
const CLARIFY: usize = 5;
const LOOP_STATUS: &str = "Loop Status";
const LAST_ACTIVITY: &str = "Last Activity";

/// A table's row: cells by the lower-case name of their column, with their places.
type Row<'a> = BTreeMap<String, (std::ops::Range<usize>, &'a str)>;

/// Whether a file is one, by its headings.
pub(crate) fn is_index(text: &str) -> bool {
    let headings = lines(text, Fences::All).filter(|line| !line.is_code);
    let known = ["Priority Loop State", "Gap Priority Queue", "Document Availability Matrix"];
    let titles = headings.filter_map(|line| heading(line.text));
    titles.filter(|heading| heading.level == 2 && known.contains(&heading.title)).count() >= 2
}

pub(crate) fn read(text: &str, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    let tables = tables(text);
    let field = |section: &str, name: &str| -> Option<(std::ops::Range<usize>, &str)> {
        let rows = tables.get(section)?.iter();
        let row = rows.clone().find(|row| {
            row.get("field")
                .is_some_and(|(_, text)| text.trim_matches('*').eq_ignore_ascii_case(name))
        })?;
        row.get("value").cloned()
    };
    let title = field("Feature Metadata", "ID").map(|(_, text)| text.trim_matches('`'));
    let mut plan = Foreign::named(title.unwrap_or_else(|| stem(hint.path)));
    let description = field("Feature Metadata", "Original Description").map(|(_, text)| text);
    let mut before: Option<String> = None;
    for (name, title, todo) in PHASES {
        let id = plan.name(name);
        let about = description.map_or(String::new(), |text| format!("\n\nThe feature: {text}"));
        let prompt = format!("{todo}{about}\n\nThe state of the work is in index.md.");
        let mut step = DraftStep::prompted(0, title, prompt);
        step.needs = before.into_iter().map(|value| Located { at: 0, value }).collect();
        plan.add(&id, step);
        before = Some(id.to_string());
    }
    gaps(&mut plan, &tables, findings);
    let status = field("Priority Loop State", LOOP_STATUS);
    let iteration = field("Priority Loop State", "Current Iteration");
    progress(&mut plan, status, number(&iteration, 10, findings), findings);
    for name in [LOOP_STATUS, LAST_ACTIVITY] {
        if let Some((span, _)) = field("Priority Loop State", name) {
            plan.place_overall(span, Style::Field(name));
        }
    }
    let stale = field("Priority Loop State", "Stale Count");
    number(&stale, 3, findings);
    let mut asked = Vec::new();
    for section in ["Unified Pending Questions", "Pending Questions"] {
        for row in tables.get(section).into_iter().flatten() {
            let Some((_, status)) = row.get("status") else { continue };
            if matches!(status.trim_matches('`'), "pending" | "awaiting_answer") {
                plan.questions += 1;
                let text = |name: &str| row.get(name).map_or("", |(_, text)| *text);
                let options = match text("options") {
                    "" | "-" | "—" => String::new(),
                    options => format!(" ({options})"),
                };
                asked.push(format!("{}: {}{options}", text("id"), text("question")));
            }
        }
    }
    let clarify = plan.step_of(PHASES[CLARIFY].0).cloned();
    let is_begun = iteration.is_some() || stale.is_some();
    if let Some(found) =
        clarify.filter(|_| is_begun || !asked.is_empty()).and_then(|step| plan.open_found(&step))
    {
        let count = |name: &str, cell: &Option<(std::ops::Range<usize>, &str)>| {
            cell.as_ref().map(|(_, text)| format!("{name} {text}"))
        };
        let counts = [count("iteration", &iteration), count("stale count", &stale)];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        found.notes.extend((!counts.is_empty()).then(|| counts.join(", ")));
        found.question = (!asked.is_empty()).then(|| asked.join("\n"));
    }
    plan
}

/// The rows of every table, by the heading above.
fn tables(text: &str) -> BTreeMap<&str, Vec<Row<'_>>> {
    let mut tables: BTreeMap<&str, Vec<Row<'_>>> = BTreeMap::new();
    let (mut section, mut columns) = ("", Vec::new());
    for line in lines(text, Fences::All).filter(|line| !line.is_code) {
        if let Some(Heading { level, title, .. }) = heading(line.text) {
            if level == 2 {
                section = title;
            }
            columns.clear();
            continue;
        }
        let Some(cells) = cells(&line) else {
            columns.clear();
            continue;
        };
        if columns.is_empty() {
            columns = cells.iter().map(|(_, text)| text.trim_matches('*').to_lowercase()).collect();
        } else if !is_separator(&cells) {
            let row = columns.iter().cloned().zip(cells).collect();
            tables.entry(section).or_default().push(row);
        }
    }
    tables
}

/// The gaps that must be closed, as the items of the clarifying step.
fn gaps(plan: &mut Foreign, tables: &BTreeMap<&str, Vec<Row<'_>>>, findings: &mut Findings) {
    let Some(id) = plan.step_of(PHASES[CLARIFY].0).cloned() else { return };
    let (mut items, mut done) = (Vec::new(), Vec::new());
    for row in tables.get("Gap Priority Queue").into_iter().flatten() {
        let text = |name: &str| row.get(name).map_or("", |(_, text)| text.trim_matches(['*', '`']));
        let (priority, gap) = (text("priority").to_lowercase(), text("gap id"));
        if gap.is_empty() || gap == "-" || priority == "minor" {
            continue;
        }
        if items.len() == STEP_ITEMS_MAX {
            let at = row.values().next().map_or(0, |(span, _)| span.start);
            let message =
                format!("more than {STEP_ITEMS_MAX} gaps: this and the next are not followed");
            findings.warn(at, message, "resolve some of them first");
            break;
        }
        items.push(item(&format!("{gap} ({priority}): {}", text("question"))));
        let number = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let reference = ItemRef::new(None, number);
        if let Some((span, _)) = row.get("status") {
            plan.place(&id, Part::Item(reference.clone()), span.clone(), Style::Cell);
        }
        if matches!(text("status"), "resolved" | "deferred" | "known_gap") {
            done.push(reference);
        }
    }
    if let Some(step) = plan.draft.steps.get_mut(CLARIFY) {
        step.items = items;
    }
    if !done.is_empty() {
        plan.found(&id, FoundState::Pending).items = done;
    }
}

/// How far the loop status says that the workflow is.
fn progress(
    plan: &mut Foreign,
    status: Option<(std::ops::Range<usize>, &str)>,
    iteration: u32,
    findings: &mut Findings,
) {
    let Some((span, raw)) = status else { return };
    let word = raw.trim_matches(['`', '*']).to_lowercase();
    // The phase that is at work: those before it are done.
    let at_work = match word.as_str() {
        "not_started" | "" => return,
        "scaffolding" => 0,
        "spec_writing" => 1,
        "validating" if iteration <= 1 => 2,
        "validating" | "clarifying" => CLARIFY,
        "completed" | "terminated" => PHASES.len(),
        _ => {
            let message = format!("the loop status {} is not known", shown(raw));
            return findings.warn(span.start, message, "nothing counts as done");
        }
    };
    for (index, (name, ..)) in PHASES.iter().enumerate().take(at_work + 1) {
        let Some(id) = plan.step_of(name).cloned() else { continue };
        let state = match index < at_work {
            true => FoundState::Completed { commit: None },
            false => FoundState::InProgress,
        };
        match plan.found.iter_mut().find(|found| found.step.step == id) {
            Some(found) => found.state = state,
            None => {
                plan.found(&id, state);
            }
        }
    }
}

/// What a field of the loop's state says from now on, once anything was begun.
pub(crate) fn field(name: &str, progress: &[Progress]) -> Option<String> {
    if progress.iter().all(|step| step.state == FoundState::Pending) {
        return None;
    }
    if name == LAST_ACTIVITY {
        return progress.iter().filter_map(|step| step.since).max().map(timestamp);
    }
    let first_open = progress.iter().position(|step| !step.state.is_done());
    Some(match first_open {
        Some(0) => "scaffolding".to_owned(),
        Some(1) => "spec_writing".to_owned(),
        Some(2..CLARIFY) => "validating".to_owned(),
        Some(_) => "clarifying".to_owned(),
        None => "completed".to_owned(),
    })
}

/// The first number of `n / max`.
fn number(cell: &Option<(std::ops::Range<usize>, &str)>, max: u32, findings: &mut Findings) -> u32 {
    let Some((span, text)) = cell else { return 0 };
    let digits: String =
        text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(number) if number <= max => number,
        _ => {
            let message = format!("{} is not a number from 0 to {max}", shown(text));
            findings.warn(span.start, message, format!("write it as 1 / {max}"));
            0
        }
    }
}
