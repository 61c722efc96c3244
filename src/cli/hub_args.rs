//! Flags that name a model of the Hugging Face hub, with llama.cpp's names.

use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
#[cfg(feature = "hub")]
use super::Interrupted;
#[cfg(feature = "hub")]
use super::fetch::{self, Missing};
#[cfg(feature = "hub")]
use super::names;
use crate::gguf::Header;
#[cfg(feature = "hub")]
use crate::hub::{Choice, HubOptions, Name, Token, is_prefixed};

/// A model of the hub instead of a file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models of the Hugging Face hub")]
pub struct HubArgs {
    /// Model of the Hugging Face hub, such as user/repo, user/repo:Q4_K_M or user/repo/file.gguf: downloaded
    /// once, then kept in the cache (also -hf)
    #[arg(long, value_name = "NAME")]
    #[arg(aliases = ["-hf", "-hfr"])]
    hf_repo: Option<String>,
    /// File in the repository, and access to the hub.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Access to the hub.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models of the Hugging Face hub")]
pub struct AccessArgs {
    /// File in the repository (also -hff)
    #[arg(long, value_name = "FILE")]
    #[arg(alias = "-hff")]
    hf_file: Option<String>,
    /// Access token for gated and private repositories; set HF_TOKEN instead to hide it from `ps` (also -hft)
    #[arg(long, value_name = "TOKEN")]
    #[arg(alias = "-hft")]
    hf_token: Option<String>,
    /// Use only the cache; fail if the model is not in it
    #[arg(long)]
    offline: bool,
}

/// A file, or a model of the hub by the name that was typed.
enum Named {
    File(PathBuf),
    OfHub(String, AccessArgs),
    /// At a URL outside the hub.
    At(String),
}

/// The error for a model at a URL.
fn not_here(url: &str) -> CliError {
    format!(
        "{url}: cannot run a model from a URL: download it and pass the file. `sterna inspect` and \
         `sterna plan` can read its header from there"
    )
    .into()
}

/// True if a text is a web address.
fn is_address(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
}

impl HubArgs {
    /// Returns the model's file: `file` itself, or the hub's file of that name, downloaded first if it is not
    /// in the cache; `None` if no model was named. An existing file takes precedence over a hub name that
    /// looks the same.
    ///
    /// # Errors
    /// Two models; an invalid name; any error of the download.
    pub fn local(&self, file: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
        Ok(match self.named(file)? {
            Some(Named::File(path)) => Some(path),
            Some(Named::OfHub(name, access)) => Some(access.get(&name)?),
            Some(Named::At(url)) => return Err(not_here(&url)),
            None => None,
        })
    }

    /// Reads the headers of a model that is not stored locally, and returns them with its name: a model of
    /// the hub that is not in the cache, or one at any URL. Nothing else is downloaded. `None` for a file, a
    /// model in the cache, or if no model was named.
    ///
    /// # Errors
    /// Same as [`local`](Self::local); a file that is not GGUF.
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

    /// Always `None`: this build has no hub support.
    ///
    /// # Errors
    /// Two models.
    #[cfg(not(feature = "hub"))]
    pub fn headers(&self, file: Option<&Path>) -> Result<Option<(String, Vec<Header>)>, CliError> {
        self.named(file).map(|_| None)
    }

    /// The model that the flags or the environment name.
    fn named(&self, file: Option<&Path>) -> Result<Option<Named>, CliError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (file, &self.hf_repo) {
            (Some(_), Some(_)) => Err("both a file and --hf-repo name a model; pass only one of them".into()),
            (Some(file), None) => self.access.named(file).map(Some),
            (None, Some(name)) => Ok(Some(Named::OfHub(name.clone(), self.access.clone()))),
            (None, None) => match variable("LLAMA_ARG_HF_REPO") {
                Some(name) => {
                    let hf_file = self.access.hf_file.clone().or_else(|| variable("LLAMA_ARG_HF_FILE"));
                    Ok(Some(Named::OfHub(name, AccessArgs { hf_file, ..self.access.clone() })))
                }
                None if self.access.hf_file.is_some() => Err("--hf-file needs --hf-repo".into()),
                None => Ok(None),
            },
        }
    }
}

impl AccessArgs {
    /// Returns a file: `file` itself, or the hub's file of that name, downloaded first.
    ///
    /// # Errors
    /// Same as [`HubArgs::local`].
    pub fn local(&self, file: &Path) -> Result<PathBuf, CliError> {
        match self.named(file)? {
            Named::File(path) => Ok(path),
            Named::OfHub(name, access) => access.get(&name),
            Named::At(url) => Err(not_here(&url)),
        }
    }

