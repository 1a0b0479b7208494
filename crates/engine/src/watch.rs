//! Watching a run that a worker works on: what is recorded, what the worker says beside it, how it ends, and
//! what the watcher itself is told by signals. Nothing here works on a run; a watcher can be killed.

use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, SystemTime};

use piton_core::event::{Cause, Event};
use piton_core::ids::Position;
use piton_core::run::Run;
use piton_core::view::HandChange;

use crate::attempt::signals::Listener;
use crate::error::EngineError;
use crate::project::Project;
use crate::run::log::Log;
use crate::run::observe::has_worker;
use crate::run::plan_file::plan_file;
use crate::run::write_back::changed_by_hand;
use crate::worker::{Ended, NotesReader, Notice, Said, What};

/// How long a look waits for something new.
const PACE: Duration = Duration::from_millis(50);

/// What a watcher sees, in order.
#[derive(Debug)]
pub enum Seen {
    Event(Box<Event>),
    Notice(Notice),
    /// Somebody changed the plan's file, or has changed it back.
    ByHand(Vec<HandChange>),
    /// The worker's last line.
    Ended(Ended),
    /// No worker is there any more, and none has said why.
    WorkerGone,
    /// This process was told to stop.
    Signal(Cause),
}

/// A watcher of one run.
pub struct Watcher {
    notes: NotesReader,
    /// Ends that were said before this point of the log are not about what is watched.
    since: Position,
    signals: Receiver<Cause>,
    /// The plan's file as it was last looked at, and what was changed in it by hand.
    file: Option<(SystemTime, u64)>,
    by_hand: Vec<HandChange>,
    _listener: Listener,
}

impl Watcher {
    /// Watches from now on. To be made before a worker is started, so that nothing it says is missed.
    pub fn start(project: &Project, log: &Log) -> Result<Watcher, EngineError> {
        let (sender, signals) = mpsc::channel();
        let listener = Listener::start(sender, |cause| cause)?;
        let run = log.run();
        let notes = NotesReader::from_now_on(&project.worker_log(run.opened.run));
        // Whoever begins to watch was told what there is by now.
        let by_hand = changed_by_hand(project, run);
        let since = run.cursor.position;
        Ok(Watcher { notes, since, signals, file: None, by_hand, _listener: listener })
    }

    /// What happened since the last look; waits a moment where there is nothing.
    pub fn look(&mut self, project: &Project, log: &mut Log) -> Result<Vec<Seen>, EngineError> {
        let mut seen = self.news(project, log)?;
        if seen.iter().all(|seen| matches!(seen, Seen::WorkerGone)) {
            log.wait(PACE)?;
            seen = self.news(project, log)?;
        }
        Ok(seen)
    }

    /// What this process was told to do, for whoever waits for something else.
    pub fn signal(&self) -> Option<Cause> {
        self.signals.try_recv().ok()
    }

    /// What was changed by hand, where that is news.
    fn look_at_file(&mut self, project: &Project, run: &Run) -> Option<Vec<HandChange>> {
        run.plan().source.as_ref()?;
        let file = std::fs::metadata(plan_file(project, run)).ok()?;
        let file = Some((file.modified().ok()?, file.len()));
        if file == self.file {
            return None;
        }
        self.file = file;
        let by_hand = changed_by_hand(project, run);
        let is_new = by_hand.iter().any(|change| !self.by_hand.contains(change));
        self.by_hand.clone_from(&by_hand);
        is_new.then_some(by_hand)
    }

    fn news(&mut self, project: &Project, log: &mut Log) -> Result<Vec<Seen>, EngineError> {
        let mut seen = Vec::new();
        // Asked for before the notes are read: a worker says how it ends while it lives.
        let is_there = has_worker(project, log.run().opened.run);
        let notes = self.notes.read();
        let Position(before) = log.run().cursor.position;
        // What a note was said about is in the log by now.
        let mut events = log.refresh()?.into_iter().zip(before + 1..).peekable();
        for Said { at, what } in notes {
            while let Some((event, _)) = events.next_if(|(_, position)| *position <= at.0) {
                seen.push(Seen::Event(Box::new(event)));
            }
            match what {
                What::Notice(notice) => seen.push(Seen::Notice(notice)),
                What::Ended(_) if at < self.since => {}
                What::Ended(ended) => seen.push(Seen::Ended(ended)),
            }
        }
        seen.extend(events.map(|(event, _)| Seen::Event(Box::new(event))));
        seen.extend(self.look_at_file(project, log.run()).map(Seen::ByHand));
        seen.extend(self.signal().map(Seen::Signal));
        let has_ended = seen.iter().any(|seen| matches!(seen, Seen::Ended(_)));
        if !is_there && !has_ended {
            seen.push(Seen::WorkerGone);
        }
        Ok(seen)
    }
}
