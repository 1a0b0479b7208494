//! What each stage of an attempt does, in the order of writes that closes every crash window: prepare the
//! tree, `Started`, the agent, its exit record, leftovers, verify, `Verified`, `LandingIntended`, the ref,
//! `Completed`. A later attempt enters at the stage an earlier one was left at.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::tz::TimeZone;
use piton_core::agent::{Agent, Dialect, PromptBy, Rung};
use piton_core::attempt::starts::{Starts, Then};
use piton_core::attempt::{Exited, Happened, Next, Stages};
use piton_core::brief::{self, Prompt, TreeFacts};
use piton_core::decide::{Command, Request};
use piton_core::dialect::{Here, Reader, Said, Turn, until};
use piton_core::event::{
    Check, Conversation, Entry, Failure, IterationCheck, SnapshotReason, Stage,
};
use piton_core::exit::{AgentExit, Heard};
use piton_core::ids::{AgentName, AttemptId, Oid, QuestionId};
use piton_core::plan::Work;
use piton_core::question::Question;
use piton_core::run::Stop;
use piton_core::time::Millis;
use piton_git::crash;
use piton_git::file::private;
use piton_git::repo::chain;
use piton_git::shell;
use piton_git::snapshot;
use piton_git::worktree::{Committed, Operation};

use super::cadence::Cadence;
use super::checkout::Checkout;
use super::{Instead, Keeper};
use crate::attempt::child::{self, SharedReader, Spec};
use crate::attempt::iteration;
use crate::attempt::land;
use crate::attempt::places;
use crate::attempt::planner::produced;
use crate::attempt::supervise::Finished;
use crate::attempt::verify::{self, Verdict};
use crate::error::EngineError;
use crate::folder::ExitRecord;
use crate::machine;
use crate::run::log::Log;
use crate::run::runs::trusted;
use crate::trust::Trusted;

/// An agent at work, and who listens to it.
struct Talk {
    agent: AgentName,
    dialect: Dialect,
    rung: Rung,
    /// A later attempt could go on with its conversation.
    is_resumable: bool,
    listener: SharedReader,
}

impl Talk {
    /// The conversation that it has named.
    fn news(&self) -> Option<Conversation> {
        let session = heard(&self.listener, |reader| reader.said().session.clone());
        let session = session.filter(|_| self.is_resumable)?;
        Some(Conversation { agent: self.agent.clone(), session, rung: self.rung })
    }

    fn has_answered(&self) -> bool {
        heard(&self.listener, |reader| reader.said().has_answered)
    }
}

/// How an agent takes up its work.
#[derive(Clone, Copy)]
struct TakeUp {
    rung: Rung,
    /// It was started before in this attempt.
    is_again: bool,
}

