//! `piton man`: manual pages, made from the parser itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::error::{Kind, Problem};
use crate::text::{count, green};
use crate::ui::Ui;
use crate::verb::Answer;

/// Print a manual page, or write them all
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  piton man | man -l -
  piton man claim | man -l -
  piton man --to ~/.local/share/man/man1      then: man piton-claim")]
pub(crate) struct Args {
    /// The command, such as `claim` or `worktree create` [default: piton itself]
    #[arg(value_name = "COMMAND", conflicts_with = "to")]
    command: Vec<String>,

    /// Write all pages into this folder
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// A page and its name, `piton-worktree-create`.
type Page = (String, clap::Command);

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Answer, Problem> {
    let root = super::with_help();
    let mut pages = Vec::new();
    collect(&root, "piton", &mut pages);
    match &args.to {
        Some(folder) => write_all(pages, folder, ui),
        None => print_one(pages, &args.command, ui),
    }
}

fn collect(command: &clap::Command, name: &str, pages: &mut Vec<Page>) {
    pages.push((name.to_owned(), command.clone()));
    let shown = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands().filter(shown) {
        collect(sub, &format!("{name}-{}", sub.get_name()), pages);
    }
}

fn page((name, command): Page) -> Result<(String, String), Problem> {
    let mut page = Vec::new();
    // The version is that of the whole program.
    let command = command.version(env!("CARGO_PKG_VERSION")).display_name(&name);
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok((name, String::from_utf8_lossy(&page).into_owned()))
}

fn print_one(pages: Vec<Page>, words: &[String], ui: &Ui) -> Result<Answer, Problem> {
    let wanted = ["piton"].into_iter().chain(words.iter().map(String::as_str));
    let wanted = wanted.collect::<Vec<_>>().join("-");
    let found = pages.into_iter().find(|(name, _)| *name == wanted).ok_or_else(|| {
        Problem::new(Kind::Usage, format!("there is no command `{}`", words.join(" ")))
            .hint("`piton help` lists them")
    })?;
    let (name, text) = page(found)?;
    ui.exact(text.trim_end())?;
    Ok(Answer::new(json!({ "name": name, "page": text })))
}

fn write_all(pages: Vec<Page>, folder: &Path, ui: &Ui) -> Result<Answer, Problem> {
    let failed = |error: io::Error| {
        Problem::new(Kind::Io, format!("cannot write into {}", folder.display())).because(error)
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut names = Vec::new();
    for each in pages {
        let (name, text) = page(each)?;
        fs::write(folder.join(format!("{name}.1")), text).map_err(failed)?;
        names.push(name);
    }
    let written = count(names.len() as u64, "page");
    ui.line(format!("{} {written} in {}", green("✓"), folder.display()))?;
    Ok(Answer::new(json!({ "folder": folder, "pages": names })))
}
