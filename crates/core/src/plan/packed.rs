//! A plan as packed bytes. Its JSON leaves fields out, which packed bytes cannot: here every field is
//! listed once more without that, and the compiler compares the lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Agent, Group, Isolation, Need, OnInterrupt, Plan, PlanStep, PlanSubstep, Work};
use crate::ids::{AgentName, GroupId, LockName, StepId};
use crate::packing::as_json;

pub(crate) fn serialize<S: Serializer>(plan: &Arc<Plan>, to: S) -> Result<S::Ok, S::Error> {
    WholePlan::serialize(plan, to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Plan>, D::Error> {
    WholePlan::deserialize(from).map(Arc::new)
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Plan")]
struct WholePlan {
    name: String,
    base: Option<String>,
    isolation: Isolation,
    jobs: Option<u32>,
    setup: Option<String>,
    copy: Vec<String>,
    link: Vec<String>,
    inputs: BTreeMap<String, String>,
    groups: BTreeMap<GroupId, Group>,
    #[serde(with = "as_json")]
    agents: BTreeMap<AgentName, Agent>,
    locks: BTreeMap<LockName, u32>,
    #[serde(with = "steps")]
    steps: Vec<PlanStep>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "PlanStep")]
struct WholeStep {
    id: StepId,
    title: String,
    group: Option<GroupId>,
    needs: Vec<Need>,
    work: Work,
    verify: Option<String>,
    timeout: Option<Duration>,
    retries: u32,
    env: BTreeMap<String, String>,
    items: Vec<String>,
    #[serde(with = "as_json")]
    substeps: Vec<PlanSubstep>,
    locks: BTreeSet<LockName>,
    on_interrupt: Option<OnInterrupt>,
}

mod steps {
    use super::*;

    #[derive(Serialize)]
    struct Lent<'a>(#[serde(with = "WholeStep")] &'a PlanStep);

    #[derive(Deserialize)]
    struct Own(#[serde(with = "WholeStep")] PlanStep);

    pub(super) fn serialize<S: Serializer>(steps: &[PlanStep], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(steps.iter().map(Lent))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PlanStep>, D::Error> {
        let steps = Vec::<Own>::deserialize(from)?;
        Ok(steps.into_iter().map(|Own(step)| step).collect())
    }
}
