//! An agent: how a coding program is started, gets its prompt, is read, and goes on with its own
//! conversation. All of it is data: the built-in agents are tables like those of a user. What an agent
//! says is read by its dialect.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountName, AgentName};

/// How to start and read a coding program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Program and arguments of every start, never given to a shell.
    pub command: Vec<String>,
    /// What follows them for a new conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<String>,
    /// What follows them to go on with a conversation; empty where the agent cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<String>,
    /// What follows them to go on with a copy of a conversation; empty where the agent cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fork: Vec<String>,
    /// How the prompt reaches it. It is always in the file named by `PITON_PROMPT_FILE` too.
    #[serde(default)]
    pub prompt: PromptBy,
    #[serde(default, skip_serializing_if = "Dialect::is_plain")]
    pub dialect: Dialect,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whose limits hold for it; an account of its own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountName>,
}

/// How a prompt is handed to an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptBy {
    /// On standard input, which ends after it.
    #[default]
    Stdin,
    /// As the last argument.
    Arg,
    /// Only as the file named by `PITON_PROMPT_FILE`; standard input is empty.
    File,
}

/// What an agent prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Text for people.
    #[default]
    Plain,
    /// The stream-json of Claude Code, also spoken by qwen, cursor and amp.
    Claude,
    /// The JSONL of `codex exec`.
    Codex,
    /// The stream-json of the Gemini CLI.
    Gemini,
    /// The lines of `opencode run`.
    Opencode,
}

impl PromptBy {
    /// As a file spells them.
    pub const ALL: &[(&'static str, PromptBy)] =
        &[("stdin", PromptBy::Stdin), ("arg", PromptBy::Arg), ("file", PromptBy::File)];

    pub fn as_str(self) -> &'static str {
        word_of(PromptBy::ALL, self)
    }
}

fn word_of<T: PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

impl Dialect {
    /// As a file spells them.
    pub const ALL: &[(&'static str, Dialect)] = &[
        ("plain", Dialect::Plain),
        ("claude", Dialect::Claude),
        ("codex", Dialect::Codex),
        ("gemini", Dialect::Gemini),
        ("opencode", Dialect::Opencode),
    ];

    pub fn as_str(self) -> &'static str {
        word_of(Dialect::ALL, self)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_plain(&self) -> bool {
        *self == Dialect::Plain
    }
}

/// How an attempt's agent takes up its work, from the most that is kept to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// It goes on with its conversation.
    Resume,
    /// It goes on with a copy of its conversation.
    Fork,
    /// It begins a conversation, and a brief says what happened before.
    Start,
}

impl Rung {
    /// The next one, where the conversation is not there.
    pub fn below(self) -> Rung {
        match self {
            Rung::Resume => Rung::Fork,
            Rung::Fork | Rung::Start => Rung::Start,
        }
    }
}

const SESSION: &str = "{session}";
const PROMPT: &str = "{prompt}";

impl Agent {
    /// The account that the agent of this name works on.
    pub fn account(&self, name: &AgentName) -> AccountName {
        let own = || AccountName::new(name.as_str()).expect("the name of an agent is a name");
        self.account.clone().unwrap_or_else(own)
    }

    /// The highest rung at or below this one that the agent has.
    pub fn rung(&self, from: Rung) -> Rung {
        match from {
            Rung::Resume if !self.resume.is_empty() => Rung::Resume,
            Rung::Resume | Rung::Fork if !self.fork.is_empty() => Rung::Fork,
            Rung::Resume | Rung::Fork | Rung::Start => Rung::Start,
        }
    }

    /// Whether a new conversation gets its id from whoever starts it.
    pub fn presets_session(&self) -> bool {
        self.start.iter().any(|word| word.contains(SESSION))
    }

