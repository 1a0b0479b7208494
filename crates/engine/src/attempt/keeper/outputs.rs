//! What the steps before have published, in the environment of what an attempt starts: short values as
//! they are, others as files in the attempt's folder.

use std::collections::BTreeMap;
use std::fs;

use piton_core::limits::OUTPUTS_TOLD_MAX;
use piton_core::output::OutputValue;
use piton_core::run::GivenOutput;
use piton_git::file::private;

use super::{Instead, Keeper};
use crate::error::{EngineError, LogError};

impl Keeper {
    /// `PITON_OUTPUT_<step>_<name>` with the JSON, or `PITON_OUTPUT_FILE_<step>_<name>` with the path of a
    /// file that has it.
    pub(super) fn output_variables(&self) -> Result<BTreeMap<String, String>, Instead> {
        let mut left = OUTPUTS_TOLD_MAX;
        let mut variables = BTreeMap::new();
        for given in self.log.run().given_outputs(&self.step) {
            let GivenOutput { of, name, published } = &given;
            let safe = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let named = safe(&format!("{of}_{name}"));
            match &published.value {
                OutputValue::Json(json) if json.len() <= left => {
                    left -= json.len();
                    variables.insert(format!("PITON_OUTPUT_{named}"), json.clone());
                }
                value => {
                    let path = self.folder.output(&of.to_string(), name.as_str());
                    let bytes = match value {
                        OutputValue::Json(json) => json.clone().into_bytes(),
                        OutputValue::Kept { text, .. } => {
                            self.log.store().text(*text).map_err(LogError::from)?
                        }
                    };
                    let write = private(&path).and_then(|_| fs::write(&path, bytes));
                    write.map_err(EngineError::io("an output cannot be written"))?;
                    variables
                        .insert(format!("PITON_OUTPUT_FILE_{named}"), path.display().to_string());
                }
            }
        }
        Ok(variables)
    }
}
