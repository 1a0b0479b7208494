//! The referee: reads every record as it is appended and checks it against bookkeeping of its own. It
//! asks neither the fold nor the decisions, so that it cannot share their mistakes.

use std::collections::BTreeMap;
use std::fmt;

use piton_core::claim::Takeover;
use piton_core::event::{
    About, Claimed, Entry, Event, Fact, Failure, Grounds, Holder, Limited, ReleasedBy, Under,
};
use piton_core::ids::{
    AgentName, AttemptId, Fence, HostId, LockName, QuestionId, StepId, StepRef, TreeNo,
};
use piton_core::plan::{Isolation, OnInterrupt, Plan, Work};
use piton_core::question::{STOP, WAIT};
use piton_core::record::Record;
use piton_core::time::{Millis, Moment};

use super::Counts;
use super::rounds::Ring;
use super::world::ActorId;

/// What must hold whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every accepted write carries the current fence of its step, and its writer's own: never one
    /// that was displaced.
    OneOwner,
    CompletedOnce,
    /// An iteration of a loop begins once the one before it is completed, within the loop's bounds, and none
    /// after its end.
    IterationsInOrder,
    /// A step is claimed only when all it needs is completed.
    NeedsMet,
    /// No more keepers have claims than there are jobs.
    OneClaim,
    FencesGrow,
    /// A claim is taken over only after its lease, and never from a live holder on the same host,
    /// unless its own owner asks again, or somebody insists.
    LeaseRespected,
    /// No lock has more believed claims than slots.
    LocksFit,
    /// Every answer is applied exactly once.
    AnswerOnce,
    /// No attempt begins while a question of its step is open, and none that was not told what it
    /// asked is done or has failed.
    QuestionRespected,
    /// What was cut off at work, and is to be asked about, is not started again by a keeper before a
    /// person has said how.
    AskedFirst,
    /// Nothing is started on an account before its limit should be over, nor while a person is asked about it;
    /// and then one attempt after the other, until one has shown that it is.
    LimitRespected,
    /// Only the dead are buried.
    BuriedDead,
    /// Never two live agents in one worktree.
    OneAgent,
    /// Two attempts never have the same tree, and a tree keeps its owner while that step is unfinished.
    OwnTree,
    /// An agent that had ended is not started again for what came after it.
    AgentNotRepeated,
    /// What was acknowledged is in the log at the end.
    Durable,
    /// The log can be folded.
    Lawful,
    /// After the faults end the run ends too.
    Progress,
    /// The branch ends with the tree of an undisturbed run.
    SameTree,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} did not hold: {}", self.invariant, self.detail)
    }
}

/// Who wrote a record, and what was true of the world at that moment.
pub(super) struct Circumstances<'a> {
    pub(super) now: Moment,
    /// When the present holder's claim ends, by the rows as they were before.
    pub(super) believed_until: &'a dyn Fn(&Open) -> Moment,
    /// Who holds the lock of an attempt on a host, if they live.
    pub(super) lock_holder: &'a dyn Fn(&HostId, AttemptId) -> Option<ActorId>,
    pub(super) writer: Option<Writer>,
    /// The host that a worktree of somebody outside is on, whatever they say.
    pub(super) worktree_host: &'a dyn Fn(usize) -> &'a HostId,
    /// The name of a host.
    pub(super) host: &'a dyn Fn(usize) -> &'a HostId,
}

/// Who writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writer {
    pub(super) actor: ActorId,
    /// The fence it holds, where it writes under a claim of its own.
    pub(super) fence: Option<Fence>,
    /// The worktree it works in, where it is somebody outside.
    pub(super) worktree: Option<usize>,
    /// Whether it means to take what others hold.
    pub(super) takeover: Takeover,
    /// The host from which it gives up a holder that was not heard of any more.
    pub(super) gives_up_from: Option<usize>,
}

impl Writer {
    /// A writer without a claim that does not force one.
    pub(super) fn plain(actor: ActorId) -> Writer {
        Writer {
            actor,
            fence: None,
            worktree: None,
            takeover: Takeover::Forbid,
            gives_up_from: None,
        }
    }
}

