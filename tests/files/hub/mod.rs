//! Models from a hub, with faults of networks and disks: a file with its final name is never wrong.

mod cache;
mod faults;
mod names;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use sterna::hub::{Event, Hub, HubError, HubOptions, Local, Name};
use support::hub::{HubRepo, HubServer};

/// A commit.
const COMMIT: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
/// A later commit.
const LATER: &str = "b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2";

/// Content without a pattern, so that a shift by one byte is noticed.
fn content(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// A hub with one repository, `a/b`, and a cache for it.
struct Case {
    server: HubServer,
    folder: tempfile::TempDir,
    model: Vec<u8>,
}

impl Case {
    /// A hub with a model of `n` bytes.
    fn new(n: usize) -> Self {
        let (server, model) = (HubServer::start(), content(n, 1));
        server.add(HubRepo::new("a/b", COMMIT, &[("README.md", b"text"), ("x/m-Q8_0.gguf", &model)]));
        Self { server, folder: tempfile::tempdir().unwrap(), model }
    }

    fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: self.server.endpoint(),
            pause: Duration::from_millis(1),
            // Longer than any pause of a busy machine. Tests of timeouts set less.
            silence: Duration::from_secs(60),
            tries: 4,
            ..HubOptions::new(self.folder.path().join("hub"))
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.options()).unwrap()
    }

    fn pull(&self, name: &str) -> Result<Local, HubError> {
        pull(&self.hub(), name)
    }

    fn repo(&self) -> PathBuf {
        self.folder.path().join("hub/models--a--b")
    }

    fn blobs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.repo().join("blobs")).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The bytes of the partial download, if there is one.
    fn part(&self) -> Option<Vec<u8>> {
        let name = self.blobs().into_iter().find(|name| name.ends_with(".sterna-part"))?;
        Some(std::fs::read(self.repo().join("blobs").join(name)).unwrap())
    }

    /// Checks that the file is the model, and that the cache has nothing else.
    fn assert_downloaded(&self, local: &Local) {
        assert_eq!(local.files, [self.repo().join(format!("snapshots/{COMMIT}/x/m-Q8_0.gguf"))]);
        assert!(std::fs::read(&local.files[0]).unwrap() == self.model, "the content differs");
        assert_eq!(self.blobs(), [support::hub::etag(&self.model, true)]);
        self.server.no_token_leaked();
    }

    /// Checks that the model is not in the cache, apart from partial downloads.
    fn assert_absent(&self) {
        let path = self.repo().join(format!("snapshots/{COMMIT}/x/m-Q8_0.gguf"));
        assert!(!path.exists(), "there is a file after an error");
        assert!(self.blobs().iter().all(|name| name.ends_with(".sterna-part")), "{:?}", self.blobs());
        assert!(!self.repo().join("refs/main").exists(), "the revision was written after an error");
        self.server.no_token_leaked();
    }
}

fn pull(hub: &Hub, name: &str) -> Result<Local, HubError> {
    hub.fetch(&hub.find(&Name::parse(name)?)?, &|_| {})
}

/// Pulls, and returns the errors after which it tried again, too.
fn pull_counting(hub: &Hub, name: &str) -> (Result<Local, HubError>, Vec<String>) {
    let again = Mutex::new(Vec::new());
    let tell = |event: Event<'_>| {
        if let Event::Again { error, .. } = event {
            again.lock().unwrap().push(error.to_string());
        }
    };
    let local = hub.find(&Name::parse(name).unwrap()).and_then(|found| hub.fetch(&found, &tell));
    (local, again.into_inner().unwrap())
}

/// The message of the error.
fn error_of(local: Result<Local, HubError>) -> String {
    local.expect_err("a fault was not noticed").to_string()
}

fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|entry| entry.is_symlink())
}
