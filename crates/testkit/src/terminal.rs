//! A terminal for a piton: what is typed goes through the kernel's line discipline, so that Ctrl-C
//! reaches exactly those processes a real one would reach, and closing it hangs up.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::Output;
use crate::sandbox::Sandbox;
use crate::wait::{DEADLINE, wait_for};

/// A piton with a controlling terminal of its own.
pub struct Terminal {
    master: Option<File>,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    closing: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts `piton ARGS…` as the foreground of a new terminal.
    #[track_caller]
    pub fn start(sandbox: &Sandbox, args: &[&str]) -> Terminal {
        Terminal::start_with(sandbox, args, &[])
    }

    /// The same with further variables.
    #[track_caller]
    pub fn start_with(sandbox: &Sandbox, args: &[&str], env: &[(&str, &str)]) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a pseudo terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a usable pseudo terminal");
        let name = ptsname(&master, Vec::new()).expect("its other end");
        let name = name.to_str().expect("a path in /dev");
        let end = || File::options().read(true).write(true).open(name).expect("its other end");
        // setsid(1) replaces itself with the program: the child is the piton.
        let mut command = sandbox.command("setsid");
        command.arg("--ctty").arg(sandbox.bin().join("piton")).args(args);
        command
            .env("TERM", "xterm")
            .envs(env.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end());
        let child = command.spawn().expect("setsid (util-linux) can be started");
        drop(command);
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let closing = Arc::new(AtomicBool::new(false));
        let own = master.try_clone().expect("a duplicate");
        let (to, end) = (Arc::clone(&shown), Arc::clone(&closing));
        let reader = Some(std::thread::spawn(move || show(own, &to, &end)));
        Terminal { master: Some(master), child, shown, closing, reader }
    }

    /// The piton's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What is on the screen, with everything that steers it.
    pub fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Types; `\u{3}` is Ctrl-C.
    #[track_caller]
    pub fn type_in(&mut self, keys: &str) {
        let master = self.master.as_mut().expect("an open terminal");
        master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Closes the window.
    pub fn close(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader of a terminal does not panic");
        }
        self.master = None;
    }

    /// Waits for the end of the piton.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let status = wait_for(DEADLINE, "the end of the piton in the terminal", || {
            let ended = self.child.try_wait().expect("a child can be waited for");
            ended.ok_or_else(|| self.shown())
        });
        self.close();
        let (stdout, stderr) = (self.shown(), String::new());
        Output { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.close();
    }
}

/// Takes in what is printed, until the other end or the window is closed.
fn show(mut master: File, shown: &Mutex<Vec<u8>>, closing: &AtomicBool) {
    let look_every = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let mut buffer = [0; 4096];
    while !closing.load(Ordering::SeqCst) {
        let mut ready = [PollFd::new(&master, PollFlags::IN)];
        if poll(&mut ready, Some(&look_every)).is_ok_and(|count| count == 0) {
            continue;
        }
        match master.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                let mut shown = shown.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                shown.extend_from_slice(&buffer[..count]);
            }
        }
    }
}
