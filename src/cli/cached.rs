//! `sterna list`, `rm` and `verify`: models of the Hugging Face hub in the local cache.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use indicatif::BinaryBytes;

use super::{CliError, Interrupted, report};
use crate::hub::{
    Cached, CachedFile, Choice, Hub, HubError, HubOptions, Name, is_gguf, is_mmproj, repositories,
};

/// Lists the models of the hub that are in the cache.
///
/// Each line begins with a name that -hf accepts. Repositories without a GGUF file are listed too, because
/// other programs share the cache.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Write JSON
    #[arg(long)]
    json: bool,
}

/// Removes models of the hub from the cache.
///
/// user/repo removes the whole repository; with a tag, a file or a revision, only that is removed. Data that
/// another revision also uses is kept.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna rm user/repo:Q4_K_M
  sterna rm user/repo --dry-run")]
pub struct RmArgs {
    /// The models
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Show what would be removed without removing it
    #[arg(long)]
    dry_run: bool,
}

/// Checks models of the hub in the cache against the hashes that were stored when they were downloaded.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// The models [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// The hub as the environment configures it, offline: these commands only read the cache.
fn hub() -> Result<Hub, CliError> {
    let options = HubOptions::from_env(|name| std::env::var_os(name))?;
    Ok(Hub::new(HubOptions { offline: true, ..options })?)
}

/// Files of all cached commits.
fn files(cached: &Cached) -> Result<Vec<CachedFile>, HubError> {
    let commits = cached.commits()?;
    let files: Result<Vec<_>, _> = commits.iter().map(|commit| cached.files(commit)).collect();
    Ok(files?.into_iter().flatten().collect())
}

/// Dangling links of all cached commits.
fn dangling(cached: &Cached) -> Result<Vec<CachedFile>, HubError> {
    let links: Result<Vec<_>, _> = cached.commits()?.iter().map(|commit| cached.dangling(commit)).collect();
    Ok(links?.into_iter().flatten().collect())
}

/// Name of a file as `-hf` accepts it, with the revision that points to its commit.
fn name_of(cached: &Cached, revisions: &BTreeMap<String, String>, file: &CachedFile) -> String {
    let revision = revisions.get(&file.commit).unwrap_or(&file.commit);
    let at = if revision == "main" { String::new() } else { format!("@{revision}") };
    format!("{}{at}/{}", cached.repo, file.path.escape_debug())
}

/// Cached commits with the branch or tag that points to each; `main` takes precedence.
fn revisions(cached: &Cached) -> Result<BTreeMap<String, String>, HubError> {
    let mut of = BTreeMap::new();
    for (revision, commit) in cached.revisions()? {
        let known: &mut String = of.entry(commit).or_insert_with(|| revision.clone());
        if revision == "main" {
            *known = revision;
        }
    }
    Ok(of)
}

impl ListArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A cache that cannot be read; stdout that cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let hub = hub()?;
        let mut out = io::stdout().lock();
        let (mut lines, mut halves, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for cached in repositories(hub.cache())? {
            let (revisions, files) = (revisions(&cached)?, files(&cached)?);
            let models: Vec<_> = files.iter().filter(|file| is_gguf(&file.path)).collect();
            for file in &models {
                let name = name_of(&cached, &revisions, file);
                rows.push(serde_json::json!({
                    "name": name, "repo": cached.repo.to_string(), "commit": file.commit, "file": file.path,
                    "size": file.size, "path": file.at.display().to_string(),
                }));
                let note = if is_mmproj(&file.path) { "images of the models next to it" } else { "" };
                lines.push((name, file.size, note.to_owned()));
            }
            if models.is_empty() && !files.is_empty() {
                let note = format!("{} files, no GGUF among them", files.len());
                let mut blobs: Vec<_> = files.iter().map(|file| (&file.blob, file.size)).collect();
                blobs.sort();
                blobs.dedup();
                let bytes = blobs.iter().map(|(_, size)| size).sum();
                lines.push((cached.repo.to_string(), bytes, note));
            }
            for (_, bytes) in cached.parts()? {
                halves.push(format!("{}: {} of an unfinished download", cached.repo, BinaryBytes(bytes)));
            }
        }
        if self.json {
            serde_json::to_writer_pretty(&mut out, &rows)?;
            writeln!(out)?;
            return Ok(out.flush()?);
        }
        let width = lines.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        for (name, bytes, note) in &lines {
            let line = format!("{name:<width$}  {:>12}  {note}", BinaryBytes(*bytes).to_string());
            writeln!(out, "{}", line.trim_end())?;
        }
        out.flush()?;
        halves.iter().for_each(|half| eprintln!("note: {half}; `sterna pull` resumes it"));
        if lines.is_empty() {
            eprintln!("no models in {}; `sterna pull user/repo` downloads one", hub.cache().display());
        }
        Ok(())
    }
}

