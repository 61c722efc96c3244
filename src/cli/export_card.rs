//! `sterna export-card`: writes a model's configuration files for routers.

use std::path::PathBuf;

use clap::Args;

use super::model_args::FileArgs;
use super::source::Source;
use super::{CliError, names};
use crate::card::Card;
use crate::tokenizer::{Tokenizer, TokenizerOptions};

/// Writes a model's card: the Hugging Face files that routers and front ends read, without weights.
///
/// These are config.json, tokenizer.json, tokenizer_config.json with the chat template, and
/// generation_config.json. Files of these names in the folder are replaced.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna export-card model.gguf card
  sterna serve -m model.gguf --grpc 127.0.0.1:50051 --model-card card")]
pub struct ExportCardArgs {
    /// GGUF file of the model, or one with only its vocabulary; `demo` is the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Folder to write to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    file_args: FileArgs,
}

impl ExportCardArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A file that is not GGUF or has no usable vocabulary; a folder that cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let named = (self.model.as_os_str() != "demo" || self.model.exists()).then_some(self.model);
        let source = Source::or_demo(named, "MODEL")?;
        let gguf = source.open(self.file_args.open_options())?;
        let pre = self.file_args.tokenizer_pre;
        let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions { pre })?;
        tokenizer.notices().iter().for_each(|notice| names::note("note", notice));
        let card = Card::of(gguf.metadata(), pre)?;
        card.write(&self.folder)?;
        let names: Vec<&str> = card.files().map(|(name, _)| name).collect();
        eprintln!("{}: {}", self.folder.display(), names.join(", "));
        Ok(())
    }
}
