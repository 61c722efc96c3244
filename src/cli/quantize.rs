//! `sterna quantize`: converts a model to another weight type.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ggml_types::types::REGISTRY;
use ggml_types::{Dialect, QuantType};

use super::CliError;
use super::hub_args::AccessArgs;
use super::model_args::dialect;
use super::names::with_flags;
use super::out_file::OutFile;
use super::units::{Threads, threads};
use crate::backend::physical_cores;
use crate::gguf::{Gguf, OpenOptions, type_id, type_named};
use crate::quantize::{Imatrix, Override, QuantizeError, QuantizeOptions, Quantizer, Recipe, TensorReport};

/// Quantizes a model, as llama-quantize does.
///
/// IN.gguf (or any part of a split model) has f32, f16 or bf16 weights; a tensor that is already quantized is
/// refused unless it has the requested type or --allow-requantize is given. TYPE is a mix such as Q4_K_M, or
/// a weight type.
///
/// A mix chooses the type of every tensor by llama.cpp's rules; --tensor-type, --token-embedding-type and
/// --output-tensor-type override it for some tensors, --pure uses the mix's main type for all. A weight type
/// is used for linear weights, embedding and output head, and vectors such as norms are f32; with a ternary
/// type, embedding and head are f16, as in bitnet.cpp's files. A tensor whose rows do not fit the type's
/// blocks gets another type, with a note.
///
/// i2_s has one scale per tensor, and weights that are not ternary yet are rounded by BitNet's rule: scale =
/// mean |w|, in double precision, and code = clamp(round(w / scale), -1, 1), halves to even. Weights that are
/// -s, 0 and s already keep their exact values. tq1_0 and tq2_0 use the largest magnitude of each block as
/// its scale, as llama.cpp does; with --absmean, weights are rounded by BitNet's rule first.
///
/// Prints one line per tensor to stdout. The error is the root of the sum of squared differences divided by
/// the sum of squares.
#[derive(Args, Debug)]
#[command(override_usage = "sterna quantize [OPTIONS] <IN.gguf> <OUT.gguf> <TYPE> [THREADS]
       sterna quantize [OPTIONS] --type <TYPE> <IN.gguf> <OUT.gguf>
       sterna quantize --dry-run [OPTIONS] --type <TYPE> <IN.gguf>")]
#[command(after_help = "Examples:
  sterna quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
  sterna quantize --imatrix imatrix.gguf model-f16.gguf model-q3_k_m.gguf Q3_K_M
  sterna quantize --tensor-type 'ffn_down=q8_0' --dry-run --type Q4_K_S model-f16.gguf
  sterna quantize --type i2_s --head-type q6_k bitnet-bf16-00001-of-00002.gguf bitnet.gguf
  sterna quantize --type tq2_0 --absmean bitnet-f32.gguf bitnet-tq2_0.gguf")]
pub struct QuantizeArgs {
    /// Input model: a file, or a hub name such as hf.co/user/repo:BF16
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT.gguf", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    #[command(flatten)]
    ty: TypeArgs,
    /// Number of threads, as the last argument of llama-quantize
    #[arg(value_name = "THREADS", value_parser = threads, hide = true, conflicts_with = "threads")]
    n_threads: Option<Threads>,
    /// Type of the embedding and the output head
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    head_type: Option<&'static dyn QuantType>,
    /// Type of the embedding only
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    token_embedding_type: Option<&'static dyn QuantType>,
    /// Type of the output head only
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    output_tensor_type: Option<&'static dyn QuantType>,
    /// Keep the type of the output head (output.weight)
    #[arg(long, conflicts_with_all = ["output_tensor_type", "head_type"])]
    leave_output_tensor: bool,
    /// Type of tensors whose name matches a regular expression (repeatable; the first match applies)
    #[arg(long, value_name = "REGEX=TYPE", value_parser = tensor_type)]
    tensor_type: Vec<Override>,
    /// Use one type for all matrices, including the embedding and the output head
    #[arg(long)]
    pure: bool,
    /// Importance matrix: a file of sterna imatrix or llama-imatrix (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Show the type of every tensor without writing a file
    #[arg(long)]
    dry_run: bool,
    /// Round linear weights to ternary by BitNet's rule before encoding them (i2_s always does)
    #[arg(long)]
    absmean: bool,
    /// Also quantize tensors that are already quantized, which loses precision twice
    #[arg(long)]
    allow_requantize: bool,
    /// Threads [default: physical cores]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<Threads>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// Origin of the file's type ids if ambiguous: ggml, bitnet
    #[arg(long, value_name = "NAME", value_parser = dialect)]
    dialect: Option<Dialect>,
}

/// The type, as an argument or a flag.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct TypeArgs {
    /// Mix or weight type
    #[arg(value_name = "TYPE", value_parser = recipe_parser(), ignore_case = true)]
    positional: Option<Recipe>,
    /// The same, as a flag
    #[arg(long = "type", value_name = "TYPE", value_parser = recipe_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    flag: Option<Recipe>,
}

