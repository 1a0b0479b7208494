//! A plan that a planner step of a run has produced, as the rest of that run's plan: the planner's own steps
//! stay as they are, and what was produced follows them.

use crate::limits::PLAN_STEPS_MAX;
use crate::plan::{Need, Plan, PlanFrom, PlanStep, Work};

impl Plan {
    /// The planner whose file has yet to become the rest of the plan.
    pub fn planner(&self) -> Option<&PlanFrom> {
        self.plan_from.as_ref().filter(|from| from.before.is_none())
    }

    /// This plan with what its planner produced, or why they do not fit together.
    pub fn with_produced(&self, produced: &Plan) -> Result<Plan, String> {
        let Some(from) = self.planner() else {
            return Err("the plan has no planner, or what it produced already".to_owned());
        };
        let own = [
            ("inputs", !produced.inputs.is_empty()),
            ("setup", produced.setup.is_some()),
            ("copy", !produced.copy.is_empty()),
            ("link", !produced.link.is_empty()),
            ("plan_from", produced.plan_from.is_some()),
        ];
        if let Some((key, _)) = own.into_iter().find(|(_, given)| *given) {
            return Err(format!(
                "`{key}` belongs into the plan that is run, not into a produced one"
            ));
        }
        let mut plan = self.clone();
        for (id, group) in &produced.groups {
            let twice = plan.groups.insert(id.clone(), group.clone()).is_some();
            if twice || self.index_of_name(id.as_str()) {
                return Err(format!("`{id}` is a name of the plan that is run"));
            }
        }
        for (name, agent) in &produced.agents {
            if plan.agents.insert(name.clone(), agent.clone()).is_some_and(|known| known != *agent)
            {
                return Err(format!("agent `{name}` is defined otherwise by the plan that is run"));
            }
        }
        for (name, slots) in &produced.locks {
            if plan.locks.insert(name.clone(), *slots).is_some_and(|known| known != *slots) {
                return Err(format!("lock `{name}` has another number in the plan that is run"));
            }
        }
        for (id, of) in &produced.loops {
            if plan.loops.insert(id.clone(), of.clone()).is_some()
                || self.index_of_name(id.as_str())
            {
                return Err(format!("`{id}` is a name of the plan that is run"));
            }
        }
        let taken = |step: &&PlanStep| self.index_of_name(step.id.as_str());
        if let Some(step) = produced.steps.iter().find(taken) {
            return Err(format!("`{}` is a name of the plan that is run", step.id));
        }
        if self.steps.len() + produced.steps.len() > PLAN_STEPS_MAX {
            return Err(format!("with it the plan has more than {PLAN_STEPS_MAX} steps"));
        }
        let agent = self.index_of(&from.step).and_then(|planner| self.steps[planner].work.agent());
        let following = |step: &PlanStep| {
            let mut step = step.clone();
            step.needs.push(Need::Step(from.step.clone()));
            step.needs.sort_unstable();
            step.needs.dedup();
            // Another tool's file names nobody.
            if let (Work::Told(prompt), Some(agent)) = (&step.work, agent) {
                step.work = Work::Agent { agent: agent.clone(), prompt: prompt.clone() };
            }
            step
        };
        let steps = self.steps.iter().cloned().chain(produced.steps.iter().map(following));
        plan.steps = steps.collect();
        plan.plan_from = Some(PlanFrom { before: Some(self.hash()), ..from.clone() });
        Ok(plan)
    }

    /// Whether a step or a group has this name.
    fn index_of_name(&self, name: &str) -> bool {
        self.steps.iter().any(|step| step.id.as_str() == name)
            || self.groups.keys().any(|group| group.as_str() == name)
            || self.loops.keys().any(|of| of.as_str() == name)
    }
}
