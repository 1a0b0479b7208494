//! A plan: the recipe of a run. Immutable once read; its hash is over the normalised content, so
//! comments and layout do not count. Files are read elsewhere; this one owns what a plan means.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::ids::{
    AgentName, GroupId, Hash, KindName, LockName, LoopId, OutputName, StepId, SubstepId,
};
use crate::output::Bound;
use crate::packing::PackedList;

pub use diff::differences;
pub use loops::PlanLoop;
pub use shown::shown;
pub use suggest::nearest;
pub use trust::{agent_of, executables, trust_hash};

mod diff;
mod loops;
pub(crate) mod packed;
mod produced;
mod shown;
mod suggest;
mod trust;

/// The recipe: steps in order, with what they need and how they are checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    /// The branch, tag or commit the run starts from; the current HEAD when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    pub isolation: Isolation,
    /// How many steps are attempted at once, where each has a worktree of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u32>,
    #[serde(default, skip_serializing_if = "OnFailure::is_default")]
    pub on_failure: OnFailure,
    /// Given to `sh -c` in every worktree that is made, before the first attempt there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// Ignored files of the user's checkout that every worktree gets a copy of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<String>,
    /// Ignored files and folders of the user's checkout that every worktree gets a link to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link: Vec<String>,
    /// Named values with their defaults; `--set` replaces them for a run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupId, Group>,
    /// Agents that the plan itself defines; they win over those of the configuration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<AgentName, Agent>,
    /// Named resources with the number of claims that may hold each at a time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub locks: BTreeMap<LockName, u32>,
    /// Chains of steps that are repeated.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loops: BTreeMap<LoopId, PlanLoop>,
    pub steps: PackedList<PlanStep>,
    /// A step whose file becomes the rest of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_from: Option<PlanFrom>,
    /// What it takes to read its file again, where that is another tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PlanSource>,
}

/// The planner of a plan, and what it produces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFrom {
    pub step: StepId,
    /// From the repository's root, in any format that plans are read from.
    pub file: String,
    /// The hash of the plan before what was produced became part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Hash>,
}

/// How a plan of another tool was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSource {
    pub format: PlanFormat,
    /// Who does the steps, since the file names nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentName>,
    /// Whether progress is written into the file.
    pub write_back: bool,
}

/// The formats that plans are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanFormat {
    /// piton's own, in three syntaxes.
    Toml,
    Yaml,
    Json,
    /// A Markdown task list.
    Markdown,
    /// Markdown with anchored steps.
    Tug,
    /// `implementation_plan.json`, and the `feature_list.json` before it.
    AutoClaude,
    /// An epic of phases and sprints.
    Epic,
    /// A YAML workflow of prodigy or mmm.
    Prodigy,
    /// The `index.md` of a specification.
    Specification,
}

impl PlanFormat {
    pub const ALL: [PlanFormat; 9] = [
        PlanFormat::Toml,
        PlanFormat::Yaml,
        PlanFormat::Json,
        PlanFormat::Markdown,
        PlanFormat::Tug,
        PlanFormat::AutoClaude,
        PlanFormat::Epic,
        PlanFormat::Prodigy,
        PlanFormat::Specification,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            PlanFormat::Toml => "toml",
            PlanFormat::Yaml => "yaml",
            PlanFormat::Json => "json",
            PlanFormat::Markdown => "markdown",
            PlanFormat::Tug => "tug",
            PlanFormat::AutoClaude => "auto-claude",
            PlanFormat::Epic => "epic",
            PlanFormat::Prodigy => "prodigy",
            PlanFormat::Specification => "specification",
        }
    }

    /// Whether it is piton's own.
    pub fn is_native(self) -> bool {
        matches!(self, PlanFormat::Toml | PlanFormat::Yaml | PlanFormat::Json)
    }
}

/// Where steps work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// One step at a time, normally in one worktree.
    #[default]
    Run,
    /// A worktree for each step; as many steps at a time as the plan has jobs.
    Step,
}

/// What a step that has failed for good means for the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Every step that does not need it goes on.
    #[default]
    Continue,
    /// Nothing more is started.
    Stop,
}

impl OnFailure {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == OnFailure::default()
    }

    /// As a plan spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::Continue => "continue",
            OnFailure::Stop => "stop",
        }
    }
}

/// A titled set of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub title: String,
}

/// The kind of steps whose work is what they publish.
pub const REVIEW: &str = "review";

/// The unit that is claimed, attempted and verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanStep {
    pub id: StepId,
    pub title: String,
    /// What it is for, where the plan has a word for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<KindName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    pub work: Work,
    /// Given to `sh -c` in the worktree, on the step's commit; a zero exit verifies the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// Given to `sh -c` in the worktree before anything is started; where it passes, the step is found done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_if: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "millis")]
    pub timeout: Option<Duration>,
    /// How often a *failed* attempt is followed by another; interruptions do not count.
    pub retries: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its checklist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub substeps: Vec<PlanSubstep>,
    /// Locks that a claim on it holds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub locks: BTreeSet<LockName>,
    /// What it publishes before it is done.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub outputs: BTreeSet<OutputName>,
    /// What some of them must be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub require: BTreeMap<OutputName, Bound>,
    /// How it goes on after an interruption at work; by what was done where the plan does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_interrupt: Option<OnInterrupt>,
    /// What becomes of it when its agent has met a limit.
    #[serde(default, skip_serializing_if = "OnLimit::is_default")]
    pub on_limit: OnLimit,
}

