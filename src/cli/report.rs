//! Messages of subcommands that generate text, and their handling of ctrl-C.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ctrl_c::on_ctrl_c;
use super::model_args::{ContextArgs, ModelArgs};
use super::source::Source;
use super::speculation_args::SpeculationArgs;
use super::units::counted;
use super::{CliError, names};
use crate::engine::{Engine, EngineOptions, Mmproj, Speculation, Stats, StopReason};
use crate::program::{KvDecl, PAGE};

/// Sets `cancel` on ctrl-C; a second ctrl-C ends the process at once.
///
/// # Errors
/// If the system refuses the handler.
pub fn cancel_on_ctrl_c(cancel: &Arc<AtomicBool>) -> Result<(), CliError> {
    let cancel = Arc::clone(cancel);
    on_ctrl_c(move || {
        if cancel.swap(true, Ordering::Relaxed) {
            std::process::exit(super::Interrupted::EXIT_CODE.into());
        }
    })
}

/// Warns about all-zero matrices, given the tensors' names and the number of such matrices in each.
pub fn zeros<'a>(found: impl Iterator<Item = (&'a str, usize)>) {
    let found: Vec<(&str, usize)> = found.collect();
    let n: usize = found.iter().map(|(_, n)| n).sum();
    if n == 0 {
        return;
    }
    let mut names: Vec<String> =
        found.iter().take(4).map(|(name, _)| name.escape_debug().to_string()).collect();
    if found.len() > names.len() {
        names.push(format!("{} more", found.len() - names.len()));
    }
    eprintln!(
        "WARNING: {n} matrices are all zeros ({}): the original file is broken; use another revision",
        names.join(", ")
    );
}

/// A loaded model for text generation.
pub struct Generator {
    /// The engine.
    pub engine: Engine,
    /// Set by ctrl-C.
    pub cancel: Arc<AtomicBool>,
    /// Speculative decoding, if enabled.
    pub speculation: Option<Arc<dyn Speculation>>,
}

/// Loads the model for a command that generates text; `verbose` prints what was loaded.
///
/// # Errors
/// If the system refuses the handler of ctrl-C; any error from loading, including the tokenizer.
pub fn load(
    model: &ModelArgs,
    source: &Source,
    context: &ContextArgs,
    speculation: &SpeculationArgs,
    mmproj: Option<(Mmproj, bool)>,
    n_seqs: usize,
    verbose: bool,
) -> Result<Generator, CliError> {
    let cancel = Arc::new(AtomicBool::new(false));
    cancel_on_ctrl_c(&cancel)?;
    let options = EngineOptions { n_seqs, ..model.options(context.n_ctx())? };
    let options = speculation.with_drafts(options)?;
    let drafting = speculation.load(model, &options)?;
    let opened = model.open(source, &options)?;
    let options = opened.with_mmproj(options, mmproj);
    let (opened, options) = opened.fitted(options, &context.fit)?;
    let engine = opened.load(&options)?;
    if verbose {
        loaded(&engine);
    }
    engine.tokenizer()?.notices().iter().for_each(|notice| names::note("note", notice));
    let speculation = drafting.speculation(&engine)?;
    Ok(Generator { engine, cancel, speculation })
}

/// Prints the model, the device and the memory in use.
fn loaded(engine: &Engine) {
    let (hyper, plan) = (engine.hyper(), engine.plan());
    // Strings from a file may contain anything, including terminal escapes.
    let name = hyper.name.as_deref().unwrap_or("unnamed").escape_debug();
    eprintln!(
        "model:      {name} ({}), {} layers, head {}",
        hyper.architecture,
        hyper.n_layers,
        engine.head_type()
    );
    eprintln!("device:     {}", engine.device());
    eprintln!(
        "memory:     {} MB weights, {} MB KV cache of {} positions, {} MB buffers{}",
        plan.weights_bytes / 1_000_000,
        plan.kv_bytes / 1_000_000,
        engine.n_ctx(),
        plan.bufs_bytes / 1_000_000,
        match plan.host_bytes {
            0 => String::new(),
            bytes => format!(", {} MB of host memory for offloaded weights", bytes / 1_000_000),
        }
    );
}

