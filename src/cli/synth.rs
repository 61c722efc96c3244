//! `sterna synth`: creates a model with random weights.

use std::fs::File;
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use super::out_file::OutFile;
use crate::synth::{PRESETS, Preset, Spec, Synth};

/// Creates a model with random weights, with the shape of a known model and a vocabulary of all bytes.
///
/// It generates noise, but is as large and as fast as a model of that shape. The same flags give the same
/// file on every machine.
#[derive(Args, Debug)]
#[command(after_help = "The other flags override single numbers of the preset.

Examples:
  sterna synth --preset tiny tiny.gguf
  sterna synth --preset bitnet-2b-4t --type i2_s --head-type q6_k 2b.gguf
  sterna synth --preset bitnet-2b-4t --layers 4 --ctx 1024 --seed 7 short.gguf
  sterna synth --preset llama-3.2-1b --lora-rank 16 --seed 2 adapter.gguf")]
pub struct SynthArgs {
    /// Shape to start from
    #[arg(long, value_name = "NAME", default_value = "tiny", help = presets())]
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
    /// Vocabulary size
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// Trained context length
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Tie the output head to the embedding
    #[arg(long, value_name = "BOOL")]
    tied: Option<bool>,
    /// Add a block for multi-token prediction (shapes of Qwen3.5)
    #[arg(long)]
    mtp: bool,
    /// Write a LoRA adapter of this rank for models of the shape, instead of a model
    #[arg(long, value_name = "N")]
    lora_rank: Option<usize>,
    /// Type of the matrices in the blocks [default: the preset's]
    #[arg(long = "type", value_name = "TYPE")]
    ty: Option<String>,
    /// Type of the embedding and the output head [default: the preset's]
    #[arg(long, value_name = "TYPE")]
    head_type: Option<String>,
    /// Seed of the random weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write only the header, with a sparse hole instead of the weights, which takes no space on most file
    /// systems; enough for `sterna plan`
    #[arg(long)]
    no_weights: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// Output file
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
}

/// The help of `--preset`.
fn presets() -> String {
    let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
    format!("Shape to start from: {}", names.join(", "))
}

impl SynthArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// An invalid shape; a file that already exists, does not fit on the disk, or cannot be written;
    /// [`Interrupted`](super::Interrupted) after ctrl-C. No partial output is left then.
    pub fn run(self) -> Result<(), CliError> {
        let spec = self.spec()?;
        let synth = match self.lora_rank {
            Some(rank) => Synth::adapter(&spec, rank)?,
            None => Synth::new(&spec)?,
        };
        let (bytes, n_tensors) = (synth.file_bytes(), synth.n_tensors());
        if self.no_weights {
            return self.write_descriptions(synth);
        }
        let file = OutFile { path: &self.out, bytes, force: self.force };
        file.write(|out, progress| {
            synth.write(out, progress).map_err(|err| format!("{}: {err}", self.out.display()))
        })?;
        eprintln!("{}: {n_tensors} tensors, {bytes} bytes", self.out.display());
        Ok(())
    }

    /// Writes the header, and extends the file to its full size without weights.
    fn write_descriptions(&self, synth: Synth) -> Result<(), CliError> {
        let (bytes, n_tensors) = (synth.file_bytes(), synth.n_tensors());
        let said = |err: &dyn std::fmt::Display| format!("{}: {err}", self.out.display());
        let head = synth.descriptions()?;
        let file = OutFile { path: &self.out, bytes: head.len() as u64, force: self.force };
        file.write(|out, _| out.write_all(&head).map_err(|err| said(&err)))?;
        let file = File::options().write(true).open(&self.out).map_err(|err| said(&err))?;
        file.set_len(bytes).map_err(|err| said(&err))?;
        eprintln!("{}: {n_tensors} tensors, {bytes} bytes, without weights", self.out.display());
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
        spec.mtp = self.mtp;
        Ok(spec)
    }
}
