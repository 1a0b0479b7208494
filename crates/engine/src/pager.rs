//! The program that a person reads long texts with.

use std::env;
use std::io;
use std::process::{Child, Command, Stdio};

/// Starts the user's pager, which reads its standard input: what `PAGER` says, else `less`. None where they want
/// none, or there is none.
pub fn start() -> io::Result<Option<Child>> {
    let mut command = match env::var("PAGER") {
        Ok(wanted) if wanted.is_empty() || wanted == "cat" => return Ok(None),
        Ok(wanted) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &wanted]);
            shell
        }
        Err(_) => Command::new("less"),
    };
    if env::var_os("LESS").is_none() {
        // As git has it: colours, and no page for what fits the screen.
        command.env("LESS", "FRX");
    }
    match command.stdin(Stdio::piped()).spawn() {
        Ok(child) => Ok(Some(child)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
