//! Output files of subcommands, which appear under their name only when complete.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use sterna_host::files::make_private;
use tempfile::{Builder, NamedTempFile};

use super::{CliError, Interrupted, report};

/// An output file.
pub struct OutFile<'a> {
    /// Path of the file.
    pub path: &'a Path,
    /// Size of the finished file.
    pub bytes: u64,
    /// True if an existing file may be replaced.
    pub force: bool,
}

impl OutFile<'_> {
    /// Creates the file from the output of `write`, with a progress bar on a terminal. `write` reports the
    /// bytes written so far through its second argument, whose result tells it whether to stop.
    ///
    /// # Errors
    /// A file that already exists, does not fit on the disk, or cannot be written; any error of `write`;
    /// [`Interrupted`] after ctrl-C. No partial file is left then.
    pub fn write<T>(
        &self,
        write: impl FnOnce(&mut dyn Write, &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<T, String>,
    ) -> Result<T, CliError> {
        let Self { path, bytes, force } = *self;
        is_free(path, force)?;
        let dir = folder_of(path);
        let free = fs4::available_space(dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        if bytes > free && !is_special(path) {
            let dir = dir.display();
            return Err(format!("{bytes} bytes needed in {dir}, {free} bytes free there").into());
        }
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let partial = Partial::create(path)?;
        let bar = progress_bar(bytes);
        let mut file = BufWriter::with_capacity(1 << 20, partial.file()?);
        let written = write(&mut file, &mut |written| {
            bar.set_position(written);
            if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        if written.is_err() {
            go_on(&cancel)?;
        }
        let result = written?;
        file.flush().map_err(|err| format!("{}: {err}", path.display()))?;
        drop(file);
        partial.rename(path, force)?;
        Ok(result)
    }
}

/// Checks that the file does not exist, unless `force` allows replacing it.
///
/// # Errors
/// If it exists.
pub fn is_free(path: &Path, force: bool) -> Result<(), CliError> {
    if !force && path.is_file() { Err(is_there(path)) } else { Ok(()) }
}

/// Returns [`Interrupted`] after ctrl-C, and prints a line about it.
///
/// # Errors
/// If ctrl-C was pressed.
pub fn go_on(cancel: &AtomicBool) -> Result<(), CliError> {
    if cancel.load(Ordering::Relaxed) {
        eprintln!("interrupted; no output was written");
        return Err(Interrupted.into());
    }
    Ok(())
}

/// True if the path exists and is neither a file nor a folder: a pipe or a device.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

fn is_there(path: &Path) -> CliError {
    format!("{} already exists; --force overwrites it", path.display()).into()
}

/// A temporary file next to its final path, removed unless it is renamed. A pipe or a device is written
/// directly.
pub enum Partial {
    /// The temporary file.
    Temporary(NamedTempFile),
    /// Path of a pipe or a device.
    Special(PathBuf),
}

impl Partial {
    /// Creates the empty temporary file for `out`.
    ///
    /// # Errors
    /// If `out` is a folder, or its parent folder is not writable.
    pub fn create(out: &Path) -> Result<Self, CliError> {
        Self::new(out, false)
    }

    /// Creates it for its owner alone: for texts, tokens and what was computed from them.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn private(out: &Path) -> Result<Self, CliError> {
        Self::new(out, true)
    }

    fn new(out: &Path, is_private: bool) -> Result<Self, CliError> {
        if is_special(out) {
            return Ok(Self::Special(out.to_owned()));
        }
        if out.is_dir() {
            return Err(format!("{}: is a folder", out.display()).into());
        }
        let name = out.file_name().ok_or_else(|| format!("{}: not a file name", out.display()))?;
        let mut prefix = name.to_os_string();
        prefix.push(".");
        let mut builder = Builder::new();
        // Without this the file is private, apart from what the umask removes.
        #[cfg(unix)]
        if !is_private {
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        }
        let file = builder.prefix(&prefix).suffix(".partial").tempfile_in(folder_of(out));
        let file = file.and_then(|file| {
            if is_private {
                make_private(file.as_file())?;
            }
            Ok(file)
        });
        Ok(Self::Temporary(file.map_err(|err| format!("{}: {err}", out.display()))?))
    }

    /// Opens the temporary file.
    ///
    /// # Errors
    /// Any I/O error.
    pub fn file(&self) -> Result<File, CliError> {
        let (path, opened) = match self {
            Self::Temporary(file) => (file.path(), file.as_file().try_clone()),
            Self::Special(path) => (path.as_path(), File::options().write(true).open(path)),
        };
        Ok(opened.map_err(|err| format!("{}: {err}", path.display()))?)
    }

    /// Renames the file to its final path, replacing an existing file if `force` is set.
    ///
    /// # Errors
    /// Any I/O error; without `force`, an existing file.
    pub fn rename(self, out: &Path, force: bool) -> Result<(), CliError> {
        let Self::Temporary(file) = self else { return Ok(()) };
        if !force {
            // A hard link fails if another process has created the file meanwhile; a rename would replace it.
            match fs::hard_link(file.path(), out) {
                Ok(()) => return Ok(()),
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => return Err(is_there(out)),
                // Not every file system supports links.
                Err(_) => {}
            }
        }
        file.persist(out).map_err(|err| format!("{}: {}", out.display(), err.error))?;
        Ok(())
    }
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
