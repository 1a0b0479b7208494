//! Do the loops of a draft fit its steps: each step known, in one loop, once, and started by piton.

use std::collections::BTreeMap;

use piton_core::ids::{LoopId, StepId};
use piton_core::plan::{Need, PlanLoop, Work, shown};

use super::{Names, suggestion};
use crate::draft::{Draft, DraftLoop, DraftStep};
use crate::source::Findings;

/// The loop that each step is in.
pub(super) type Members = BTreeMap<StepId, LoopId>;

/// Finds what is wrong with the loops; answers with who is in which.
pub(super) fn members(names: &mut Names<'_>, draft: &Draft, findings: &mut Findings) -> Members {
    let mut members = Members::new();
    for (id, of) in &draft.loops {
        for step in &of.steps {
            let (at, name) = (step.at, step.value.as_str());
            let Some(known) = names.steps.get(name) else {
                let all = names.steps.keys().copied();
                let meant = suggestion(&mut names.suggestions_left, name, all);
                let hint = meant.unwrap_or_else(|| "name a step of this plan".to_owned());
                findings.add(at, format!("unknown step {} in loop `{id}`", shown(name)), hint);
                continue;
            };
            if matches!(known.work, Some(Work::ByHand | Work::Told(_))) {
                let message = format!("nothing is started for `{name}`: it cannot be in a loop");
                findings.add(at, message, "give it a `run`, or a `prompt` with an agent");
            }
            if known.skip_if.is_some() {
                let message = format!("`{name}` is in a loop, where `skip_if` has no meaning");
                findings.add(at, message, "remove `skip_if`; `until` ends the loop");
            }
            let Some(step) = known.id.clone() else { continue };
            match members.insert(step, id.clone()) {
                Some(other) if other == *id => {
                    let message = format!("loop `{id}` has step `{name}` twice");
                    findings.add(at, message, "remove one of them, or make two steps");
                }
                Some(other) => {
                    let message = format!("step `{name}` is in two loops, `{other}` and `{id}`");
                    findings.add(at, message, "remove it from one of them");
                }
                None => {}
            }
        }
    }
    for step in &draft.steps {
        find_iteration_name(step, &members, findings);
    }
    members
}

/// Branches, refs and folders of an iteration are named after it.
fn find_iteration_name(step: &DraftStep, members: &Members, findings: &mut Findings) {
    let Some(id) = &step.id else { return };
    let Some((of, number)) = id.as_str().rsplit_once('-') else { return };
    let is_number = number.parse::<u32>().is_ok();
    if is_number && StepId::new(of).is_ok_and(|of| members.contains_key(&of)) {
        let message = format!("`{id}` is also the name of an iteration of `{of}`");
        findings.add(step.at, message, "give this step another id");
    }
}

/// Each step of a chain needs the one before it.
pub(super) fn add_chains(draft: &Draft, needs: &mut [Vec<Need>]) {
    for of in draft.loops.values() {
        for pair in of.steps.windows(2) {
            let is_it = |name: &str, step: &DraftStep| {
                step.id.as_ref().is_some_and(|id| id.as_str() == name)
            };
            let before = StepId::new(pair[0].value.as_str()).ok();
            let place = draft.steps.iter().position(|step| is_it(&pair[1].value, step));
            let is_chain = pair[0].value != pair[1].value;
            if let (Some(before), Some(place), true) = (before, place, is_chain) {
                needs[place].push(Need::Step(before));
                needs[place].sort_unstable();
                needs[place].dedup();
            }
        }
    }
}

impl DraftLoop {
    pub(super) fn finish(self) -> Option<PlanLoop> {
        let steps = self.steps.into_iter().map(|step| StepId::new(step.value).ok());
        Some(PlanLoop {
            steps: steps.collect::<Option<_>>()?,
            max: self.max?,
            until: self.until,
            stale_limit: self.stale_limit,
            until_items: self.until_items,
        })
    }
}
