//! A large file that a subcommand makes: whole under its name, or not there at all.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

use super::{CliError, Interrupted, report};

/// The file to be.
pub struct OutFile<'a> {
    /// Where it will be.
    pub path: &'a Path,
    /// How large it will be.
    pub bytes: u64,
    /// Whether it may replace another one.
    pub force: bool,
}

impl OutFile<'_> {
    /// Makes the file from what `write` writes, with a progress bar where stderr is a terminal. `write` tells
    /// how many bytes it has written, and is told whether to stop.
    ///
    /// # Errors
    /// A file that is there already, does not fit the disk, or cannot be written; what `write` returns;
    /// [`Interrupted`] after ctrl-C. Nothing is left behind then.
    pub fn write<T>(
        &self,
        write: impl FnOnce(&mut dyn Write, &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<T, String>,
    ) -> Result<T, CliError> {
        let Self { path, bytes, force } = *self;
        is_free(path, force)?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
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

/// That no file has this name yet, unless `force` lets it be replaced.
///
/// # Errors
/// As it says.
pub fn is_free(path: &Path, force: bool) -> Result<(), CliError> {
    if !force && path.is_file() { Err(is_there(path)) } else { Ok(()) }
}

/// [`Interrupted`], and a line about it, after ctrl-C.
///
/// # Errors
/// As it says.
pub fn go_on(cancel: &AtomicBool) -> Result<(), CliError> {
    if cancel.load(Ordering::Relaxed) {
        eprintln!("interrupted; nothing was kept");
        return Err(Interrupted.into());
    }
    Ok(())
}

/// Whether there is such a path, and it is neither a file nor a folder: a pipe or a device.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir())
}

fn is_there(path: &Path) -> CliError {
    format!("{} exists already; --force overwrites it", path.display()).into()
}

/// A file under another name beside the one it will have, gone again unless it gets there. A pipe or a device
/// is written as it stands.
pub struct Partial {
    path: PathBuf,
    special: bool,
}

impl Partial {
    /// The temporary file that becomes `out`, still empty.
    ///
    /// # Errors
    /// Where `out` is a folder, or its own folder cannot be written to.
    pub fn create(out: &Path) -> Result<Self, CliError> {
        if is_special(out) {
            return Ok(Self { path: out.to_owned(), special: true });
        }
        if out.is_dir() {
            return Err(format!("{}: is a folder", out.display()).into());
        }
        let name = out.file_name().ok_or_else(|| format!("{}: not a file name", out.display()))?;
        let mut partial = name.to_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let path = out.with_file_name(partial);
        File::create(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(Self { path, special: false })
    }

    /// Opens it.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn file(&self) -> Result<File, CliError> {
        let opened = File::options().write(true).open(&self.path);
        Ok(opened.map_err(|err| format!("{}: {err}", self.path.display()))?)
    }

    /// Gives it its name, in place of another file where `force` says so.
    ///
    /// # Errors
    /// Whatever the system says; without `force`, a file of that name.
    pub fn rename(self, out: &Path, force: bool) -> Result<(), CliError> {
        if self.special {
            return Ok(());
        }
        let rename = || fs::rename(&self.path, out).map_err(|err| format!("{}: {err}", out.display()));
        if force {
            rename()?;
        } else {
            // A link fails where another process made the file meanwhile; a rename would replace it.
            match fs::hard_link(&self.path, out) {
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
                    return Err(is_there(out));
                }
                // Not every file system has links.
                Err(_) => rename()?,
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.special {
            // Renamed already, or of no use to anybody; an error would say no more than that.
            let _ = fs::remove_file(&self.path);
        }
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
