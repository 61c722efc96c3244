//! Flags that name a model of the Hugging Face hub, spelled as llama.cpp's users type them.

use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
#[cfg(feature = "hub")]
use super::Interrupted;
#[cfg(feature = "hub")]
use super::fetch::{self, Missing};
use crate::gguf::Header;
#[cfg(feature = "hub")]
use crate::hub::{Choice, HubOptions, Name, Token, is_prefixed};

/// A model of the hub, in place of a file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models of the Hugging Face hub")]
pub struct HubArgs {
    /// Model of the Hugging Face hub, such as user/repo, user/repo:Q4_K_M or user/repo/file.gguf: downloaded
    /// once, then kept in the cache (also -hf)
    #[arg(long, value_name = "NAME")]
    #[arg(aliases = ["-hf", "-hfr"])]
    hf_repo: Option<String>,
    /// Which file of it, in place of a tag, and how it is got.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// How the hub is asked.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models of the Hugging Face hub")]
pub struct AccessArgs {
    /// File in the repository (also -hff)
    #[arg(long, value_name = "FILE")]
    #[arg(alias = "-hff")]
    hf_file: Option<String>,
    /// Access token for gated and private repositories; HF_TOKEN keeps it out of `ps` (also -hft)
    #[arg(long, value_name = "TOKEN")]
    #[arg(aliases = ["-hft", "HubOptions::token"])]
    hf_token: Option<String>,
    /// Use the cache only; a model that is not in it is an error
    #[arg(long)]
    #[arg(alias = "HubOptions::offline")]
    offline: bool,
}

/// A file, or a model of the hub by the name that was typed.
enum Named {
    File(PathBuf),
    OfHub(String, AccessArgs),
    /// At an address that is not the hub's.
    At(String),
}

/// That a model at an address is no file.
fn not_here(url: &str) -> CliError {
    format!(
        "{url}: a model is run from a file: download it, and name that. `sterna inspect` and `sterna plan` \
         read descriptions where they are"
    )
    .into()
}

/// Whether a text is an address of the web.
fn is_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
}

impl HubArgs {
    /// The model's file: `file` itself, or what the hub calls so, which is got first if it is not in the
    /// cache; `None` if no model was named. A file that is there goes before a name of the hub like it.
    ///
    /// # Errors
    /// Two models; a name that cannot be one; whatever is in the way of getting it.
    pub fn local(&self, file: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
        Ok(match self.named(file)? {
            Some(Named::File(path)) => Some(path),
            Some(Named::OfHub(name, access)) => Some(access.get(&name)?),
            Some(Named::At(url)) => return Err(not_here(&url)),
            None => None,
        })
    }

    /// The headers of the files of a model that is not here, and what the model is called: one of the hub
    /// that is not in the cache, or one at any address of the web. Nothing else of it is got.
    /// `None` for a file, a model in the cache, and where nothing was named.
    ///
    /// # Errors
    /// As [`local`](Self::local); a file that is no GGUF.
    #[cfg(feature = "hub")]
    pub fn headers(&self, file: Option<&Path>) -> Result<Option<(String, Vec<Header>)>, CliError> {
        match self.named(file)? {
            Some(Named::OfHub(name, access)) => fetch::headers(&access.name(&name)?, access.options()?),
            Some(Named::At(url)) => {
                let headers = fetch::headers_at(&url, &self.access.options()?)?;
                Ok(Some((url, headers)))
            }
            _ => Ok(None),
        }
    }

    /// None: this build reads nothing of the hub.
    ///
    /// # Errors
    /// Two models.
    #[cfg(not(feature = "hub"))]
    pub fn headers(&self, file: Option<&Path>) -> Result<Option<(String, Vec<Header>)>, CliError> {
        self.named(file).map(|_| None)
    }

    /// The model that flags or the environment name.
    fn named(&self, file: Option<&Path>) -> Result<Option<Named>, CliError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (file, &self.hf_repo) {
            (Some(_), Some(_)) => Err("a file and --hf-repo name a model each; leave one of them out".into()),
            (Some(file), None) => self.access.named(file).map(Some),
            (None, Some(name)) => Ok(Some(Named::OfHub(name.clone(), self.access.clone()))),
            (None, None) => match variable("LLAMA_ARG_HF_REPO") {
                Some(name) => {
                    let hf_file = self.access.hf_file.clone().or_else(|| variable("LLAMA_ARG_HF_FILE"));
                    Ok(Some(Named::OfHub(name, AccessArgs { hf_file, ..self.access.clone() })))
                }
                None if self.access.hf_file.is_some() => Err("--hf-file wants --hf-repo".into()),
                None => Ok(None),
            },
        }
    }
}

