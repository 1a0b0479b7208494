//! The real agent programs against a stub of their model: `scripts/real-agents` installs them and runs these.
//! What the model does is written in the prompt; what it was asked is in the stub's journal.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use piton_testkit::runs::{landed, lay_plan, step, view};
use piton_testkit::{Output, Piton, Sandbox, toml_string};
use serde_json::Value;

/// In a tool call that lasts until it is killed, the first time.
const CALLS: &str = "write a.txt one; shell test -e MARK || { touch MARK; timeout 300 tail -f \
                     /dev/null; }; write b.txt two; say done";
/// In an answer that stops half-way, the first time.
const ANSWERS: &str = "write a.txt one; stall 1; write b.txt two; say done";

struct Real {
    sandbox: Sandbox,
    stub: Child,
    port: String,
    journal: PathBuf,
}

impl Real {
    /// A plan of one step that an agent does, whose model follows a script.
    fn new(agent: &str, script: &str) -> Real {
        let sandbox = crate::sandbox();
        let journal = sandbox.mark("journal");
        fs::create_dir_all(sandbox.mark("")).expect("a folder for marks");
        // Not of the sandbox: it outlives what is killed there.
        let mut stub = Command::new(sandbox.stub_model());
        stub.arg("--journal").arg(&journal).stdout(Stdio::piped());
        let mut stub = stub.spawn().expect("the stub starts");
        let mut said = String::new();
        let out = stub.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut said).expect("it says where it listens");
        let port = said.trim().rsplit(':').next().expect("a port").to_owned();
        let script = script.replace("MARK", &sandbox.mark("called").display().to_string());
        let prompt = toml_string(&format!("Do the work. [[stub: {script}]]"));
        lay_plan(
            &sandbox,
            &format!(
                "[plan]\nname = 'real'\nagent = '{agent}'\n[[step]]\nid = 'work'\nprompt = {prompt}\nretries = 0\n"
            ),
        );
        let settings = "{\"security\":{\"auth\":{\"selectedType\":\"gemini-api-key\"}},\
            \"privacy\":{\"usageStatisticsEnabled\":false},\"general\":{\"enableAutoUpdate\":false}}";
        sandbox.write(sandbox.home().join(".gemini/settings.json"), settings);
        let codex = format!(
            "model = 'gpt-5.5'\nmodel_provider = 'stub'\n[model_providers.stub]\nname = 'stub'\n\
             base_url = 'http://127.0.0.1:{port}/v1'\nenv_key = 'OPENAI_API_KEY'\nwire_api = 'responses'\n"
        );
        sandbox.write(sandbox.home().join(".codex/config.toml"), &codex);
        Real { sandbox, stub, port, journal }
    }

    /// `piton ARGS…` in the environment that leads its agents to the stub.
    fn piton(&self, args: &[&str]) -> Piton {
        let at = format!("http://127.0.0.1:{}", self.port);
        let opencode = serde_json::json!({
            "model": "stub/stub-model", "small_model": "stub/stub-model", "enabled_providers": ["stub"],
            "autoupdate": false, "share": "disabled",
            "provider": {"stub": {"npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": format!("{at}/v1"), "apiKey": "stub-key"},
                "models": {"stub-model": {"tool_call": true, "limit": {"context": 200_000, "output": 32_000}}}}}
        });
        let environment = [
            ("IS_SANDBOX", "1"),
            ("ANTHROPIC_BASE_URL", &at),
            ("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-stub"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", "2"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("OPENAI_API_KEY", "stub-key"),
            ("OPENAI_BASE_URL", &format!("{at}/v1")),
            ("OPENAI_MODEL", "stub-model"),
            ("GEMINI_API_KEY", "stub-key"),
            ("GEMINI_MODEL", "gemini-2.5-flash"),
            ("GOOGLE_GEMINI_BASE_URL", &at),
            ("GEMINI_TELEMETRY_ENABLED", "false"),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
            ("OPENCODE_CONFIG_CONTENT", &opencode.to_string()),
        ];
        let piton = self.sandbox.piton(args);
        environment.into_iter().fold(piton, |piton, (name, value)| piton.env(name, value))
    }

    fn run(&self) -> Piton {
        self.piton(&["run", "plan.toml", "--trust"])
    }

    #[track_caller]
    fn resume(&self) -> Output {
        self.piton(&["resume", "--yes"]).output()
    }

    /// The requests of the conversation, without those beside it.
    fn requests(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.journal).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_turn = |line: &Value| line["place"].as_str().is_some_and(|place| place != "side");
        lines.filter(is_turn).collect()
    }

    /// Waits for the tool call that does not end.
    #[track_caller]
    fn wait_called(&self) {
        self.sandbox.wait_exists(self.sandbox.mark("called"));
    }

    /// Both files are there, and what was begun first was not forgotten.
    #[track_caller]
    fn assert_continued(&self, before: usize) {
        assert_eq!(landed(&self.sandbox, "a.txt"), "one");
        assert_eq!(landed(&self.sandbox, "b.txt"), "two");
        let requests = self.requests();
        let first = &requests[before];
        // Some agents forget an exchange that was cut off, but none its prompt.
        let prompts = first["prompts"].as_array().expect("prompts").len();
        assert!(prompts >= 2, "the old prompt is in the new request: {first:#}");
        let step = step(&view(&self.sandbox), "work").clone();
        assert_eq!(step["status"], "completed", "{step:#}");
        let shown = self.sandbox.piton(&["show"]).output().success().stdout;
        assert!(shown.contains("(continued)"), "{shown}");
        self.sandbox.wait_no_processes();
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.stub.kill();
        let _ = self.stub.wait();
    }
}