/// Whoever panicked while it read has read enough.
fn heard<T>(listener: &SharedReader, ask: impl FnOnce(&mut Reader) -> T) -> T {
    ask(&mut listener.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Keeper {
    /// From the attempt's entry to its end: does what comes next by the core's rules, and says what
    /// happened. Returns the exit code.
    pub(super) fn stages(&mut self) -> i32 {
        let (mut stages, mut next) = Stages::enter(self.entry);
        loop {
            let happened = match next {
                Next::Do(Stage::Unstarted) => self.prepare(),
                Next::Do(Stage::Agent) => self.run_agent(),
                Next::Do(Stage::Verify) => self.verify(),
                Next::Do(Stage::Land) => self.land(),
                Next::End(request) => return self.end(Some(request)),
                Next::Abort => return self.end(None),
                Next::Finish => {
                    self.put_away();
                    return 0;
                }
            };
            let now = self.log.now().map_or(self.log.run().changed_at, |now| now.wall);
            next = stages.next(happened.unwrap_or_else(|Instead(happened)| happened), now);
        }
    }

    /// The trees have served once the run is completed.
    pub(super) fn put_away(&self) {
        self.unlock_tree();
        if !self.log.run().is_completed() {
            return;
        }
        match places::put_away(&self.project, &self.log) {
            Ok(stay) => stay.iter().for_each(|path| {
                self.note(&format!("{} stays: not all of it has landed", path.display()));
            }),
            Err(error) => self.note(&format!("the worktrees stay: {}", chain(&error))),
        }
    }

    fn trusted(&mut self) -> Result<Rc<Trusted>, Instead> {
        let known = match &self.trusted {
            Some(known) => Rc::clone(known),
            None => Rc::new(trusted(&self.project, &self.log)?),
        };
        self.trusted = Some(Rc::clone(&known));
        Ok(known)
    }

    /// Fails where a stop was requested: nothing new is begun.
    pub(super) fn unless_stopped(&mut self) -> Result<(), Instead> {
        match self.supervisor.stop(&mut self.log)? {
            Some(Stop { cause, .. }) => Err(Instead(Happened::Stopped(cause))),
            None => Ok(()),
        }
    }

    /// Whoever puts a snapshot back is waited for, and what they began and left is finished.
    fn await_restore(&self) -> Result<(), Instead> {
        let _alone = snapshot::lock_tree(&self.tree)?;
        snapshot::finish_putting(&self.tree)?;
        Ok(())
    }

    /// Makes the tree what the entry promises.
    fn prepare(&mut self) -> Result<Happened, Instead> {
        self.await_restore()?;
        self.unless_stopped()?;
        let trusted = self.trusted()?;
        match self.entry {
            Entry::Verify => self.ensure_tree()?,
            _ => self.prepare_work()?,
        }
        self.lock_tree()?;
        self.set_up(&trusted)?;
        crash::point("keeper.tree-prepared");
        self.found_done(&trusted)
    }

    fn prepare_work(&mut self) -> Result<(), Instead> {
        self.project.exclude_worktrees(&self.settings.worktree_root)?;
        let tip = land::run_tip(&self.project, self.log.run())?;
        crash::point("keeper.run-branch");
        self.base = match (self.entry, self.state().base.clone()) {
            (Entry::Continue, Some(base)) => {
                self.ensure_tree()?;
                // What a person changed since the last attempt is kept before the next one changes it.
                if let Err(error) = self.keep_snapshot(SnapshotReason::Cadence) {
                    self.note(&format!("the first snapshot failed: {}", chain(&error)));
                }
                Some(base)
            }
            _ => {
                self.start_over(&tip)?;
                Some(tip)
            }
        };
        Ok(())
    }

    fn run_agent(&mut self) -> Result<Happened, Instead> {
        let trusted = self.trusted()?;
        let first = TakeUp { rung: Rung::Resume, is_again: false };
        let (mut spec, mut talk, answers) = self.agent_spec(&trusted, first)?;
        let checkout = Checkout::look(&self.project.git);
        self.unless_stopped()?;
        let (base, pid) = (self.base.clone(), Some(std::process::id()));
        self.submit(Request::Start { base, answers, pid })?;
        crash::point("keeper.started");
        let oom_before = machine::oom_kills();
        let mut starts = Starts::default();
        let (finished, heard) = loop {
            let (finished, heard) = self.supervise_agent(&trusted, spec, talk.as_ref())?;
            let (Some(Talk { rung, .. }), Some(heard)) = (&talk, heard) else {
                break (finished, None);
            };
            let then = starts.next(*rung, finished.ended, &heard);
            let rung = match then {
                Then::Over => break (finished, Some(heard)),
                Then::Below(rung) => {
                    self.say("the agent does not have the conversation any more")?;
                    rung
                }
                Then::After(pause) => {
                    let seconds = pause.as_secs();
                    self.say(&format!("the model's server is busy; started again in {seconds} s"))?;
                    Rung::Resume
                }
            };
            self.folder.forget_exit().map_err(EngineError::io("exit.json cannot be removed"))?;
            if let Then::After(pause) = then {
                self.supervisor.pause(&mut self.log, pause);
            }
            self.unless_stopped()?;
            (spec, talk, _) = self.agent_spec(&trusted, TakeUp { rung, is_again: true })?;
        };
        let Finished { ended, tail, survivors } = finished;
        self.compare_checkout(checkout);
        if !ended.exit.is_success() || heard.is_some() {
            self.record_exit(ended, tail.clone(), heard.clone())?;
        }
        let is_fine = |heard: &Heard| ended.exit.is_success() && heard.trouble().is_none();
        let is_answered = |heard: &Heard| heard.said.has_answered || is_fine(heard);
        if heard.as_deref().is_some_and(is_answered) {
            self.submit(Request::ReportAnswer)?;
        }
        let mut evidence = ended.exit.to_string();
        if !survivors.is_empty() {
            evidence = format!("{evidence}; could not be ended: {survivors:?}");
        }
        let oom = oom_before.zip(machine::oom_kills()).filter(|(before, after)| after > before);
        if let Some((before, after)) = oom {
            evidence = format!(
                "{evidence}; the kernel's count of out-of-memory kills rose from {before} to {after}"
            );
        }
        let awaits_answer = self.state().awaits(self.fence).is_some();
        let out_of_memory = oom.is_some();
        Ok(Happened::Exited(Exited { ended, tail, evidence, out_of_memory, awaits_answer, heard }))
    }

    /// What an agent has said, with what its words mean here and now.
    fn heard(&self, trusted: &Trusted, talk: &Talk) -> Heard {
        let said = heard(&talk.listener, |reader| {
            reader.end();
            reader.said().clone()
        });
        let account_of = |name: &AgentName| trusted.agent(name).map(|agent| agent.account(name));
        let steps = self.log.run().plan().steps.iter();
        let names = steps.filter_map(|step| step.work.agent()).chain([&talk.agent]);
        let account =
            account_of(&talk.agent).unwrap_or_else(|| Agent::default().account(&talk.agent));
        let agents = names.filter(|name| account_of(name).as_ref() == Some(&account)).cloned();
        let agents = agents.collect();
        let chance = uuid::Uuid::now_v7().as_u128() % 1001;
        Heard {
            dialect: talk.dialect,
            resets_at: self.resets_at(&said),
            said,
            account,
            agents,
            jitter: u16::try_from(chance).unwrap_or_default(),
        }
    }

    /// When a limit is over: in numbers, else by its words, read where they were said.
    fn resets_at(&self, said: &Said) -> Option<Millis> {
        let Some(Turn::Failed { trouble: Some(_), message }) = &said.turn else { return None };
        let here = Here {
            now: self.log.now().map_or(self.log.run().changed_at, |now| now.wall),
            zone: TimeZone::system(),
            zone_named: &|name| TimeZone::get(name).ok(),
        };
        said.resets_at.or_else(|| until(message, &here))
    }

    /// Runs the agent, with snapshots meanwhile. Its exit is on disk before anything else is done about
    /// it.
    fn supervise_agent(
        &mut self,
        trusted: &Trusted,
        spec: Spec,
        talk: Option<&Talk>,
    ) -> Result<(Finished, Option<Box<Heard>>), Instead> {
        let program = spec.program.to_string_lossy().into_owned();
        let child = self.supervisor.spawn(trusted, &program, spec)?;
        crash::point("keeper.agent-spawned");
        self.record.agent = machine::process(child.pid);
        self.folder.write_keeper(&self.record).map_err(EngineError::io("keeper.json"))?;
        let cadence = Cadence::start(self);
        let under = self.under();
        let has_limit =
            |log: &Log| talk.is_some_and(|talk| log.run().limits().of(&talk.agent).is_some());
        // A store that does not answer now is asked again at the next look.
        let note_news = |log: &mut Log| {
            let known = log.run().step(&under.step).and_then(|(_, state)| state.attempt());
            let known = known.and_then(|attempt| attempt.conversation.as_ref());
            if let Some(with) = talk.and_then(Talk::news).filter(|with| known != Some(with)) {
                let with = Command::Under(under.clone(), Request::Converse(with));
                let _the_next_time = log.submit(&with);
            }
            // Others on the account wait for that.
            if has_limit(log) && talk.is_some_and(Talk::has_answered) {
                let answer = Command::Under(under.clone(), Request::ReportAnswer);
                let _the_next_time = log.submit(&answer);
            }
        };
        let ended = self.supervisor.await_exit(&mut self.log, &child, note_news)?;
        crash::point("keeper.child-exited");
        // What it printed last says how its turn ended: without that its exit says nothing.
        let speaks = talk.is_some_and(|talk| talk.dialect != Dialect::Plain);
        if !speaks {
            self.record_exit(ended, String::new(), None)?;
        }
        drop(cadence);
        let (tail, survivors) = child.finish();
        let heard = talk.map(|talk| Box::new(self.heard(trusted, talk)));
        if speaks {
            self.record_exit(ended, tail.clone(), heard.clone())?;
        }
        // The snapshots that were taken meanwhile; whoever needs more asks again.
        let _the_next_time = self.log.refresh();
        // What it said last.
        if let Some(with) = talk.and_then(Talk::news) {
            self.submit(Request::Converse(with))?;
        }
        Ok((Finished { ended, tail, survivors }, heard))
    }

    /// From here on the agent is not started again, whatever happens to this process.
    fn record_exit(
        &self,
        ended: AgentExit,
        tail: String,
        heard: Option<Box<Heard>>,
    ) -> Result<(), Instead> {
        let record = ExitRecord { ended, tail, heard };
        self.folder.write_exit(&record).map_err(EngineError::io("exit.json cannot be written"))?;
        crash::point("keeper.exit-recorded");
        Ok(())
    }

    /// A line of piton's own in the transcript.
    fn say(&self, message: &str) -> Result<(), Instead> {
        let write = || {
            let mut file = private(&self.folder.transcript())?;
            file.seek(SeekFrom::End(0))?;
            writeln!(file, "[piton: {message}]")
        };
        Ok(write().map_err(EngineError::io("the transcript cannot be written"))?)
    }

    /// What to start: a plain command, or an agent with its prompt and brief, and the answers that are
    /// told with it. A command is told nothing: it reads an answer by asking again. An agent takes up its
    /// work at this rung or the next below that it has.
    fn agent_spec(
        &self,
        trusted: &Trusted,
        TakeUp { rung, is_again }: TakeUp,
    ) -> Result<(Spec, Option<Talk>, Vec<QuestionId>), Instead> {
        let output = self.folder.transcript();
        let max = self.settings.transcript_max;
        let folder = self.tree.path().to_owned();
        match &self.plan.work {
            Work::ByHand | Work::Told(_) => {
                Err(Instead::obstacle("there is nothing to start: the step is claimed by others"))
            }
            Work::Run(command) => {
                let variables = self.variables(None)?;
                let spec = Spec { variables, ..Spec::shell(command, folder, output, max) };
                Ok((spec, None, Vec::new()))
            }
            Work::Agent { agent: name, .. } => {
                let unknown = || Instead::obstacle(format!("agent {name} is not defined"));
                let agent = trusted.agent(name).ok_or_else(unknown)?;
                let facts = match (self.entry, &self.base) {
                    (Entry::Continue, Some(base)) => self.tree.facts(base)?,
                    _ => TreeFacts::default(),
                };
                let prompt = brief::prompt(self.log.run(), &self.step, self.entry, &facts);
                let Prompt { text: prompt, answers } = prompt.ok_or_else(unknown)?;
                let own = self.state().attempt().and_then(|own| own.conversation.as_ref());
                let own = own.filter(|_| is_again);
                let prompt = match own {
                    Some(_) => format!("{}\n\n---\n{}", prompt.trim_end(), brief::SERVER_WAS_BUSY),
                    None => prompt,
                };
                let stdin = self.write_prompt(&prompt)?;
                let file = self.folder.prompt().display().to_string();
                let before = self.state().conversation(name);
                let before = own.or(before.filter(|_| self.entry == Entry::Continue));
                let (rung, session) = match (before, agent.rung(rung)) {
                    (Some(before), rung @ (Rung::Resume | Rung::Fork)) => {
                        (rung, before.session.clone())
                    }
                    // The id of this attempt may be taken.
                    _ if is_again => (Rung::Start, AttemptId(uuid::Uuid::now_v7()).session()),
                    _ => (Rung::Start, self.id.session()),
                };
                match rung {
                    Rung::Resume => self.say(&format!("continues conversation {session}"))?,
                    Rung::Fork => {
                        self.say(&format!("continues a copy of conversation {session}"))?
                    }
                    Rung::Start => {}
                }
                let is_given = rung == Rung::Resume || agent.presets_session();
                let reader = Reader::new(agent.dialect, is_given.then(|| session.clone()));
                let talk = Talk {
                    agent: name.clone(),
                    dialect: agent.dialect,
                    rung,
                    is_resumable: agent.rung(Rung::Resume) != Rung::Start,
                    listener: Arc::new(Mutex::new(reader)),
                };
                let words = agent.words(rung, &session, &file);
                let mut words = words.into_iter().map(Into::into);
                let program = words.next().ok_or_else(|| {
                    Instead::obstacle(format!("agent {name} has an empty command"))
                })?;
                let mut arguments: Vec<std::ffi::OsString> = words.collect();
                if agent.prompt == PromptBy::Arg {
                    arguments.push(prompt.into());
                }
                let spec = Spec {
                    program,
                    arguments,
                    folder,
                    variables: self.variables(Some(agent))?,
                    stdin: (agent.prompt == PromptBy::Stdin).then_some(stdin),
                    output,
                    output_max: max,
                    listener: Some(Arc::clone(&talk.listener)),
                };
                Ok((spec, Some(talk), answers))
            }
        }
    }

    fn write_prompt(&self, prompt: &str) -> Result<File, Instead> {
        let path = self.folder.prompt();
        let write = || {
            private(&path)?;
            fs::write(&path, prompt)?;
            File::open(&path)
        };
        Ok(write().map_err(EngineError::io("the prompt cannot be written"))?)
    }

    /// Values reach commands as environment variables, never by interpolation.
    pub(super) fn variables(
        &self,
        agent: Option<&Agent>,
    ) -> Result<BTreeMap<String, String>, Instead> {
        let mut variables = child::variables(self.log.run(), &self.step, self.fence, self.id);
        variables.extend(self.output_variables()?);
        if let Some(agent) = agent {
            for (name, value) in &agent.env {
                variables.entry(name.clone()).or_insert_with(|| value.clone());
            }
            let prompt = self.folder.prompt().display().to_string();
            variables.insert("PITON_PROMPT_FILE".into(), prompt);
        }
        Ok(variables)
    }

    /// Commits what the agent left, runs the verify command on that commit, records both.
    fn verify(&mut self) -> Result<Happened, Instead> {
        self.unless_stopped()?;
        let trusted = self.trusted()?;
        self.refuse_unfinished()?;
        let handle = &self.log.run().opened.handle;
        let message =
            format!("{}\n\nPiton-Run: {handle}\nPiton-Step: {}\n", self.plan.title, self.step);
        let Committed { commit, apart } = self.tree.commit_all(&self.branch(), &message)?;
        crash::point("keeper.leftovers-committed");
        if !apart.is_empty() {
            // Nothing of them lands: a snapshot has their files before anybody calls the step done.
            self.keep_snapshot(SnapshotReason::End)?;
        }
        // Found now, the planner is told and begins again; found when it lands, it would be too late.
        let produced = produced(&self.project, self.log.run(), &self.step, &commit)?;
        if let Err(open) = produced.required() {
            return Err(Instead(Happened::Failed(Failure::Unfinished { open })));
        }
        let check = match self.plan.verify.clone() {
            Some(command) => Some(self.check(&trusted, command)?),
            None => None,
        };
        crash::point("keeper.verify-ran");
        let iteration = self.check_iteration(&trusted, &commit)?;
        let tree = self.project.git.tree_of(&commit)?;
        let commits = match &self.state().base {
            Some(base) => self.project.git.count_commits(base, &commit)?,
            None => 0,
        };
        let omitted = snapshot::apart(&self.tree, apart);
        self.submit(Request::Verify { commit, tree, check, commits, omitted, iteration })?;
        crash::point("keeper.verified");
        Ok(Happened::Done)
    }

    /// What somebody has begun and not finished is not committed for them: half a rebase lacks the other
    /// half, and a file with both sides of a conflict is nobody's work. A merge that is solved is finished.
    fn refuse_unfinished(&self) -> Result<(), Instead> {
        let (shown, place) = (self.tree.path().display(), shell::path(self.tree.path()));
        let unmerged = self.tree.unmerged()?;
        let begun = self.tree.in_progress();
        let operation = begun.as_ref().map(|begun| begun.operation);
        let asked = |question: &Question| question.about.is_some() && question.is_unread();
        let asked = self.state().questions.iter().any(asked);
        let is_merge = matches!(operation, None | Some(Operation::Merge));
        if is_merge && !self.tree.has_conflict_marks(&unmerged) && (unmerged.is_empty() || !asked) {
            return Ok(());
        }
        let what = begun.map_or("a merge".to_owned(), |begun| begun.to_string());
        let (on, back) = operation.unwrap_or(Operation::Merge).ways_out();
        let paths = match unmerged.is_empty() {
            true => String::new(),
            false => format!(" ({})", unmerged.join(", ")),
        };
        Err(Instead::obstacle(format!(
            "{what} in {shown} is not finished{paths}: `cd {place}`, then `{on}` or `{back}`"
        )))
    }

    fn check(&mut self, trusted: &Trusted, command: String) -> Result<Check, Instead> {
        let output = self.folder.verify_log();
        let max = self.settings.transcript_max;
        let folder = self.tree.path().to_owned();
        let variables = self.variables(None)?;
        let spec = Spec { variables, ..Spec::shell(&command, folder, output, max) };
        let run = (command, spec);
        match verify::run(&mut self.supervisor, &mut self.log, trusted, run)? {
            Verdict::Passed(check) => Ok(check),
            Verdict::Failed { why, .. } => Err(Instead(Happened::Failed(why))),
            Verdict::Interrupted { cause, exit } => {
                let evidence = format!("verify: {exit}");
                Err(Instead(Happened::Interrupted { cause, evidence }))
            }
        }
    }

    /// At the end of a loop's iteration: whether the loop is done, and whether anything changed.
    fn check_iteration(
        &mut self,
        trusted: &Trusted,
        commit: &Oid,
    ) -> Result<Option<Box<IterationCheck>>, Instead> {
        let run = self.log.run();
        let Some(seen) = iteration::seen(&self.project.git, run, &self.step, commit)? else {
            return Ok(None);
        };
        let Some(command) = iteration::until(run, &self.step) else {
            return Ok(Some(Box::new(seen)));
        };
        let (output, max) = (self.folder.until_log(), self.settings.transcript_max);
        let (folder, variables) = (self.tree.path().to_owned(), self.variables(None)?);
        let spec = Spec { variables, ..Spec::shell(&command, folder, output, max) };
        let (check, tail) =
            match verify::run(&mut self.supervisor, &mut self.log, trusted, (command, spec))? {
                Verdict::Passed(check) => (check, String::new()),
                Verdict::Failed { check, tail, .. } => (check, tail),
                Verdict::Interrupted { cause, exit } => {
                    let evidence = format!("until: {exit}");
                    return Err(Instead(Happened::Interrupted { cause, evidence }));
                }
            };
        crash::point("keeper.until-ran");
        Ok(Some(Box::new(iteration::with_until(seen, check, tail))))
    }

    /// Brings the verified commit onto the run's branch, one step at a time.
    fn land(&mut self) -> Result<Happened, Instead> {
        self.unless_stopped()?;
        let under = self.under();
        land::land(&self.project, &mut self.log, &under, None)?;
        Ok(Happened::Done)
    }
}
