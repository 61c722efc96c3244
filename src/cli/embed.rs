//! `sterna embed`: computes an embedding vector for each text.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::model_args::{ContextArgs, ModelArgs};
use super::npy::NpyWriter;
use super::out_file::{Partial, go_on};
use super::pooling_args::PoolingArgs;
use super::units::counted;
use super::{CliError, input, names, report};
use crate::engine::{Batch, BatchOptions, Engine, Error, Pooled, Pooling, Request, SeqId, cut, normalise};
use crate::tokenizer::Special;

/// Maximum texts per step.
const TEXTS: usize = 64;
/// The same for models that also generate, whose slots may hold a large recurrent state.
const TEXTS_OF_DECODERS: usize = 16;
/// Maximum texts whose similarities are shown.
const SHOWN: usize = 16;

/// Computes embeddings of texts.
///
/// Each -p is a text, and so is each line of -f. Control tokens spelled out in a text are parsed, and BOS and
/// EOS are added if the model's file asks for them. Without --output-format, one line per text is written,
/// and for 2 to 16 texts their cosine similarities go to stderr. With --pooling rank, a text is a query and a
/// document separated by a tab, and its vector contains the scores.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna embed -m bge-small.gguf -p 'a small owl' -p 'a large tree'
  sterna embed -m model.gguf -f lines.txt -o vectors.npy
  sterna embed -m model.gguf -f - --output-format array --dimensions 256 < lines.txt")]
pub struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    pooling: PoolingArgs,
    /// A text (repeatable)
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// File with a text per line; - is stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep the first N numbers of each vector, and normalise again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Cut texts that are longer than the context instead of failing
    #[arg(long)]
    truncate: bool,
    /// json (as OpenAI's API), jsonl (one object per line), array (a list of vectors), or npy (NumPy array
    /// [texts, numbers], needs -o) [default: jsonl, or npy if -o ends in .npy]
    #[arg(long, value_name = "FORMAT", value_enum, alias = "embd-output-format")]
    output_format: Option<Format>,
    /// Output file [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Json,
    Jsonl,
    Array,
    Npy,
}

/// A tokenized text.
struct Text {
    tokens: Vec<u32>,
    pooled: Pooled,
}

