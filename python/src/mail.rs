//! Messages from the engine's threads to the package, which reads them in a thread of Python.

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use pyo3::prelude::*;
use sterna::cli::{self, HostLog, Level};

/// A log message: the level as in Python's `logging`, the module, and the text.
type Message = (u8, String, String);
/// Progress of a download: the file, and its bytes, so far and in total.
type Progress = (String, u64, u64);
/// Answers that may have a piece, log messages, and progress.
type Items = (Vec<u64>, Vec<Message>, Vec<Progress>);

/// Messages that the package has not taken yet. A pipe tells that there are some.
#[pyclass(frozen)]
pub struct Mail(pub Arc<Post>);

/// The part of a [`Mail`] that the engine's threads have.
pub struct Post {
    items: Mutex<Waiting>,
    reader: Mutex<Option<PipeReader>>,
    /// Minimum level of log messages.
    level: AtomicU8,
}

#[derive(Default)]
struct Waiting {
    wakes: Vec<u64>,
    messages: Vec<Message>,
    progress: BTreeMap<String, (u64, u64)>,
    /// `None` after the end.
    writer: Option<PipeWriter>,
}

/// The mail that log messages of this process go to.
static LOG: Mutex<Option<Arc<Post>>> = Mutex::new(None);

impl Post {
    fn items(&self) -> MutexGuard<'_, Waiting> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item. Writes to the pipe only for the first one, so that it is never full.
    fn put(&self, add: impl FnOnce(&mut Waiting)) {
        let mut items = self.items();
        let was_empty = items.wakes.is_empty() && items.messages.is_empty() && items.progress.is_empty();
        add(&mut items);
        if let Some(writer) = items.writer.as_mut().filter(|_| was_empty) {
            // The package may have closed its end.
            let _ = writer.write_all(&[0]);
        }
    }
}

#[pymethods]
impl Mail {
    /// New mail, which log messages of this process go to from now on.
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = pipe()?;
        let items = Mutex::new(Waiting { writer: Some(writer), ..Waiting::default() });
        let post = Arc::new(Post { items, reader: Mutex::new(Some(reader)), level: AtomicU8::new(u8::MAX) });
        // In a forked child the lock may be held by a thread of the parent: its messages are then lost.
        if let Ok(mut log) = LOG.try_lock()
            && log.replace(Arc::clone(&post)).is_none()
        {
            cli::log_to(ToMail);
        }
        Ok(Self(post))
    }

    /// Hands over the pipe's end that is read: a descriptor, or a handle on Windows.
    fn fd(&self) -> Option<usize> {
        let reader = self.0.reader.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        #[cfg(unix)]
        return Some(std::os::fd::IntoRawFd::into_raw_fd(reader) as usize);
        #[cfg(windows)]
        return Some(std::os::windows::io::IntoRawHandle::into_raw_handle(reader) as usize);
    }

    /// Takes all items.
    fn take(&self) -> Items {
        let mut items = self.0.items();
        let Waiting { wakes, messages, progress, writer: _ } = &mut *items;
        let progress = std::mem::take(progress).into_iter().map(|(file, (done, total))| (file, done, total));
        (std::mem::take(wakes), std::mem::take(messages), progress.collect())
    }

    /// Sets the minimum level of log messages, as in Python's `logging`.
    fn set_level(&self, level: u8) {
        self.0.level.store(level, Ordering::Relaxed);
    }

    /// Closes the pipe, so that its reader ends.
    fn close(&self) {
        self.0.items().writer = None;
    }
}

/// Waker of an answer.
pub struct Call {
    /// Receiver.
    pub post: Arc<Post>,
    /// Number of the call.
    pub number: u64,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.post.put(|items| items.wakes.push(self.number));
    }
}

struct ToMail;

impl ToMail {
    fn post(&self) -> Option<Arc<Post>> {
        // In a forked child the lock may be held by a thread of the parent, and never be released.
        let tried = (0..1000).find_map(|_| LOG.try_lock().ok().map(|log| log.clone()).or_else(pause));
        tried.flatten()
    }
}

/// Lets other threads run.
fn pause<T>() -> Option<T> {
    std::thread::yield_now();
    None
}

/// Python's number of a level.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl HostLog for ToMail {
    fn wants(&self, level: Level) -> bool {
        self.post().is_some_and(|post| post.level.load(Ordering::Relaxed) <= number(level))
    }

    fn log(&self, level: Level, target: &str, message: String) {
        if let Some(post) = self.post() {
            post.put(|items| items.messages.push((number(level), target.to_owned(), message)));
        }
    }

    fn progress(&self, file: String, done: u64, total: u64) {
        if let Some(post) = self.post() {
            post.put(|items| {
                items.progress.insert(file, (done, total));
            });
        }
    }
}
