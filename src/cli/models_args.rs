//! Flags of a server with several models: their files, and how many are loaded at a time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
use super::hub_args::{AccessArgs, is_name};

/// Several models, selected by name in requests.
#[derive(Args, Clone, Debug)]
pub struct ModelsArgs {
    /// Folder of GGUF files, including subfolders; each file is a model of its name
    #[arg(long, value_name = "DIR", help_heading = "Several models, each loaded on its first request")]
    #[arg(alias = "LLAMA_ARG_MODELS_DIR")]
    models_dir: Option<PathBuf>,
    /// More models, comma-separated or repeated; a request without a model gets -m's or else the first one
    #[arg(long, value_name = "[NAME=]FILE|hf.co/...", value_delimiter = ',', value_parser = named)]
    #[arg(help_heading = "Several models, each loaded on its first request")]
    models: Vec<ModelFile>,
    /// Maximum number of loaded models; 0 sets no limit
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(help_heading = "Several models, each loaded on its first request")]
    #[arg(alias = "LLAMA_ARG_MODELS_MAX")]
    models_max: usize,
    /// Maximum memory of all loaded models in MiB; 0 is all memory of the machine
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    #[arg(help_heading = "Several models, each loaded on its first request")]
    models_memory: u64,
}

/// A model and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// Name in requests.
    pub name: String,
    /// Further names in requests.
    pub aliases: Vec<String>,
    /// Path of the file.
    pub path: PathBuf,
}

impl ModelFile {
    /// A model named after its file, without the suffix of a first part. `None` for files that are not GGUF
    /// and for further parts.
    fn of(path: PathBuf) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let part = stem.rsplit_once("-of-").and_then(|(rest, n)| {
            let (name, part) = rest.rsplit_once('-')?;
            (is_number(n) && is_number(part)).then_some((name, part))
        });
        let name = match part {
            Some((name, "00001")) => name,
            Some(_) => return None,
            None => stem,
        };
        let is_shown = !name.is_empty() && !name.starts_with('.');
        is_shown.then(|| Self::called(name, path.clone()))
    }

    /// A model with one name.
    fn called(name: &str, path: impl Into<PathBuf>) -> Self {
        Self { name: name.to_owned(), aliases: Vec::new(), path: path.into() }
    }
}

/// Reads `NAME=FILE` or `FILE`. A name has no slash, so `=` in the name of a folder belongs to a path.
fn named(text: &str) -> Result<ModelFile, String> {
    match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains(['/', '\\'])) {
        Some((name, path)) => Ok(ModelFile::called(name, path)),
        // A model of the hub, named without the prefix that marks it as such.
        None if is_name(text) => {
            let name = text.splitn(2, "://").last().unwrap_or(text);
            let name = name.strip_prefix("hf.co/").or(name.strip_prefix("huggingface.co/")).unwrap_or(name);
            Ok(ModelFile::called(name, text))
        }
        None => ModelFile::of(text.into())
            .ok_or_else(|| format!("want NAME=FILE, or a file that ends in .gguf; found `{text}`")),
    }
}