fn completes(agent: &str) {
    let real = Real::new(agent, "write a.txt one; write b.txt two; say done");
    real.run().output().success();
    assert_eq!(landed(&real.sandbox, "a.txt"), "one");
    assert_eq!(landed(&real.sandbox, "b.txt"), "two");
    real.sandbox.wait_no_processes();
}

fn killed_in_a_tool_call(agent: &str) {
    let real = Real::new(agent, CALLS);
    let run = real.run().spawn();
    real.wait_called();
    run.kill9();
    assert!(real.sandbox.kill_all());
    let before = real.requests().len();
    real.resume().success();
    real.assert_continued(before);
}

fn killed_in_an_answer(agent: &str) {
    let real = Real::new(agent, ANSWERS);
    let run = real.run().spawn();
    let stalls = |request: &Value| request["failure"] == "stall";
    real.sandbox.wait_until("an answer that stalls", || real.requests().iter().any(stalls));
    run.kill9();
    assert!(real.sandbox.kill_all());
    let before = real.requests().len();
    real.resume().success();
    real.assert_continued(before);
}

fn stopped_in_a_tool_call(agent: &str) {
    let real = Real::new(agent, CALLS);
    let run = real.run().spawn();
    real.wait_called();
    real.piton(&["stop"]).output().success();
    run.wait();
    real.sandbox.wait_no_processes();
    let before = real.requests().len();
    real.resume().success();
    real.assert_continued(before);
}

fn without_its_conversation(agent: &str) {
    let real = Real::new(agent, CALLS);
    let run = real.run().spawn();
    real.wait_called();
    run.kill9();
    assert!(real.sandbox.kill_all());
    for kept in [".claude", ".codex/sessions", ".gemini/tmp", ".qwen", ".local/share/opencode"] {
        let _not_every_agent_has_it = fs::remove_dir_all(real.sandbox.home().join(kept));
    }
    let _nor_this = fs::remove_dir_all(real.sandbox.root().join("data/opencode"));
    for index in fs::read_dir(real.sandbox.home().join(".codex")).into_iter().flatten().flatten() {
        if index.file_name().to_string_lossy().contains("sqlite") {
            fs::remove_file(index.path()).expect("an index of conversations");
        }
    }
    real.resume().success();
    assert_eq!(landed(&real.sandbox, "b.txt"), "two");
    let log = real.sandbox.piton(&["log", "real", "work"]).output().success().stdout;
    assert!(log.contains("the agent does not have the conversation any more"), "{log}");
}

macro_rules! each_agent {
    ($($agent:ident),*; $scenarios:tt) => {
        $(each_agent!(@ $agent $scenarios);)*
    };
    (@ $agent:ident ($($scenario:ident),*)) => {
        mod $agent {
            $(#[test]
            fn $scenario() {
                super::$scenario(stringify!($agent));
            })*
        }
    };
}

each_agent!(claude, codex, gemini, opencode, qwen; (
    completes,
    killed_in_a_tool_call,
    killed_in_an_answer,
    stopped_in_a_tool_call,
    without_its_conversation
));