impl RmArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A model that is not in the cache, or cannot be removed.
    pub fn run(self) -> Result<(), CliError> {
        let hub = hub()?;
        for text in &self.names {
            let name = Name::parse(text)?;
            let cached = hub.repository(&name.repo);
            let is_whole = name.choice == Choice::Default && name.revision.is_none();
            let files = match is_whole {
                true if cached.folder().is_dir() => files(&cached)?,
                true => return Err(not_there(&name, hub.cache())),
                false => meant(&hub, &cached, &name)?,
            };
            if self.dry_run {
                files.iter().for_each(|file| println!("{}", file.at.display()));
                continue;
            }
            let freed = if is_whole { cached.remove_all()? } else { cached.remove(&files)? };
            eprintln!("{name}: {} file(s) removed, {} freed", files.len(), BinaryBytes(freed));
        }
        Ok(())
    }
}

/// Files that a name selects: of its revision, or of every commit if it has none.
fn meant(hub: &Hub, cached: &Cached, name: &Name) -> Result<Vec<CachedFile>, CliError> {
    let commits = match &name.revision {
        Some(revision) => cached.commit(revision).into_iter().collect(),
        None => cached.commits()?,
    };
    let mut meant = Vec::new();
    for commit in commits {
        let mut files = cached.files(&commit)?;
        if name.choice != Choice::Default {
            match hub.cached(&name.clone().at(&commit)?) {
                Ok(local) => files.retain(|file| local.files.contains(&file.at)),
                Err(HubError::Offline { .. }) => files.clear(),
                Err(err) => return Err(err.into()),
            }
        }
        meant.append(&mut files);
    }
    if meant.is_empty() { Err(not_there(name, hub.cache())) } else { Ok(meant) }
}

fn not_there(name: &Name, cache: &Path) -> CliError {
    format!("{name} is not in the cache {}; `sterna list` shows its models", cache.display()).into()
}

impl VerifyArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A model that is not in the cache; a file that differs from the hub's; [`Interrupted`] after ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let hub = hub()?;
        let mut found = Vec::new();
        for text in &self.names {
            let name = Name::parse(text)?;
            let cached = hub.repository(&name.repo);
            let gone = match (name.choice == Choice::Default, &name.revision) {
                (true, None) => dangling(&cached)?,
                _ => Vec::new(),
            };
            let files = match meant(&hub, &cached, &name) {
                Err(_) if !gone.is_empty() => Vec::new(),
                files => files?,
            };
            found.push((cached, files, gone));
        }
        if self.names.is_empty() {
            for cached in repositories(hub.cache())? {
                let (files, gone) = (files(&cached)?, dangling(&cached)?);
                found.push((cached, files, gone));
            }
        }
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let is_watched = io::stderr().is_terminal();
        let mut out = io::stdout().lock();
        let mut n_broken = 0;
        for (cached, files, gone) in &found {
            let revisions = revisions(cached)?;
            for file in gone {
                writeln!(out, "{}: MISSING: a dangling link", name_of(cached, &revisions, file))?;
            }
            n_broken += gone.len();
            for file in files {
                let name = name_of(cached, &revisions, file);
                if is_watched {
                    eprintln!("reading {name}");
                }
                let verified = match file.verify(|_| !cancel.load(Ordering::Relaxed)) {
                    Err(HubError::Stopped) => return Err(Interrupted.into()),
                    verified => verified?,
                };
                let said = match verified {
                    Some(true) => "ok",
                    Some(false) => "BROKEN",
                    None => "unknown: no hash was stored",
                };
                n_broken += usize::from(verified == Some(false));
                writeln!(out, "{name}: {said}")?;
            }
        }
        out.flush()?;
        match n_broken {
            0 => Ok(()),
            n => Err(format!(
                "{n} file(s) are broken or missing: `sterna rm` removes them, and `sterna pull` downloads \
                 them again"
            )
            .into()),
        }
    }
}
