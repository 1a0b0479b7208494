//! piton's own format, in whichever syntax: walks the tables of a plan file and makes a draft of it: every value read and checked alone.
//! Whether the parts fit together is the next question (`check`).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::fmt::friendly::SpanParser;

use crate::draft::{Draft, DraftStep};
use crate::fields::{Fields, Keys, name_of};
use crate::value::{Located, Value};
use piton_core::agent::{Agent, Dialect, PromptBy, built_in};
use piton_core::ids::{AgentName, BadName, GroupId, LockName, StepId};
use piton_core::limits::{
    JOBS_MAX, LOCK_SLOTS_MAX, PLAN_NAME_MAX, PLAN_STEPS_MAX, RETRIES_MAX, TIMEOUT_MAX,
};
use piton_core::plan::{Group, Isolation, OnFailure, OnInterrupt, OnLimit, Work, shown};

mod checklist;
mod interruption;
mod loops;
mod outputs;

#[cfg(test)]
mod tests;

/// What steps have that do not say otherwise.
struct Defaults {
    agent: DefaultAgent,
    on_interrupt: Option<OnInterrupt>,
    on_limit: OnLimit,
}

impl Defaults {
    /// Of a plan that says nothing else.
    fn of(agent: DefaultAgent) -> Defaults {
        Defaults { agent, on_interrupt: None, on_limit: OnLimit::default() }
    }
}

/// The agent of steps that name none.
enum DefaultAgent {
    None,
    /// Written, but not a name: a finding says so already.
    Bad,
    Named(AgentName),
}

/// `$schema` is for editors.
const FILE: Keys = Keys {
    known: &["$schema", "plan", "inputs", "group", "agent", "locks", "loop", "step"],
    later: LATER,
};
const PLAN: Keys = Keys {
    known: &[
        "name",
        "base",
        "agent",
        "isolation",
        "jobs",
        "setup",
        "copy",
        "link",
        "on_interrupt",
        "on_failure",
        "plan_from",
        "on_limit",
    ],
    later: LATER,
};
const PLAN_FROM: Keys = Keys { known: &["step", "file"], later: &[] };
const GROUP: Keys = Keys { known: &["title"], later: &[] };
const AGENT: Keys = Keys {
    known: &["command", "start", "resume", "fork", "prompt", "dialect", "env", "account"],
    later: &[],
};
const STEP: Keys = Keys {
    known: &[
        "id",
        "title",
        "kind",
        "group",
        "needs",
        "run",
        "prompt",
        "agent",
        "verify",
        "skip_if",
        "timeout",
        "retries",
        "env",
        "items",
        "substeps",
        "locks",
        "outputs",
        "require",
        "on_interrupt",
        "idempotent",
        "on_limit",
    ],
    later: LATER,
};

/// Keys of the format that this version does not read, wherever they stand.
const LATER: &[&str] = &["labels", "max_attempts", "max_cost", "max_wall"];

/// Reads the whole file.
pub(crate) fn draft(file: &mut Fields<'_, '_>) -> Draft {
    file.only(&FILE);
    let mut draft = Draft { inputs: file.variables("inputs"), ..Draft::default() };
    let defaults = plan(file, &mut draft);
    draft.groups = named_tables(file, "group", group);
    draft.agents = agents(file);
    draft.locks = locks(file);
    draft.loops = named_tables(file, "loop", loops::read);
    draft.steps = steps(file, &defaults);
    draft
}

/// The tables `[agent.NAME]`. One with a command defines the agent; one without changes the built-in agent
/// of that name.
pub fn agents(file: &mut Fields<'_, '_>) -> BTreeMap<AgentName, Agent> {
    named_tables(file, "agent", |name, fields| agent(fields, built_in(name)))
}

