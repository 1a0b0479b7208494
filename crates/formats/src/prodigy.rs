//! YAML workflows of prodigy (formerly mmm): a chain of commands. Values become environment variables, never
//! parts of a script. What a plan cannot say (a condition, items that are only known at run time) is a
//! finding at its line.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use piton_core::event::FoundState;
use piton_core::limits::{PLAN_STEPS_MAX, RETRIES_MAX, TIMEOUT_MAX};
use piton_core::plan::{Work, shown};

use crate::draft::{DraftStep, Foreign};
use crate::lines::stem;
use crate::source::Findings;
use crate::value::{Key, Node, Value};
use crate::{Hint, Located};

/// The most bytes that the steps of a workflow may have together.
const EXPANDED_MAX: usize = 32 << 20;
const KINDS: [&str; 7] = ["claude", "shell", "test", "foreach", "write_file", "analyze", "name"];

/// Whether a file is a workflow, by its keys.
pub(crate) fn is_workflow(root: &Node) -> bool {
    let is_command = |node: &Node| match &node.value {
        Value::Text(text) => text.starts_with('/'),
        Value::Table(_) => node.any(&KINDS).is_some(),
        _ => false,
    };
    match &root.value {
        Value::List(list) => list.first().is_some_and(is_command),
        Value::Table(_) => {
            let commands = root.list(&["commands"]);
            root.text(&["mode"]).as_deref() == Some("mapreduce")
                || (!commands.is_empty() && commands.iter().all(is_command))
        }
        _ => false,
    }
}

/// Whether a file is the state of a session's worktree.
pub(crate) fn is_session(root: &Node) -> bool {
    ["session_id", "worktree_name", "branch", "iterations"]
        .iter()
        .all(|key| root.get(key).is_some())
}

/// The commands of an iteration of a session.
const SESSION: [&str; 3] = ["mmm-code-review", "mmm-implement-spec", "mmm-lint"];
/// The most iterations of a session that are followed.
const ITERATIONS_MAX: usize = 100;

/// A session that was interrupted: the commands of every iteration, as far as its state says that they ran.
fn session(root: &Node, findings: &mut Findings) -> Foreign {
    let text = |keys: &[&str]| root.text(keys).unwrap_or_default();
    let mut plan = Foreign::named(&text(&["worktree_name"]));
    plan.draft.base = Some(text(&["branch"]));
    let number = |node: Option<&Node>| {
        node.and_then(Node::words).and_then(|words| words.parse::<usize>().ok()).unwrap_or(0)
    };
    let iterations = root.get("iterations");
    let completed = number(iterations.and_then(|node| node.get("completed")));
    let last = root.get("last_checkpoint");
    let at_work = number(last.and_then(|last| last.get("iteration"))).max(completed + 1);
    let max =
        number(iterations.and_then(|node| node.get("max"))).clamp(1, ITERATIONS_MAX).max(completed);
    let command = last.and_then(|last| last.text(&["last_command"])).unwrap_or_default();
    let reached = SESSION.iter().position(|name| command.trim_start_matches('/').starts_with(name));
    let spec = last.and_then(|last| last.text(&["last_spec_id"]));
    let status = text(&["status"]);
    let is_over = matches!(status.as_str(), "completed" | "merged" | "cleaned_up");
    let mut before: Option<String> = None;
    for (place, name) in (0..max * SESSION.len()).map(|n| (n, SESSION[n % SESSION.len()])) {
        let iteration = place / SESSION.len() + 1;
        let position = (iteration, place % SESSION.len());
        let id = plan.name(&format!("iteration-{iteration}-{name}"));
        let known =
            spec.as_ref().filter(|_| position == (at_work, 1)).map(|spec| format!(" {spec}"));
        let prompt = format!("/{name}{}", known.unwrap_or_default());
        let mut step =
            DraftStep::prompted(root.at(), &format!("{name}, iteration {iteration}"), prompt);
        step.needs = before.into_iter().map(|value| Located { at: root.at(), value }).collect();
        before = Some(id.to_string());
        plan.add(&id, step);
        let state = match position.cmp(&(at_work, reached.unwrap_or(0))) {
            _ if is_over => FoundState::Completed { commit: None },
            Ordering::Less => FoundState::Completed { commit: None },
            Ordering::Equal if status == "failed" => {
                FoundState::Failed { reason: root.text(&["error"]).unwrap_or(status.clone()) }
            }
            Ordering::Equal if reached.is_some() => FoundState::InProgress,
            Ordering::Equal | Ordering::Greater => continue,
        };
        let why = root.text(&["interruption_type"]).filter(|_| state == FoundState::InProgress);
        let found = plan.found(&id, state);
        found.notes.extend(why.map(|why| format!("the session was interrupted ({why})")));
    }
    if status == "abandoned" {
        findings.warn(
            root.at(),
            "the session was abandoned",
            "start it again only if you want that",
        );
    }
    plan
}