/// An open claim.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) key: String,
    pub(super) fence: Fence,
    pub(super) attempt: AttemptId,
    pub(super) host: HostId,
    /// The worktree it was made from, where no keeper has it.
    worktree: Option<usize>,
    /// Who made it.
    by: Option<ActorId>,
    /// The expiry inside `Claimed`.
    pub(super) until: Moment,
    /// An agent is started under it.
    pub(super) works: bool,
}

/// What somebody asked.
struct Asked {
    id: QuestionId,
    step: usize,
    fence: Fence,
    /// Nobody has to be told the answer: it says how the step goes on.
    by_piton: bool,
    /// How it goes on after an interruption.
    going_on: bool,
    /// Whether a loop goes on.
    about_loop: Option<About>,
    /// Whether the run goes on: nothing new is started meanwhile.
    about_run: bool,
    /// The agents of the account that it is about.
    account_of: Vec<AgentName>,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Answered,
    Applied,
    /// Nobody waits for it, or it was waived.
    Dropped,
}

struct Step {
    id: StepId,
    /// A command is told nothing when it is started, and may end without having read.
    told: bool,
    needs: Vec<usize>,
    locks: Vec<LockName>,
    open: Option<Open>,
    completed: bool,
    /// The agent ended by itself with success, and that is on record on its host.
    agent_ended: bool,
    agent: Option<AgentName>,
    /// A person is to be asked before a keeper starts again what was cut off.
    asks: bool,
    /// What was started under the open claim has not ended, as far as the log says.
    began: bool,
    /// What was started last was cut off, and nobody has said how it goes on.
    died_mid_work: bool,
}

pub(super) struct Referee {
    steps: Vec<Step>,
    rings: Vec<Ring>,
    asked: Vec<Asked>,
    slots: Vec<(LockName, usize)>,
    last_fence: u64,
    /// Agents whose account has met a limit: until when, and the record that says so.
    limits: BTreeMap<AgentName, (Millis, u64)>,
    /// Which step has which tree.
    trees: BTreeMap<(HostId, TreeNo), usize>,
    /// How many keepers may have claims.
    at_once: usize,
    /// What it has counted.
    pub(super) counts: Counts,
}

impl Referee {
    pub(super) fn new(plan: &Plan) -> Referee {
        let step = |at: usize| Step {
            id: plan.steps[at].id.clone(),
            agent: plan.steps[at].work.agent().cloned(),
            told: !matches!(plan.steps[at].work, Work::Run(_)),
            needs: plan.needs_of(at),
            locks: plan.steps[at].locks.iter().cloned().collect(),
            open: None,
            completed: false,
            agent_ended: false,
            asks: plan.steps[at].on_interrupt == Some(OnInterrupt::Ask),
            began: false,
            died_mid_work: false,
        };
        let slots = plan.locks.iter().map(|(lock, slots)| (lock.clone(), *slots as usize));
        Referee {
            steps: (0..plan.steps.len()).map(step).collect(),
            rings: Ring::all(plan),
            asked: Vec::new(),
            slots: slots.collect(),
            last_fence: 0,
            limits: BTreeMap::new(),
            trees: BTreeMap::new(),
            at_once: match plan.isolation {
                Isolation::Run => 1,
                Isolation::Step => plan.jobs.unwrap_or(1) as usize,
            },
            counts: Counts::default(),
        }
    }

    /// Whether this fence is the one that a step is held under.
    pub(super) fn holds(&self, step: &StepId, fence: Fence) -> bool {
        let known = self.steps.iter().find(|known| known.id == *step);
        let open = known.and_then(|known| known.open.as_ref());
        open.is_some_and(|open| open.fence == fence)
    }

    /// Counts the believed claims on every lock.
    pub(super) fn locks_fit(
        &self,
        now: &Moment,
        believed_until: &dyn Fn(&Open) -> Moment,
    ) -> Result<(), Violation> {
        for (lock, slots) in &self.slots {
            let holds = |step: &&Step| {
                let open = step.open.as_ref().filter(|_| step.locks.contains(lock));
                open.is_some_and(|open| !believed_until(open).is_over(now))
            };
            let by: Vec<&str> =
                self.steps.iter().filter(holds).map(|step| step.id.as_str()).collect();
            if by.len() > *slots {
                let detail = format!("{lock} has {slots}, and is held by {}", by.join(", "));
                return Err(violation(Invariant::LocksFit, detail));
            }
        }
        Ok(())
    }