fn plan(file: &mut Fields<'_, '_>, draft: &mut Draft) -> Defaults {
    let Some(value) = file.table.get("plan") else {
        let hint = "start the file with [plan] and name = \"…\"";
        file.findings.add(0, "the plan has no name", hint);
        return Defaults::of(DefaultAgent::None);
    };
    let Some(mut plan) = Fields::of("plan", value, file.findings) else {
        return Defaults::of(DefaultAgent::Bad);
    };
    plan.only(&PLAN);
    draft.name = plan_name(&mut plan);
    draft.base = base(&mut plan);
    draft.isolation = isolation(&mut plan);
    draft.jobs = jobs(&mut plan, draft.isolation);
    draft.on_failure = on_failure(&mut plan);
    draft.setup = plan.script("setup");
    draft.copy = inside(&mut plan, "copy");
    draft.link = inside(&mut plan, "link");
    draft.plan_from = plan_from(&mut plan);
    let agent = match plan.name("agent") {
        Some(name) => DefaultAgent::Named(name.value),
        None if plan.has("agent") => DefaultAgent::Bad,
        None => DefaultAgent::None,
    };
    let on_limit = choice(&mut plan, "on_limit", OnLimit::ALL, OnLimit::default());
    Defaults { agent, on_interrupt: interruption::on_interrupt(&mut plan), on_limit }
}

fn plan_name(plan: &mut Fields<'_, '_>) -> Option<String> {
    if !plan.has("name") {
        plan.findings.add(plan.at, "the plan has no name", "add name = \"…\" to [plan]");
    }
    let name = plan.label("name")?;
    if name.chars().count() > PLAN_NAME_MAX {
        let message = format!("`name` is longer than {PLAN_NAME_MAX} characters");
        plan.findings.add(plan.place_of("name"), message, "shorten it");
    }
    Some(name)
}

fn base(plan: &mut Fields<'_, '_>) -> Option<String> {
    let base = plan.label("base")?;
    if base.starts_with('-') {
        let message = format!("{} is not a branch, tag or commit", shown(&base));
        plan.findings.add(plan.place_of("base"), message, "name one that exists, such as \"main\"");
    }
    Some(base)
}

fn isolation(plan: &mut Fields<'_, '_>) -> Isolation {
    let Some(text) = plan.text("isolation") else {
        return Isolation::default();
    };
    match text.value {
        "run" => Isolation::Run,
        "step" => Isolation::Step,
        other => {
            let message = format!("{} is not an isolation", shown(other));
            let hint = "write isolation = \"run\" or isolation = \"step\"";
            plan.findings.add(text.at, message, hint);
            Isolation::default()
        }
    }
}

fn on_failure(plan: &mut Fields<'_, '_>) -> OnFailure {
    let Some(text) = plan.text("on_failure") else {
        return OnFailure::default();
    };
    match text.value {
        "continue" => OnFailure::Continue,
        "stop" => OnFailure::Stop,
        other => {
            let message = format!("{} is not a way to go on after a failure", shown(other));
            let hint = "write on_failure = \"continue\" or on_failure = \"stop\"";
            plan.findings.add(text.at, message, hint);
            OnFailure::default()
        }
    }
}

/// `plan_from = { step = "plan", file = "plan.md" }`.
fn plan_from(plan: &mut Fields<'_, '_>) -> Option<(Located<String>, String)> {
    let mut table = plan.table("plan_from")?;
    table.only(&PLAN_FROM);
    for key in PLAN_FROM.known {
        if !table.has(key) {
            let message = format!("`plan_from` has no `{key}`");
            table.findings.add(table.at, message, "write { step = \"plan\", file = \"plan.md\" }");
        }
    }
    let (step, file) = (table.text("step"), table.text("file"));
    let (step, file) = (step?, file?);
    if !is_inside(file.value) {
        let message = format!("{} is not a path inside the repository", shown(file.value));
        table.findings.add(file.at, message, "write it from the repository's root");
        return None;
    }
    Some((Located { at: step.at, value: step.value.to_owned() }, file.value.to_owned()))
}

fn is_inside(path: &str) -> bool {
    let bad = |part: &str| matches!(part, "" | "." | ".." | ".git");
    !path.split('/').any(bad) && !path.chars().any(char::is_control)
}

