//! The stages of an attempt, in the order of writes that closes every crash window: prepare the tree,
//! `Started`, the agent, its exit record, leftovers, verify, `Verified`, `LandingIntended`, the ref,
//! `Completed`. A later attempt enters at the stage an earlier one was left at.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::time::Instant;

use piton_core::brief::{self, Prompt, TreeFacts};
use piton_core::decide::{Command, Judged, judge_exit};
use piton_core::event::{Cause, Check, Entry, Failure, SnapshotReason, Stage, Truth};
use piton_core::ids::{Hash, Oid, QuestionId};
use piton_core::plan::{Agent, Isolation, PromptBy, Work};
use piton_core::question::Question;
use piton_core::run::Stop;

use super::lookout::Lookout;
use super::supervise::Watched;
use super::{End, Input, Keeper};
use crate::attempt::private;
use crate::child::{self, Spec};
use crate::crash;
use crate::error::{EngineError, chain};
use crate::land;
use crate::machine;
use crate::snapshot;
use crate::worktree::TreeState;

impl Keeper {
    /// From the attempt's entry to `Completed`.
    pub(super) fn stages(&mut self) -> Result<(), End> {
        if self.entry != Entry::Land {
            self.await_restore()?;
        }
        match self.entry {
            Entry::Fresh | Entry::Continue => {
                let lookout = Lookout::start(&self.project.git, self.sender.clone());
                let base = self.prepare()?;
                self.run_agent(base, lookout)?;
                self.verify()?;
            }
            Entry::Verify => {
                self.agent_ended = true;
                self.ensure_tree()?;
                self.lock_tree()?;
                self.set_up(Stage::Verify)?;
                self.verify()?;
            }
            Entry::Land => {}
        }
        self.land()?;
        self.put_away();
        Ok(())
    }

    /// A step's own worktree has served once everything in it has landed. What cannot be proven to be
    /// elsewhere stays, and nobody waits for it.
    fn put_away(&self) {
        if self.log.run().plan().isolation != Isolation::Step {
            return;
        }
        self.unlock_tree();
        let removed = land::run_tip(&self.project, self.log.run())
            .and_then(|tip| Ok(self.tree.remove_spent(&tip, |path| self.was_brought(path))?));
        match removed {
            Ok(true) => {}
            Ok(false) => self.note("the worktree stays: not all of it has landed"),
            Err(error) => self.note(&format!("the worktree stays: {}", chain(&error))),
        }
    }

    pub(super) fn stop_before(&mut self, left_at: Stage) -> Result<(), End> {
        match self.asked_to_stop()? {
            Some(Stop { cause, .. }) => {
                let evidence = "stopped on request".to_owned();
                Err(End::Interrupted { cause, left_at, evidence })
            }
            None => Ok(()),
        }
    }

    /// Whoever puts a snapshot back is waited for, and what they began and left is finished.
    fn await_restore(&self) -> Result<(), End> {
        let _alone = snapshot::lock_tree(&self.tree)?;
        snapshot::finish_putting(&self.tree)?;
        Ok(())
    }

    /// Makes the tree what the entry promises; returns the step's base.
    fn prepare(&mut self) -> Result<Oid, End> {
        self.stop_before(Stage::Unstarted)?;
        self.project.exclude_worktrees(&self.settings.worktree_root)?;
        let tip = land::run_tip(&self.project, self.log.run())?;
        crash::point("keeper.run-branch");
        let base = match (self.entry, self.state().base.clone()) {
            (Entry::Continue, Some(base)) => {
                self.ensure_tree()?;
                // What a person changed since the last attempt is kept before the next one changes it.
                if let Err(error) = self.keep_snapshot(SnapshotReason::Cadence) {
                    self.note(&format!("the first snapshot failed: {}", chain(&error)));
                }
                base
            }
            _ => {
                self.start_over(&tip)?;
                tip
            }
        };
        self.lock_tree()?;
        self.set_up(Stage::Unstarted)?;
        crash::point("keeper.tree-prepared");
        Ok(base)
    }

