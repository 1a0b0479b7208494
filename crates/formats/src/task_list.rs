//! A plain Markdown task list: every entry with a box is a step, entries nested in it are its substeps, and
//! what is nested in those are items. The heading above is the group.

use piton_core::event::FoundState;
use piton_core::ids::{ItemRef, SubstepId};
use piton_core::limits::STEP_SUBSTEPS_MAX;

use crate::Hint;
use crate::draft::{DraftStep, DraftSubstep, Foreign, Part, Style, context_of, item, label, slug};
use crate::lines::{Fences, Line, Task, heading, lines, stem, task, unticked, width};
use crate::source::Findings;

/// A top-level entry: its line, and where what belongs to it ends.
struct Entry<'a> {
    at: usize,
    task: Task<'a>,
    group: Option<String>,
    /// Entries nested in it.
    parts: Vec<(usize, Task<'a>)>,
    /// Its text, nested lines included.
    text: String,
}

pub(crate) fn read(text: &str, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    let (name, entries) = entries(text);
    let mut plan = Foreign::named(&name.unwrap_or_else(|| stem(hint.path).to_owned()));
    for entry in entries {
        if plan.is_full() {
            break;
        }
        step(&mut plan, entry, findings);
    }
    plan
}

/// The plan's name and its entries.
fn entries(text: &str) -> (Option<String>, Vec<Entry<'_>>) {
    let (mut name, mut group) = (None, None);
    let mut entries: Vec<Entry<'_>> = Vec::new();
    // Whether the lines that follow belong to the last entry.
    let mut open = false;
    for line in lines(text, Fences::All) {
        if let Some(heading) = heading(line.text).filter(|_| !line.is_code) {
            open = false;
            match heading.level {
                1 if name.is_none() => name = Some(heading.title.to_owned()),
                _ => group = Some(heading.title.to_owned()),
            }
            continue;
        }
        let found = task(&line).filter(|_| !line.is_code);
        match (found, entries.last_mut()) {
            (Some(task), Some(last)) if open && task.indent > last.task.indent => {
                last.text.push_str(line.text);
                last.text.push('\n');
                last.parts.push((line.at, task));
            }
            (Some(task), _) => {
                let (at, group) = (line.at, group.clone());
                entries.push(Entry { at, task, group, parts: Vec::new(), text: String::new() });
                open = true;
            }
            (None, Some(last)) if open && belongs(&line, last.task.indent) => {
                last.text.push_str(line.text);
                last.text.push('\n');
            }
            (None, _) => open = false,
        }
    }
    (name, entries)
}

/// Blank, in code that belongs to it, or indented below the entry.
fn belongs(line: &Line<'_>, indent: usize) -> bool {
    let body = line.text.trim_start();
    let is_edge = ["```", "~~~", "<!--"].iter().any(|edge| body.starts_with(edge));
    (line.is_code && !is_edge)
        || body.is_empty()
        || width(&line.text[..line.text.len() - body.len()]) > indent
}

fn step(plan: &mut Foreign, entry: Entry<'_>, findings: &mut Findings) {
    let Entry { at, task, group, parts, text } = entry;
    if task.text.is_empty() {
        return findings.add(at, "the entry is empty", "say what is to be done, or remove it");
    }
    let id = plan.name(task.text);
    let group = group.map(|title| plan.group(&format!("group-{title}"), &title));
    let context = group.as_ref().map(|group| plan.draft.groups[group].title.clone());
    let mut prompt = task.text.to_owned();
    if !text.trim().is_empty() {
        prompt.push_str("\n\n");
        prompt.push_str(unticked(&text, Fences::All).trim_end());
    }
    if let Some(context) = context {
        prompt.push_str(&format!("\n\nThis is a part of: {}", context_of(&context)));
    }
    let mut step = DraftStep::prompted(at, task.text, prompt);
    step.group = group.map(|value| crate::Located { at, value });
    let (mut substeps, mut done_substeps, mut done_items) = (Vec::new(), Vec::new(), Vec::new());
    let first = parts.iter().map(|(_, part)| part.indent).min().unwrap_or(0);
    let mut open = 0;
    for (at, part) in parts {
        let is_done = matches!(part.mark, 'x' | 'X');
        open += usize::from(!is_done);
        let is_full = substeps.len() > STEP_SUBSTEPS_MAX;
        match substeps.last_mut() {
            Some(last) if part.indent > first => {
                let last: &mut DraftSubstep = last;
                last.items.push(item(part.text));
                let number = u32::try_from(last.items.len()).unwrap_or(u32::MAX);
                let item = ItemRef::new(last.id.clone(), number);
                plan.place(&id, Part::Item(item.clone()), part.tick, Style::Tick);
                done_items.extend(is_done.then_some(item));
            }
            // One more than may be is a mistake already.
            _ if is_full => {}
            _ => {
                let substep = substep_id(part.text, &substeps);
                plan.place(&id, Part::Substep(substep.clone()), part.tick, Style::Tick);
                done_substeps.extend(is_done.then(|| substep.clone()));
                let title = Some(label(part.text, substep.as_str()));
                substeps.push(DraftSubstep { at, id: Some(substep), title, items: Vec::new() });
            }
        }
    }
    step.substeps = substeps;
    plan.add(&id, step);
    plan.place(&id, Part::Whole, task.tick.clone(), Style::Tick);
    let state = state(&task, findings);
    if matches!(state, FoundState::Completed { .. }) && open > 0 {
        let message = format!("the entry is ticked, but {open} of its parts are not");
        findings.warn(
            task.tick.start,
            message,
            "it counts as done; untick it to have it done again",
        );
    }
    let is_known = state != FoundState::Pending;
    if is_known || !done_substeps.is_empty() || !done_items.is_empty() {
        let found = plan.found(&id, state);
        (found.substeps, found.items) = (done_substeps, done_items);
    }
}

/// A name for a substep that the step does not have yet.
pub(crate) fn substep_id(text: &str, others: &[DraftSubstep]) -> SubstepId {
    let stem = slug(text, "part");
    let is_free = |name: &str| {
        others.iter().all(|other| other.id.as_ref().is_none_or(|id| id.as_str() != name))
    };
    let names = std::iter::once(stem.clone()).chain((2..).map(|n| format!("{stem}-{n}")));
    let name = names.into_iter().find(|name| is_free(name)).unwrap_or(stem);
    SubstepId::new(name).expect("a slug is a name")
}

/// What a box says.
fn state(task: &Task<'_>, findings: &mut Findings) -> FoundState {
    match task.mark {
        ' ' => FoundState::Pending,
        'x' | 'X' => FoundState::Completed { commit: None },
        '/' | '~' | '>' => FoundState::InProgress,
        '-' => FoundState::Skipped { reason: "crossed out in the plan file".to_owned() },
        other => {
            let message = format!("`[{other}]` is not known: it counts as open");
            findings.warn(
                task.tick.start,
                message,
                "write [ ], [x], [/] (at work) or [-] (left out)",
            );
            FoundState::Pending
        }
    }
}