    /// An exit record was written on the host of an open claim.
    pub(super) fn agent_ended(&mut self, fence: Fence) {
        for step in &mut self.steps {
            if step.open.as_ref().is_some_and(|open| open.fence == fence) {
                step.agent_ended = true;
            }
        }
    }

    pub(super) fn all_completed(&self) -> bool {
        self.steps.iter().all(|step| step.completed) && self.rings.iter().all(|ring| ring.over)
    }

    /// Checks one record and takes it in.
    pub(super) fn read(
        &mut self,
        record: &Record,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let event = Event::from_body(&record.body)
            .map_err(|bad| violation(Invariant::Lawful, bad.to_string()))?;
        let Some(step) = event.step() else { return Ok(()) };
        let index = self.steps.iter().position(|known| known.id == step.step);
        let index = index.ok_or_else(|| violation(Invariant::Lawful, "unknown step".to_owned()))?;
        self.turn(index, step)?;
        let about_loop = match &event {
            Event::Under(_, Fact::Asked { about, .. }) => is_about_loop(about.as_deref()),
            Event::Answered { question, .. } => {
                let asked = self.asked.iter().find(|asked| asked.id == *question);
                asked.is_some_and(|asked| asked.about_loop.is_some())
            }
            _ => false,
        };
        if self.steps[index].completed && !about_loop {
            let detail = format!("{} was completed before {event:?}", step.step);
            return Err(violation(Invariant::CompletedOnce, detail));
        }
        self.about_limits(index, &event, record);
        match &event {
            Event::Claimed(claimed) => self.claimed(index, claimed, record, at),
            Event::Answered { question, answer, .. } => self.answered(index, *question, answer),
            Event::Under(Under { fence, .. }, Fact::Asked { about, .. })
                if is_about_going_on(about.as_deref()) =>
            {
                self.asks_how(index, *fence)?;
                self.about_questions(index, &event, record)
            }
            Event::Under(_, Fact::Asked { .. }) if about_loop => {
                self.counts.loop_questions += 1;
                self.about_questions(index, &event, record)
            }
            Event::Under(_, Fact::Asked { about, .. })
                if is_about_failure(about.as_deref())
                    || !agents_of(about.as_deref()).is_empty() =>
            {
                self.counts.failure_questions += 1;
                self.about_questions(index, &event, record)
            }
            Event::Retried { .. } => match &self.steps[index].open {
                None => {
                    self.counts.retried += 1;
                    let own = self.asked.iter_mut().filter(|asked| asked.step == index);
                    for asked in own.filter(|asked| asked.by_piton && asked.fate == Fate::Open) {
                        asked.fate = Fate::Dropped;
                    }
                    Ok(())
                }
                Some(open) => {
                    let detail = format!("{} is retried, and held at {}", step.step, open.fence);
                    Err(violation(Invariant::OneOwner, detail))
                }
            },
            Event::Reset { .. } => match &self.steps[index].open {
                None => {
                    self.drop_questions(index, &[]);
                    self.steps[index].agent_ended = false;
                    self.steps[index].died_mid_work = false;
                    self.trees.retain(|_, step| *step != index);
                    begin_anew(&mut self.asked, index);
                    Ok(())
                }
                Some(open) => {
                    let detail = format!("{} is reset, and held at {}", step.step, open.fence);
                    Err(violation(Invariant::OneOwner, detail))
                }
            },
            _ => {
                self.under_claim(index, &event, at)?;
                let is_done = self.steps[index].completed;
                if let Some(ring) = self.rings.iter_mut().find(|ring| ring.has(index)) {
                    ring.take_in(index, &event, is_done);
                }
                self.about_questions(index, &event, record)
            }
        }
    }

    /// A step of a loop may be in another iteration than before.
    fn turn(&mut self, index: usize, step: &StepRef) -> Result<(), Violation> {
        let Some(ring) = self.rings.iter_mut().find(|ring| ring.has(index)) else {
            return Ok(());
        };
        if step.iteration == ring.iteration {
            return Ok(());
        }
        let asks = |asked: &Asked| asked.about_loop.is_some() && asked.fate == Fate::Open;
        if self.asked.iter().any(|asked| ring.has(asked.step) && asks(asked)) {
            let detail = format!("{step} begins while its loop waits for an answer");
            return Err(violation(Invariant::IterationsInOrder, detail));
        }
        let turned = ring.turn((index, step), |step| self.steps[step].completed);
        turned.map_err(|detail| violation(Invariant::IterationsInOrder, detail))?;
        self.counts.iterations += 1;
        for again in ring.steps().to_vec() {
            let step = &mut self.steps[again];
            (step.completed, step.agent_ended) = (false, false);
            (step.began, step.died_mid_work) = (false, false);
        }
        Ok(())
    }