impl ModelsArgs {
    /// The models, `single` first, called `names` if there are any; empty if there is no list. Hub models are
    /// downloaded first.
    ///
    /// # Errors
    /// A folder that cannot be read or has no models; two models with the same name; any error of a download.
    pub fn files(
        &self,
        single: Option<&Path>,
        names: &[String],
        access: &AccessArgs,
    ) -> Result<Vec<ModelFile>, CliError> {
        if self.models_dir.is_none() && self.models.is_empty() {
            return Ok(Vec::new());
        }
        let mut files = Vec::new();
        if let Some(path) = single {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let plain = || ModelFile::called(&stem, path);
            files.push(match names {
                [] => ModelFile::of(path.to_path_buf()).unwrap_or_else(plain),
                [name, aliases @ ..] => {
                    ModelFile { aliases: aliases.to_vec(), ..ModelFile::called(name, path) }
                }
            });
        }
        for ModelFile { name, path, .. } in &self.models {
            files.push(ModelFile::called(name, access.local(path)?));
        }
        if let Some(folder) = &self.models_dir {
            let found = in_folder(folder)?;
            if found.is_empty() {
                return Err(format!("--models-dir {}: no file ends in .gguf", folder.display()).into());
            }
            // A file that was named before is not listed again.
            files.extend(
                found
                    .into_iter()
                    .filter(|file| files.iter().all(|known| known.path != file.path))
                    .collect::<Vec<_>>(),
            );
        }
        let mut taken = BTreeSet::new();
        let mut names = files.iter().flat_map(|file| {
            let names = std::iter::once(&file.name).chain(&file.aliases);
            names.map(|name| (name, &file.path))
        });
        match names.find(|(name, _)| !taken.insert(*name)) {
            Some((name, path)) => {
                let path = path.display();
                Err(format!(
                    "two models are called `{name}`, one of them {path}: rename it with --models NAME=FILE"
                )
                .into())
            }
            None => Ok(files),
        }
    }

    /// Maximum number of models that are loaded at a time.
    pub fn max(&self) -> usize {
        if self.models_max == 0 { usize::MAX } else { self.models_max }
    }

    /// Maximum bytes of all loaded models.
    pub fn bytes(&self) -> u64 {
        if self.models_memory == 0 { u64::MAX } else { self.models_memory.saturating_mul(1 << 20) }
    }
}

/// Models of a folder and its direct subfolders, sorted by name.
fn in_folder(folder: &Path) -> Result<Vec<ModelFile>, CliError> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, CliError> {
        let fail = |err: std::io::Error| format!("{}: {err}", folder.display());
        let entries = std::fs::read_dir(folder).map_err(fail)?;
        let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
        Ok(paths.map_err(fail)?)
    };
    let mut files = Vec::new();
    for path in list(folder)? {
        match path.is_dir() {
            true => files.extend(list(&path)?.into_iter().filter(|path| path.is_file())),
            false => files.push(path),
        }
    }
    let mut models: Vec<ModelFile> = files.into_iter().filter_map(ModelFile::of).collect();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_the_names_that_requests_use() {
        let name = |path: &str| ModelFile::of(path.into()).map(|file| file.name);
        assert_eq!(name("a/b-Q4_0.gguf").as_deref(), Some("b-Q4_0"));
        assert_eq!(name("big-00001-of-00003.gguf").as_deref(), Some("big"));
        assert_eq!(name("x-1-of-2.gguf").as_deref(), Some("x-1-of-2"));
        for other in ["big-00002-of-00003.gguf", "a.bin", ".hidden.gguf", ".gguf", ""] {
            assert_eq!(name(other), None, "{other}");
        }
        assert_eq!(named("x=a.bin").unwrap(), ModelFile::called("x", "a.bin"));
        assert_eq!(named("d=1/a.gguf").unwrap(), ModelFile::called("d", "1/a.gguf"));
        assert_eq!(named("/d=1/a.gguf").unwrap().name, "a");
        assert!(named("a.bin").unwrap_err().contains("NAME=FILE"));
    }

    #[test]
    fn alias_names_the_model_of_the_file_flag() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            models: ModelsArgs,
            #[command(flatten)]
            access: AccessArgs,
        }
        let Flags { models, access } = clap::Parser::parse_from(["sterna", "--models", "b=b.gguf"]);
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let files = models.files(Some(Path::new("x.gguf")), &names(&["small", "gpt-4o"]), &access).unwrap();
        assert_eq!((&*files[0].name, &files[0].aliases), ("small", &names(&["gpt-4o"])));
        assert_eq!((&*files[1].name, files[1].aliases.len()), ("b", 0));
        let twice = models.files(Some(Path::new("x.gguf")), &names(&["small", "b"]), &access).unwrap_err();
        assert!(twice.to_string().contains("two models are called `b`"), "{twice}");
    }
}