/// Final lines about the KV cache of one session with `positions` positions: its size if `verbose`, and a
/// warning if values had to be replaced.
///
/// # Errors
/// [`BackendError`](crate::backend::BackendError), if the device does not respond.
pub fn cache(engine: &Engine, positions: usize, verbose: bool) -> Result<Vec<String>, CliError> {
    let mut lines = Vec::new();
    let program = engine.program();
    if let (true, Some(decl)) = (verbose, program.kvs.first()) {
        let heads =
            |decl: &KvDecl| (decl.pages(&program.limits) * PAGE * decl.n_kv_heads * decl.head_dim) as u64;
        let halves: u64 = program.kvs.iter().map(|decl| 2 * decl.codecs().count() as u64 * heads(decl)).sum();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        lines.push(format!(
            "KV cache:   keys {}, values {}: {:.1} MB for {} positions, {positions} of them used; f16 would \
             take {:.1} MB",
            decl.k.name(),
            decl.v.name(),
            megabytes(engine.plan().kv_bytes),
            program.limits.pages * PAGE,
            megabytes(halves),
        ));
    }
    let clamped = engine.clamped()?.unwrap_or(0);
    if clamped > 0 {
        lines.push(format!(
            "warning: {clamped} keys and values were NaN, infinite or beyond f16's range; they were \
             replaced in the KV cache"
        ));
    }
    Ok(lines)
}

/// True if statistics appear directly after the text: on a terminal, or if stdout and stderr are the same
/// file. The text then needs a final newline.
pub fn needs_final_newline() -> bool {
    std::io::stdout().is_terminal() || is_one_file()
}

#[cfg(unix)]
fn is_one_file() -> bool {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::fs::MetadataExt;

    let place = |fd: BorrowedFd<'_>| {
        let file = std::fs::File::from(fd.try_clone_to_owned().ok()?).metadata().ok()?;
        Some((file.dev(), file.ino()))
    };
    let stdout = place(std::io::stdout().as_fd());
    stdout.is_some() && stdout == place(std::io::stderr().as_fd())
}

#[cfg(not(unix))]
fn is_one_file() -> bool {
    false
}

/// Prints the statistics of a generation, why it ended, and its seed.
pub fn finished(stats: &Stats, reason: Option<StopReason>, seed: u64) {
    took(stats, 1);
    eprintln!("ended:      {}, seed {seed}", reason.map_or("by an error", words));
}

/// Prints the joint statistics of sequences that continued one prompt: `stats` counts their tokens and the
/// total time.
pub fn continued(stats: &Stats, n: usize, seed: u64) {
    eprintln!(
        "prompt:     {}, {:.2} tokens/s, computed once",
        counted(stats.prompt_tokens, "token"),
        stats.prompt_rate()
    );
    eprintln!(
        "generation: {} tokens of {n} sequences, {:.2} tokens/s, seeds from {seed}",
        stats.generated_tokens,
        stats.generated_tokens.saturating_sub(n) as f64 / stats.generate_time.as_secs_f64().max(1e-9)
    );
}

/// Prints the joint statistics of `n` generations.
pub fn took(stats: &Stats, n: u32) {
    eprintln!(
        "prompt:     {}, {:.2} tokens/s, first token after {:.0} ms",
        counted(stats.prompt_tokens, "token"),
        stats.prompt_rate(),
        stats.time_to_first_token().as_secs_f64() * 1e3 / f64::from(n)
    );
    eprint!("generation: {}", counted(stats.generated_tokens, "token"));
    if stats.generated_tokens > 1 {
        let bandwidth = stats.generate_bandwidth() / 1e9;
        eprint!(", {:.2} tokens/s, {bandwidth:.2} GB/s", stats.generate_rate());
    }
    if stats.drafted_tokens > 0 {
        eprint!(", {} of {} drafted tokens accepted", stats.accepted_tokens, stats.drafted_tokens);
        let at = stats.accepted_at.0.iter().take_while(|n| **n > 0);
        let shares: Vec<String> = at.map(|n| format!("{:.2}", *n as f64 / stats.drafts as f64)).collect();
        eprint!(" (by position {})", if shares.is_empty() { "0".to_owned() } else { shares.join(" ") });
    }
    eprintln!();
}

fn words(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndOfText => "the model ended its text",
        StopReason::StopString => "a stop string was met",
        StopReason::Limit => "--n-predict tokens were generated",
        StopReason::ContextFull => "the context is full (--ctx-size sets it)",
        StopReason::Cancelled => "interrupted",
        StopReason::Constraint => "no token continues the grammar",
        StopReason::BrokenLogits => "the model's logits are NaN or infinite",
    }
}