    /// A tree at the tip of the run's branch, with whatever else was in it kept first.
    fn start_over(&mut self, tip: &Oid) -> Result<(), End> {
        self.tree.mend()?;
        match self.tree.state()? {
            TreeState::Missing => Ok(self.tree.create(&self.branch(), tip).map(drop)?),
            TreeState::Foreign { why } => Err(self.foreign(&why)),
            TreeState::Present { head, .. } => {
                // Commits that the run's branch does not have are as much at risk as files.
                let landed = match &head {
                    Some(head) => self.project.git.is_ancestor(head, tip)?,
                    None => true,
                };
                if !landed || self.tree.dirty()? {
                    self.keep_before_reset()?;
                }
                Ok(self.tree.reset_to(&self.branch(), tip)?)
            }
        }
    }

    /// The tree as the last attempt left it: what is on disk wins; a tree that is gone is rebuilt from
    /// its snapshot.
    fn ensure_tree(&mut self) -> Result<(), End> {
        self.tree.mend()?;
        let branch = self.branch();
        match self.tree.state()? {
            TreeState::Foreign { why } => Err(self.foreign(&why)),
            TreeState::Present { branch: Some(on), .. }
                if on != branch && on.starts_with("piton/") =>
            {
                // Another step of this run has used the tree since.
                self.keep_before_reset()?;
                self.rebuild(&branch)
            }
            // Also when the agent went to a branch of its own: that is where its work is.
            TreeState::Present { .. } => Ok(()),
            TreeState::Missing => self.rebuild(&branch),
        }
    }

    fn rebuild(&mut self, branch: &str) -> Result<(), End> {
        let git = &self.project.git;
        let mut kept = self.state().to_go_on_from().map(|kept| kept.snapshot.commit.clone());
        let own = git.ref_target(&format!("refs/heads/{branch}"))?;
        let mut parent = match &kept {
            Some(commit) => Some(git.commit(&format!("{commit}^"))?),
            None => own.clone().or_else(|| self.state().base.clone()),
        };
        // Somebody has gone on from what was all committed: a conflict was solved, perhaps.
        if let (Some(commit), Some(from), Some(own)) = (&kept, &parent, own)
            && git.is_ancestor(from, &own)?
            && git.tree_of(commit)? == git.tree_of(from)?
        {
            (kept, parent) = (None, Some(own));
        }
        let start = match parent {
            Some(start) => start,
            None => land::run_tip(&self.project, self.log.run())?,
        };
        Ok(snapshot::rebuild(&self.tree, branch, &start, kept.as_ref())?)
    }

    /// No destruction without a copy: what a reset would lose is kept and read back first.
    fn keep_before_reset(&mut self) -> Result<(), End> {
        // Nothing new: then the step's own last snapshot has it all.
        let own = self.state().snapshot.as_ref().map(|kept| kept.snapshot.clone());
        let kept = self.keep_snapshot(SnapshotReason::Reset)?.or(own);
        if let Some(kept) = kept {
            snapshot::read_back(&self.project.git, &kept)?;
            snapshot::keep_omitted(&self.tree, &kept, &self.folder.omitted())?;
        }
        Ok(())
    }

    fn foreign(&self, why: &str) -> End {
        let path = self.tree.path().display();
        End::trouble(format!("{path} is not this run's worktree ({why}); move it away"))
    }

