//! Errors between a name and a file on the disk.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model of the hub is not to be had. No message holds a token or a signed address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A name that cannot be one.
    #[error("`{name}` is not the name of a model on the hub: {why}")]
    Name {
        /// The given name.
        name: String,
        /// The fault.
        why: String,
    },
    /// A path, or a revision, that could lead out of its folder or is no name on some system.
    #[error("`{}` is not a path inside a repository", path.escape_debug())]
    Path {
        /// The path that was given or listed.
        path: String,
    },
    /// An option that cannot be used.
    #[error("{0}")]
    Options(String),
    /// The repository does not exist, or is private.
    #[error("{repo} is not on {host}, or is private{}", token_hint(*.has_token))]
    NoRepo {
        /// `USER/NAME`.
        repo: String,
        /// Whom we asked.
        host: String,
        /// True if a token was sent.
        has_token: bool,
    },
    /// The owner asks readers to agree to terms first.
    #[error(
        "{repo} is gated: accept its terms on {page}, and give a token of that account with HF_TOKEN or \
         HubOptions::token{}",
        if *.has_token { " (the token that was sent has no access)" } else { "" }
    )]
    Gated {
        /// `USER/NAME`.
        repo: String,
        /// Where to agree.
        page: String,
        /// True if a token was sent.
        has_token: bool,
    },
    /// The token is not accepted.
    #[error("{host} does not accept the token: {said}. Create a new one in the account's settings there")]
    Token {
        /// Whom we asked.
        host: String,
        /// Its answer.
        said: String,
    },
    /// No such branch, tag or commit.
    #[error("{repo} has no revision `{revision}`")]
    NoRevision {
        /// `USER/NAME`.
        repo: String,
        /// The name that was asked for.
        revision: String,
    },
    /// No such file.
    #[error("{repo} has no file {file}{}", there_is(known))]
    NoFile {
        /// `USER/NAME`.
        repo: String,
        /// The name that was asked for.
        file: String,
        /// Models that it has.
        known: Vec<String>,
    },
    /// No model of that type.
    #[error("{repo} has no GGUF file that is called {tag}{}", there_is(known))]
    NoTag {
        /// `USER/NAME`.
        repo: String,
        /// The name that was asked for.
        tag: String,
        /// Models that it has.
        known: Vec<String>,
    },
    /// Nothing to run.
    #[error(
        "{repo} has no GGUF file{}",
        if *.has_checkpoint { ", only safetensors, which can be converted to GGUF" } else { "" }
    )]
    NoGguf {
        /// `USER/NAME`.
        repo: String,
        /// True if there are safetensors.
        has_checkpoint: bool,
    },
    /// Nothing to convert.
    #[error("{repo} has no safetensors")]
    NoCheckpoint {
        /// `USER/NAME`.
        repo: String,
    },
    /// Parts of a split model are missing.
    #[error("{file} is one of {wanted} parts, and the repository has only {found} of them")]
    Shards {
        /// The part that was chosen.
        file: String,
        /// The actual number.
        found: usize,
        /// The expected number.
        wanted: usize,
    },
    /// Not in the cache, and the network may not be used.
    #[error(
        "{name} is not in the cache {}, and HubOptions::offline (HF_HUB_OFFLINE) forbids downloading it",
        cache.display()
    )]
    Offline {
        /// The name that is needed.
        name: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// Not in the cache.
    #[error("{name} is not in the cache {}", cache.display())]
    NotCached {
        /// The name that is needed.
        name: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// No answer.
    #[error("{host} cannot be reached: {why}")]
    Network {
        /// Who was asked.
        host: String,
        /// Message of the system.
        why: String,
    },
    /// An answer that does not help, after all tries.
    #[error("{host} answered {status}{}", if .said.is_empty() { String::new() } else { format!(": {said}") })]
    Status {
        /// Who was asked.
        host: String,
        /// HTTP status.
        status: u16,
        /// Message of the host.
        said: String,
    },
    /// An answer that is not what the hub's interface says.
    #[error("{host} gave an answer that cannot be used: {why}")]
    Answer {
        /// Who was asked.
        host: String,
        /// Expected and received.
        why: String,
    },
    /// A file that is not what the repository lists.
    #[error("{file}: {why}; it was not kept")]
    Corrupt {
        /// Path in the repository.
        file: String,
        /// Expected and received.
        why: String,
    },
    /// No room.
    #[error(
        "{file} needs {needed} bytes more in {}, and {free} bytes are free there; free some, or name another \
         folder with HF_HUB_CACHE",
        folder.display()
    )]
    Full {
        /// Path in the repository.
        file: String,
        /// The folder of the blobs.
        folder: PathBuf,
        /// Bytes still to come.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The cache cannot be written.
    #[error("{}: {cause}; name another folder for the cache with HF_HUB_CACHE", path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// Message of the system.
        cause: io::Error,
    },
    /// Another process writes what is to be removed.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Stopped by [`Stopper`](super::Stopper): what has come stays, and the next time goes on from there.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    /// An error of the cache.
    pub(super) fn cache(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |cause| Self::Cache { path: path.to_owned(), cause }
    }

    /// True if no server could answer: no network, or a server out of order. The cache may be used then.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }
}

fn token_hint(has_token: bool) -> &'static str {
    match has_token {
        true => " for the account whose token was sent",
        false => "; if it is private, give a token with HF_TOKEN or HubOptions::token",
    }
}

/// The models that a repository has, as the end of a message.
fn there_is(known: &[String]) -> String {
    const SHOWN: usize = 40;
    let mut text = String::new();
    if known.is_empty() {
        return text;
    }
    text.push_str("; it has");
    for file in known.iter().take(SHOWN) {
        text += &format!("\n  {}", file.escape_debug());
    }
    if known.len() > SHOWN {
        text += &format!("\n  and {} more", known.len() - SHOWN);
    }
    text
}
