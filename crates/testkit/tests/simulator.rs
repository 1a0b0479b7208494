//! The simulator's own tests: a thousand histories hold, every fault was really applied, and each
//! deliberate bug is caught. `PITON_SIM_SEEDS=100000` plays more, `PITON_SIM_SEED=17` one.

#![expect(clippy::unwrap_used, reason = "in a test an unexpected answer is the failure")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use piton_testkit::sim::{Bug, Counts, Failed, Invariant, On, Played, simulate};

const SEEDS: u64 = 1_000;
/// A store in files is slower.
const SEEDS_ON_DISK: u64 = 100;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("PITON_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PITON_SIM_SEEDS").unwrap_or(SEEDS),
    }
}

/// A panic inside the rules is told with its seed too.
fn play(on: On, seed: u64, bug: Option<Bug>) -> Result<Played, Box<Failed>> {
    let played = catch_unwind(AssertUnwindSafe(|| simulate(on, seed, bug)));
    played.unwrap_or_else(|_| panic!("seed {seed} panicked; once more: PITON_SIM_SEED={seed}"))
}

#[test]
fn every_history_holds() {
    let mut all = Counts::default();
    for seed in seeds() {
        match play(On::Memory, seed, None) {
            Ok(played) => all.add(&played.counts),
            Err(failed) => panic!("{failed}"),
        }
    }
    if seeds().count() > 1 {
        for (fault, times) in all.named() {
            assert!(times > 0, "{fault} never happened: {all:?}");
        }
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in 0..20 {
        assert_eq!(play(On::Memory, seed, None).unwrap(), play(On::Memory, seed, None).unwrap());
    }
}

#[test]
fn a_history_is_the_same_on_disk() {
    let mut all = Counts::default();
    for seed in seeds().take(SEEDS_ON_DISK as usize) {
        let on_disk = play(On::Sqlite, seed, None).unwrap_or_else(|failed| panic!("{failed}"));
        assert_eq!(on_disk, play(On::Memory, seed, None).unwrap(), "seed {seed}");
        all.add(&on_disk.counts);
    }
    if seeds().count() > 1 {
        let reached = [all.takeovers, all.forced_claims, all.zombie_writes, all.outlived_leases];
        assert!(reached.iter().all(|times| *times > 0), "{all:?}");
    }
}

/// The simulator finds this bug, and by this invariant, within some seeds.
fn caught(bug: Bug, by: Invariant) {
    let failed = (0..SEEDS).filter_map(|seed| play(On::Memory, seed, Some(bug)).err());
    let mut others = Vec::new();
    for failed in failed {
        if failed.violation.invariant == by {
            return;
        }
        others.push(failed.violation);
    }
    panic!("{bug:?} was not caught by {by:?}, only: {others:?}");
}

macro_rules! caught {
    ($($test:ident: $bug:ident by $invariant:ident,)*) => {
        $(
            #[test]
            fn $test() {
                caught(Bug::$bug, Invariant::$invariant);
            }
        )*
    };
}

caught! {
    a_store_that_does_not_compare_is_caught: StaleTail by OneClaim,
    a_store_that_does_not_compare_breaks_the_log: StaleTail by Lawful,
    a_write_under_somebody_elses_fence_is_caught: ReplacedFence by OneOwner,
    a_worker_that_does_not_see_needs_is_caught: ErasedNeeds by NeedsMet,
    a_store_that_forgets_what_it_acknowledged_is_caught: ForgottenAppend by Durable,
    a_second_completion_is_caught: HiddenCompletions by CompletedOnce,
    a_clock_that_runs_ahead_is_caught: SkewedClock by LeaseRespected,
    a_run_that_waits_for_ever_is_caught: StoppedClock by Progress,
    a_burial_of_the_living_is_caught: BlindLocks by BuriedDead,
    two_agents_in_one_tree_are_caught: CrowdedTree by OneAgent,
    an_agent_that_is_started_again_is_caught: UnreadExits by AgentNotRepeated,
    a_lost_snapshot_is_caught: EmptySnapshots by SameTree,
    a_claim_that_does_not_see_locks_is_caught: ErasedLocks by LocksFit,
    two_worktrees_of_one_name_are_caught: SharedName by OneOwner,
    a_force_claim_that_nobody_asked_for_is_caught: UnaskedForce by LeaseRespected,
    a_worker_that_does_not_ask_before_it_goes_on_is_caught: ErasedWays by AskedFirst,
    an_answer_that_is_applied_twice_is_caught: ForgottenTelling by AnswerOnce,
    an_attempt_that_does_not_wait_for_its_answer_is_caught: HiddenQuestions by QuestionRespected,
    a_start_before_a_limit_is_over_is_caught: EarlyLimits by LimitRespected,
    a_heartbeat_under_somebody_elses_fence_is_caught: AnyFenceRenews by OneOwner,
    force_that_takes_a_completed_step_is_caught: ForcedCompleted by CompletedOnce,
    an_owner_that_goes_on_under_its_old_fence_is_caught: KeptFence by OneOwner,
    a_lapsed_lease_that_is_taken_from_a_living_keeper_is_caught: StrangeHost by LeaseRespected,
}