/// Paths inside the repository.
fn inside(plan: &mut Fields<'_, '_>, key: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for text in plan.texts(key).unwrap_or_default() {
        let (at, path) = (text.at, text.value);
        if !is_inside(path) {
            let message = format!("{} is not a path inside the repository", shown(path));
            let hint = "write it from the repository's root, such as \".env\" or \"app/.env\"";
            plan.findings.add(at, message, hint);
        } else if all.iter().any(|known| known == path) {
            plan.findings.add(at, format!("{} is listed twice", shown(path)), "remove one of them");
        } else {
            all.push(path.to_owned());
        }
    }
    all
}

/// More than one job needs a worktree for each step.
fn jobs(plan: &mut Fields<'_, '_>, isolation: Isolation) -> Option<u32> {
    let jobs = plan.number("jobs", 1..=JOBS_MAX)?;
    if isolation == Isolation::Run && jobs > 1 {
        let message = "steps come one at a time, so that `jobs` has no meaning";
        plan.findings.add(plan.place_of("jobs"), message, "add isolation = \"step\" to [plan]");
    }
    Some(jobs)
}

/// The tables `[key.NAME]`.
fn named_tables<N, T>(
    file: &mut Fields<'_, '_>,
    key: &str,
    read: impl Fn(&N, &mut Fields<'_, '_>) -> Option<T>,
) -> BTreeMap<N, T>
where
    N: TryFrom<String, Error = BadName> + Ord,
{
    let Some(value) = file.table.get(key) else {
        return BTreeMap::new();
    };
    let Some(all) = Fields::of(key, value, file.findings) else {
        return BTreeMap::new();
    };
    let mut read_so_far = BTreeMap::new();
    for (name, value) in all.table {
        let path = format!("{key}.{}", name.text);
        let id: Option<N> = name_of(name.at, &name.text, all.findings);
        let fields = Fields::of(&path, value, all.findings);
        if let (Some(id), Some(mut fields)) = (id, fields)
            && let Some(table) = read(&id, &mut fields)
        {
            read_so_far.insert(id, table);
        }
    }
    read_so_far
}

fn group(id: &GroupId, fields: &mut Fields<'_, '_>) -> Option<Group> {
    fields.only(&GROUP);
    let title = fields.label("title").unwrap_or_else(|| id.to_string());
    Some(Group { title })
}

fn agent(fields: &mut Fields<'_, '_>, known: Option<&Agent>) -> Option<Agent> {
    fields.only(&AGENT);
    let mut agent = match known {
        Some(known) if !fields.has("command") => known.clone(),
        _ => Agent { command: command(fields)?, ..Agent::default() },
    };
    let forms =
        [("start", &mut agent.start), ("resume", &mut agent.resume), ("fork", &mut agent.fork)];
    for (key, form) in forms {
        if let Some(words) = fields.texts(key) {
            *form = words.into_iter().map(|word| word.value.to_owned()).collect();
        }
    }
    agent.prompt = choice(fields, "prompt", PromptBy::ALL, agent.prompt);
    agent.dialect = choice(fields, "dialect", Dialect::ALL, agent.dialect);
    agent.env.extend(fields.env());
    if let Some(account) = fields.name("account") {
        agent.account = Some(account.value);
    }
    Some(agent)
}

fn command(fields: &mut Fields<'_, '_>) -> Option<Vec<String>> {
    let words = fields.texts("command");
    let no_program = match &words {
        Some(words) => words.first().is_none_or(|program| program.value.trim().is_empty()),
        None => !fields.has("command"),
    };
    if no_program {
        let hint = "write command = [\"program\", \"argument\"]";
        fields.findings.add(fields.place_of("command"), "the agent has no command", hint);
    }
    Some(words?.into_iter().map(|word| word.value.to_owned()).collect())
}

/// One of a few words.
fn choice<T: Copy>(fields: &mut Fields<'_, '_>, key: &str, all: &[(&str, T)], else_: T) -> T {
    let Some(text) = fields.text(key) else { return else_ };
    if let Some((_, value)) = all.iter().find(|(word, _)| *word == text.value) {
        return *value;
    }
    let message = format!("{} is not a value of `{key}`", shown(text.value));
    let words: Vec<String> = all.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let hint = format!("`{key}` is one of {}", words.join(", "));
    fields.findings.add(text.at, message, hint);
    else_
}

