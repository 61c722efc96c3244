//! Errors of finding and downloading a model.

use std::io;
use std::path::{Path, PathBuf};

/// An error of the hub. No message contains a token or a signed URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// An invalid name.
    #[error("`{name}` is not the name of a model on the hub: {why}")]
    Name {
        /// The given name.
        name: String,
        /// The fault.
        why: String,
    },
    /// A path or a revision that could leave its folder, or is not a valid name on some system.
    #[error("`{}` is not a path inside a repository", path.escape_debug())]
    Path {
        /// The path that was given or listed.
        path: String,
    },
    /// An invalid option.
    #[error("{0}")]
    Options(String),
    /// The repository does not exist, or is private.
    #[error("{repo} is not on {host}, or is private{}", token_hint(*.has_token))]
    NoRepo {
        /// `USER/NAME`.
        repo: String,
        /// The host that answered.
        host: String,
        /// True if a token was sent.
        has_token: bool,
    },
    /// The owner requires that readers accept terms first.
    #[error(
        "{repo} is gated: accept its terms on {page}, and pass a token of that account{}",
        TOKEN_OF_ACCOUNT[usize::from(*.has_token)].concat()
    )]
    Gated {
        /// `USER/NAME`.
        repo: String,
        /// Page where to accept them.
        page: String,
        /// True if a token was sent.
        has_token: bool,
    },
    /// The token was rejected.
    #[error("{host} does not accept the token: {said}. Create a new one in the account's settings there")]
    Token {
        /// The host that answered.
        host: String,
        /// Its answer.
        said: String,
    },
    /// No such branch, tag or commit.
    #[error("{repo} has no revision `{revision}`")]
    NoRevision {
        /// `USER/NAME`.
        repo: String,
        /// The requested name.
        revision: String,
    },
    /// No such file.
    #[error("{repo} has no file {file}{}", there_is(known))]
    NoFile {
        /// `USER/NAME`.
        repo: String,
        /// The requested name.
        file: String,
        /// Models of the repository.
        known: Vec<String>,
    },
    /// No model with that tag.
    #[error("{repo} has no GGUF file with the tag {tag}{}", there_is(known))]
    NoTag {
        /// `USER/NAME`.
        repo: String,
        /// The requested tag.
        tag: String,
        /// Models of the repository.
        known: Vec<String>,
    },
    /// No model to run.
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
    /// No checkpoint to convert.
    #[error("{repo} has no safetensors")]
    NoCheckpoint {
        /// `USER/NAME`.
        repo: String,
    },
    /// Parts of a split model are missing.
    #[error("{file} is one of {wanted} parts, but the repository has only {found}")]
    Shards {
        /// The part that was chosen.
        file: String,
        /// The actual number.
        found: usize,
        /// The expected number.
        wanted: usize,
    },
    /// Not in the cache, and offline.
    #[error(
        "{name} is not in the cache {}{}",
        cache.display(),
        OFFLINE.concat()
    )]
    Offline {
        /// The requested name.
        name: String,
        /// Folder of the cache.
        cache: PathBuf,
    },
    /// Not in the cache.
    #[error("{name} is not in the cache {}", cache.display())]
    NotCached {
        /// The requested name.
        name: String,
        /// Folder of the cache.
        cache: PathBuf,
    },
    /// No answer.
    #[error("{host} cannot be reached: {why}")]
    Network {
        /// The requested host.
        host: String,
        /// Message of the system.
        why: String,
    },
    /// An HTTP error, after all tries.
    #[error("{host} answered {status}{}", if .said.is_empty() { String::new() } else { format!(": {said}") })]
    Status {
        /// The requested host.
        host: String,
        /// HTTP status.
        status: u16,
        /// Message of the host.
        said: String,
    },
    /// An answer that does not follow the hub's API.
    #[error("{host} sent an invalid answer: {why}")]
    Answer {
        /// The requested host.
        host: String,
        /// Expected and received.
        why: String,
    },
    /// A file that differs from the repository's list.
    #[error("{file}: {why}; the file was discarded")]
    Corrupt {
        /// Path in the repository.
        file: String,
        /// Expected and received.
        why: String,
    },
    /// Not enough disk space.
    #[error(
        "{file} needs {needed} more bytes in {}, but only {free} are free; free some space, or set \
         HF_HUB_CACHE to another folder",
        folder.display()
    )]
    Full {
        /// Path in the repository.
        file: String,
        /// The folder of the blobs.
        folder: PathBuf,
        /// Bytes still to download.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The cache cannot be read or written.
    #[error("{}: {cause}; HF_HUB_CACHE sets another folder for the cache", path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// Message of the system.
        cause: io::Error,
    },
    /// Another process is writing the file to be removed.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Stopped by [`Stopper`](super::Stopper): the downloaded bytes are kept, and the next download resumes
    /// there.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    /// An error of the cache.
    pub(super) fn cache(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |cause| Self::Cache { path: path.to_owned(), cause }
    }

    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        match self {
            Self::NoRepo { has_token: false, .. } => Some(TOKEN_IF_PRIVATE),
            Self::Gated { has_token, .. } => Some(TOKEN_OF_ACCOUNT[usize::from(*has_token)]),
            Self::Offline { .. } => Some(OFFLINE),
            _ => None,
        }
    }

    /// True if no server answered: no network, or a server failure. The cache may be used then.
    pub fn is_network(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            _ => false,
        }
    }
}

/// The end of [`HubError::NoRepo`].
fn token_hint(has_token: bool) -> String {
    match has_token {
        true => " for the account whose token was sent".to_owned(),
        false => TOKEN_IF_PRIVATE.concat(),
    }
}

/// The end of [`HubError::NoRepo`] if no token was sent.
const TOKEN_IF_PRIVATE: [&str; 3] =
    ["; if it is private, pass a token with HF_TOKEN or ", "HubOptions::token", ""];

/// The end of [`HubError::Gated`], without and with a token.
const TOKEN_OF_ACCOUNT: [[&str; 3]; 2] = [
    [" with HF_TOKEN or ", "HubOptions::token", ""],
    [" with HF_TOKEN or ", "HubOptions::token", " (the token that was sent has no access)"],
];

/// The end of [`HubError::Offline`].
const OFFLINE: [&str; 3] = [", and ", "HubOptions::offline", " (HF_HUB_OFFLINE) forbids downloading it"];

/// Lists the models of a repository, as the end of a message.
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