pub(crate) fn read(root: &Node, hint: &Hint<'_>, findings: &mut Findings) -> Foreign {
    if is_session(root) {
        return session(root, findings);
    }
    let name = root.text(&["name"]).unwrap_or_else(|| stem(hint.path).to_owned());
    let plan = Foreign::named(&name);
    let mut chain =
        Chain { plan, before: Vec::new(), root, uses_argument: false, left: EXPANDED_MAX };
    for key in ["imports", "extends", "template", "workflows", "profiles", "secrets", "env_files"] {
        if let Some(node) = root.get(key) {
            findings.warn(
                node.at(),
                format!("`{key}` is not followed"),
                "set what it gives yourself",
            );
        }
    }
    match &root.value {
        Value::List(commands) => chain.all(commands, findings),
        _ => {
            chain.all(commands(root, "setup"), findings);
            chain.all(root.list(&["commands"]), findings);
            chain.map(findings);
            chain.all(commands(root, "reduce"), findings);
        }
    }
    if let Some(merge) = root.get("merge") {
        let message = "`merge` is not run: what a run has landed is merged by piton";
        findings.warn(merge.at(), message, "make its checks a last step of `commands`");
    }
    if chain.uses_argument {
        chain.plan.draft.inputs.insert("ARG".to_owned(), String::new());
    }
    chain.plan
}

/// The commands under a key: a list, or a table with `commands`.
fn commands<'a>(root: &'a Node, key: &str) -> &'a [Node] {
    match root.get(key) {
        Some(node) if node.as_table().is_some() => node.list(&["commands"]),
        Some(node) => node.as_list().unwrap_or_default(),
        None => &[],
    }
}

/// Steps, each after the one before.
struct Chain<'a> {
    plan: Foreign,
    /// What the next step waits for.
    before: Vec<String>,
    root: &'a Node,
    uses_argument: bool,
    /// How many bytes its steps may still have: items multiply what is written once.
    left: usize,
}

/// An item of a fan-out: variables by name.
type Variables = BTreeMap<String, String>;

