//! Prompts that one server computes and another continues: pages kept for other servers, and pages fetched
//! from them.
//!
//! Pages are in the format of a saved session, which names model, backend and KV cache and ends with a
//! checksum. If anything is wrong with them, the prompt is computed again.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use tokio::sync::OwnedSemaphorePermit;

use sterna_engine::{Batch, Error, StateError};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// One-time key of a prompt's pages.
pub type Key = [u8; KEY_BYTES];

/// Ticket for the pages of a prompt.
#[derive(Clone)]
pub struct Ticket {
    /// Random, and so not guessable.
    pub key: Key,
    /// Number of tokens in the pages.
    pub n_tokens: usize,
}

impl Ticket {
    /// The key as hexadecimal text, two digits per byte.
    pub fn key_text(&self) -> String {
        self.key.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes it");
            text
        })
    }
}

/// Hides the key, which is a secret.
impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

/// Pages of prompts that are kept for other servers, limited in number, bytes and time. The oldest are
/// dropped first.
#[derive(Debug)]
pub struct ExportedPrompts {
    most_bytes: usize,
    most_prompts: usize,
    time: Duration,
    /// Bytes of all pages, including those being sent.
    bytes: Arc<AtomicUsize>,
    /// The oldest first.
    prompts: Mutex<VecDeque<Prompt>>,
}

struct Prompt {
    key: Key,
    arrived: Instant,
    pages: Pages,
}

impl std::fmt::Debug for Prompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prompt").field("arrived", &self.arrived).finish_non_exhaustive()
    }
}

/// The pages of a prompt, counted until they are dropped.
pub struct Pages {
    bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl Pages {
    /// The pages in the format of a saved session.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::SeqCst);
    }
}

impl ExportedPrompts {
    /// At most `most_prompts` prompts of `most_bytes` in total, each for `time`.
    pub fn new(most_bytes: usize, most_prompts: usize, time: Duration) -> Arc<Self> {
        let (bytes, prompts) = (Arc::default(), Mutex::default());
        Arc::new(Self { most_bytes, most_prompts, time, bytes, prompts })
    }

    /// Keeps the pages of `prompt` from which a sequence can resume that still has to compute the last token.
    /// `None` if there are no such pages, or if they are too large.
    pub fn keep(&self, batch: &mut Batch, prompt: &[u32], salt: &Arc<str>) -> Option<Ticket> {
        let begun = Instant::now();
        let mut out = Bounded { bytes: Vec::new(), most: self.most_bytes };
        let beginning = &prompt[..prompt.len().saturating_sub(1)];
        let n_tokens = match batch.save_end(beginning, salt, &mut out) {
            Ok(0) => return None,
            Ok(n_tokens) => n_tokens,
            Err(err) => {
                tracing::warn!("the pages of a prompt could not be kept for another server: {err}");
                return None;
            }
        };
        let mut bytes = out.bytes;
        bytes.shrink_to_fit();
        let (n_bytes, ms) = (bytes.len(), begun.elapsed().as_millis() as u64);
        let Some(ticket) = self.add(bytes, n_tokens) else {
            tracing::warn!(n_bytes, "no memory to keep a prompt's pages while others are being sent");
            return None;
        };
        tracing::info!(n_tokens, n_bytes, ms, "the pages of a prompt are kept for another server");
        Some(ticket)
    }

    fn add(&self, bytes: Vec<u8>, n_tokens: usize) -> Option<Ticket> {
        let mut key = [0; KEY_BYTES];
        if let Err(err) = getrandom::fill(&mut key) {
            tracing::error!("cannot keep pages for other servers: the system has no random numbers: {err}");
            return None;
        }
        self.drop_old();
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |n: usize| {
            n >= self.most_prompts || self.bytes.load(Ordering::SeqCst) + bytes.len() > self.most_bytes
        };
        while is_full(prompts.len()) {
            prompts.pop_front()?;
        }
        self.bytes.fetch_add(bytes.len(), Ordering::SeqCst);
        let pages = Pages { bytes, all: Arc::clone(&self.bytes) };
        prompts.push_back(Prompt { key, arrived: Instant::now(), pages });
        Some(Ticket { key, n_tokens })
    }

    /// The pages of `key`, which the first caller takes. Compares all keys in constant time.
    pub fn take(&self, key: &Key) -> Option<Pages> {
        self.drop_old();
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = u64::MAX;
        for (at, prompt) in prompts.iter().enumerate() {
            let is_it: Choice = prompt.key.ct_eq(key);
            found.conditional_assign(&(at as u64), is_it);
        }
        prompts.remove(usize::try_from(found).ok()?).map(|prompt| prompt.pages)
    }