    /// After the interruption, or, where the answer was to stop, once more.
    fn asks_how(&mut self, index: usize, fence: Fence) -> Result<(), Violation> {
        let step = &self.steps[index];
        if !step.asks || !step.died_mid_work || step.open.is_some() {
            let detail = format!("{} is asked about, and has no reason to be", step.id);
            return Err(violation(Invariant::AskedFirst, detail));
        }
        let again = self.asked.iter().any(|asked| asked.going_on && asked.fence == fence);
        self.counts.interruption_questions += 1;
        self.counts.questions_asked_again += u64::from(again);
        Ok(())
    }

    fn answered(
        &mut self,
        index: usize,
        question: QuestionId,
        answer: &str,
    ) -> Result<(), Violation> {
        self.counts.answers += 1;
        let how = self.asked.iter().any(|asked| asked.id == question && asked.going_on);
        if how && answer != STOP {
            self.steps[index].died_mid_work = false;
        }
        let asked = self.asked.iter().find(|asked| asked.id == question);
        if let Some(about) = asked.and_then(|asked| asked.about_loop.clone())
            && let Some(ring) = self.rings.iter_mut().find(|ring| ring.has(index))
        {
            ring.answered(&about, answer);
        }
        self.change(index, question, Fate::Open, Fate::Answered)
    }

    fn change(
        &mut self,
        index: usize,
        question: QuestionId,
        from: Fate,
        to: Fate,
    ) -> Result<(), Violation> {
        let asked = self.asked.iter_mut().find(|asked| asked.id == question);
        match asked {
            Some(asked) if asked.step == index && asked.fate == from => {
                asked.fate = to;
                Ok(())
            }
            Some(asked) => {
                let detail = format!("{question} becomes {to:?}, and was {:?}", asked.fate);
                Err(violation(Invariant::AnswerOnce, detail))
            }
            None => Err(violation(Invariant::AnswerOnce, format!("nobody asked {question}"))),
        }
    }

    fn drop_questions(&mut self, index: usize, waived: &[QuestionId]) {
        for asked in self.asked.iter_mut().filter(|asked| asked.step == index) {
            if asked.fate == Fate::Open || waived.contains(&asked.id) {
                asked.fate = Fate::Dropped;
            }
        }
    }

