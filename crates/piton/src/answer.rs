//! The shape of a verb's answer: data for `--json`, an exit status, and what is tidied once it is out.

use std::sync::Arc;

use piton_core::ids::StepRef;
use piton_engine::Store;
use piton_engine::git::Git;
use piton_engine::run::condition::Condition;
use serde::Serialize;
use serde_json::Value;

use crate::exit::ExitStatus;
use crate::ui::Ui;

/// What a verb answers: data for `--json`, and an exit status.
pub(crate) struct Answer {
    pub(crate) data: Value,
    pub(crate) exit: ExitStatus,
    /// The answer was a stream of lines: no envelope follows.
    pub(crate) streamed: bool,
    store: Option<Arc<dyn Store>>,
    kept_in: Option<Git>,
}

impl Answer {
    pub(crate) fn new(data: impl Into<Value>) -> Answer {
        let (exit, data) = (ExitStatus::Ok, data.into());
        Answer { data, exit, streamed: false, store: None, kept_in: None }
    }

    /// With data that is large: made only where somebody reads it.
    pub(crate) fn on_demand(ui: &Ui, data: impl FnOnce() -> Value) -> Answer {
        Answer::new(if ui.is_json() { data() } else { Value::Null })
    }

    /// Everything was printed as it came.
    pub(crate) fn streamed() -> Answer {
        Answer { streamed: true, ..Answer::new(()) }
    }

    pub(crate) fn exiting(self, exit: ExitStatus) -> Answer {
        Answer { exit, ..self }
    }

    /// Names the store that was written, for the housekeeping no answer waits for.
    pub(crate) fn after_writing(self, store: &Arc<dyn Store>) -> Answer {
        Answer { store: Some(Arc::clone(store)), ..self }
    }

    /// Names the repository that snapshots were kept in, for the same.
    pub(crate) fn after_keeping(self, git: &Git) -> Answer {
        Answer { kept_in: Some(git.clone()), ..self }
    }

    /// Once the answer is out.
    pub(crate) fn tidy(&self) {
        if let Some(git) = &self.kept_in {
            let _the_next_time = piton_engine::git::snapshot::consolidate(git);
        }
        if let Some(store) = &self.store {
            store.tidy();
        }
    }
}

/// Data as JSON.
pub(crate) fn json(data: impl Serialize) -> Value {
    serde_json::to_value(data).expect("answers have only string keys and finite values")
}

/// What the worktrees of a run's steps were found in, by step.
pub(crate) fn conditions(found: &[(StepRef, Vec<Condition>)]) -> Value {
    let rows = found.iter().map(|(step, conditions)| (step.to_string(), json(conditions)));
    Value::Object(rows.collect())
}
