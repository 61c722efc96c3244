//! Runs a model: sessions over a shared engine, prefill and decode, sampling, stop rules.
//!
//! It knows the model as a program and the device as a backend, and must never know an architecture or
//! a kernel. Start at [`Engine`], then [`Session`], then [`Generation`].

pub mod bandwidth;
mod conversation;
mod generate;
mod head;
mod load;
pub mod needle;
mod pages;
pub mod probe;
pub mod recommended;
mod sampler;
pub mod score;
mod session;
mod state;
mod stats;
mod stop;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use conversation::{Answer, Conversation};
pub use generate::{GenerateOptions, Generation, StopReason};
pub use head::HEAD_TYPES;
pub use load::{EngineOptions, Progress, plan, program};
pub use sampler::{Sampler, SamplerError, SamplerOptions};
pub use session::Session;
pub use state::StateError;
pub use stats::Stats;

use crate::backend::{Backend, Exec, Plan, StageTime};
use crate::error::Error;
use crate::gguf::Gguf;
use crate::model::Hyper;
use crate::program::{Buf, Cost, PAGE, PageTable, Program, Row, Sampling, Step};
use crate::tokenizer::{Tokenizer, TokenizerOptions};
use pages::Pages;

/// A loaded model on a backend. Clones share it; it is freed when the last clone and the last session
/// are gone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    gguf: Gguf,
    hyper: Hyper,
    program: Program,
    plan: Plan,
    logits: Buf,
    n_ctx: usize,
    backend_name: &'static str,
    device: String,
    threads: usize,
    warnings: Vec<String>,
    tokenizer_pre: Option<String>,
    tokenizer: OnceLock<Tokenizer>,
    core: Mutex<Core>,
}

/// What a step changes.
struct Core {
    backend: Box<dyn Backend>,
    exec: Exec,
    pages: Pages,
    free_slots: Vec<u32>,
    rows: Vec<Row>,
    sampling: Vec<Option<Sampling>>,
}

impl Engine {
    /// A new session with an empty context.
    ///
    /// # Errors
    /// [`Error::NoSession`] where all [`EngineOptions::n_seqs`] are in use.
    pub fn session(&self) -> Result<Session, Error> {
        let n_seqs = self.shared.program.limits.seqs;
        let slot = self.core().free_slots.pop().ok_or(Error::NoSession { n_seqs })?;
        Ok(Session::new(self.clone(), slot))
    }

