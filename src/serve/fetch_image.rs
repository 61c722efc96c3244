//! Images at URLs in requests, which the operator of a server may allow.

use std::sync::Arc;

type Fetch = dyn Fn(&str) -> Result<Vec<u8>, String> + Send + Sync;

/// Reads the file at an http or https URL, or returns the reason why it does not.
#[derive(Clone)]
pub struct FetchImage(Arc<Fetch>);

impl FetchImage {
    /// Reads files with `fetch`, which limits hosts, bytes and time. It blocks the caller.
    pub fn new(fetch: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(fetch))
    }

    /// Reads the file at a URL.
    ///
    /// # Errors
    /// The reason why it is not read.
    pub fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        (self.0)(url)
    }
}

impl std::fmt::Debug for FetchImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FetchImage")
    }
}