/// `[locks]`: each name with its slots.
fn locks(file: &mut Fields<'_, '_>) -> BTreeMap<LockName, u32> {
    let Some(value) = file.table.get("locks") else {
        return BTreeMap::new();
    };
    let Some(mut all) = Fields::of("locks", value, file.findings) else {
        return BTreeMap::new();
    };
    let mut locks = BTreeMap::new();
    for key in all.table.keys() {
        if let Some(name) = name_of(key.at, &key.text, all.findings) {
            // A lock with a bad number is known all the same, so that its steps are not found too.
            locks.insert(name, all.number(&key.text, 1..=LOCK_SLOTS_MAX).unwrap_or(1));
        }
    }
    locks
}

fn steps(file: &mut Fields<'_, '_>, defaults: &Defaults) -> Vec<DraftStep> {
    let no_steps = "add a [[step]] with an id and a run or a prompt";
    let Some(value) = file.table.get("step") else {
        file.findings.add(0, "the plan has no steps", no_steps);
        return Vec::new();
    };
    let Value::List(all) = &value.value else {
        let hint = "write [[step]], with two brackets on each side";
        file.findings.add(value.at(), "`step` must be an array of tables", hint);
        return Vec::new();
    };
    if all.is_empty() {
        file.findings.add(value.at(), "the plan has no steps", no_steps);
    }
    if let Some(first_too_many) = all.get(PLAN_STEPS_MAX) {
        let message = format!("the plan has {} steps; {PLAN_STEPS_MAX} are allowed", all.len());
        let at = first_too_many.at();
        file.findings.add(at, message, "split the plan into smaller ones");
        return Vec::new();
    }
    let fields = all
        .iter()
        .filter_map(|value| Some(step(&mut Fields::of("step", value, file.findings)?, defaults)));
    fields.collect()
}

fn step(fields: &mut Fields<'_, '_>, defaults: &Defaults) -> DraftStep {
    fields.only(&STEP);
    let id: Option<Located<StepId>> = fields.name("id");
    if !fields.has("id") {
        fields.findings.add(fields.at, "the step has no id", "add id = \"…\"");
    }
    let id = id.map(|id| id.value);
    let (items, substeps) = checklist::parts(fields);
    let work = work(fields, &defaults.agent);
    let (outputs, require) = outputs::read(fields);
    let on_interrupt = interruption::of_step(fields, work.as_ref(), defaults.on_interrupt);
    let on_limit = on_limit(fields, work.as_ref(), defaults.on_limit);
    DraftStep {
        at: fields.place_of("id"),
        title: fields.label("title").or_else(|| id.as_ref().map(StepId::to_string)),
        id,
        kind: fields.name("kind").map(|kind| kind.value),
        group: fields.name("group"),
        needs: needs(fields),
        work,
        verify: fields.script("verify"),
        skip_if: fields.script("skip_if"),
        timeout: timeout(fields),
        retries: fields.number("retries", 0..=RETRIES_MAX).unwrap_or(0),
        env: fields.env(),
        items,
        substeps,
        locks: held_locks(fields),
        outputs,
        require,
        on_interrupt,
        on_limit,
    }
}

/// Only agents meet limits.
fn on_limit(fields: &mut Fields<'_, '_>, work: Option<&Work>, default: OnLimit) -> OnLimit {
    let own = choice(fields, "on_limit", OnLimit::ALL, default);
    match work {
        Some(Work::Agent { .. }) | None => own,
        Some(_) => {
            if fields.has("on_limit") {
                let message = "`on_limit` is about agents, and this step has none";
                fields.findings.add(fields.place_of("on_limit"), message, "remove it");
            }
            OnLimit::default()
        }
    }
}