    fn about_questions(
        &mut self,
        index: usize,
        event: &Event,
        record: &Record,
    ) -> Result<(), Violation> {
        let waits = |fence: Fence| {
            let unsettled = |asked: &&Asked| matches!(asked.fate, Fate::Open | Fate::Answered);
            self.asked.iter().filter(move |asked| asked.fence == fence).filter(unsettled)
        };
        let told: &[QuestionId] = match event {
            Event::Under(_, Fact::Started { answers, .. }) => answers,
            // Whoever brought two sides together without being told needs no answer any more.
            Event::Under(_, Fact::Verified { answers, .. }) => {
                let unheard = self.asked.iter_mut().filter(|asked| asked.step == index);
                for asked in unheard.filter(|asked| asked.by_piton && asked.fate == Fate::Open) {
                    asked.fate = Fate::Dropped;
                }
                answers
            }
            Event::Under(_, Fact::AnswersApplied { questions, .. }) => questions,
            Event::Under(Under { fence, .. }, Fact::Asked { about, .. }) => {
                let (id, fate) = (QuestionId(record.position.0), Fate::Open);
                let by_piton = about.is_some();
                let going_on = is_about_going_on(about.as_deref());
                let about_run = matches!(about.as_deref(), Some(About::FailedAlike { .. }));
                let about_loop = about.as_deref().filter(|about| is_about_loop(Some(about)));
                let about_loop = about_loop.cloned();
                let account_of = agents_of(about.as_deref());
                let (step, fence) = (index, *fence);
                let asked = Asked {
                    id,
                    step,
                    fence,
                    by_piton,
                    going_on,
                    about_loop,
                    about_run,
                    account_of,
                    fate,
                };
                self.asked.push(asked);
                &[]
            }
            Event::Under(Under { fence, .. }, Fact::Suspended { .. })
                if waits(*fence).next().is_none() =>
            {
                let detail = format!("{} waits for nothing", self.steps[index].id);
                return Err(violation(Invariant::QuestionRespected, detail));
            }
            Event::Under(_, Fact::Failed { why: Failure::Reported { .. }, .. }) => &[],
            Event::Under(Under { fence, .. }, Fact::Failed { .. })
                if waits(*fence).next().is_some() =>
            {
                let detail = format!("{} waits, and has not failed", self.steps[index].id);
                return Err(violation(Invariant::QuestionRespected, detail));
            }
            // What piton asked about a commit is no longer asked once whoever works outside is done.
            Event::Under(Under { fence, .. }, Fact::Completed { waived: None, .. })
                if waits(*fence).any(|asked| !asked.by_piton) =>
            {
                let detail = format!("{} waits, and is not done", self.steps[index].id);
                return Err(violation(Invariant::QuestionRespected, detail));
            }
            Event::Under(_, Fact::Completed { waived, .. }) => {
                let waived = waived.as_ref().map_or(&[][..], |waived| &waived.questions);
                self.drop_questions(index, waived);
                &[]
            }
            Event::Under(_, Fact::Released { .. }) => {
                self.drop_questions(index, &[]);
                &[]
            }
            _ => &[],
        };
        // Whoever read how it goes on has begun, for all that is known: the answer is used up.
        let going_on = |asked: &Asked| asked.going_on && told.contains(&asked.id);
        if matches!(event, Event::Under(_, Fact::AnswersApplied { .. }))
            && self.asked.iter().any(going_on)
        {
            self.steps[index].died_mid_work = true;
        }
        for question in told {
            self.counts.applied_answers += 1;
            self.change(index, *question, Fate::Answered, Fate::Applied)?;
        }
        Ok(())
    }

    /// At the end nobody who was to be told an answer was not.
    pub(super) fn all_told(&self) -> Result<(), Violation> {
        let untold = |asked: &&Asked| {
            self.steps[asked.step].told && !asked.by_piton && asked.fate == Fate::Answered
        };
        match self.asked.iter().find(untold) {
            None => Ok(()),
            Some(asked) => {
                let detail = format!("the answer to {} was never applied", asked.id);
                Err(violation(Invariant::AnswerOnce, detail))
            }
        }
    }

    fn claimed(
        &mut self,
        index: usize,
        claimed: &Claimed,
        record: &Record,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let id = &claimed.step.step;
        let unmet = self.steps[index].needs.iter().find(|need| !self.steps[**need].completed);
        if let Some(need) = unmet {
            let detail = format!("{id} is claimed before {} is completed", self.steps[*need].id);
            return Err(violation(Invariant::NeedsMet, detail));
        }
        let needs = |ring: &&Ring| {
            !ring.has(index) && self.steps[index].needs.iter().any(|need| ring.has(*need))
        };
        if self.rings.iter().filter(needs).any(|ring| !ring.over) {
            let detail = format!("{id} is claimed before a loop that it needs is over");
            return Err(violation(Invariant::NeedsMet, detail));
        }
        let open = |asked: &&Asked| asked.step == index && asked.fate == Fate::Open;
        if let Some(asked) = self.asked.iter().find(open) {
            let detail = format!("{id} is claimed while {} is open", asked.id);
            return Err(violation(Invariant::QuestionRespected, detail));
        }
        let kept = matches!(claimed.holder, Holder::Keeper { .. });
        let about_run = |asked: &&Asked| asked.about_run && asked.fate == Fate::Open;
        if let Some(asked) = self.asked.iter().find(about_run).filter(|_| kept) {
            let detail = format!("{id} is claimed by a keeper while {} is open", asked.id);
            return Err(violation(Invariant::QuestionRespected, detail));
        }
        // One whose holder is believed lost keeps nobody from another.
        let counts = |open: &Open| !(at.believed_until)(open).is_over(&at.now);
        let another = |other: &usize| {
            let open = self.steps[*other].open.as_ref().filter(|open| open.worktree.is_none());
            *other != index && open.is_some_and(counts)
        };
        let others: Vec<usize> = (0..self.steps.len()).filter(another).collect();
        if kept && others.len() >= self.at_once {
            let others = others.iter().map(|other| self.steps[*other].id.as_str());
            let others = others.collect::<Vec<&str>>().join(", ");
            let detail = format!("{id} is claimed while {others} is");
            return Err(violation(Invariant::OneClaim, detail));
        }
        self.counts.claims_beside += u64::from(kept && !others.is_empty());
        if record.position.0 <= self.last_fence {
            let detail = format!("{} after {}", record.position, self.last_fence);
            return Err(violation(Invariant::FencesGrow, detail));
        }
        if kept && matches!(claimed.entry, Entry::Fresh | Entry::Continue) {
            self.unlimited(index, at)?;
        }
        self.on_good_grounds(index, claimed, at)?;
        self.take_tree(index, claimed)?;
        self.last_fence = record.position.0;
        self.count(claimed);
        let step = &mut self.steps[index];
        if step.open.is_some() {
            // Nobody can read the exit record on a host that is lost.
            step.agent_ended &= matches!(claimed.entry, Entry::Verify | Entry::Land);
            step.died_mid_work |= step.began;
        }
        step.began = false;
        // Whoever works outside does so from the start, or from what was kept.
        step.agent_ended &= kept;
        step.open = Some(Open {
            key: format!("{id}#{}", claimed.step.iteration),
            fence: Fence(record.position.0),
            attempt: claimed.attempt,
            host: claimed.holder.host().clone(),
            worktree: at.writer.and_then(|writer| writer.worktree),
            by: at.writer.map(|writer| writer.actor),
            until: claimed.until.clone(),
            works: matches!(claimed.entry, Entry::Fresh | Entry::Continue),
        });
        Ok(())
    }

