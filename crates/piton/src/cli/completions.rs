//! `piton completions`: a completion script for a shell, made from the parser itself.

use serde_json::json;

use crate::error::Problem;
use crate::ui::Ui;
use crate::verb::Answer;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton completions bash > ~/.local/share/bash-completion/completions/piton
  piton completions fish > ~/.config/fish/completions/piton.fish
  piton completions zsh > \"${fpath[1]}/_piton\"")]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "piton", &mut script);
    let script = String::from_utf8_lossy(&script);
    ui.exact(script.trim_end())?;
    Ok(Answer::new(json!({ "shell": args.shell.to_string(), "script": script })))
}