fn held_locks(fields: &mut Fields<'_, '_>) -> Vec<Located<LockName>> {
    let locks = fields.texts("locks").unwrap_or_default().into_iter();
    let name = |text: Located<&str>| {
        let name = name_of(text.at, text.value, fields.findings)?;
        Some(Located { at: text.at, value: name })
    };
    locks.filter_map(name).collect()
}

fn needs(fields: &mut Fields<'_, '_>) -> Vec<Located<String>> {
    let needs = fields.texts("needs").unwrap_or_default().into_iter();
    needs.map(|need| Located { at: need.at, value: need.value.to_owned() }).collect()
}

fn work(fields: &mut Fields<'_, '_>, default_agent: &DefaultAgent) -> Option<Work> {
    let (run, prompt) = (fields.script("run"), fields.script("prompt"));
    let agent: Option<Located<AgentName>> = fields.name("agent");
    match (fields.has("run"), fields.has("prompt")) {
        (true, true) => {
            let hint = "keep one of them, or make two steps";
            fields.findings.add(fields.at, "the step has both `run` and `prompt`", hint);
            None
        }
        (false, false) => by_hand(fields),
        (true, false) => {
            if fields.has("agent") {
                let hint = "remove `agent`, or write `prompt` instead of `run`";
                let message = "a step with `run` has no agent";
                fields.findings.add(fields.place_of("agent"), message, hint);
            }
            run.map(Work::Run)
        }
        (false, true) => {
            let prompt = prompt?;
            if matches!(default_agent, DefaultAgent::None) && !fields.has("agent") {
                nothing_is_started(fields, "agent");
                return Some(Work::Told(prompt));
            }
            let agent = agent_or_default(agent, fields, default_agent);
            Some(Work::Agent { agent: agent?, prompt })
        }
    }
}

/// Without `run` and `prompt`: somebody claims the step, piton starts nothing for it.
fn by_hand(fields: &mut Fields<'_, '_>) -> Option<Work> {
    if fields.has("agent") {
        let hint = "add prompt = \"what the agent shall do\", or remove `agent`";
        let message = "the step has an agent, but no prompt";
        fields.findings.add(fields.place_of("agent"), message, hint);
        return None;
    }
    nothing_is_started(fields, "run` or `prompt");
    Some(Work::ByHand)
}

/// Finds what is only meant for something that piton starts.
fn nothing_is_started(fields: &mut Fields<'_, '_>, missing: &str) {
    for key in ["skip_if", "timeout", "env", "on_interrupt", "idempotent"] {
        if fields.has(key) {
            let message = format!("nothing is started for this step, so `{key}` has no meaning");
            let hint = format!("add `{missing}`, or remove `{key}`");
            fields.findings.add(fields.place_of(key), message, hint);
        }
    }
}

fn agent_or_default(
    own: Option<Located<AgentName>>,
    fields: &mut Fields<'_, '_>,
    default_agent: &DefaultAgent,
) -> Option<AgentName> {
    if fields.has("agent") {
        return own.map(|own| own.value);
    }
    match default_agent {
        DefaultAgent::Named(name) => Some(name.clone()),
        DefaultAgent::Bad | DefaultAgent::None => None,
    }
}

/// In whole milliseconds, as it is kept.
fn timeout(fields: &mut Fields<'_, '_>) -> Option<Duration> {
    let value = fields.table.get("timeout")?;
    let text = value.as_text();
    let signed = text.and_then(|text| SpanParser::new().parse_duration(text).ok());
    let time = signed.map(|signed| Duration::try_from(signed).unwrap_or(Duration::ZERO));
    let message = match time {
        None => "`timeout` is not a duration",
        Some(time) if time < Duration::from_millis(1) => "`timeout` must be longer than 0",
        Some(time) if time > TIMEOUT_MAX => "`timeout` must be at most 30 days (720h)",
        Some(time) => {
            let beyond_millis = time.subsec_nanos() % 1_000_000;
            return Some(time - Duration::from_nanos(beyond_millis.into()));
        }
    };
    let hint = "write hours, minutes and seconds, such as \"90m\", \"1h 30m\" or \"45s\"";
    fields.findings.add(value.at(), message, hint);
    None
}