    fn unlimited(&self, index: usize, at: &Circumstances<'_>) -> Result<(), Violation> {
        let Step { id, agent, .. } = &self.steps[index];
        let Some(agent) = agent else { return Ok(()) };
        let asks = |asked: &&Asked| asked.account_of.contains(agent) && asked.fate == Fate::Open;
        if let Some(asked) = self.asked.iter().find(asks) {
            let detail = format!("{id} is claimed while {} is open", asked.id);
            return Err(violation(Invariant::LimitRespected, detail));
        }
        let Some((until, since)) = self.limits.get(agent) else { return Ok(()) };
        if at.now.wall < *until {
            let detail = format!("{id} is claimed at {:?}, before {until:?}", at.now.wall);
            return Err(violation(Invariant::LimitRespected, detail));
        }
        let tries = |(other, step): &(usize, &Step)| {
            let open = step.open.as_ref().filter(|open| open.worktree.is_none() && open.works);
            let believed = |open: &Open| !(at.believed_until)(open).is_over(&at.now);
            let tries = open.is_some_and(|open| open.fence.0 > *since && believed(open));
            *other != index && step.agent.as_ref() == Some(agent) && tries
        };
        match self.steps.iter().enumerate().find(tries) {
            None => Ok(()),
            Some((_, other)) => {
                let detail = format!("{id} is claimed while {} tries the account", other.id);
                Err(violation(Invariant::LimitRespected, detail))
            }
        }
    }

    /// Takes in what an event says about limits.
    fn about_limits(&mut self, index: usize, event: &Event, record: &Record) {
        let mut try_now = |agents: &[AgentName]| {
            for (agent, (until, _)) in &mut self.limits {
                if agents.contains(agent) {
                    *until = record.at.min(*until);
                }
            }
        };
        match event {
            Event::Under(under, Fact::Limited(Limited { agents, until, .. })) => {
                self.counts.limits += 1;
                for agent in agents {
                    let until = until.unwrap_or(record.at);
                    // What had begun before may know an earlier instant.
                    let known = self.limits.get(agent).filter(|(_, since)| under.fence.0 < *since);
                    let until = known.map_or(until, |(known, _)| until.max(*known));
                    self.limits.insert(agent.clone(), (until, record.position.0));
                }
            }
            Event::Under(_, Fact::LimitLifted { .. }) => {
                self.counts.lifted_limits += 1;
                let agent = self.steps[index].agent.as_ref();
                self.limits.retain(|limited, _| Some(limited) != agent);
            }
            Event::Answered { question, answer, .. } if answer != WAIT => {
                let asked = self.asked.iter().find(|asked| asked.id == *question);
                try_now(asked.map_or(&[], |asked| asked.account_of.as_slice()));
            }
            Event::Retried { .. } => try_now(self.steps[index].agent.as_slice()),
            _ => {}
        }
    }