impl EmbedArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from reading, loading, running or writing; a text that is empty or too long;
    /// [`Interrupted`](super::Interrupted) after ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let is_npy = |path: &PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npy"));
        let default = if self.output.as_ref().is_some_and(is_npy) { Format::Npy } else { Format::Jsonl };
        let format = self.output_format.unwrap_or(default);
        if format == Format::Npy && self.output.is_none() {
            return Err("--output-format npy needs -o FILE".into());
        }
        let texts = self.texts()?;
        let engine = self.load(texts.len())?;
        let tokenized = self.tokenized(&texts, &engine)?;
        let n_numbers = self.n_numbers(&engine)?;
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;

        let partial = self.output.as_deref().map(Partial::create).transpose()?;
        let is_shown = self.output_format.is_none() && self.output.is_none();
        let mut similar = Similarities::new(is_shown && (2..=SHOWN).contains(&texts.len()), &engine);
        let mut writer = Writer::new(format, &tokenized, &engine, n_numbers, partial.as_ref())?;
        let named = |err: CliError, path: Option<&Path>| -> CliError {
            match path {
                Some(path) if err.is::<io::Error>() => format!("{}: {err}", path.display()).into(),
                _ => err,
            }
        };
        let norm = match engine.pooling() {
            Pooling::None | Pooling::Rank => -1,
            _ => self.pooling.embd_normalize,
        };
        let path = self.output.as_deref();
        each_vector(&engine, &tokenized, &cancel, |vector| {
            let mut vectors: Vec<Vec<f32>> =
                vector.chunks_exact(engine.vector_len()).map(|vector| vector[..n_numbers].to_vec()).collect();
            vectors.iter_mut().for_each(|vector| normalise(vector, norm));
            similar.add(&vectors);
            writer.text(vectors).map_err(|err| named(err.into(), path))
        })?;
        writer.finish().map_err(|err| named(err.into(), path))?;
        if let (Some(partial), Some(path)) = (partial, path) {
            partial.rename(path, true)?;
        }
        similar.show();
        Ok(())
    }

    /// The texts, each with its name in messages.
    fn texts(&self) -> Result<Vec<(String, String)>, CliError> {
        let texts: Vec<(String, String)> = match &self.file {
            None if self.prompt.is_empty() => {
                return Err(
                    "no text was given. Pass it as -p TEXT, or several in -f FILE, one per line".into()
                );
            }
            None => {
                let named = self.prompt.iter().enumerate();
                named.map(|(at, text)| (format!("text {}", at + 1), text.clone())).collect()
            }
            Some(path) => {
                let is_stdin = path.as_os_str() == "-";
                let name = if is_stdin { "stdin".to_owned() } else { path.display().to_string() };
                let file = Some(path.as_path()).filter(|_| !is_stdin);
                let lines = input::text(file, "no text was given: stdin is a terminal")?;
                let lines = lines.lines().enumerate();
                lines.map(|(at, text)| (format!("{name}, line {}", at + 1), text.to_owned())).collect()
            }
        };
        match texts.iter().find(|(_, text)| text.is_empty()) {
            Some((name, _)) => Err(format!("{name}: is empty").into()),
            None if texts.is_empty() => Err("the file has no lines".into()),
            None => Ok(texts),
        }
    }

    fn load(&self, n_texts: usize) -> Result<Engine, CliError> {
        let options = self.model.options(self.context.n_ctx())?;
        let options = crate::engine::EngineOptions { pooling: self.pooling.pooling, ..options };
        let opened = self.model.open(&self.model.source()?, &options)?;
        let most = if opened.is_encoder(&options) { TEXTS } else { TEXTS_OF_DECODERS };
        let options = opened.for_texts(options, n_texts.min(most))?;
        let (opened, options) = opened.fitted(options, &self.context.fit)?;
        let engine = opened.load(&options)?;
        engine.tokenizer()?.notices().iter().for_each(|notice| names::note("note", notice));
        Ok(engine)
    }

    /// Tokenizes the texts.
    fn tokenized(&self, texts: &[(String, String)], engine: &Engine) -> Result<Vec<Text>, CliError> {
        let (tokenizer, pairs, n_ctx) = (engine.tokenizer()?, engine.pairs()?, engine.n_ctx());
        let most = self.truncate.then_some(n_ctx);
        let each = texts.iter().map(|(name, text)| {
            let (tokens, pooled) = if engine.pooling() == Pooling::Rank {
                let pair = text.split_once('\t');
                let (query, document) = pair.ok_or_else(|| {
                    format!("{name}: want a query, a tab and a document for --pooling rank")
                })?;
                pairs.encode(query, document, most)
            } else {
                let mut tokens = tokenizer.encode(text, Special::Parse, true);
                most.into_iter().for_each(|most| cut(&mut tokens, most, tokenizer));
                (tokens, Pooled::default())
            };
            let n = tokens.len();
            if n > n_ctx {
                let way_out = "--truncate cuts it, --ctx-size sets the context";
                return Err(format!("{name}: {n} tokens do not fit the context of {n_ctx}; {way_out}").into());
            }
            match n {
                0 => Err(format!("{name}: has no tokens").into()),
                _ => Ok(Text { tokens, pooled }),
            }
        });
        each.collect()
    }

    /// Length of the vectors that are written.
    fn n_numbers(&self, engine: &Engine) -> Result<usize, CliError> {
        let all = engine.vector_len();
        match self.dimensions.map(|n| n as usize) {
            Some(n) if n > all => Err(format!("--dimensions {n}: the model's vectors have {all}").into()),
            Some(n) => Ok(n),
            None => Ok(all),
        }
    }
}

