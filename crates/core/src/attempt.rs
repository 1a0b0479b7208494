//! The stages of an attempt, as a machine: what happened goes in, what comes next comes out. A keeper drives
//! it with a real tree and real processes, the simulator with simulated ones. The order of the stages, what
//! ends an attempt and what that end is called are decided here.

pub mod starts;
pub mod watch;

use std::sync::Arc;

use crate::decide::Request;
use crate::event::{Cause, Check, Conflict, Entry, Failure, Interruption, Stage};
use crate::exit::{AgentExit, Heard, Judged, judge};
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::time::Millis;

/// An attempt between its entry and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    entry: Entry,
    stage: Stage,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Do this stage, and say what happened. [`Stage::Unstarted`] makes the tree what the entry promises,
    /// [`Stage::Agent`] starts the agent or the command and watches it until it exits, [`Stage::Verify`]
    /// commits what is left in the tree and checks that commit, [`Stage::Land`] brings it onto the run's
    /// branch and completes the step.
    Do(Stage),
    /// Keep the tree's bytes, then record this: the attempt ends without having done its step.
    End(Request),
    /// Keep the tree's bytes and record nothing: another attempt has the claim.
    Abort,
    /// The step is completed.
    Finish,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    /// The stage is done.
    Done,
    /// The agent or the command has ended.
    Exited(Exited),
    /// The work was there already: by this command, or because this plan was.
    Found { check: Option<Check>, plan: Option<Arc<Plan>> },
    /// A stop was requested, and nothing new is begun.
    Stopped(Cause),
    /// The stage failed, and that counts against the step's retries.
    Failed(Failure),
    /// The stage was cut off, or the machine did not do its part: no fault of the step.
    Interrupted { cause: Cause, evidence: String },
    /// The commit cannot land before a person has said how.
    Conflicted(Box<Conflict>),
    /// The log refused a request.
    Refused(Refusal),
}

/// How an agent or a command ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Exited {
    pub ended: AgentExit,
    /// The end of what it printed.
    pub tail: String,
    pub evidence: String,
    /// The kernel killed processes meanwhile because memory was short.
    pub out_of_memory: bool,
    /// It has asked a question and has not read the answer.
    pub awaits_answer: bool,
    /// What an agent said.
    pub heard: Option<Box<Heard>>,
}

impl Stages {
    /// An attempt that enters here, and the first thing it does.
    pub fn enter(entry: Entry) -> (Stages, Next) {
        let stage = match entry {
            Entry::Fresh | Entry::Continue | Entry::Verify => Stage::Unstarted,
            Entry::Land => Stage::Land,
        };
        (Stages { entry, stage }, Next::Do(stage))
    }

    /// What comes next, after this happened at `now`.
    pub fn next(&mut self, happened: Happened, now: Millis) -> Next {
        match happened {
            Happened::Done => self.done(),
            Happened::Exited(exited) => self.exited(exited, now),
            Happened::Found { check, plan } => {
                let end = Request::FindDone { check };
                Next::End(match plan {
                    Some(plan) => Request::WithPlan { end: Box::new(end), plan },
                    None => end,
                })
            }
            Happened::Stopped(cause) => self.interrupt(cause, "stopped on request".to_owned(), now),
            Happened::Failed(why) => Next::End(Request::Fail { why }),
            Happened::Interrupted { cause, evidence } => self.interrupt(cause, evidence, now),
            Happened::Conflicted(conflict) => Next::End(Request::RaiseConflict(*conflict)),
            Happened::Refused(refusal) => self.refused(&refusal, now),
        }
    }

    fn done(&mut self) -> Next {
        self.stage = match (self.stage, self.entry) {
            (Stage::Unstarted, Entry::Fresh | Entry::Continue) => Stage::Agent,
            (Stage::Unstarted | Stage::Agent, _) => Stage::Verify,
            (Stage::Verify, _) => Stage::Land,
            (Stage::Land, _) => return Next::Finish,
        };
        Next::Do(self.stage)
    }

    fn exited(&mut self, exited: Exited, now: Millis) -> Next {
        let Exited { ended, tail, evidence, out_of_memory, awaits_answer, heard } = exited;
        match judge(self.stage, ended, tail, heard) {
            // Nothing can be said of the work before the answer is read.
            Judged::Ended if awaits_answer => Next::End(Request::Suspend),
            Judged::Ended => self.done(),
            Judged::Failed(why) => Next::End(Request::Fail { why }),
            Judged::Limited(heard) => Next::End(Request::Park(heard)),
            Judged::Interrupted(Cause::ProcessKill) if out_of_memory => {
                self.interrupt(Cause::OutOfMemory, evidence, now)
            }
            Judged::Interrupted(cause) => self.interrupt(cause, evidence, now),
        }
    }

