//! Downloading models of the hub: progress on stderr, ctrl-C, and hints on errors.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressStyle};

use super::ctrl_c::{self, on_ctrl_c};
use super::{CliError, Interrupted, guest};
use crate::gguf::{Header, Source, part_names};
use crate::hub::{Event, Hub, HubError, HubOptions, Listing, Local, Name, RemoteFile, WebFile};

/// Interval of the progress lines if stderr is not a terminal.
const EVERY: Duration = Duration::from_secs(10);

/// Fallback if the hub cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Use the cached files, with a note.
    Cached,
    /// Fail.
    Error,
}

/// Returns the files of a model, after downloading those that are not in the cache.
///
/// # Errors
/// Any error of the download, with a hint; [`Interrupted`] after ctrl-C.
pub fn get(name: &Name, options: HubOptions, missing: Missing) -> Result<Local, CliError> {
    let hub = Hub::new(options)?;
    if hub.is_offline() {
        return Ok(hub.cached(name)?);
    }
    match hub.find(name) {
        Ok(found) => fetch(&hub, &found),
        Err(err) if err.is_network() => match (hub.cached(name), missing) {
            (Ok(local), Missing::Cached) => {
                guest::say("note", &format!("{err}; using {name} from the cache"));
                Ok(local)
            }
            (Ok(_), Missing::Error) => Err(format!("{err}. The cache still has an earlier {name}").into()),
            (Err(_), _) => Err(format!("{err}. {name} is not in the cache {}", hub.cache().display()).into()),
        },
        Err(err) => Err(explained(err)),
    }
}

/// Reads the headers of a model's files from the hub without downloading the rest, and returns them with the
/// name of the first file; `None` if the model is in the cache or the hub is offline.
///
/// # Errors
/// Any error of the request; a file that is not GGUF.
pub fn headers(name: &Name, options: HubOptions) -> Result<Option<(String, Vec<Header>)>, CliError> {
    let hub = Hub::new(options)?;
    if hub.is_offline() || hub.cached(name).is_ok() {
        return Ok(None);
    }
    let found = hub.find(name).map_err(explained)?;
    let header = |file: &RemoteFile| {
        let first = |n| hub.read_range(&found, file, 0..n as u64).map(Bytes::from).map_err(io::Error::other);
        Header::read(file.size, first).map_err(|err| format!("{}: {err}", file.path.escape_debug()))
    };
    let headers = found.files.iter().map(header).collect::<Result<_, _>>()?;
    let path = found.files.first().map_or("", |file| &file.path);
    Ok(Some((format!("{}/{path}", found.name.repo), headers)))
}

/// Reads the headers of a model's files at a URL. For a split model, the URL of any part.
///
/// # Errors
/// As [`headers`].
pub fn headers_at(url: &str, options: &HubOptions) -> Result<Vec<Header>, CliError> {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parts = part_names(name).unwrap_or_else(|| vec![name.to_owned()]);
    let header = |name: &String| -> Result<Header, CliError> {
        let file = WebFile::open(&format!("{folder}/{name}{query}"), options)?;
        Ok(Header::of_source(&Remote(file)).map_err(|err| format!("{}: {err}", name.escape_debug()))?)
    };
    parts.iter().map(header).collect()
}

/// A file on the web as a [`Source`].
struct Remote(WebFile);

impl Source for Remote {
    fn file_bytes(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.read(at..at + into.len() as u64).map_err(io::Error::other)?);
        Ok(())
    }
}

/// An error with a hint on which commands help.
pub fn explained(err: HubError) -> CliError {
    match &err {
        HubError::NoGguf { repo, has_checkpoint: true } => format!(
            "{err}: `sterna pull {repo} --checkpoint` downloads them and prints their folder, and `sterna \
             convert` makes a GGUF file from it"
        )
        .into(),
        _ => err.into(),
    }
}

/// Downloads the files of `found` that are not in the cache.
///
/// # Errors
/// As [`get`].
pub fn fetch(hub: &Hub, found: &Listing) -> Result<Local, CliError> {
    let missing = hub.missing(found);
    let is_there = hub.cached(&found.name).is_ok_and(|local| local.commit == found.commit);
    if missing == 0 && is_there {
        return Ok(hub.fetch(found, &|_| {})?);
    }
    let (n, commit) = (found.all().count(), &found.commit[..8]);
    let files = if n == 1 { found.files[0].path.clone() } else { format!("{n} files") };
    let bytes = BinaryBytes(found.bytes());
    guest::say("", &format!("pulling {} at {commit}: {}, {bytes}", found.name.repo, files.escape_debug()));
    let stopper = hub.stopper();
    let mut was_told = false;
    on_ctrl_c(move || {
        if std::mem::replace(&mut was_told, true) {
            ctrl_c::exit();
        }
        stopper.stop();
    })?;
    let progress = Progress::new(found);
    let fetched = hub.fetch(found, &|event| progress.tell(&event));
    progress.clear();
    // Until the next part of the command sets its own action, ctrl-C ends the process.
    on_ctrl_c(ctrl_c::exit)?;
    match fetched {
        Err(HubError::Stopped) => {
            guest::say("", &"interrupted; the same command continues the download");
            Err(Interrupted.into())
        }
        fetched => Ok(fetched?),
    }
}

