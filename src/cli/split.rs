//! `sterna split` and `sterna merge`: split a model into several files, and merge them again.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;

use super::out_file::{OutFile, Partial, go_on, is_free};
use super::units::counted;
use super::{CliError, report};
use crate::gguf::{Gguf, PartLimit, Rewrite, part_name};

/// Splits a model into several files, as llama-gguf-split does.
///
/// The parts are named OUT-00001-of-0000N.gguf and so on, which is how readers of GGUF find the others; OUT
/// may end in .gguf. Tensors are copied unchanged. All metadata is in the first part.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna split --split-max-size 4G model.gguf model
  sterna split --split-max-tensors 128 model.gguf model
  sterna split --dry-run --split-max-size 500M model.gguf model")]
pub struct SplitArgs {
    /// Input model
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Folder of the parts and the prefix of their names
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[command(flatten)]
    limit: LimitArgs,
    /// Write no tensors to the first part, only metadata
    #[arg(long)]
    no_tensor_first_split: bool,
    /// Show the parts without writing them
    #[arg(long)]
    dry_run: bool,
    /// Overwrite output files if they exist
    #[arg(long)]
    force: bool,
}

/// Size limit of a part.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct LimitArgs {
    /// Maximum bytes of tensors per part, in units of 10^6 (M) or 10^9 (G)
    #[arg(long, value_name = "N(M|G)", value_parser = size)]
    split_max_size: Option<u64>,
    /// Maximum number of tensors per part [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    split_max_tensors: Option<u32>,
}

/// Merges the parts of a split model into one file, as llama-gguf-split --merge does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna merge model-00001-of-00003.gguf model.gguf")]
pub struct MergeArgs {
    /// Any part of the model
    #[arg(value_name = "PART.gguf")]
    input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
}

impl SplitArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A file that cannot be read; parts that already exist, do not fit on the disk, or cannot be written;
    /// [`Interrupted`](super::Interrupted) after ctrl-C. No partial output is left then.
    pub fn run(self) -> Result<(), CliError> {
        let gguf = Gguf::open(&self.input)?;
        let limit = match self.limit {
            LimitArgs { split_max_size: Some(bytes), .. } => PartLimit::Bytes(bytes),
            LimitArgs { split_max_tensors, .. } => {
                PartLimit::Tensors(split_max_tensors.unwrap_or(128) as usize)
            }
        };
        let parts = Rewrite::parts(&gguf, limit, self.no_tensor_first_split)?;
        let name = self.out.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| format!("{}: not the beginning of a file name", self.out.display()))?;
        // OUT.gguf is accepted, but the parts' names get their own suffix.
        let name = name.strip_suffix(".gguf").unwrap_or(name);
        let path = |at: usize| self.out.with_file_name(part_name(name, at + 1, parts.len()));
        let paths: Vec<PathBuf> = (0..parts.len()).map(path).collect();
        for (path, part) in paths.iter().zip(&parts) {
            let n_tensors = counted(part.tensors().len(), "tensor");
            println!("{}: {n_tensors}, {} bytes", path.display(), part.file_bytes());
        }
        if self.dry_run {
            return Ok(());
        }
        for path in &paths {
            is_free(path, self.force)?;
            if gguf.paths().iter().any(|input| same(input, path)) {
                return Err(format!("{} is the input; choose another output", path.display()).into());
            }
        }
        let need: u64 = parts.iter().map(Rewrite::file_bytes).sum();
        let dir = self.out.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(std::path::Path::new("."));
        let free = fs4::available_space(dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        if need > free {
            return Err(format!("{need} bytes needed in {}, {free} bytes free there", dir.display()).into());
        }
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        // No part gets its final name before all are complete.
        let mut partials = Vec::new();
        for (path, part) in paths.iter().zip(parts) {
            let partial = Partial::create(path)?;
            let mut out = BufWriter::with_capacity(1 << 20, partial.file()?);
            let unwritable = |err: &dyn std::fmt::Display| format!("{}: {err}", path.display());
            let watch = |_| match cancel.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            part.write(&mut out, watch).map_err(|err| unwritable(&err))?;
            go_on(&cancel)?;
            out.flush().map_err(|err| unwritable(&err))?;
            partials.push(partial);
        }
        for (path, partial) in paths.iter().zip(partials) {
            partial.rename(path, self.force)?;
        }
        Ok(())
    }
}

impl MergeArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Parts that are missing or do not belong together; an output that already exists, does not fit on the
    /// disk, or cannot be written; [`Interrupted`](super::Interrupted) after ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let gguf = Gguf::open(&self.input)?;
        if gguf.paths().len() < 2 {
            return Err(format!("{} is a whole model, not a part of one", self.input.display()).into());
        }
        let whole = Rewrite::whole(&gguf, gguf.metadata())?;
        write_whole(&gguf, whole, &self.out, self.force)
    }
}

/// Writes a model's tensors to one file.
///
/// # Errors
/// Same as [`MergeArgs::run`], or if the output is one of the inputs.
pub fn write_whole(
    gguf: &Gguf,
    whole: Rewrite<'_>,
    out: &std::path::Path,
    force: bool,
) -> Result<(), CliError> {
    if gguf.paths().iter().any(|input| same(input, out)) {
        return Err(format!("{} is the input; choose another output", out.display()).into());
    }
    let (n_tensors, bytes) = (whole.tensors().len(), whole.file_bytes());
    let file = OutFile { path: out, bytes, force };
    file.write(|to, progress| match whole.write(to, progress) {
        Ok(true) => Ok(()),
        Ok(false) => Err("interrupted".to_owned()),
        Err(err) => Err(format!("{}: {err}", out.display())),
    })?;
    println!("{}: {}, {bytes} bytes", out.display(), counted(n_tensors, "tensor"));
    Ok(())
}

/// True if both paths exist and resolve to the same file.
fn same(a: &std::path::Path, b: &std::path::Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Reads `500M` or `4G`.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1_000_000_000),
        None => (text.strip_suffix(['M', 'm']).ok_or("want a number followed by M or G")?, 1_000_000),
    };
    let n: u64 = digits.parse().map_err(|_| "want a number followed by M or G".to_owned())?;
    let bytes = n.checked_mul(unit).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "want at least 1M, and less than 2^64 bytes".to_owned())
}