    fn take_tree(&mut self, index: usize, claimed: &Claimed) -> Result<(), Violation> {
        let Some(tree) = claimed.tree else { return Ok(()) };
        let place = (claimed.holder.host().clone(), tree);
        if let Some(other) = self.trees.get(&place).filter(|other| **other != index) {
            let (id, other) = (&claimed.step.step, &self.steps[*other].id);
            let detail = format!("{id} gets tree {tree} on {}, which {other} has", place.0);
            return Err(violation(Invariant::OwnTree, detail));
        }
        self.trees.retain(|_, step| *step != index);
        self.trees.insert(place, index);
        Ok(())
    }

    fn count(&mut self, claimed: &Claimed) {
        self.counts.claims += 1;
        self.counts.outside_claims += u64::from(matches!(claimed.holder, Holder::External { .. }));
        match claimed.grounds {
            Grounds::Free => {}
            Grounds::LeaseOver => self.counts.takeovers += 1,
            Grounds::SameOwner => self.counts.reclaims += 1,
            Grounds::Forced => self.counts.forced_claims += 1,
        }
    }

    fn on_good_grounds(
        &self,
        index: usize,
        claimed: &Claimed,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let id = &claimed.step.step;
        let open = self.steps[index].open.as_ref();
        if claimed.displaces != open.map(|open| open.fence) {
            let detail = format!("{id} is taken from {:?}, not {open:?}", claimed.displaces);
            return Err(violation(Invariant::OneOwner, detail));
        }
        let Some(open) = open else { return Ok(()) };
        let writer = at.writer;
        match claimed.grounds {
            Grounds::LeaseOver => {
                let outside = writer.and_then(|writer| writer.worktree);
                let host = outside.map_or(claimed.holder.host(), |tree| (at.worktree_host)(tree));
                taken_over(id, open, host, at)
            }
            Grounds::SameOwner => {
                let own = writer.and_then(|writer| writer.worktree);
                if own.is_some() && own == open.worktree {
                    return Ok(());
                }
                let detail = format!("{id} at {} is taken as its own by {own:?}", open.fence);
                Err(violation(Invariant::OneOwner, detail))
            }
            Grounds::Forced if writer.is_some_and(|who| who.takeover == Takeover::Force) => Ok(()),
            Grounds::Forced => {
                let detail = format!("{id} is taken from {}, and nobody insisted", open.fence);
                Err(violation(Invariant::LeaseRespected, detail))
            }
            Grounds::Free => {
                let detail = format!("{id} is claimed as free, and held at {}", open.fence);
                Err(violation(Invariant::OneOwner, detail))
            }
        }
    }