    /// Returns the folder of a checkpoint: `dir` itself, or the cached checkpoint of the hub repository that
    /// it names, downloaded first.
    ///
    /// # Errors
    /// A name that is neither; any error of the download.
    pub fn checkpoint(&self, dir: &Path) -> Result<PathBuf, CliError> {
        match dir.to_str().filter(|_| !dir.exists()) {
            Some(name) => self.get_checkpoint(name),
            None => Ok(dir.to_path_buf()),
        }
    }

    fn named(&self, file: &Path) -> Result<Named, CliError> {
        match file.to_str().filter(|_| !file.exists()) {
            Some(name) if is_name(name) => Ok(Named::OfHub(name.to_owned(), self.clone())),
            _ if self.hf_file.is_some() => Err("--hf-file needs --hf-repo".into()),
            Some(url) if is_address(url) => Ok(Named::At(url.to_owned())),
            Some(name)
                if cfg!(feature = "hub") && !name.ends_with(".gguf") && !name.starts_with(['/', '.']) =>
            {
                let hub = if name.matches('/').count() == 1 { name } else { "USER/REPO" };
                Err(format!("{name}: no such file; -hf {hub} names a model of the Hugging Face hub").into())
            }
            _ => Ok(Named::File(file.to_path_buf())),
        }
    }
}

#[cfg(feature = "hub")]
impl AccessArgs {
    /// Parses a name and adds the file of `--hf-file`.
    ///
    /// # Errors
    /// Text that is not a valid name.
    pub fn name(&self, text: &str) -> Result<Name, CliError> {
        let name = Name::parse(text)?;
        Ok(match &self.hf_file {
            Some(file) => name.with_file(file)?,
            None => name,
        })
    }

    /// Hub options from the environment, overridden by the flags.
    ///
    /// # Errors
    /// An invalid variable or token.
    pub fn options(&self) -> Result<HubOptions, CliError> {
        let mut options = HubOptions::from_env(|name| std::env::var_os(name))?;
        if let Some(token) = &self.hf_token {
            options.token = Some(Token::new(token)?);
        }
        let on = std::env::var("LLAMA_ARG_OFFLINE").unwrap_or_default();
        options.offline |= self.offline || ["1", "true", "on", "enabled"].contains(&&*on);
        Ok(options)
    }

    /// Downloads a model of the hub and returns its first file.
    fn get(&self, name: &str) -> Result<PathBuf, CliError> {
        let local = fetch::get(&self.name(name)?, self.options()?, Missing::Cached)?;
        Ok(local.files.into_iter().next().ok_or("no file")?)
    }
}

#[cfg(feature = "hub")]
impl AccessArgs {
    fn get_checkpoint(&self, text: &str) -> Result<PathBuf, CliError> {
        let neither = |err: CliError| {
            format!("{text}: no such folder, and not a model of the hub: {}", names::with_flags(&*err))
        };
        if self.hf_file.is_some() {
            return Err("--hf-file names a GGUF file, but a checkpoint is a whole repository".into());
        }
        let mut name = self.name(text).map_err(neither)?;
        name.choice = Choice::Checkpoint;
        match fetch::get(&name, self.options()?, Missing::Cached) {
            Err(err) if !err.is::<Interrupted>() => Err(neither(err).into()),
            local => Ok(local?.folder),
        }
    }
}

/// True if a text is a name of the hub and not a path.
#[cfg(feature = "hub")]
pub fn is_name(text: &str) -> bool {
    is_prefixed(text)
}

/// True if a text is a name of the hub and not a path.
#[cfg(not(feature = "hub"))]
pub fn is_name(_: &str) -> bool {
    false
}

#[cfg(not(feature = "hub"))]
impl AccessArgs {
    fn get(&self, _: &str) -> Result<PathBuf, CliError> {
        let (_unread, _unsaid) = (self.offline, &self.hf_token);
        let lacks = "this build has no Hugging Face support: it was built without the feature `hub`";
        Err(format!("{lacks}. Download the file and pass it with -m").into())
    }

    fn get_checkpoint(&self, dir: &str) -> Result<PathBuf, CliError> {
        let lacks = "this build has no Hugging Face support: it was built without the feature `hub`";
        Err(format!("{dir}: no such folder, and {lacks}").into())
    }
}