    /// Program and arguments, but for a prompt that is an argument.
    pub fn words(&self, rung: Rung, session: &str, prompt: &str) -> Vec<String> {
        let form = match rung {
            Rung::Resume => &self.resume,
            Rung::Fork => &self.fork,
            Rung::Start => &self.start,
        };
        let fill = |word: &String| word.replace(SESSION, session).replace(PROMPT, prompt);
        self.command.iter().chain(form).map(fill).collect()
    }
}

/// The agents that piton knows. Without its variable gemini starts itself again as a child, behind a
/// launcher that ignores SIGTERM; aider would commit what piton commits.
pub fn all_built_in() -> &'static BTreeMap<AgentName, Agent> {
    static ALL: LazyLock<BTreeMap<AgentName, Agent>> = LazyLock::new(|| {
        serde_json::from_str(include_str!("agent/built_in.json")).expect("built_in.json is sound")
    });
    &ALL
}

/// The agent that piton knows by this name.
pub fn built_in(name: &AgentName) -> Option<&'static Agent> {
    all_built_in().get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each built-in agent is started with: a new conversation, then an old one.
    #[test]
    fn built_in_agents_start_and_resume() {
        let lines = all_built_in().iter().flat_map(|(name, agent)| {
            let line = |rung| {
                let words = agent.words(rung, "ID", "FILE");
                format!("{name} {rung:?} {:?}: {}", agent.prompt, words[1..].join(" "))
            };
            let old = agent.rung(Rung::Resume);
            [Some(line(Rung::Start)), (old != Rung::Start).then(|| line(old))]
        });
        insta::assert_snapshot!(lines.flatten().collect::<Vec<_>>().join("\n"), @"
        aider Start File: --yes-always --no-auto-commits --no-dirty-commits --no-gitignore --no-pretty --no-check-update --chat-history-file FILE.history.md --message-file FILE
        amp Start Stdin: --execute --stream-json --dangerously-allow-all
        amp Resume Stdin: threads continue ID --execute --stream-json --dangerously-allow-all
        claude Start Stdin: -p --output-format stream-json --verbose --dangerously-skip-permissions --session-id ID
        claude Resume Stdin: -p --output-format stream-json --verbose --dangerously-skip-permissions --resume ID
        codex Start Stdin: exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -
        codex Resume Stdin: exec resume --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox ID -
        copilot Start Arg: --allow-all-tools -p
        cursor Start Arg: -p --force --output-format stream-json
        cursor Resume Arg: -p --force --output-format stream-json --resume ID
        gemini Start Stdin: --output-format stream-json --approval-mode yolo --skip-trust --session-id ID
        gemini Resume Stdin: --output-format stream-json --approval-mode yolo --skip-trust --resume ID
        goose Start Stdin: run --name ID --instructions -
        goose Resume Stdin: run --resume --name ID --instructions -
        opencode Start Stdin: run --format json --auto
        opencode Resume Stdin: run --format json --auto --session ID
        qwen Start Stdin: --output-format stream-json --approval-mode yolo --session-id ID
        qwen Resume Stdin: --output-format stream-json --approval-mode yolo --resume ID
        ");
    }

    #[test]
    fn a_rung_that_an_agent_lacks_is_passed_over() {
        let (form, none) = (vec!["-".to_owned()], Vec::new());
        let both = Agent { resume: form.clone(), fork: form.clone(), ..Agent::default() };
        let forks = Agent { resume: none.clone(), ..both.clone() };
        let resumes = Agent { fork: none, ..both.clone() };
        let down = |agent: &Agent| [Rung::Resume, Rung::Fork, Rung::Start].map(|at| agent.rung(at));
        assert_eq!(down(&both), [Rung::Resume, Rung::Fork, Rung::Start]);
        assert_eq!(down(&forks), [Rung::Fork, Rung::Fork, Rung::Start]);
        assert_eq!(down(&resumes), [Rung::Resume, Rung::Start, Rung::Start]);
        assert_eq!(down(&Agent::default()), [Rung::Start; 3]);
    }
}