    fn refused(&self, refusal: &Refusal, now: Millis) -> Next {
        let why = refusal.to_string();
        match refusal {
            Refusal::Unanswered { .. } | Refusal::AnswerUnread { .. } => {
                Next::End(Request::Suspend)
            }
            Refusal::OpenItems { .. }
            | Refusal::OpenSubsteps { .. }
            | Refusal::OpenOutputs { .. } => {
                Next::End(Request::Fail { why: Failure::Unfinished { open: why } })
            }
            Refusal::OutputShort { output, value, bound, .. } => {
                let (output, value, bound) = (output.clone(), value.clone(), bound.clone());
                Next::End(Request::Fail { why: Failure::Output { output, value, bound } })
            }
            refusal if refusal.is_lost() => Next::Abort,
            _ => self.interrupt(Cause::Unknown, why, now),
        }
    }

    fn interrupt(&self, cause: Cause, evidence: String, at: Millis) -> Next {
        let left_at = match (self.stage, self.entry) {
            // Its agent had ended under an earlier attempt.
            (Stage::Unstarted, Entry::Verify) => Stage::Verify,
            (stage, _) => stage,
        };
        Next::End(Request::Interrupt(Interruption { cause, at, evidence, left_at }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Dialect;
    use crate::dialect::{Said, Trouble, Turn};
    use crate::event::Exit;
    use crate::exit::StopRequest;
    use crate::ids::{AccountName, Fence, StepId, StepRef};

    fn heard(dialect: Dialect, turn: Option<Turn>) -> Heard {
        let said = Said { turn, ..Said::default() };
        let account = AccountName::new("fake").expect("valid");
        let (agents, resets_at) = (std::collections::BTreeSet::new(), None);
        Heard { dialect, said, account, agents, resets_at, jitter: 0 }
    }

    fn exited(exit: Exit, stop: StopRequest) -> Exited {
        let (tail, evidence) = ("tail".to_owned(), "seen".to_owned());
        let ended = AgentExit { exit, stop };
        Exited { ended, tail, evidence, out_of_memory: false, awaits_answer: false, heard: None }
    }

    /// Everything that can happen to a stage instead of being done.
    fn happenings() -> Vec<(&'static str, Happened)> {
        let step = || StepRef::first(StepId::new("a").expect("valid"));
        let (items, question, given) = (Vec::new(), crate::ids::QuestionId(3), Fence(2));
        let stop = StopRequest::Stop(Cause::UserInterrupt);
        let end = |exit, stop| Happened::Exited(exited(exit, stop));
        let ended = exited(Exit::Code(0), StopRequest::Nothing);
        let ended_saying = |turn, code, stop| {
            let heard = Some(Box::new(heard(Dialect::Claude, turn)));
            Happened::Exited(Exited { heard, ..exited(Exit::Code(code), stop) })
        };
        let spoken = |turn| ended_saying(turn, 0, StopRequest::Nothing);
        let failed = |trouble| Some(Turn::Failed { trouble, message: "no".to_owned() });
        let (hang, over) = (StopRequest::Hang { ms: 5 }, StopRequest::TurnOver);
        let killed = exited(Exit::Signal(9), StopRequest::Nothing);
        let (cause, evidence) = (Cause::DiskFull, "seen".to_owned());
        vec![
            ("exit 0, asked", Happened::Exited(Exited { awaits_answer: true, ..ended })),
            ("exit 0 after a stop", end(Exit::Code(0), stop)),
            ("exit 0, no result", spoken(None)),
            ("exit 0, an error", spoken(failed(None))),
            ("exit 0, a limit", spoken(failed(Some(Trouble::Limit)))),
            ("exit 0, no credit", spoken(failed(Some(Trouble::Spend)))),
            (
                "exit 1, no sign-in",
                ended_saying(failed(Some(Trouble::SignIn)), 1, StopRequest::Nothing),
            ),
            ("exit 1, busy", ended_saying(failed(Some(Trouble::Busy)), 1, StopRequest::Nothing)),
            ("exit 0, a result", spoken(Some(Turn::Done))),
            ("exit 1, a result", ended_saying(Some(Turn::Done), 1, StopRequest::Nothing)),
            ("143 after its turn", ended_saying(Some(Turn::Done), 143, over)),
            ("143, hung", ended_saying(None, 143, hang)),
            ("143, hung and done", ended_saying(Some(Turn::Done), 143, hang)),
            ("limit, stopped", ended_saying(failed(Some(Trouble::Limit)), 143, stop)),
            ("exit 1", end(Exit::Code(1), StopRequest::Nothing)),
            ("exit 1 after its time", end(Exit::Code(1), StopRequest::TimeUp { ms: 5 })),
            ("killed", Happened::Exited(killed.clone())),
            ("killed, no memory", Happened::Exited(Exited { out_of_memory: true, ..killed })),
            ("stopped", Happened::Stopped(Cause::Termination)),
            ("disk full", Happened::Interrupted { cause, evidence }),
            ("unanswered", Happened::Refused(Refusal::Unanswered { step: step(), question })),
            ("open items", Happened::Refused(Refusal::OpenItems { step: step(), items })),
            ("claim lost", Happened::Refused(Refusal::NotClaimed { step: step(), given })),
            ("refused", Happened::Refused(Refusal::NotStarted { step: step() })),
        ]
    }

    /// In a word: a stage, a failure by its kind, an interruption by its cause.
    fn shown(next: &Next) -> String {
        let word = |of: &dyn std::fmt::Debug| {
            let text = format!("{of:?}").to_lowercase();
            text.split_whitespace().next().unwrap_or_default().to_owned()
        };
        match next {
            Next::Do(stage) => word(stage),
            Next::End(Request::Fail { why }) => format!("failed: {}", word(why)),
            Next::End(Request::Interrupt(last)) => last.cause.to_string(),
            Next::End(Request::Park(_)) => "limited".to_owned(),
            Next::End(other) => word(other),
            Next::Abort | Next::Finish => word(next),
        }
    }

    /// The stages of an attempt that meets nothing unexpected.
    fn walk(entry: Entry) -> Vec<(Stages, Next)> {
        let mut all = vec![Stages::enter(entry)];
        while let Some((stages, Next::Do(_))) = all.last() {
            let mut stages = stages.clone();
            let next = stages.next(Happened::Done, Millis(0));
            all.push((stages, next));
        }
        all
    }

    /// Each entry with its stages, and where an attempt that is stopped there is left at.
    #[test]
    fn stages_follow_the_entry() {
        let entries = [Entry::Fresh, Entry::Continue, Entry::Verify, Entry::Land];
        let table = entries.map(|entry| {
            let stages = walk(entry).into_iter().map(|(mut stages, at)| {
                let stopped = stages.next(Happened::Stopped(Cause::HangUp), Millis(0));
                match (&at, stopped) {
                    (Next::Do(_), Next::End(Request::Interrupt(last))) => {
                        format!("{} ({:?})", shown(&at), last.left_at)
                    }
                    _ => shown(&at),
                }
            });
            format!("{entry:?}: {}", stages.collect::<Vec<_>>().join(", "))
        });
        insta::assert_snapshot!(table.join("\n"), @"
        Fresh: unstarted (Unstarted), agent (Agent), verify (Verify), land (Land), finish
        Continue: unstarted (Unstarted), agent (Agent), verify (Verify), land (Land), finish
        Verify: unstarted (Verify), verify (Verify), land (Land), finish
        Land: land (Land), finish
        ");
    }

    /// The same at every stage, or what it is at each stage in turn.
    #[test]
    fn what_happens_ends_the_attempt() {
        let at = &walk(Entry::Fresh)[..4];
        let table = happenings().into_iter().map(|(name, happened)| {
            let next = |stages: &Stages| stages.clone().next(happened.clone(), Millis(0));
            let mut ends: Vec<String> = at.iter().map(|(stages, _)| shown(&next(stages))).collect();
            ends.dedup();
            format!("{name:21} {}", ends.join(", "))
        });
        insta::assert_snapshot!(table.collect::<Vec<_>>().join("\n"), @"
        exit 0, asked         suspend
        exit 0 after a stop   user_interrupt
        exit 0, no result     agent, failed: reported, land, finish
        exit 0, an error      agent, failed: reported, land, finish
        exit 0, a limit       agent, limited, land, finish
        exit 0, no credit     agent, limited, land, finish
        exit 1, no sign-in    failed: setup, limited, failed: verify
        exit 1, busy          failed: setup, failed: exit, failed: verify
        exit 0, a result      agent, verify, land, finish
        exit 1, a result      failed: setup, verify, failed: verify
        143 after its turn    agent, verify, land, finish
        143, hung             failed: hang
        143, hung and done    failed: hang, verify, failed: hang
        limit, stopped        user_interrupt
        exit 1                failed: setup, failed: exit, failed: verify
        exit 1 after its time failed: timeout
        killed                process_kill
        killed, no memory     out_of_memory
        stopped               termination
        disk full             disk_full
        unanswered            suspend
        open items            failed: unfinished
        claim lost            abort
        refused               unknown
        ");
    }
}