impl QuantizeArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// An input that cannot be read or quantised; an importance matrix that cannot be read or is from another
    /// model; an output that is the input, already exists, does not fit on the disk, or cannot be written;
    /// [`Interrupted`](super::Interrupted) after ctrl-C. No partial output is left then.
    pub fn run(mut self) -> Result<(), CliError> {
        self.input = AccessArgs::default().local(&self.input)?;
        let gguf =
            Gguf::open_with(&self.input, OpenOptions { dialect: self.dialect, ..OpenOptions::default() })?;
        let of_input = |err: QuantizeError| format!("{}: {}", self.input.display(), with_flags(&err));
        let quantizer = Quantizer::new(&gguf, self.options()?).map_err(of_input)?;
        let (in_bytes, bytes) = (gguf.file_bytes().sum(), quantizer.file_bytes());
        let Some(out_path) = self.out.as_deref().filter(|_| !self.dry_run) else {
            let reports = quantizer.plan().map_err(of_input)?;
            notes(&reports);
            return Ok(print(&reports, false, in_bytes, bytes)?);
        };
        if let Some(path) = gguf.paths().iter().find(|path| is_same_file(path, out_path)) {
            let (out, input) = (out_path.display(), path.display());
            return Err(format!("{out} is the input {input}; choose another output").into());
        }
        let file = OutFile { path: out_path, bytes, force: self.force };
        let reports = file.write(|out, progress| {
            quantizer.write(out, progress).map_err(|err| match err {
                QuantizeError::Gguf(err) => format!("{}: {err}", out_path.display()),
                err => of_input(err),
            })
        })?;
        notes(&reports);
        print(&reports, true, in_bytes, bytes)?;
        zeros(&reports);
        Ok(())
    }

    fn options(&self) -> Result<QuantizeOptions, CliError> {
        let recipe = self
            .ty
            .flag
            .or(self.ty.positional)
            .ok_or("no type was given: pass one, such as Q4_K_M, after the files or with --type")?;
        let read = |path: &PathBuf| Imatrix::open(path).map_err(|err| format!("{}: {err}", path.display()));
        Ok(QuantizeOptions {
            pure: self.pure,
            overrides: self.tensor_type.clone(),
            token_embd: self.token_embedding_type.or(self.head_type),
            output: self.output_tensor_type.or(self.head_type),
            leave_output: self.leave_output_tensor,
            absmean: self.absmean,
            requantize: self.allow_requantize,
            imatrix: self.imatrix.as_ref().map(read).transpose()?,
            threads: self.threads.or(self.n_threads).and_then(|n| n.0).unwrap_or_else(physical_cores),
            ..QuantizeOptions::new(recipe)
        })
    }
}

/// Reads the name of a mix, or of a type that GGUF files can contain.
fn recipe_parser() -> impl TypedValueParser<Value = Recipe> {
    let read_only = REGISTRY.iter().filter(|ty| !ty.encodes()).map(|ty| hidden(ty.name()));
    PossibleValuesParser::new(Recipe::names().into_iter().map(PossibleValue::new).chain(read_only))
        .try_map(|name| Recipe::named(&name).ok_or_else(|| format!("`{name}` is neither a mix nor a type")))
}

/// Reads `REGEX=TYPE`.
fn tensor_type(text: &str) -> Result<Override, String> {
    let (pattern, ty) = text.rsplit_once('=').ok_or("want REGEX=TYPE, as in ffn_down=q6_k")?;
    if pattern.is_empty() {
        return Err("want a regular expression before the `=`".to_owned());
    }
    Override::new(pattern, ty).map_err(|err| err.to_string())
}

/// Reads the name of a type that GGUF files can contain.
fn type_parser() -> impl TypedValueParser<Value = &'static dyn QuantType> {
    let name = |ty: &&dyn QuantType| match ty.encodes() {
        true => PossibleValue::new(ty.name()),
        false => hidden(ty.name()),
    };
    let names = REGISTRY.iter().filter(|ty| type_id(**ty).is_some()).map(name);
    PossibleValuesParser::new(names).try_map(|name| type_named(&name))
}

/// A read-only type: hidden from the help, but accepted by the parser, so that the error explains why it is
/// refused.
fn hidden(name: &'static str) -> PossibleValue {
    PossibleValue::new(name).hide(true)
}

/// True if both paths exist and resolve to the same file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// Prints the notes on tensors, for example on an unexpected type.
pub fn notes(reports: &[TensorReport]) {
    for report in reports {
        for note in &report.notes {
            eprintln!("note: {} {note}", report.name.escape_debug());
        }
    }
}

/// Warns about all-zero matrices.
pub fn zeros(reports: &[TensorReport]) {
    let zero = reports.iter().filter(|report| report.n_zero > 0);
    super::report::zeros(zero.map(|report| (report.name.as_str(), report.n_zero)));
}

/// Prints one line per tensor, with its error once it has been written, and the totals.
///
/// # Errors
/// If stdout cannot be written.
pub fn print(reports: &[TensorReport], errors: bool, in_bytes: u64, out_bytes: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let line = |name: &str, shape: &str, [from, to]: [&str; 2], bytes: &str, error: String| {
        let line = format!("{name:<34} {shape:<16} {from:<6} {to:<6} {bytes:>12}");
        if errors { format!("{line} {error:>9}") } else { line }
    };
    writeln!(out, "{}", line("tensor", "shape", ["from", "to"], "bytes", "error".to_owned()))?;
    for TensorReport { name, dims, from, to, error, .. } in reports {
        let (name, shape) = (name.escape_debug().to_string(), format!("{dims:?}"));
        let error = format!("{error:.6}");
        writeln!(out, "{}", line(&name, &shape, [from.0, to.0], &to.1.to_string(), error))?;
    }
    let share = 100.0 * out_bytes as f64 / in_bytes as f64;
    writeln!(
        out,
        "{} tensors, {in_bytes} bytes before, {out_bytes} bytes now ({share:.1} %)",
        reports.len()
    )?;
    out.flush()
}
