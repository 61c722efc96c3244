//! `sterna convert`: converts a Hugging Face checkpoint to a GGUF file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::CliError;
use super::hub_args::AccessArgs;
use super::lora_args::AdapterFiles;
use super::merge::Merged;
use super::model_args::pre_tokenizer;
use super::names;
use super::out_file::OutFile;
use super::quantize::{notes, print, zeros};
use super::units::{Threads, threads};
use crate::backend::physical_cores;
use crate::convert::ternary::ScaleMeaning;
use crate::convert::{ConvertOptions, Converter, Outtype, Rounding, peft};
use crate::gguf::{Gguf, OpenOptions};
use crate::quantize::{QuantizeError, QuantizeOptions, Quantizer, Recipe};
use crate::tokenizer::PreTokenizer;

/// Converts a Hugging Face checkpoint to GGUF.
///
/// DIR contains config.json, safetensors and the tokenizer's files, like a repository or a snapshot in the
/// hub's cache. Supported are BitNet b1.58 (packed and master weights), Llama, Mistral, Falcon3 and Falcon-E,
/// Qwen 2, 3 and 3.5 including their MoE variants, Gemma 3 and GPT-2; of embedding and reranking models,
/// BERT, NomicBert, EmbeddingGemma and decoders with sentence-transformers files. Everything is checked
/// before a byte is written, and only one tensor is in memory at a time.
///
/// --outtype auto packs ternary weights as i2_s if each matrix has one scale, otherwise as tq2_0, q2_0 or
/// f16, and prints which and why; any other checkpoint keeps its type. Ternary types are refused for weights
/// that are not ternary, unless --ternary absmean declares them to be master weights.
///
/// With --lora, DIR is a GGUF model, which is written with the adapters added to its weights: a tensor keeps
/// its type, and is quantised again. With --base, DIR is a LoRA adapter of PEFT, which is written as GGUF.
///
/// Prints one line per tensor to stdout, as sterna quantize does.
#[derive(Args, Debug)]
#[command(override_usage = "sterna convert [OPTIONS] <DIR> <OUT.gguf>
       sterna convert --dry-run [OPTIONS] <DIR>
       sterna convert --mmproj [OPTIONS] <DIR> <OUT.gguf>
       sterna convert --lora <ADAPTER> <MODEL.gguf> <OUT.gguf>
       sterna convert --base <MODEL.gguf> <ADAPTER> <OUT.gguf>")]
#[command(after_help = "Examples:
  sterna convert bitnet-b1.58-2B-4T bitnet-2b.gguf
  sterna convert bitnet-b1.58-2B-4T-bf16 bitnet-2b.gguf --outtype i2_s
  sterna convert Falcon-E-3B-Instruct falcon-e.gguf
  sterna convert microsoft/bitnet-b1.58-2B-4T bitnet-2b.gguf
  sterna convert Qwen3-0.6B qwen3-q4_k_m.gguf --outtype q4_k_m
  sterna convert --dry-run gemma-3-4b-it --text-only
  sterna convert --mmproj gemma-3-4b-it mmproj-gemma-3-4b-it.gguf
  sterna convert --base llama.gguf my-adapter my-adapter.gguf
  sterna convert --lora my-adapter.gguf llama-f16.gguf merged.gguf")]
pub struct ConvertArgs {
    /// Folder of the checkpoint, or a Hugging Face repository, which is downloaded first
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Output file
    #[arg(value_name = "OUT.gguf", required_unless_present_any = ["dry_run", "outfile"])]
    out: Option<PathBuf>,
    /// Output file, as convert_hf_to_gguf.py names it
    #[arg(long, value_name = "OUT.gguf", conflicts_with = "out")]
    outfile: Option<PathBuf>,
    /// Type of the weights: auto, f32, f16, bf16, q8_0, i2_s, tq2_0, or any that sterna quantize makes
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = outtype)]
    outtype: Outtype,
    /// Meaning of weight_scale of packed weights, overriding config.json
    #[arg(long, value_name = "HOW")]
    scale: Option<Scale>,
    /// Round linear weights, the master weights of a ternary model, to ternary
    #[arg(long, value_name = "RULE")]
    ternary: Option<Rule>,
    /// Name of the pre-tokenizer, overriding tokenizer.json
    #[arg(long, value_name = "NAME", value_parser = pre_tokenizer)]
    tokenizer_pre: Option<PreTokenizer>,
    /// Leave out the vision and audio parts of a multimodal model
    #[arg(long)]
    text_only: bool,
    /// Write the mmproj file of a multimodal model, its vision tower, instead of the text model
    #[arg(long, conflicts_with_all = ["text_only", "scale", "ternary", "tokenizer_pre", "lora", "base"])]
    mmproj: bool,
    #[command(flatten)]
    lora: AdapterFiles,
    /// GGUF file of the model of an adapter, if DIR is a LoRA adapter of PEFT
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lora", "lora_scaled"])]
    base: Option<PathBuf>,
    /// Show the type of every tensor without writing a file
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: physical cores]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<Threads>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// `--scale`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scale {
    /// Weight = code x scale, as in BitNet b1.58 2B-4T
    Multiply,
    /// Weight = code / scale, as in Falcon-E
    Divide,
}

/// `--ternary`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rule {
    /// BitNet's: scale = mean |w|, code = round(w / scale) within -1 and 1
    Absmean,
}

