//! A file at any URL, read by ranges and never stored.

use std::io::Read;
use std::ops::Range;

use super::error::HubError;
use super::http::{About, Answer, Client, Fault};
use super::options::HubOptions;

/// A file at a URL. The token is sent only to the hub.
#[derive(Debug)]
pub struct WebFile {
    client: Client,
    url: String,
    size: u64,
}

impl WebFile {
    /// Requests the length of the file at `url`, which begins with `http://` or `https://`.
    ///
    /// # Errors
    /// [`HubError::Offline`]; no access; no network; a server that does not send the length.
    pub fn open(url: &str, options: &HubOptions) -> Result<Self, HubError> {
        if options.offline {
            return Err(HubError::Offline { name: url.to_owned(), cache: options.cache.clone() });
        }
        let mut file = Self { client: Client::new(options)?, url: url.to_owned(), size: 0 };
        let mut tries = file.client.tries();
        file.size = loop {
            match file.ask("bytes=0-0").and_then(|answer| Ok(size(&answer)?)) {
                Ok(size) => break size,
                Err(fault) => tries.again(fault, |_, _| {})?,
            }
        };
        Ok(file)
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads bytes, which must be within the file.
    ///
    /// # Errors
    /// Same as [`open`](Self::open); an answer with other bytes, or of a file that has changed.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>, HubError> {
        let mut tries = self.client.tries();
        while !range.is_empty() {
            match self.read_once(&range) {
                Ok(bytes) => return Ok(bytes),
                Err(fault) => tries.again(fault, |_, _| {})?,
            }
        }
        Ok(Vec::new())
    }

    fn ask(&self, range: &str) -> Result<Answer, Fault> {
        let about = About { repo: &self.url, revision: "", file: None };
        self.client.check(self.client.get(&self.url, Some(range))?, about)
    }

    fn read_once(&self, range: &Range<u64>) -> Result<Vec<u8>, Fault> {
        let asked = format!("bytes={}-{}", range.start, range.end - 1);
        let answer = self.ask(&asked)?;
        let found = size(&answer)?;
        if found != self.size {
            let why = format!("the file had {} bytes, now it has {found}", self.size);
            return Err(HubError::Answer { host: answer.host, why }.into());
        }
        answer.bytes(&self.client, range)
    }
}

/// Length of the whole file, from an answer with a part of it.
fn size(answer: &Answer) -> Result<u64, HubError> {
    let size = match answer.content_range() {
        Some((_, total)) => total,
        None => answer.content_length(),
    };
    let why = "the length of the file is missing".to_owned();
    size.ok_or_else(|| HubError::Answer { host: answer.host.clone(), why })
}

impl Answer {
    /// The requested bytes. Servers may ignore the range and send the whole file.
    pub(super) fn bytes(mut self, client: &Client, range: &Range<u64>) -> Result<Vec<u8>, Fault> {
        let before = match self.content_range() {
            _ if self.status == 200 => range.start,
            Some((sent, _)) if sent.start == range.start => 0,
            _ => {
                let why = format!("requested bytes={}-{}, received other bytes", range.start, range.end - 1);
                return Err(HubError::Answer { host: self.host, why }.into());
            }
        };
        let mut reader = self.body.as_reader();
        let mut bytes = Vec::new();
        let skipped = std::io::copy(&mut reader.by_ref().take(before), &mut std::io::sink());
        let read = skipped.and_then(|_| reader.take(range.end - range.start).read_to_end(&mut bytes));
        read.map_err(|err| client.broken(&self.host, &err))?;
        if (bytes.len() as u64) < range.end - range.start {
            let why = format!("the connection ended after {} bytes", bytes.len());
            return Err(Fault::Passing(HubError::Network { host: self.host, why }, None));
        }
        Ok(bytes)
    }
}
