//! `sterna run`: generates text from a prompt.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::args::unescape;
use super::grammar_args::GrammarArgs;
use super::mmproj_args::MmprojArgs;
use super::model_args::{ContextArgs, ModelArgs};
use super::prompt_cache::{PromptCacheArgs, keep};
use super::report::Generator;
use super::sampling_args::SamplingArgs;
use super::source::Source;
use super::speculation_args::SpeculationArgs;
use super::{CliError, Interrupted, input, mmproj_args, names, report};
use crate::demo;
use crate::engine::{BatchOptions, Engine, GenerateOptions, PlacedImage, Request, Stats, StopReason};

/// Generates text from a prompt.
///
/// Only the text goes to stdout; timings go to stderr. The prompt is -p, -f or stdin, and special tokens that
/// are spelled out in it are parsed. In a file or on stdin, CRLF is a newline, and a byte order mark and one
/// newline at the end are dropped. The demo model needs no prompt: without one, it tells a story.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna run
  sterna run -p 'Once upon a time'
  sterna run -m model.gguf -p 'The capital of France is' -n 32
  sterna run -m model.gguf -p 'Once upon a time' --temp 0 -c 2048 -t 4
  sterna run -m model.gguf -f prompt.txt --seed 7 --stop '\n\n' > out.txt
  sterna run -m gemma-3.gguf --image photo.jpg -p 'What is this?'
  sterna run -m model.gguf -f long.txt --prompt-cache long.cache
  sterna run -p 'Once upon a time' -n 50 -np 4
  sterna run -m model.gguf -p 'A person:' --json-schema-file person.json
  echo 'def fib(n):' | sterna run -m model.gguf -n 64")]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    mmproj: MmprojArgs,
    /// Image file: PNG, JPEG, WebP, GIF or BMP; its place in the prompt is <__media__>, or before the text
    /// (repeatable)
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "prompt_cache")]
    image: Vec<PathBuf>,
    #[command(flatten)]
    cache: PromptCacheArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the prompt
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum tokens to generate; -1 fills the context
    #[arg(short, long, value_name = "N", default_value_t = -1)]
    #[arg(allow_negative_numbers = true, visible_alias = "predict")]
    #[arg(alias = "LLAMA_ARG_N_PREDICT")]
    n_predict: i64,
    /// Number of continuations of the prompt, which is computed once; each is preceded by a line with its
    /// number, and their seeds count up from --seed (also -np)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "prompt_cache")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(aliases = ["-np", "LLAMA_ARG_N_PARALLEL"])]
    parallel: u16,
    /// Stop before this text, which may be a control token; it is not printed (repeatable)
    #[arg(short = 'r', long, value_name = "TEXT", visible_alias = "reverse-prompt")]
    #[arg(allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Continue past the end of the text
    #[arg(long)]
    ignore_eos: bool,
    /// Do not process escapes such as \n and \t in -p and --stop
    #[arg(long)]
    no_escape: bool,
    /// Print control tokens as text
    #[arg(long, visible_alias = "special")]
    show_special: bool,
    /// Also print what was loaded, how much memory it takes, and at the end the size of the KV cache
    #[arg(short, long)]
    verbose: bool,
}