impl Chain<'_> {
    fn all(&mut self, commands: &[Node], findings: &mut Findings) {
        for command in commands {
            match command.get("foreach") {
                Some(each) => self.foreach(each, findings),
                None => {
                    let after = self.before.clone();
                    let added = self.add(command, &after, &Variables::new(), findings);
                    self.before = added.map_or(after, |id| vec![id]);
                }
            }
        }
    }

    /// One chain for every item; what follows waits for all of them.
    fn foreach(&mut self, each: &Node, findings: &mut Findings) {
        let items = each.get("foreach").unwrap_or(each);
        let Some(items) = items.as_list() else {
            let message = "the items of `foreach` are only known once its command has run";
            return findings.add(items.at(), message, "write the items as a list");
        };
        self.fan_out(items, each.list(&["do"]), findings);
    }

    fn map(&mut self, findings: &mut Findings) {
        let Some(map) = self.root.get("map") else { return };
        let template =
            map.get("agent_template").map_or(&[][..], |template| match template.as_list() {
                Some(list) => list,
                None => template.list(&["commands"]),
            });
        match map.get("input") {
            Some(input) if input.as_list().is_some() => {
                self.fan_out(input.as_list().unwrap_or_default(), template, findings);
            }
            Some(input) => {
                let message = "the items of `map` are only known once its input is there";
                findings.add(input.at(), message, "write the items as a list under `input`");
            }
            None => {
                findings.add(map.at(), "`map` has no input", "add `input` with a list of items")
            }
        }
    }

    fn fan_out(&mut self, items: &[Node], template: &[Node], findings: &mut Findings) {
        let start = self.before.clone();
        let mut ends = Vec::new();
        for item in items {
            if self.left == 0 || self.plan.draft.steps.len() > PLAN_STEPS_MAX {
                break;
            }
            let mut variables = Variables::new();
            flatten("item", item, &mut variables);
            let mut after = start.clone();
            for command in template {
                if let Some(id) = self.add(command, &after, &variables, findings) {
                    after = vec![id];
                }
            }
            ends.extend(after);
        }
        if !ends.is_empty() {
            self.before = ends;
        }
    }

    /// Adds the step of a command after these; says its name.
    fn add(
        &mut self,
        command: &Node,
        after: &[String],
        variables: &Variables,
        findings: &mut Findings,
    ) -> Option<String> {
        let (node, is_shell) = self.work_of(command, findings)?;
        let text = node.words()?;
        if self.left < text.len() {
            return None;
        }
        let text_size = text.len();
        let title = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("command").trim();
        let title: String = title.chars().take(72).collect();
        let name =
            command.text(&["id", "name"]).unwrap_or_else(|| title.chars().take(32).collect());
        let id = self.plan.name(&name);
        let text = renamed(&text, variables);
        self.find_references(node.at(), &text, is_shell, findings);
        let mut step = match is_shell {
            true => DraftStep::with(command.at(), &title, Work::Run(self.with_argument(text))),
            false => {
                let prompt = self.explained(text, variables);
                DraftStep::prompted(command.at(), &title, prompt)
            }
        };
        step.needs =
            after.iter().map(|need| Located { at: command.at(), value: need.clone() }).collect();
        step.env.extend(variables.clone());
        for source in [self.root, command] {
            self.environment(&mut step, source, findings);
        }
        let env: usize = step.env.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        self.left = self.left.saturating_sub(env + text_size + (after.len() + 1) * 64);
        if self.left == 0 {
            let message = format!("the workflow becomes more than {EXPANDED_MAX} bytes of steps");
            findings.add(command.at(), message, "write fewer items, or shorter commands");
            return None;
        }
        step.timeout = timeout(command, findings);
        self.options(&mut step, command, findings);
        self.plan.add(&id, step);
        Some(id.to_string())
    }

    /// What a command runs, and whether that is a script.
    fn work_of<'n>(&self, command: &'n Node, findings: &mut Findings) -> Option<(&'n Node, bool)> {
        if command.as_text().is_some() {
            return Some((command, false));
        }
        if let Some(prompt) = command.get("claude") {
            return Some((prompt, false));
        }
        if let Some(script) = command.get("shell") {
            return Some((script, true));
        }
        if let Some(test) = command.get("test") {
            return Some((test.get("command").unwrap_or(test), true));
        }
        if let Some(name) = command.get("name").filter(|_| command.get("args").is_none()) {
            return Some((name, false));
        }
        let what = KINDS.iter().find(|kind| command.get(kind).is_some());
        let message = match what {
            Some(kind) => format!("`{kind}` has no counterpart in a plan"),
            None => "the command says nothing to do".to_owned(),
        };
        findings.add(command.at(), message, "write it as `shell` or `claude`");
        None
    }

    /// `$ARG` is an input of the run.
    fn with_argument(&mut self, script: String) -> String {
        if !names_argument(&script) {
            return script;
        }
        self.uses_argument = true;
        format!("ARG=$PITON_INPUT_ARG; export ARG\n{script}")
    }

    /// A prompt is text for an agent: it is told what its variables stand for.
    fn explained(&mut self, mut prompt: String, variables: &Variables) -> String {
        if names_argument(&prompt) {
            self.uses_argument = true;
            prompt.push_str("\n\n$ARG stands for the environment variable PITON_INPUT_ARG.");
        }
        for (name, value) in variables {
            if prompt.contains(&format!("${{{name}}}")) {
                prompt.push_str(&format!("\n\n${{{name}}} stands for: {value}"));
            }
        }
        prompt
    }

    fn environment(&self, step: &mut DraftStep, node: &Node, findings: &mut Findings) {
        let Some(table) = node.get("env").and_then(Node::as_table) else { return };
        for (Key { at, text: name }, value) in table {
            let is_name = !name.is_empty()
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            match value.words().filter(|_| is_name && !name.starts_with("PITON_")) {
                Some(value) if !value.contains("${") => {
                    step.env.insert(name.clone(), value);
                }
                _ => {
                    let message = format!("the variable {} is not set", shown(name));
                    findings.warn(*at, message, "give it a plain text");
                }
            }
        }
    }

    /// Policies of a step. What is only nearly the same is said.
    fn options(&self, step: &mut DraftStep, command: &Node, findings: &mut Findings) {
        if let Some(when) = command.get("when") {
            let hint = "remove it, or ask for it inside of the command";
            findings.add(when.at(), "a condition cannot be followed", hint);
        }
        if let Some(failure) = command.get("on_failure") {
            let attempts = failure.text(&["max_attempts", "max_retries"]);
            let attempts = attempts.and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
            step.retries = attempts.min(RETRIES_MAX);
            if failure.any(&["claude", "shell", "commands"]).is_some() {
                let message = format!(
                    "its own command is not run after a failure: the step is tried again, {} at most",
                    if step.retries == 1 {
                        "once".to_owned()
                    } else {
                        format!("{} times", step.retries)
                    }
                );
                findings.warn(failure.at(), message, "an agent that repairs is a step of its own");
            }
        }
        if let Some(check) = command.get("validate") {
            self.validate(step, check, findings);
        }
        for key in ["on_success", "on_exit_code", "capture_output", "capture", "outputs", "retry"] {
            let node = command.get(key).filter(|node| node.as_boolean() != Some(false));
            if let Some(node) = node.filter(|node| node.as_boolean() != Some(true)) {
                findings.warn(
                    node.at(),
                    format!("`{key}` is not followed"),
                    "make it part of the command",
                );
            }
        }
    }

    /// Scripts that check are the step's check; what an agent would judge is not.
    fn validate(&self, step: &mut DraftStep, check: &Node, findings: &mut Findings) {
        let all: Vec<&Node> = match check.list(&["commands"]) {
            [] => vec![check],
            list => list.iter().collect(),
        };
        let scripts: Vec<String> = all.iter().filter_map(|node| node.text(&["shell"])).collect();
        let is_plain = scripts.iter().all(|script| !script.contains("${"));
        if scripts.len() == all.len() && is_plain {
            step.verify = Some(scripts.join("\n"));
            if scripts.len() > 1 {
                step.verify = Some(format!("set -e\n{}", scripts.join("\n")));
            }
            return;
        }
        let message = "an agent's validation is not run: the step is done when its command is";
        findings.warn(
            check.at(),
            message,
            "give a `shell` command that fails where work is missing",
        );
    }

    /// References to what only the original tool knows.
    fn find_references(&self, at: usize, text: &str, is_shell: bool, findings: &mut Findings) {
        for part in text.split("${").skip(1) {
            let Some((name, _)) = part.split_once('}') else { continue };
            let foreign = name.contains('.') || name.contains(':') && !is_shell;
            if !foreign || name.chars().any(char::is_whitespace) {
                continue;
            }
            let message = format!("${{{name}}} has no value in a plan");
            match is_shell {
                true => {
                    findings.add(at, message, "read it from a file that an earlier step writes")
                }
                false => findings.warn(at, message, "the agent sees the name as it stands"),
            }
        }
    }
}

