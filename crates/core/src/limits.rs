//! Every limit, in one place, a sentence each.

use std::time::Duration;

/// The longest name of a step, substep, group, lock or agent: it must fit into a ref and a path component.
pub const NAME_MAX: usize = 64;
/// The longest plan file: a plan larger than this is a mistake or an attack.
pub const PLAN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most steps in a plan.
pub const PLAN_STEPS_MAX: usize = 20_000;
/// The most retries a step may ask for: nothing loops for ever.
pub const RETRIES_MAX: u32 = 100;
/// The most iterations a loop may ask for: nothing loops for ever.
pub const ITERATIONS_MAX: u32 = 1_000;
/// Interruptions in a row without new progress after which piton stops and asks.
pub const IDLE_INTERRUPTIONS_MAX: u32 = 3;
/// How long after the instant at which a limit is said to be over an agent is started: it is often not
/// effective yet. A tenth of the wait, at most this.
pub const LIMIT_MARGIN_MAX: Duration = Duration::from_secs(10);
/// How far the starts of agents that met the same limit are spread: a fifth of the wait, at most this.
pub const LIMIT_JITTER_MAX: Duration = Duration::from_secs(20);
/// How long an agent waits that met a limit without an instant; twice as long every time in a row, because
/// each try adds a prompt to its conversation.
pub const LIMIT_BACKOFF: Duration = Duration::from_secs(2 * 60);
/// The longest of these waits.
pub const LIMIT_BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);
/// The longest wait for an instant that was named: what is further away was misread.
pub const LIMIT_WAIT_MAX: Duration = Duration::from_secs(32 * 24 * 60 * 60);
/// How often in a row an agent is started again within an attempt because its server was busy.
pub const BUSY_STARTS_MAX: u32 = 5;
/// How long it waits before the first of them; four times as long before each other.
pub const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Steps in a row that fail alike after which piton starts nothing new and asks.
pub const ALIKE_FAILURES_MAX: usize = 3;
/// The progress in percent, as reported, from which an interrupted agent goes on in its tree; below it is
/// cheaper to begin again.
pub const CONTINUE_PERCENT_MIN: u8 = 10;
/// The longest text of evidence or output tail kept inside an event; the rest is in the attempt's folder.
pub const EVIDENCE_BYTES_MAX: usize = 2 * 1024;
/// The most left-out paths listed inside a snapshot's event; the count beyond it is kept.
pub const OMISSIONS_MAX: usize = 100;
/// The most files of the user's checkout that are named with an attempt as changed meanwhile.
pub const CHECKOUT_FILES_MAX: usize = 50;
/// The most mistakes listed for a plan file: what has more is no plan.
pub const PLAN_FINDINGS_MAX: usize = 1_000;
/// The deepest nesting of tables and arrays in a plan file; a plan needs five levels.
pub const NESTING_MAX: usize = 256;
/// The largest file of broken TOML that is searched beyond its first mistake: each costs memory.
pub const RECOVERED_BYTES_MAX: usize = 256 * 1024;
/// The longest name of a plan, in characters.
pub const PLAN_NAME_MAX: usize = 200;
/// The longest item, in characters: a checklist line is read at a glance.
pub const ITEM_CHARS_MAX: usize = 500;
/// The most items that a plan may give a step, those of its substeps included.
pub const STEP_ITEMS_MAX: usize = 200;
/// The most substeps of a step: what has more is several steps.
pub const STEP_SUBSTEPS_MAX: usize = 100;
/// The most slots of a lock: with more it holds nobody back.
pub const LOCK_SLOTS_MAX: u32 = 1_000;
/// The most attempts at once: with more, the machine itself is the limit.
pub const JOBS_MAX: u32 = 64;
/// The longest value of an output: what needs more is a file that the step lands.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// The longest value of an output that events, prompts and environments carry; a longer one is kept beside
/// the log, and named.
pub const OUTPUT_INLINE_MAX: usize = 2 * 1024;
/// The most of all values together that a prompt or an environment carries.
pub const OUTPUTS_TOLD_MAX: usize = 32 * 1024;
/// The most outputs of a step.
pub const STEP_OUTPUTS_MAX: usize = 100;
/// The longest time a step may be given.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long a run that a fresh start replaced is kept whole: nobody regrets it later than that.
pub const ATTIC: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long an act can be undone that keeps something for it: as long as git by default keeps commits that
/// only a reflog names.
pub const ACT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The longest question: what needs more is a file, and the question names it.
pub const QUESTION_BYTES_MAX: usize = 8 * 1024;
/// The most notes of earlier work that a step takes over from its plan's file.
pub const NOTES_MAX: usize = 20;
/// The longest answer, as long as a question.
pub const ANSWER_BYTES_MAX: usize = 8 * 1024;
/// The most choices of a question: a person reads them all.
pub const CHOICES_MAX: usize = 20;
/// The longest choice, in characters: it is typed as an answer.
pub const CHOICE_CHARS_MAX: usize = 200;
/// The most paths listed in a question about a conflict; their number is kept.
pub const CONFLICTS_LISTED_MAX: usize = 50;
/// The most questions that a step may have open at once: an agent that asks in a loop is stopped.
pub const OPEN_QUESTIONS_MAX: usize = 10;
