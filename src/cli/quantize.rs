//! `sterna quantize`: a model of real-valued weights in, one of another type out.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ggml_types::types::REGISTRY;
use ggml_types::{Dialect, QuantType};

use super::CliError;
use super::model_args::dialect;
use super::out_file::OutFile;
use crate::backend::physical_cores;
use crate::gguf::{Gguf, OpenOptions, type_id, type_named};
use crate::quantize::{QuantizeError, QuantizeOptions, Quantizer, TensorReport};

/// Makes a model of another weight type, as llama-quantize does.
///
/// IN.gguf (or any part of a split model) has f32, f16 or bf16 weights; a tensor that is quantised already is
/// refused unless it has the wanted type. Linear weights get the type, vectors such as norms f32. The
/// embedding and the output head get the type too, but f16 with ternary weights, as bitnet.cpp's files
/// have it. A tensor whose rows the type cannot hold stays f16, and a note says so.
///
/// i2_s has one scale a tensor, and weights that are not ternary yet are rounded by BitNet's rule: scale =
/// mean |w|, taken in double precision, and code = clamp(round(w / scale), -1, 1), halves to even. Weights
/// that are -s, 0 and s already keep their values to the bit. tq1_0 and tq2_0 take the largest magnitude of
/// each block for its scale, as llama.cpp does; with --absmean they get BitNet's values first.
///
/// stdout gets a line a tensor: the error is the root of the sum of squared differences over that of squares.
#[derive(Args, Debug)]
#[command(override_usage = "sterna quantize [OPTIONS] <IN.gguf> <OUT.gguf> <TYPE>
       sterna quantize [OPTIONS] --type <TYPE> <IN.gguf> <OUT.gguf>")]
#[command(after_help = "Examples:
  sterna quantize bitnet-f32.gguf bitnet-i2_s.gguf --type i2_s
  sterna quantize model-f16.gguf model-q8_0.gguf Q8_0
  sterna quantize --type i2_s --head-type q6_k bitnet-bf16-00001-of-00002.gguf bitnet.gguf
  sterna quantize --type tq2_0 --absmean bitnet-f32.gguf bitnet-tq2_0.gguf")]
pub struct QuantizeArgs {
    /// The model to read
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// The file to make
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    #[command(flatten)]
    ty: TypeArgs,
    /// Type of the embedding and the output head
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    head_type: Option<&'static dyn QuantType>,
    /// Type of the embedding alone
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    token_embedding_type: Option<&'static dyn QuantType>,
    /// Type of the output head alone
    #[arg(long, value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    output_tensor_type: Option<&'static dyn QuantType>,
    /// Round linear weights to ternary by BitNet's rule before they are encoded (i2_s always does)
    #[arg(long)]
    absmean: bool,
    /// Threads [default: physical cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Replace the file where it is there already
    #[arg(long)]
    force: bool,
    /// Whose type ids the file uses, where it leaves doubt: ggml, bitnet
    #[arg(long, value_name = "NAME", value_parser = dialect)]
    dialect: Option<Dialect>,
}

/// The type, said either way.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct TypeArgs {
    /// Type of the weights
    #[arg(value_name = "TYPE", value_parser = type_parser(), ignore_case = true)]
    positional: Option<&'static dyn QuantType>,
    /// The same as a flag
    #[arg(long = "type", value_name = "TYPE", value_parser = type_parser())]
    #[arg(ignore_case = true, hide_possible_values = true)]
    flag: Option<&'static dyn QuantType>,
}

impl QuantizeArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// An input that cannot be read or quantised; an output that is the input, is there already, does not fit
    /// the disk, or cannot be written; [`Interrupted`](super::Interrupted) after ctrl-C. Nothing is left
    /// behind then.
    pub fn run(self) -> Result<(), CliError> {
        let gguf = Gguf::open_with(&self.input, OpenOptions { dialect: self.dialect })?;
        if let Some(path) = gguf.paths().iter().find(|path| is_same_file(path, &self.out)) {
            let (out, input) = (self.out.display(), path.display());
            return Err(format!("{out} is {input}, which is to be read; name another file").into());
        }
        let of_input = |err: QuantizeError| format!("{}: {err}", self.input.display());
        let quantizer = Quantizer::new(&gguf, &self.options()?).map_err(of_input)?;
        let bytes = quantizer.file_bytes();
        let file = OutFile { path: &self.out, bytes, force: self.force };
        let reports = file.write(|out, progress| {
            quantizer.write(out, progress).map_err(|err| match err {
                QuantizeError::Gguf(err) => format!("{}: {err}", self.out.display()),
                err => of_input(err),
            })
        })?;
        for TensorReport { name, note, to, .. } in &reports {
            if let Some(note) = note {
                eprintln!("note: {} is {}, because {note}", name.escape_debug(), to.0);
            }
        }
        Ok(print(&reports, gguf.file_bytes().sum(), bytes)?)
    }

    fn options(&self) -> Result<QuantizeOptions, CliError> {
        let ty = self.ty.flag.or(self.ty.positional).ok_or("no type was given")?;
        Ok(QuantizeOptions {
            ty,
            token_embd: self.token_embedding_type.or(self.head_type),
            output: self.output_tensor_type.or(self.head_type),
            absmean: self.absmean,
            threads: self.threads.map_or_else(physical_cores, usize::from),
        })
    }
}

/// Reads the name of a type that files can carry.
fn type_parser() -> impl TypedValueParser<Value = &'static dyn QuantType> {
    let names = REGISTRY.iter().filter(|ty| type_id(**ty).is_some()).map(|ty| ty.name());
    PossibleValuesParser::new(names).try_map(|name| type_named(&name))
}

/// Whether both are there and lead to one file, links followed.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

fn print(reports: &[TensorReport], in_bytes: usize, out_bytes: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<34} {:<16} {:<6} {:<6} {:>12} {:>9}",
        "tensor", "shape", "from", "to", "bytes", "error"
    )?;
    for TensorReport { name, dims, from, to, error, .. } in reports {
        let (name, shape) = (name.escape_debug().to_string(), format!("{dims:?}"));
        writeln!(out, "{name:<34} {shape:<16} {:<6} {:<6} {:>12} {error:>9.6}", from.0, to.0, to.1)?;
    }
    let share = 100.0 * out_bytes as f64 / in_bytes as f64;
    writeln!(
        out,
        "{} tensors, {in_bytes} bytes before, {out_bytes} bytes now ({share:.1} %)",
        reports.len()
    )?;
    out.flush()
}