    /// Drops expired prompts.
    pub fn drop_old(&self) {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        while prompts.front().is_some_and(|prompt| prompt.arrived.elapsed() > self.time) {
            prompts.pop_front();
        }
    }
}

/// A buffer with a size limit.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::Error::other(format!(
                "the pages are larger than the limit of {} bytes",
                self.most
            )));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pages from another server, until the prompt starts.
#[derive(Clone)]
pub struct TransferredPages(Arc<Mutex<Option<Transferred>>>);

struct Transferred {
    bytes: Vec<u8>,
    /// Permit for their memory.
    _room: OwnedSemaphorePermit,
}

impl std::fmt::Debug for TransferredPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransferredPages").finish_non_exhaustive()
    }
}

impl TransferredPages {
    /// Fetched pages, and the permit for their memory.
    pub fn new(bytes: Vec<u8>, room: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Mutex::new(Some(Transferred { bytes, _room: room }))))
    }

    /// Restores the pages into the prefix cache for `prompt`. If that fails, logs the reason, and the prompt
    /// is computed locally.
    pub fn restore(&self, batch: &mut Batch, prompt: &[u32], salt: &Arc<str>) {
        let Some(transferred) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let begun = Instant::now();
        match batch.restore_beginning(&mut &transferred.bytes[..], salt, prompt) {
            Ok(n_tokens) => {
                let ms = begun.elapsed().as_millis() as u64;
                tracing::info!(n_tokens, ms, "the prompt resumes from another server's pages");
            }
            Err(err) => tracing::warn!("{}: {}", COMPUTED_HERE, error_text(&err)),
        }
    }
}

/// Log message when pages of another server cannot be used.
pub const COMPUTED_HERE: &str = "computing the prompt locally: could not get its pages";

/// Text of an error, without quoting the peer.
fn error_text(err: &Error) -> String {
    match err {
        // This error quotes the peer's data.
        Error::State(StateError::Other { what, here, .. }) => {
            format!("the pages are for another {what} than {here}")
        }
        err => err.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported() -> Arc<ExportedPrompts> {
        ExportedPrompts::new(100, 3, Duration::from_secs(60))
    }

    #[test]
    fn a_key_opens_the_way_once() {
        let exported = exported();
        let first = exported.add(vec![1; 10], 64).unwrap();
        let second = exported.add(vec![2; 10], 64).unwrap();
        assert!(exported.take(&[0; KEY_BYTES]).is_none());
        let mut near = first.key;
        near[KEY_BYTES - 1] ^= 1;
        assert!(exported.take(&near).is_none());
        assert_eq!(exported.take(&first.key).unwrap().bytes(), [1; 10]);
        assert!(exported.take(&first.key).is_none());
        assert_eq!(exported.take(&second.key).unwrap().bytes(), [2; 10]);
        assert_eq!(exported.bytes.load(Ordering::SeqCst), 0);
        assert_eq!(first.key_text().len(), 2 * KEY_BYTES);
        assert!(!format!("{first:?}").contains(&first.key_text()[..8]));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_too_much() {
        let exported = exported();
        let tickets: Vec<Ticket> = (0..4).map(|i| exported.add(vec![i; 10], 64).unwrap()).collect();
        assert!(exported.take(&tickets[0].key).is_none(), "three are kept");
        let large = exported.add(vec![9; 90], 64).unwrap();
        assert!(exported.take(&tickets[1].key).is_none() && exported.take(&tickets[2].key).is_none());
        assert!(exported.take(&tickets[3].key).is_some(), "90 and 10 are 100");
        // Pages being sent still count.
        let sending = exported.take(&large.key).unwrap();
        assert!(exported.add(vec![0; 20], 64).is_none());
        drop(sending);
        assert!(exported.add(vec![0; 20], 64).is_some());
    }

    #[test]
    fn what_is_old_is_gone() {
        let exported = ExportedPrompts::new(100, 3, Duration::from_millis(20));
        let ticket = exported.add(vec![1; 10], 64).unwrap();
        std::thread::sleep(Duration::from_millis(40));
        assert!(exported.take(&ticket.key).is_none());
        assert_eq!(exported.bytes.load(Ordering::SeqCst), 0);
    }
}