    fn run_agent(&mut self, base: Oid, lookout: Lookout) -> Result<(), End> {
        let (spec, answers) = self.agent_spec(&base)?;
        self.stop_before(Stage::Unstarted)?;
        let (step, fence) = (self.step.clone(), self.fence);
        let pid = Some(std::process::id());
        self.log.submit(&Command::Start { step, fence, base: Some(base), answers, pid })?;
        crash::point("keeper.started");
        lookout.begun();
        let oom_before = machine::oom_kills();
        let program = spec.program.to_string_lossy().into_owned();
        let child = child::spawn(spec, self.sender.clone(), Input::Exited)
            .map_err(|error| End::trouble(format!("{program} cannot be started: {error}")))?;
        crash::point("keeper.agent-spawned");
        self.record.agent = machine::process(child.pid);
        self.folder.write_keeper(&self.record).map_err(EngineError::io("keeper.json"))?;
        let finished = self.supervise(child, Watched::Agent)?;
        lookout.end();
        self.take_in_waiting();
        if !finished.ended.exit.is_success() {
            self.record_exit(finished.ended, finished.tail.clone())?;
        }
        let exit = finished.ended.exit;
        let mut evidence = exit.to_string();
        if !finished.survivors.is_empty() {
            evidence = format!("{evidence}; could not be ended: {:?}", finished.survivors);
        }
        match judge_exit(finished.ended) {
            Judged::Ended => {
                self.log.refresh()?;
                if self.state().awaits(self.fence).is_some() {
                    return Err(End::Waiting);
                }
                self.agent_ended = true;
                Ok(())
            }
            Judged::Failed => Err(End::Failed(Failure::Exit { exit, tail: finished.tail })),
            Judged::TimedOut => Err(End::Failed(self.timed_out())),
            Judged::Interrupted(cause) => {
                let cause = match (cause, oom_before, machine::oom_kills()) {
                    (Cause::ProcessKill, Some(before), Some(after)) if after > before => {
                        evidence = format!(
                            "{evidence}; the kernel's count of out-of-memory kills rose from {before} to {after}"
                        );
                        Cause::OutOfMemory
                    }
                    (cause, ..) => cause,
                };
                Err(End::Interrupted { cause, left_at: Stage::Agent, evidence })
            }
        }
    }