/// Progress of each file.
struct Progress {
    bars: Option<MultiProgress>,
    state: Mutex<State>,
    total: u64,
}

struct State {
    /// Path, bytes downloaded so far, and the bar.
    files: Vec<(String, u64, Option<ProgressBar>)>,
    /// Time of the last line, and the bytes downloaded by then.
    last: (Instant, u64),
}

impl Progress {
    fn new(found: &Listing) -> Self {
        let is_off =
            std::env::var("HF_HUB_DISABLE_PROGRESS_BARS").is_ok_and(|on| on != "0" && !on.is_empty());
        let has_bars = std::io::stderr().is_terminal() && !is_off && !guest::is_guest();
        let bars = has_bars.then(MultiProgress::new);
        let files = found.all().map(|file| (file.path.clone(), 0, None)).collect();
        let state = Mutex::new(State { files, last: (Instant::now(), 0) });
        Self { bars, state, total: found.bytes() }
    }

    fn say(&self, line: &str) {
        match &self.bars {
            // A progress line that cannot be written may be lost.
            Some(bars) => drop(bars.println(line)),
            None => guest::say("", &line),
        }
    }

    fn clear(&self) {
        if let Some(bars) = &self.bars {
            drop(bars.clear());
        }
    }

    fn tell(&self, event: &Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Started { file, done } => {
                let bar = self.bars.as_ref().map(|bars| {
                    let style = "{prefix:.dim} {bar:30} {binary_bytes}/{binary_total_bytes} \
                                 {binary_bytes_per_sec} {eta}";
                    let style = ProgressStyle::with_template(style).expect("the template is well-formed");
                    let name = file.path.rsplit('/').next().unwrap_or_default().escape_debug().to_string();
                    let bar = bars.add(ProgressBar::new(file.size).with_style(style).with_prefix(name));
                    bar.set_position(*done);
                    bar.reset_eta();
                    bar
                });
                if *done > 0 {
                    let (path, done, size) =
                        (file.path.escape_debug(), BinaryBytes(*done), BinaryBytes(file.size));
                    self.say(&format!("{path}: resuming at {done} of {size}"));
                }
                if let Some(entry) = state.files.iter_mut().find(|(path, ..)| *path == file.path) {
                    (entry.1, entry.2) = (*done, bar);
                }
                guest::progress(&file.path, *done, file.size);
                state.last.1 = state.done();
            }
            Event::Bytes { file, done } => {
                if let Some(entry) = state.files.iter_mut().find(|(path, ..)| *path == file.path) {
                    entry.1 = *done;
                    entry.2.iter().for_each(|bar| bar.set_position(*done));
                }
                guest::progress(&file.path, *done, file.size);
                let (at, before) = state.last;
                if self.bars.is_none() && at.elapsed() >= EVERY {
                    let done = state.done();
                    let rate = done.saturating_sub(before) as f64 / at.elapsed().as_secs_f64();
                    let percent = 100 * done / self.total.max(1);
                    let (there, total) = (BinaryBytes(done), BinaryBytes(self.total));
                    self.say(&format!("{percent} %: {there} of {total}, {}/s", BinaryBytes(rate as u64)));
                    state.last = (Instant::now(), done);
                }
            }
            Event::Waiting { file } => {
                let path = file.path.escape_debug();
                self.say(&format!("{path}: waiting for another process that is downloading it"));
            }
            Event::Again { file, error, pause } => {
                let (path, seconds) = (file.path.escape_debug(), pause.as_secs_f64());
                self.say(&format!("{path}: {error}; retrying in {seconds:.1} s"));
            }
            Event::Finished { file } => {
                if let Some(entry) = state.files.iter_mut().find(|(path, ..)| *path == file.path) {
                    entry.1 = file.size;
                    entry.2.iter().for_each(ProgressBar::finish);
                }
                guest::progress(&file.path, file.size, file.size);
            }
        }
    }
}

impl State {
    fn done(&self) -> u64 {
        self.files.iter().map(|(_, done, _)| done).sum()
    }
}