impl AccessArgs {
    /// A file, or what the hub calls so, which is got first.
    ///
    /// # Errors
    /// As [`HubArgs::local`].
    pub fn local(&self, file: &Path) -> Result<PathBuf, CliError> {
        match self.named(file)? {
            Named::File(path) => Ok(path),
            Named::OfHub(name, access) => access.get(&name),
            Named::At(url) => Err(not_here(&url)),
        }
    }

    /// The folder of a checkpoint: `dir` itself, or that of the repository of the hub that it names, whose
    /// checkpoint is got first.
    ///
    /// # Errors
    /// A name that is neither; any error of downloading it.
    pub fn checkpoint(&self, dir: &Path) -> Result<PathBuf, CliError> {
        match dir.to_str().filter(|_| !dir.exists()) {
            Some(name) => self.get_checkpoint(name),
            None => Ok(dir.to_path_buf()),
        }
    }

    fn named(&self, file: &Path) -> Result<Named, CliError> {
        match file.to_str().filter(|_| !file.exists()) {
            Some(name) if is_name(name) => Ok(Named::OfHub(name.to_owned(), self.clone())),
            _ if self.hf_file.is_some() => Err("--hf-file wants --hf-repo".into()),
            Some(url) if is_address(url) => Ok(Named::At(url.to_owned())),
            _ => Ok(Named::File(file.to_path_buf())),
        }
    }
}

#[cfg(feature = "hub")]
impl AccessArgs {
    /// Reads a name, with the file of `--hf-file`.
    ///
    /// # Errors
    /// Text that is no name.
    pub fn name(&self, text: &str) -> Result<Name, CliError> {
        let name = Name::parse(text)?;
        Ok(match &self.hf_file {
            Some(file) => name.with_file(file)?,
            None => name,
        })
    }

    /// How the hub is asked: by the environment, and then by the flags.
    ///
    /// # Errors
    /// A variable or a token that cannot be used.
    pub fn options(&self) -> Result<HubOptions, CliError> {
        let mut options = HubOptions::from_env(|name| std::env::var_os(name))?;
        if let Some(token) = &self.hf_token {
            options.token = Some(Token::new(token)?);
        }
        let on = std::env::var("LLAMA_ARG_OFFLINE").unwrap_or_default();
        options.offline |= self.offline || ["1", "true", "on", "enabled"].contains(&&*on);
        Ok(options)
    }

    /// The first file of a model of the hub.
    fn get(&self, name: &str) -> Result<PathBuf, CliError> {
        let local = fetch::get(&self.name(name)?, self.options()?, Missing::Cached)?;
        Ok(local.files.into_iter().next().ok_or("no file")?)
    }
}

#[cfg(feature = "hub")]
impl AccessArgs {
    fn get_checkpoint(&self, text: &str) -> Result<PathBuf, CliError> {
        let neither =
            |err: CliError| format!("{text}: no folder here has this name, and as a model of the hub: {err}");
        if self.hf_file.is_some() {
            return Err("--hf-file names a GGUF file, and a checkpoint is a whole repository".into());
        }
        let mut name = self.name(text).map_err(neither)?;
        name.choice = Choice::Checkpoint;
        match fetch::get(&name, self.options()?, Missing::Cached) {
            Err(err) if !err.is::<Interrupted>() => Err(neither(err).into()),
            local => Ok(local?.folder),
        }
    }
}

/// Whether a text is a name of the hub and no path.
#[cfg(feature = "hub")]
pub fn is_name(text: &str) -> bool {
    is_prefixed(text)
}

/// Whether a text is a name of the hub and no path.
#[cfg(not(feature = "hub"))]
pub fn is_name(_: &str) -> bool {
    false
}

#[cfg(not(feature = "hub"))]
impl AccessArgs {
    fn get(&self, _: &str) -> Result<PathBuf, CliError> {
        let (_unread, _unsaid) = (self.offline, &self.hf_token);
        let lacks = "this build gets nothing from the hub: it was built without the feature `hub`";
        Err(format!("{lacks}. Download the file, and name it with -m").into())
    }

    fn get_checkpoint(&self, dir: &str) -> Result<PathBuf, CliError> {
        let lacks = "this build gets nothing from the hub: it was built without the feature `hub`";
        Err(format!("{dir}: no folder here has this name, and {lacks}").into())
    }
}