/// Computes the vectors of all texts and passes them to `take` in order.
fn each_vector(
    engine: &Engine,
    texts: &[Text],
    cancel: &AtomicBool,
    mut take: impl FnMut(Vec<f32>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut batch = engine.batch(BatchOptions { prefix_cache: false, ..BatchOptions::default() })?;
    let (bar, begun) = (progress_bar(texts.len() as u64), Instant::now());
    let mut running = HashMap::new();
    // Vectors of texts that finished before an earlier text.
    let mut early: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    let (mut n_added, mut n_taken) = (0, 0);
    while n_taken < texts.len() {
        go_on(cancel)?;
        while n_added < texts.len() && running.len() < 2 * TEXTS {
            let Text { tokens, pooled } = &texts[n_added];
            let ids = batch.add(&Request::pooled(tokens.clone(), *pooled))?;
            running.extend(ids.into_iter().map(|id| (id, n_added)));
            n_added += 1;
        }
        for (at, vector) in step(&mut batch, &mut running)? {
            early.insert(at, vector);
        }
        while let Some(vector) = early.remove(&n_taken) {
            take(vector)?;
            n_taken += 1;
            bar.set_position(n_taken as u64);
        }
    }
    bar.finish_and_clear();
    let (n_tokens, time) = (texts.iter().map(|text| text.tokens.len()).sum::<usize>(), begun.elapsed());
    let rate = n_tokens as f64 / time.as_secs_f64().max(1e-9);
    let (n_texts, n_tokens) = (counted(texts.len(), "text"), counted(n_tokens, "token"));
    eprintln!("{n_texts} of {n_tokens}, {rate:.1} tokens/s");
    Ok(())
}

/// Runs one step. Returns the texts that it finished, with their vectors.
fn step(batch: &mut Batch, running: &mut HashMap<SeqId, usize>) -> Result<Vec<(usize, Vec<f32>)>, CliError> {
    let mut ended = Vec::new();
    for (id, mut event) in batch.step()? {
        if let Some(fault) = event.fault.take() {
            return Err(Error::from(fault).into());
        }
        if event.end.is_some()
            && let Some(at) = running.remove(&id)
        {
            let vector = batch.take_vector(id).ok_or("the KV cache has no room for a text")?;
            ended.push((at, vector));
        }
    }
    Ok(ended)
}

/// Writes vectors in one of the formats.
struct Writer {
    form: Form,
    n: usize,
    /// True if there is a vector per token instead of one per text.
    is_per_token: bool,
}

enum Form {
    Json(Box<dyn Write>, Format),
    Npy(NpyWriter),
}

impl Writer {
    fn new(
        format: Format,
        texts: &[Text],
        engine: &Engine,
        n_numbers: usize,
        partial: Option<&Partial>,
    ) -> Result<Self, CliError> {
        let is_per_token = engine.pooling() == Pooling::None;
        let form = match (format, partial) {
            (Format::Npy, Some(partial)) => {
                let n_tokens = || texts.iter().map(|text| text.tokens.len()).sum();
                let rows = if is_per_token { n_tokens() } else { texts.len() };
                Form::Npy(NpyWriter::new(partial.file()?, rows, n_numbers)?)
            }
            (format, Some(partial)) => Form::Json(Box::new(BufWriter::new(partial.file()?)), format),
            (format, None) => Form::Json(Box::new(BufWriter::new(io::stdout())), format),
        };
        Ok(Self { form, n: 0, is_per_token })
    }

    /// Writes the vectors of the next text.
    fn text(&mut self, vectors: Vec<Vec<f32>>) -> io::Result<()> {
        let index = self.n;
        self.n += 1;
        let (out, format) = match &mut self.form {
            Form::Npy(npy) => return vectors.iter().try_for_each(|vector| npy.row(vector)),
            Form::Json(out, format) => (out, *format),
        };
        let embedding: Value = match self.is_per_token {
            true => vectors.into_iter().map(numbers).collect(),
            false => vectors.into_iter().map(numbers).next().unwrap_or_default(),
        };
        let before = match (format, index) {
            (Format::Jsonl | Format::Npy, _) => "",
            (Format::Json, 0) => "{\"object\": \"list\", \"data\": [\n",
            (Format::Array, 0) => "[\n",
            (Format::Json | Format::Array, _) => ",\n",
        };
        match format {
            Format::Array => write!(out, "{before}{embedding}"),
            Format::Json => {
                let entry = json!({ "object": "embedding", "index": index, "embedding": embedding });
                write!(out, "{before}{entry}")
            }
            Format::Jsonl | Format::Npy => {
                writeln!(out, "{}", json!({ "index": index, "embedding": embedding }))?;
                out.flush()
            }
        }
    }

    /// Writes the closing brackets and flushes.
    fn finish(self) -> io::Result<()> {
        match self.form {
            Form::Npy(npy) => npy.finish(),
            Form::Json(mut out, format) => {
                match format {
                    Format::Json => writeln!(out, "\n]}}")?,
                    Format::Array => writeln!(out, "\n]")?,
                    Format::Jsonl | Format::Npy => {}
                }
                out.flush()
            }
        }
    }
}

/// A vector as JSON, each number with the precision of an f32.
fn numbers(vector: Vec<f32>) -> Value {
    let number = |x: f32| x.to_string().parse::<serde_json::Number>().map_or(Value::Null, Value::Number);
    vector.into_iter().map(number).collect()
}

/// Cosine similarities of a few texts, printed as llama-embedding does.
struct Similarities(Option<Vec<Vec<f32>>>);

impl Similarities {
    fn new(is_shown: bool, engine: &Engine) -> Self {
        let has_one = !matches!(engine.pooling(), Pooling::None | Pooling::Rank);
        Self((is_shown && has_one).then(Vec::new))
    }

    fn add(&mut self, vectors: &[Vec<f32>]) {
        if let Some(all) = &mut self.0 {
            all.extend(vectors.iter().cloned().map(|mut vector| {
                normalise(&mut vector, 2);
                vector
            }));
        }
    }

    fn show(self) {
        let Some(all) = self.0 else { return };
        eprintln!("cosine similarities:");
        for one in &all {
            let dot = |other: &Vec<f32>| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
            let row: Vec<String> = all.iter().map(|other| format!("{:6.2}", dot(other))).collect();
            eprintln!("{}", row.join(" "));
        }
    }
}

fn progress_bar(n_texts: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("embedding {bar:40} {pos}/{len} texts {per_sec}")
        .expect("the template is well-formed");
    ProgressBar::new(n_texts).with_style(style)
}