    /// The file's tokenizer; built at the first call.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] where the file has none that can be used.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        let shared = &*self.shared;
        if let Some(tokenizer) = shared.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer =
            Tokenizer::from_gguf(&shared.gguf, TokenizerOptions { pre: shared.tokenizer_pre.as_deref() })?;
        Ok(shared.tokenizer.get_or_init(|| tokenizer))
    }

    /// The model's numbers.
    pub fn hyper(&self) -> &Hyper {
        &self.shared.hyper
    }

    /// The model's program.
    pub fn program(&self) -> &Program {
        &self.shared.program
    }

    /// The model's file.
    pub fn gguf(&self) -> &Gguf {
        &self.shared.gguf
    }

    /// Positions that one session holds.
    pub fn n_ctx(&self) -> usize {
        self.shared.n_ctx
    }

    /// The backend's name.
    pub fn backend_name(&self) -> &'static str {
        self.shared.backend_name
    }

    /// What runs the model, for people.
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// Threads that the options asked for, or one a physical core.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Memory that the model takes on the backend.
    pub fn plan(&self) -> Plan {
        self.shared.plan
    }

    /// How to sample where the user says nothing: what the file recommends, and the defaults.
    ///
    /// # Errors
    /// [`Error::Gguf`], where a recommendation is of another type than it should be.
    pub fn sampler_options(&self) -> Result<SamplerOptions, Error> {
        Ok(SamplerOptions::recommended(self.gguf().metadata(), self.n_ctx())?)
    }

    /// What a user should know about this file and these options, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// Bytes and operations of one decode step at `position`, with logits.
    pub fn decode_cost(&self, position: usize) -> Cost {
        let row = Row { token: 0, pos: position as u32, seq: 0, logits: true };
        let pages = PageTable::new(0, 0);
        self.shared.program.cost(&Step { rows: &[row], pages: &pages, sampling: &[] })
    }

    /// What each stage of the program has taken; nothing unless the backend was opened with the
    /// option `profile`.
    pub fn stage_times(&self) -> Option<Vec<StageTime>> {
        let core = self.core();
        core.backend.stage_times(core.exec)
    }

    /// Keys and values that the KV cache could not keep as they were, because they were no finite numbers or beyond f16. A model
    /// that makes such is broken, or not meant for f16. `None` where the backend does not count them.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn repaired(&self) -> Result<Option<u64>, Error> {
        let mut core = self.core();
        let exec = core.exec;
        Ok(core.backend.clamped(exec)?)
    }

    /// Name of the output head's weight type.
    pub fn head_type(&self) -> &'static str {
        let program = &self.shared.program;
        program.logits().map_or("none", |logits| program.weight_decl(logits.w.w).ty.name())
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.shared.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a step may be queued behind one that samples so.
    fn runs_ahead(&self, how: &Sampling) -> bool {
        let core = self.core();
        core.backend.runs_ahead(core.exec, how)
    }

    fn max_rows(&self) -> usize {
        self.shared.program.limits.rows
    }

    fn max_outputs(&self) -> usize {
        self.shared.program.limits.outputs
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = &*self.shared;
        f.debug_struct("Engine")
            .field("architecture", &shared.hyper.architecture)
            .field("device", &shared.device)
            .field("n_ctx", &shared.n_ctx)
            .finish_non_exhaustive()
    }
}

/// Which rows of a run are wanted by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    None,
    Last,
    All,
}

impl Core {
    /// Runs one step: `tokens` at `pos..` of slot `seq`. Takes the pages that it needs.
    fn step(
        &mut self,
        seq: u32,
        pos: usize,
        tokens: &[u32],
        wanted: Wanted,
        sampling: Option<Sampling>,
    ) -> Result<(), Error> {
        self.pages.grow(seq, pos + tokens.len());
        let last = tokens.len() - 1;
        let logits = |at: usize| match wanted {
            Wanted::None => false,
            Wanted::Last => at == last,
            Wanted::All => true,
        };
        self.rows.clear();
        self.rows.extend(tokens.iter().enumerate().map(|(at, &token)| Row {
            token,
            pos: (pos + at) as u32,
            seq,
            logits: logits(at),
        }));
        self.sampling.clear();
        self.sampling.extend(sampling.map(Some));
        let step = Step { rows: &self.rows, pages: self.pages.table(), sampling: &self.sampling };
        match self.backend.run(self.exec, &step) {
            Ok(()) => self.pages.settle(seq, pos + tokens.len()),
            Err(err) => {
                self.pages.cut_back(seq, pos);
                return Err(err.into());
            }
        }
        Ok(())
    }

    fn read(&mut self, buf: Buf, row: usize, out: &mut [f32]) -> Result<(), Error> {
        Ok(self.backend.read(self.exec, buf, row, out)?)
    }

    fn sampled(&mut self) -> Result<u32, Error> {
        let mut token = [0];
        self.backend.tokens(self.exec, 0, &mut token)?;
        Ok(token[0])
    }

    /// Waits for the token that was picked for slot `seq`: the newest, or the one `back` runs before.
    fn picked(&mut self, seq: u32, back: usize) -> Result<u32, Error> {
        Ok(self.backend.picked(self.exec, seq, back)?)
    }

    fn release(&mut self, seq: u32) {
        self.pages.cut_back(seq, 0);
        self.free_slots.push(seq);
    }
}

/// `n_ctx` rounded up to whole pages, as pages.
fn ctx_pages(n_ctx: usize) -> usize {
    n_ctx.div_ceil(PAGE)
}