    fn under_claim(
        &mut self,
        index: usize,
        event: &Event,
        at: &Circumstances<'_>,
    ) -> Result<(), Violation> {
        let step = &mut self.steps[index];
        let fence = event.fence();
        let open = step.open.as_mut().filter(|open| Some(open.fence) == fence);
        let Some(open) = open else {
            let detail = format!("{event:?} is not under the current fence of {}", step.id);
            return Err(violation(Invariant::OneOwner, detail));
        };
        if let Some(own) = at.writer.and_then(|writer| writer.fence)
            && Some(own) != fence
        {
            let detail = format!("the holder of {own} wrote {event:?}");
            return Err(violation(Invariant::OneOwner, detail));
        }
        // A keeper writes under what its worker claimed; outside there is nobody in between.
        if let (Some(writer), Some(by), Some(_)) = (at.writer, open.by, open.worktree)
            && writer.fence.is_some()
            && writer.actor != by
        {
            let detail = format!("{} wrote {event:?} under the claim of {by}", writer.actor);
            return Err(violation(Invariant::OneOwner, detail));
        }
        match event {
            Event::Under(_, Fact::Started { .. }) if step.agent_ended => {
                let detail = format!("the agent of {} had ended", step.id);
                return Err(violation(Invariant::AgentNotRepeated, detail));
            }
            // Whoever works outside sees to it themselves.
            Event::Under(_, Fact::Started { .. })
                if step.asks && step.died_mid_work && open.worktree.is_none() =>
            {
                let detail = format!("{} was cut off, and nobody said how it goes on", step.id);
                return Err(violation(Invariant::AskedFirst, detail));
            }
            Event::Under(_, Fact::Started { .. }) => {
                (step.began, step.died_mid_work) = (true, false)
            }
            // It has come to its end.
            Event::Under(_, Fact::Verified { .. }) => {
                (step.began, step.died_mid_work) = (false, false)
            }
            Event::Under(_, Fact::Completed { waived, .. }) => {
                self.counts.waivers += u64::from(waived.is_some());
                step.completed = true;
                step.open = None;
                self.trees.retain(|_, step| *step != index);
            }
            Event::Under(_, Fact::Released { by, .. }) => {
                let insists = at.writer.is_some_and(|writer| writer.takeover == Takeover::Force);
                if *by == ReleasedBy::Force && !insists {
                    let detail = format!("{} is released by force, and nobody insisted", step.id);
                    return Err(violation(Invariant::OneOwner, detail));
                }
                self.counts.releases += 1;
                step.agent_ended = false;
                (step.began, step.died_mid_work) = (false, false);
                begin_anew(&mut self.asked, index);
                step.open = None;
            }
            Event::Under(_, Fact::Failed { .. })
            | Event::Under(_, Fact::Interrupted(_))
            | Event::Under(_, Fact::Limited(_))
            | Event::Under(_, Fact::Suspended { .. }) => {
                self.counts.suspensions +=
                    u64::from(matches!(event, Event::Under(_, Fact::Suspended { .. })));
                match at.writer.and_then(|writer| writer.gives_up_from) {
                    Some(host) => {
                        taken_over(&step.id, open, (at.host)(host), at)?;
                        // Nobody can read the exit record on a host that is lost.
                        step.agent_ended = false;
                    }
                    None => buried_dead(&step.id, open, at)?,
                }
                let interrupted = matches!(event, Event::Under(_, Fact::Interrupted(_)));
                step.agent_ended &= interrupted;
                step.died_mid_work |= step.began;
                step.died_mid_work &= interrupted && !step.agent_ended;
                step.began = false;
                step.open = None;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Given back or reset, nothing of a step is cut off any more, whoever reads later how it was to go on.
fn begin_anew(asked: &mut [Asked], index: usize) {
    for asked in asked.iter_mut().filter(|asked| asked.step == index) {
        asked.going_on = false;
    }
}

fn taken_over(
    id: &StepId,
    open: &Open,
    host: &HostId,
    at: &Circumstances<'_>,
) -> Result<(), Violation> {
    let until = (at.believed_until)(open);
    if !until.is_over(&at.now) {
        let detail = format!("{id} is taken from {} before its lease is over", open.fence);
        return Err(violation(Invariant::LeaseRespected, detail));
    }
    if open.host == *host && (at.lock_holder)(host, open.attempt).is_some() {
        let detail = format!("{id} is taken from {}, which lives on the same host", open.fence);
        return Err(violation(Invariant::LeaseRespected, detail));
    }
    Ok(())
}

/// An attempt is ended by its holder, or by somebody who found the holder dead.
fn buried_dead(id: &StepId, open: &Open, at: &Circumstances<'_>) -> Result<(), Violation> {
    let holder = (at.lock_holder)(&open.host, open.attempt);
    match (holder, at.writer) {
        (Some(holder), Some(writer)) if holder != writer.actor => {
            let detail = format!("{id} at {} is buried while its keeper lives", open.fence);
            Err(violation(Invariant::BuriedDead, detail))
        }
        _ => Ok(()),
    }
}

fn is_about_going_on(about: Option<&About>) -> bool {
    matches!(about, Some(About::Interruption { .. }))
}

fn is_about_loop(about: Option<&About>) -> bool {
    matches!(about, Some(About::Loop { .. }))
}

fn agents_of(about: Option<&About>) -> Vec<AgentName> {
    match about {
        Some(About::Account { agents, .. }) => agents.iter().cloned().collect(),
        _ => Vec::new(),
    }
}

fn is_about_failure(about: Option<&About>) -> bool {
    matches!(
        about,
        Some(About::NoProgress { .. } | About::Repetition { .. } | About::FailedAlike { .. })
    )
}

fn violation(invariant: Invariant, detail: String) -> Violation {
    Violation { invariant, detail }
}
