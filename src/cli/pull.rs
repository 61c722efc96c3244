//! `sterna pull`: downloads a model from the hub into the cache.

use std::io::{self, Write};

use clap::Args;

use super::fetch::{self, Missing, explained};
use super::hub_args::AccessArgs;
use super::{CliError, names, report};
use crate::gguf::{Gguf, zero_matrices};
use crate::hub::{Choice, Hub, Listing, Name};

/// Downloads a model from the Hugging Face hub, and prints its path.
///
/// NAME is user/repo, user/repo:TAG, user/repo/file.gguf or user/repo@revision..., also as
/// hf.co/user/repo:TAG, hf://user/repo@revision/file.gguf or the URL of a page. Without a tag, the first of
/// I2_S, TQ2_0, TQ1_0, Q2_0, Q4_K_M and Q8_0 that exists is chosen, or else the first file. All parts of a
/// split model are downloaded, and the mmproj file for images if there is one.
///
/// An interrupted download is resumed, and the size and hash of every file are checked. The cache is
/// huggingface_hub's: HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE have the same meaning.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna pull microsoft/bitnet-b1.58-2B-4T-gguf
  sterna run -m $(sterna pull user/repo:Q4_K_M) -p 'Once upon a time'
  sterna pull user/repo --revision v1.0 --dry-run
  sterna pull user/repo --checkpoint")]
pub struct PullArgs {
    /// The model
    #[arg(value_name = "NAME")]
    name: String,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// List the files, their sizes and what is already in the cache, without downloading
    #[arg(long)]
    dry_run: bool,
    /// Download safetensors, configuration and vocabulary instead of a GGUF file, for sterna convert
    #[arg(long, conflicts_with = "hf_file")]
    checkpoint: bool,
    #[command(flatten)]
    access: AccessArgs,
}

impl PullArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error of the download; [`Interrupted`](super::Interrupted) after ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let (name, options) = (self.name()?, self.access.options()?);
        let mut out = io::stdout().lock();
        if self.dry_run {
            let hub = Hub::new(options)?;
            let found = hub.find(&name).map_err(explained)?;
            return Ok(show(&hub, &found, &mut out)?);
        }
        let is_folder = name.choice == Choice::Checkpoint;
        let local = fetch::get(&name, options, Missing::Error)?;
        let at = if is_folder { &local.folder } else { &local.files[0] };
        if !is_folder {
            match Gguf::open(at) {
                Ok(gguf) => {
                    report::zeros(zero_matrices(&gguf).iter().map(|(info, n)| (info.name.as_str(), *n)))
                }
                Err(err) => names::note(
                    "warning",
                    &format!("the download is not a model that sterna can read: {err}"),
                ),
            }
        }
        writeln!(out, "{}", at.display())?;
        Ok(out.flush()?)
    }

    fn name(&self) -> Result<Name, CliError> {
        let mut name = self.access.name(&self.name)?;
        if let Some(revision) = &self.revision {
            if name.revision.is_some() {
                return Err("both the name and --revision give a revision; pass only one of them".into());
            }
            name = name.at(revision)?;
        }
        if self.checkpoint {
            name.choice = Choice::Checkpoint;
        }
        Ok(name)
    }
}

fn show(hub: &Hub, found: &Listing, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{} at {}", found.name.repo, found.commit)?;
    for file in found.all() {
        let one = Listing { files: vec![file.clone()], mmproj: None, ..found.clone() };
        let there = file.size - hub.missing(&one).min(file.size);
        writeln!(out, "{:>14} bytes, {there:>14} downloaded  {}", file.size, file.path.escape_debug())?;
    }
    let (n, missing) = (found.all().count(), hub.missing(found));
    writeln!(out, "{:>14} bytes in {n} file(s), {missing} to download", found.bytes())?;
    out.flush()
}