fn names_argument(text: &str) -> bool {
    text.contains("$ARG") || text.contains("${ARG}")
}

/// An item's values by their paths, as names that a shell knows.
fn flatten(name: &str, node: &Node, into: &mut Variables) {
    match &node.value {
        Value::Table(table) => {
            let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            for (key, value) in table {
                flatten(&format!("{name}_{}", plain(&key.text)), value, into);
            }
        }
        _ => into.extend(node.words().map(|words| (name.to_owned(), words))),
    }
}

/// `${item.a.b}` as the variable that has its value.
fn renamed(text: &str, variables: &Variables) -> String {
    if variables.is_empty() {
        return text.to_owned();
    }
    let mut renamed = String::new();
    for (index, part) in text.split("${").enumerate() {
        let name = part.split_once('}').map(|(name, rest)| (name.replace(['.', '-'], "_"), rest));
        match name.filter(|(name, _)| variables.contains_key(name)) {
            Some((name, rest)) if index > 0 => renamed.push_str(&format!("${{{name}}}{rest}")),
            _ if index > 0 => renamed.push_str(&format!("${{{part}")),
            _ => renamed.push_str(part),
        }
    }
    renamed
}

fn timeout(command: &Node, findings: &mut Findings) -> Option<Duration> {
    let node = command.get("timeout")?;
    let seconds = node.words().and_then(|words| words.parse::<u64>().ok());
    let time =
        seconds.map(Duration::from_secs).filter(|time| !time.is_zero() && *time <= TIMEOUT_MAX);
    if time.is_none() {
        findings.warn(
            node.at(),
            "`timeout` is not a number of seconds: it has no effect",
            "write 600",
        );
    }
    time
}