impl RunArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from loading, generating or writing; [`Interrupted`] after ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let source = self.model.source()?;
        let prompt = self.read_prompt(&source)?;
        // A tower takes time and memory that a prompt without images does not need.
        let mmproj = if self.image.is_empty() { None } else { self.mmproj.mmproj(&source)? };
        let Generator { engine, cancel, speculation } = report::load(
            &self.model,
            &source,
            &self.context,
            &self.speculation,
            mmproj.map(|(mmproj, _)| (mmproj, false)),
            usize::from(self.parallel),
            self.verbose,
        )?;
        let images = mmproj_args::encoded(&engine, &self.image)?;
        let (prompt, images) = mmproj_args::prompt(&engine, &prompt, images)?;
        let options = GenerateOptions {
            sampler: self.sampling.options(&engine)?,
            max_tokens: usize::try_from(self.n_predict).ok(),
            stop: self.stop.iter().map(|stop| self.typed(stop)).collect(),
            ignore_eos: self.ignore_eos,
            show_special: self.show_special,
            past_eos: false,
            logprobs: None,
            grammar: self.grammar.compile(&engine)?,
            speculation,
            cancel: Some(cancel),
            ..GenerateOptions::default()
        };
        match self.parallel {
            1 => self.generate(engine, &prompt, &images, &options),
            n => continue_in_parallel(&engine, prompt, images, options, n.into()),
        }
    }

    fn generate(
        &self,
        engine: Engine,
        prompt: &[u32],
        images: &[PlacedImage],
        options: &GenerateOptions,
    ) -> Result<(), CliError> {
        let mut session = self.cache.session(&engine, prompt)?;
        for image in images {
            session.push(&prompt[session.position()..image.start()])?;
            session.push_image(image.rows())?;
        }
        let known = session.position();
        let mut generation = session.generate(&prompt[known..], options)?;
        if let Some(path) = self.cache.after_prompt(known, prompt.len())
            && generation.prefill()?
        {
            keep(generation.session(), path)?;
        }
        let mut stdout = io::stdout().lock();
        for piece in &mut generation {
            stdout.write_all(piece?.as_bytes())?;
            stdout.flush()?;
        }
        if report::needs_final_newline() {
            writeln!(stdout)?;
        }
        let (stats, reason, seed) = (generation.stats(), generation.stop_reason(), generation.seed());
        drop(generation);
        self.cache.at_end().map_or(Ok(()), |path| keep(&mut session, path))?;
        let cache = report::cache(&engine, session.position(), self.verbose)?;
        drop(session);
        drop(engine);
        report::finished(&stats, reason, seed);
        cache.iter().for_each(|line| eprintln!("{line}"));
        if reason == Some(StopReason::Cancelled) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Text from the command line, with its escapes resolved.
    fn typed(&self, text: &str) -> String {
        if self.no_escape { text.to_owned() } else { unescape(text) }
    }

    fn read_prompt(&self, source: &Source) -> Result<String, CliError> {
        if let Some(prompt) = &self.prompt {
            return Ok(self.typed(prompt));
        }
        if self.file.is_none() && source.is_demo() && io::stdin().is_terminal() {
            return Ok(demo::STORY.to_owned());
        }
        let text = input::text(
            self.file.as_deref(),
            "no prompt was given. Pass it with -p TEXT or -f FILE, or pipe it in",
        )?;
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }
}

/// Writes `n` continuations of a prompt, each after a line with its number: the first one as it is generated,
/// the others after it.
fn continue_in_parallel(
    engine: &Engine,
    prompt: Vec<u32>,
    images: Vec<PlacedImage>,
    options: GenerateOptions,
    n: usize,
) -> Result<(), CliError> {
    let mut stats = Stats { prompt_tokens: prompt.len(), ..Stats::default() };
    let begun = Instant::now();
    let mut batch = engine.batch(BatchOptions::default())?;
    let ids = batch.add(&Request { n, images, ..Request::new(prompt, options) })?;
    let seed = ids.first().and_then(|id| batch.seed_of(*id)).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    let mut texts = vec![String::new(); n];
    let (mut shown, mut has_ended, mut cancelled, mut has_failed) = (0, vec![false; n], false, false);
    write!(stdout, "sequence 0:\n\n")?;
    batch.run(|id, event| -> Result<(), CliError> {
        let at = ids.iter().position(|of| *of == id).expect("a sequence of this request");
        if stats.generated_tokens == 0 {
            stats.prompt_time = begun.elapsed();
        }
        stats.generated_tokens += usize::from(event.token.is_some());
        texts[at] += &event.text;
        has_ended[at] = event.end.is_some();
        cancelled |= event.end == Some(StopReason::Cancelled);
        if let Some(fault) = &event.fault {
            names::note("error", &format!("sequence {at}: {fault}"));
            has_failed = true;
        }
        loop {
            stdout.write_all(std::mem::take(&mut texts[shown]).as_bytes())?;
            stdout.flush()?;
            if !has_ended[shown] || shown + 1 == n {
                return Ok(());
            }
            shown += 1;
            write!(stdout, "\n\nsequence {shown}:\n\n")?;
        }
    })?;
    writeln!(stdout)?;
    stats.generate_time = begun.elapsed().saturating_sub(stats.prompt_time);
    drop(batch);
    report::continued(&stats, n, seed);
    match (cancelled, has_failed) {
        (true, _) => Err(Interrupted.into()),
        (false, true) => Err("some sequences failed".into()),
        (false, false) => Ok(()),
    }
}