    pub(super) fn timed_out(&self) -> Failure {
        let limit = self.plan.timeout.unwrap_or_default();
        Failure::Timeout { ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
    }

    /// What to start: a plain command, or an agent with its prompt and brief, and the answers that are
    /// told with it. A command is told nothing: it reads an answer by asking again.
    fn agent_spec(&self, base: &Oid) -> Result<(Spec, Vec<QuestionId>), End> {
        let output = self.folder.transcript();
        let max = self.settings.transcript_max;
        let folder = self.tree.path().to_owned();
        match &self.plan.work {
            Work::ByHand => {
                Err(End::trouble("there is nothing to start: the step is claimed by others"))
            }
            Work::Run(command) => {
                let variables = self.variables(None);
                let spec = Spec { variables, ..Spec::shell(command, folder, output, max) };
                Ok((spec, Vec::new()))
            }
            Work::Agent { agent, prompt } => {
                let name = agent;
                let agent = self.agent(agent)?;
                let facts = match self.entry {
                    Entry::Continue => self.tree.facts(base)?,
                    _ => TreeFacts::default(),
                };
                let step = (&self.plan, self.state());
                let Prompt { text: prompt, answers } =
                    brief::prompt(prompt, step, self.entry, &facts);
                let stdin = self.write_prompt(&prompt)?;
                let mut words = agent.command.iter().map(Into::into);
                let program = words
                    .next()
                    .ok_or_else(|| End::trouble(format!("agent {name} has an empty command")))?;
                let mut arguments: Vec<std::ffi::OsString> = words.collect();
                if agent.prompt == PromptBy::Arg {
                    arguments.push(prompt.into());
                }
                let spec = Spec {
                    program,
                    arguments,
                    folder,
                    variables: self.variables(Some(&agent)),
                    stdin: (agent.prompt == PromptBy::Stdin).then_some(stdin),
                    output,
                    output_max: max,
                };
                Ok((spec, answers))
            }
        }
    }

    fn agent(&self, name: &piton_core::ids::AgentName) -> Result<Agent, End> {
        let of_plan = self.log.run().plan().agents.get(name);
        of_plan
            .or_else(|| self.settings.agents.get(name))
            .cloned()
            .ok_or_else(|| End::trouble(format!("agent {name} is not defined")))
    }

    fn write_prompt(&self, prompt: &str) -> Result<File, End> {
        let path = self.folder.prompt();
        let write = || {
            private(&path)?;
            fs::write(&path, prompt)?;
            File::open(&path)
        };
        Ok(write().map_err(EngineError::io("the prompt cannot be written"))?)
    }

    /// Values reach commands as environment variables, never by interpolation.
    pub(super) fn variables(&self, agent: Option<&Agent>) -> BTreeMap<String, String> {
        let mut variables = child::variables(self.log.run(), &self.step, self.fence, self.id);
        if let Some(agent) = agent {
            for (name, value) in &agent.env {
                variables.entry(name.clone()).or_insert_with(|| value.clone());
            }
            let prompt = self.folder.prompt().display().to_string();
            variables.insert("PITON_PROMPT_FILE".into(), prompt);
        }
        variables
    }

    /// Commits what the agent left, runs the verify command on that commit, records both.
    fn verify(&mut self) -> Result<(), End> {
        self.stop_before(Stage::Verify)?;
        self.refuse_half_merged()?;
        let handle = &self.log.run().opened.handle;
        let message =
            format!("{}\n\nPiton-Run: {handle}\nPiton-Step: {}\n", self.plan.title, self.step);
        let commit = self.tree.commit_all(&self.branch(), &message)?;
        crash::point("keeper.leftovers-committed");
        let check = match self.plan.verify.clone() {
            Some(command) => Some(self.check(command)?),
            None => None,
        };
        crash::point("keeper.verify-ran");
        let truth = match (&check, &self.plan.work) {
            (Some(_), _) | (None, Work::Run(_)) => Truth::Verified,
            (None, Work::Agent { .. } | Work::ByHand) => Truth::Claimed,
        };
        let tree = self.project.git.tree_of(&commit)?;
        let commits = match &self.state().base {
            Some(base) => self.project.git.count_commits(base, &commit)?,
            None => 0,
        };
        let (step, fence) = (self.step.clone(), self.fence);
        self.log.submit(&Command::Verify { step, fence, commit, tree, truth, check, commits })?;
        crash::point("keeper.verified");
        Ok(())
    }

    /// A person was asked to bring two sides together: what they have not finished is not committed for
    /// them.
    fn refuse_half_merged(&self) -> Result<(), End> {
        let asked = |question: &Question| question.about.is_some() && question.is_unread();
        if !self.state().questions.iter().any(asked) {
            return Ok(());
        }
        let unmerged = self.tree.unmerged()?;
        if unmerged.is_empty() {
            return Ok(());
        }
        let (place, paths) = (self.tree.path().display(), unmerged.join(", "));
        Err(End::trouble(format!(
            "the merge in {place} is not finished ({paths}); solve and commit it there, or `git merge --abort`"
        )))
    }

    fn check(&mut self, command: String) -> Result<Check, End> {
        let output = self.folder.verify_log();
        let max = self.settings.transcript_max;
        let folder = self.tree.path().to_owned();
        let variables = self.variables(None);
        let spec = Spec { variables, ..Spec::shell(&command, folder, output.clone(), max) };
        let began = Instant::now();
        let child = child::spawn(spec, self.sender.clone(), Input::Exited)
            .map_err(|error| End::trouble(format!("verify cannot be started: {error}")))?;
        let finished = self.supervise(child, Watched::Check)?;
        let exit = finished.ended.exit;
        match judge_exit(finished.ended) {
            Judged::TimedOut => return Err(End::Failed(self.timed_out())),
            Judged::Interrupted(cause) => {
                let evidence = format!("verify: {exit}");
                return Err(End::Interrupted { cause, left_at: Stage::Verify, evidence });
            }
            Judged::Failed => {
                return Err(End::Failed(Failure::Verify { exit, tail: finished.tail }));
            }
            Judged::Ended => {}
        }
        let printed = fs::read(&output).map_err(EngineError::io("verify.log cannot be read"))?;
        Ok(Check {
            command,
            exit,
            output: Hash::of(&printed),
            ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Brings the verified commit onto the run's branch, one step at a time.
    fn land(&mut self) -> Result<(), End> {
        self.stop_before(Stage::Land)?;
        land::land(&self.project, &mut self.log, (&self.step, self.fence), None)?;
        Ok(())
    }
}
