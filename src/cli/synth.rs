//! `sterna synth`: a model of random weights.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{CliError, Interrupted, report};
use crate::synth::{Preset, Spec, Synth, SynthError};

/// Makes a model of random weights: the shape of a known one, and a vocabulary that can say any text.
///
/// What it says is noise, but it is as large and as fast as the model whose shape it has. The same flags
/// give the same file on every machine.
#[derive(Args, Debug)]
#[command(after_help = "Presets: tiny, bitnet-2b-4t, falcon3-1b, falcon3-3b, falcon3-7b, falcon3-10b,
llama3-8b-1.58, gpt2. Other flags change one number of a preset.

Examples:
  sterna synth --preset tiny tiny.gguf
  sterna synth --preset bitnet-2b-4t --type i2_s --head-type q6_k 2b.gguf
  sterna synth --preset bitnet-2b-4t --layers 4 --ctx 1024 --seed 7 short.gguf")]
pub struct SynthArgs {
    /// Shape to start from
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    preset: String,
    /// Blocks
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Width of the residual stream
    #[arg(long, value_name = "N")]
    dim: Option<usize>,
    /// Width of the feed-forward hidden layer
    #[arg(long, value_name = "N")]
    ffn_dim: Option<usize>,
    /// Query heads
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Key and value heads
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Length of a head [default: the preset's, or --dim / --heads]
    #[arg(long, value_name = "N")]
    head_dim: Option<usize>,
    /// Tokens
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Positions that the model says it was trained with
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Whether the embedding is the output head too
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// Type of the matrices in the blocks [default: i2_s, f16 for gpt2]
    #[arg(long = "type", value_name = "TYPE")]
    ty: Option<String>,
    /// Type of the embedding and the output head [default: f16]
    #[arg(long, value_name = "TYPE")]
    head_type: Option<String>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Replace the file where it is there already
    #[arg(long)]
    force: bool,
    /// The file to make
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
}

impl SynthArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A shape that cannot be; a file that is there already, does not fit the disk, or cannot be written;
    /// [`Interrupted`] after ctrl-C. Nothing is left behind then.
    pub fn run(self) -> Result<(), CliError> {
        let synth = Synth::new(&self.spec()?)?;
        if !self.force && self.out.exists() {
            return Err(format!("{} is there already; --force replaces it", self.out.display()).into());
        }
        let dir = match self.out.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let (need, n_tensors) = (synth.file_bytes(), synth.n_tensors());
        let free = fs4::available_space(dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        if need > free {
            let dir = dir.display();
            return Err(format!("{need} bytes needed in {dir}, {free} bytes free there").into());
        }
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let partial = Partial::create(&self.out)?;
        let bar = progress_bar(need);
        let mut file = BufWriter::with_capacity(1 << 20, partial.file()?);
        let written = synth.write(&mut file, |written| {
            bar.set_position(written);
            if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        match written {
            Err(SynthError::Interrupted) => {
                eprintln!("interrupted; nothing was kept");
                return Err(Interrupted.into());
            }
            result => result.map_err(|err| format!("{}: {err}", self.out.display()))?,
        }
        file.flush()?;
        drop(file);
        partial.rename(&self.out, self.force)?;
        eprintln!("{}: {n_tensors} tensors, {need} bytes", self.out.display());
        Ok(())
    }

    fn spec(&self) -> Result<Spec, CliError> {
        let preset = Preset::by_name(&self.preset)?;
        let mut spec = preset.spec(self.ty.as_deref(), self.head_type.as_deref(), self.seed)?;
        for (given, number) in [
            (self.layers, &mut spec.n_layers),
            (self.dim, &mut spec.dim),
            (self.ffn_dim, &mut spec.ffn_dim),
            (self.heads, &mut spec.n_heads),
            (self.kv_heads, &mut spec.n_kv_heads),
            (self.vocab, &mut spec.n_vocab),
            (self.ctx, &mut spec.n_ctx),
        ] {
            *number = given.unwrap_or(*number);
        }
        if self.dim.is_some() || self.heads.is_some() {
            spec.head_dim = spec.dim.checked_div(spec.n_heads).unwrap_or(0);
        }
        spec.head_dim = self.head_dim.unwrap_or(spec.head_dim);
        spec.tied = self.tied.unwrap_or(spec.tied);
        Ok(spec)
    }
}

/// A file under another name beside the one it will have, gone again unless it gets there.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn create(out: &Path) -> Result<Self, CliError> {
        let name = out.file_name().ok_or_else(|| format!("{}: not a file name", out.display()))?;
        let mut partial = name.to_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let path = out.with_file_name(partial);
        File::create(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(Self { path })
    }

    fn file(&self) -> Result<File, CliError> {
        Ok(File::options().write(true).open(&self.path)?)
    }

    fn rename(self, out: &Path, force: bool) -> Result<(), CliError> {
        if force {
            fs::rename(&self.path, out)?;
        } else {
            // A link fails where another process made the file meanwhile; a rename would replace it.
            match fs::hard_link(&self.path, out) {
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
                    return Err(format!("{} is there already; --force replaces it", out.display()).into());
                }
                // Not every file system has links.
                Err(_) => fs::rename(&self.path, out)?,
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Renamed already, or of no use to anybody; an error would say no more than that.
        let _ = fs::remove_file(&self.path);
    }
}

fn progress_bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "writing {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    )
    .expect("the template is well-formed");
    ProgressBar::new(total).with_style(style)
}