impl PlanStep {
    /// What it is for: the plan's own word, else what does it.
    pub fn kind(&self) -> &str {
        match (&self.kind, &self.work) {
            (Some(kind), _) => kind.as_str(),
            (None, Work::Run(_)) => "command",
            (None, Work::Agent { .. }) => "agent",
            (None, Work::ByHand | Work::Told(_)) => "by_hand",
        }
    }

    /// Whether doing both is the same: how one goes on after an interruption or a limit is no part of what is
    /// done.
    pub(crate) fn same_work(&self, other: &PlanStep) -> bool {
        let PlanStep { on_interrupt, on_limit, .. } = *other;
        PlanStep { on_interrupt, on_limit, ..self.clone() } == *other
    }
}

/// How a step goes on whose command or agent was cut off at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    /// In the tree as it was left.
    Continue,
    /// From the step's base, once what is there is kept.
    Restart,
    /// A person says which of the two.
    Ask,
}

impl OnInterrupt {
    /// As a plan spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            OnInterrupt::Continue => "continue",
            OnInterrupt::Restart => "restart",
            OnInterrupt::Ask => "ask",
        }
    }
}

/// What becomes of a step whose agent has met a usage limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLimit {
    /// The worker waits until the limit is over.
    #[default]
    Wait,
    /// The worker does not wait for it: whoever resumes the run later goes on.
    Stop,
    /// A person says whether it waits.
    Ask,
}

impl OnLimit {
    pub const ALL: &[(&'static str, OnLimit)] =
        &[("wait", OnLimit::Wait), ("stop", OnLimit::Stop), ("ask", OnLimit::Ask)];

    /// As a plan spells it.
    pub fn as_str(self) -> &'static str {
        OnLimit::ALL.iter().find(|(_, way)| *way == self).map_or("", |(word, _)| word)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == OnLimit::default()
    }
}

/// An ordered part of a step: completed one by one, never claimed on its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSubstep {
    pub id: SubstepId,
    pub title: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<String>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Nothing that piton could start: it is claimed by agents and people themselves.
    ByHand,
    /// A plain command for `sh -c`.
    Run(String),
    /// A prompt for an agent.
    Agent { agent: AgentName, prompt: String },
    /// A prompt for whoever claims the step: piton could start nothing.
    Told(String),
}

impl Work {
    /// What whoever works on it is told.
    pub fn prompt(&self) -> Option<&str> {
        match self {
            Work::Told(prompt) | Work::Agent { prompt, .. } => Some(prompt),
            Work::ByHand | Work::Run(_) => None,
        }
    }

    /// The agent that gets the prompt.
    pub fn agent(&self) -> Option<&AgentName> {
        match self {
            Work::Agent { agent, .. } => Some(agent),
            Work::ByHand | Work::Run(_) | Work::Told(_) => None,
        }
    }

    /// Whether piton has nothing to start.
    pub fn is_by_hand(&self) -> bool {
        matches!(self, Work::ByHand | Work::Told(_))
    }
}

/// An edge of the graph. One on a step or group is met by `Completed` alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    Step(StepId),
    /// All steps of the group.
    Group(GroupId),
    /// The loop is over.
    Loop(LoopId),
    /// What the step publishes: data, not code, and perhaps long before the step is done.
    Output(StepId, OutputName),
}

impl Need {
    /// The step that must get on before it is met; a group has several.
    pub fn step(&self) -> Option<&StepId> {
        match self {
            Need::Step(id) | Need::Output(id, _) => Some(id),
            Need::Group(_) | Need::Loop(_) => None,
        }
    }
}

/// As a plan spells it.
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Step(id) => id.fmt(f),
            Need::Group(id) => id.fmt(f),
            Need::Loop(id) => id.fmt(f),
            Need::Output(id, name) => write!(f, "{id}:{name}"),
        }
    }
}

impl Plan {
    /// The normalised content, as it is kept and hashed.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a plan has only string keys and finite values")
    }

    /// Reads back what [`Plan::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    pub fn hash(&self) -> Hash {
        Hash::of(&self.to_bytes())
    }

    /// The same plan with its steps for this agent: a plan of another tool names nobody.
    pub fn assigned(mut self, agent: &AgentName) -> Plan {
        let Some(source) = &mut self.source else { return self };
        source.agent = Some(agent.clone());
        let assign = |step: &PlanStep| {
            let work = match &step.work {
                Work::Told(prompt) | Work::Agent { prompt, .. } => {
                    Work::Agent { agent: agent.clone(), prompt: prompt.clone() }
                }
                other => other.clone(),
            };
            PlanStep { work, ..step.clone() }
        };
        self.steps = self.steps.iter().map(assign).collect();
        self
    }

    /// How many attempts piton starts at once unless it is told otherwise.
    pub fn jobs(&self) -> u32 {
        match self.isolation {
            Isolation::Run => 1,
            Isolation::Step => self.jobs.unwrap_or(1),
        }
    }

    pub fn index_of(&self, step: &StepId) -> Option<usize> {
        self.steps.iter().position(|candidate| candidate.id == *step)
    }

    /// The indices of the steps that must be completed before this one, groups and loops spelled out. For
    /// many steps a graph is much faster.
    pub fn needs_of(&self, index: usize) -> Vec<usize> {
        let step = &self.steps[index];
        let mut all: Vec<usize> =
            step.needs.iter().flat_map(|need| self.needed(&step.id, need)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => {
                to.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
            }
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