impl ConvertArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A folder that is not a checkpoint, or cannot be converted; an output that already exists, does not fit
    /// on the disk, or cannot be written; [`Interrupted`](super::Interrupted) after ctrl-C. No partial output
    /// is left then.
    pub fn run(self) -> Result<(), CliError> {
        let options = ConvertOptions {
            outtype: self.outtype,
            scale: self.scale.map(|scale| match scale {
                Scale::Multiply => ScaleMeaning::Multiply,
                Scale::Divide => ScaleMeaning::Divide,
            }),
            ternary: self.ternary.map(|Rule::Absmean| Rounding::Absmean),
            tokenizer_pre: self.tokenizer_pre,
            text_only: self.text_only,
            mmproj: self.mmproj,
            threads: self.threads.and_then(|n| n.0).unwrap_or_else(physical_cores),
        };
        let out = self.out.as_deref().or(self.outfile.as_deref()).filter(|_| !self.dry_run);
        if self.lora.is_given() {
            return self.merge(out, options.threads);
        }
        let dir = self.access.checkpoint(&self.dir)?;
        if let Some(base) = &self.base {
            return self.adapter(&dir, base, out);
        }
        if peft::is_adapter(&dir) && !dir.join("config.json").is_file() {
            let way = "an adapter (LoRA), not a model: --base FILE names its model's GGUF file; `sterna run \
                       --lora` reads the folder as it is";
            return Err(format!("{}: {way}", dir.display()).into());
        }
        let of_input = |err: &(dyn std::error::Error + 'static)| {
            format!("{}: {}", dir.display(), names::with_flags(err))
        };
        let converter = Converter::open(&dir, &options).map_err(|err| of_input(&err))?;
        let quantizer = converter.quantizer().map_err(|err| of_input(&err))?;
        converter.notes().iter().for_each(|note| names::note("note", note));
        let bytes = quantizer.file_bytes();
        let plan = quantizer.plan().map_err(|err| of_input(&err))?;
        let in_bytes = plan.iter().map(|report| report.from.1 as u64).sum();
        let Some(out_path) = out else {
            notes(&plan);
            return Ok(print(&plan, false, in_bytes, bytes)?);
        };
        let file = OutFile { path: out_path, bytes, force: self.force };
        let reports =
            file.write(|out, progress| quantizer.write(out, progress).map_err(|err| of_input(&err)))?;
        notes(&reports);
        let changed: Vec<_> =
            reports.iter().filter(|report| report.n_changed > 0 && report.to.0 == "f16").collect();
        if !changed.is_empty() {
            let n: u64 = changed.iter().map(|report| report.n_changed).sum();
            eprintln!(
                "note: {n} weights of {} tensors cannot be represented exactly in f16 and were rounded",
                changed.len()
            );
        }
        print(&reports, true, in_bytes, bytes)?;
        zeros(&reports);
        Ok(())
    }
}

impl ConvertArgs {
    /// Writes the model DIR, a GGUF file, with the adapters of `--lora` added to its weights.
    fn merge(&self, out: Option<&Path>, threads: usize) -> Result<(), CliError> {
        let adapters = self.lora.adapters(|| Ok(Gguf::open_header(&self.dir, OpenOptions::default())?))?;
        let merged = Merged::new(&self.dir, adapters)?;
        let options = match self.outtype {
            Outtype::Auto => QuantizeOptions { threads, ..merged.own_types()? },
            // The merged tensors are f32; the others may have any type.
            Outtype::Recipe(recipe) => {
                QuantizeOptions { threads, requantize: true, ..QuantizeOptions::new(recipe) }
            }
        };
        let of_input = |err: &QuantizeError| format!("{}: {}", self.dir.display(), names::with_flags(err));
        let quantizer = Quantizer::new(&merged, options).map_err(|err| of_input(&err))?;
        let (bytes, plan) = (quantizer.file_bytes(), quantizer.plan().map_err(|err| of_input(&err))?);
        let in_bytes = plan.iter().map(|report| report.from.1 as u64).sum();
        let Some(path) = out else { return Ok(print(&plan, false, in_bytes, bytes)?) };
        let file = OutFile { path, bytes, force: self.force };
        let write = quantizer;
        let reports = file.write(|out, progress| write.write(out, progress).map_err(|err| of_input(&err)))?;
        Ok(print(&reports, true, in_bytes, bytes)?)
    }

    /// Writes the adapter in `dir` as a GGUF file.
    fn adapter(&self, dir: &Path, base: &Path, out: Option<&Path>) -> Result<(), CliError> {
        let of = |path: &Path, err: &dyn std::fmt::Display| format!("{}: {err}", path.display());
        let base = Gguf::open_header(base, OpenOptions::default())?;
        let bytes = peft::adapter(dir, &base).map_err(|err| of(dir, &err))?;
        let file = Gguf::from_bytes(bytes.clone())?;
        let mut list = io::stdout().lock();
        for info in file.tensors() {
            writeln!(list, "{} {:?} {}", info.name, info.dims, info.type_name)?;
        }
        let Some(path) = out else { return Ok(()) };
        let file = OutFile { path, bytes: bytes.len() as u64, force: self.force };
        file.write(|out, _| out.write_all(&bytes).map_err(|err| of(path, &err)))
    }
}

/// Reads `auto`, a type or a mix.
fn outtype(name: &str) -> Result<Outtype, String> {
    Outtype::named(name).ok_or_else(|| format!("want auto or one of {}", Recipe::names().join(", ")))
}
