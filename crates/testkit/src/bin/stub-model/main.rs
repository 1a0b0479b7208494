//! A scripted stand-in for the model behind a coding agent: real agent programs work against it, without a
//! network. It listens on 127.0.0.1 and speaks enough of four model APIs, streamed or whole. What the model
//! does is written inside the prompt, as `[[stub: write a.txt hello; shell make test; say done]]`; see
//! `script`. How far a script has come is read from the conversation itself, so a resumed agent goes on
//! where its own history says.
//!
//! Its journal has a line when a request arrives (`roles`: a letter a message; `prompts`: every line with a
//! script, oldest first; `place`: how many tool results the newest script has seen) and one when it ends.

mod reading;
mod refusing;
mod script;
mod serving;
mod writing;

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use clap::Parser;

use crate::serving::Server;

#[derive(Parser)]
struct Args {
    /// 0 takes a free one; the first line that is printed says which.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Where every request is noted.
    #[arg(long)]
    journal: PathBuf,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))?;
    writeln!(io::stdout(), "listening on {}", listener.local_addr()?)?;
    let server = Arc::new(Server::new(&args.journal)?);
    for connection in listener.incoming() {
        let server = Arc::clone(&server);
        let connection = connection?;
        // An agent that goes away in the middle is nothing special.
        thread::spawn(move || server.serve(&connection));
    }
    Ok(())
}
