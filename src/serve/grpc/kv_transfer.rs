//! Prefill and decode apart: servers hand each other the pages of prompts by TCP.
//!
//! A request with `kv_transfer_params {do_remote_decode: true}` has its pages kept, and its answer says where
//! and by which key they can be had, once. A request that brings these words has them fetched before it
//! begins. Both ways begin with the same line; then the key goes one way (32 bytes), and the number of bytes
//! (u64, little-endian, 0 if there are none) and the pages come back, in the form of a saved session with its
//! checksum. Nothing is encrypted: this is for a network of the servers' own.
//!
//! Addresses come from requests, so only peers that the operator named are asked. Every wait has a limit, and
//! so has the memory. If anything is wrong the prompt is computed here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};

use crate::options::KvTransferOptions;
use sterna_serve::companion::{
    ApiError, COMPUTED_HERE, Endpoint, ExportedPrompts, Handed, KEY_BYTES, Key, Ticket,
};

/// First line of both sides.
const HELLO: &[u8; 16] = b"sterna kv pages\n";
/// Fetches that are answered at a time.
const FETCHES: usize = 64;
/// Longest time for a peer to say what it wants, and to take or give a piece.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a piece.
const PIECE: usize = 1 << 20;
/// Bytes of a unit of memory: what permits count.
const UNIT: usize = 1 << 10;

/// Request for pages.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// They are kept for another server.
    Keep,
    /// They are fetched from one.
    Fetch(Source),
}

/// Server and key of pages.
#[derive(Clone)]
pub struct Source {
    address: SocketAddr,
    key: Key,
}

/// A key is a secret.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Both sides of a server.
pub struct Transfer {
    /// Prompts that are kept for others.
    pub exported: Arc<ExportedPrompts>,
    /// Address that others fetch from.
    address: SocketAddr,
    peers: Vec<IpAddr>,
    /// Memory for what is fetched, in units.
    room: Arc<Semaphore>,
    most_bytes: usize,
    fetch_time: Duration,
}

impl Transfer {
    /// Listens. To be called on a runtime.
    ///
    /// # Errors
    /// An address that cannot be listened on, or that others cannot reach.
    pub fn start(options: &KvTransferOptions) -> io::Result<Arc<Self>> {
        let address = options.address;
        if address.ip().is_unspecified() {
            let message = format!(
                "cannot serve computed prompts at {address}: other servers are told this address, so it must \
                 be one that they can reach"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let listener = TcpListener::bind(address).map_err(|err| {
            io::Error::new(err.kind(), format!("cannot serve computed prompts at {address}: {err}"))
        })?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let exported = ExportedPrompts::new(options.most_bytes, options.most_prompts, options.kept_time);
        tokio::spawn(listen(tokio::net::TcpListener::from_std(listener)?, Arc::clone(&exported)));
        let units = options.most_bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Ok(Arc::new(Self {
            exported,
            address,
            peers: options.peers.clone(),
            room: Arc::new(Semaphore::new(units)),
            most_bytes: options.most_bytes,
            fetch_time: options.fetch_time,
        }))
    }

    /// The address that others fetch pages from.
    pub fn endpoint(&self) -> Endpoint {
        let address = self.address;
        let warning = (!address.ip().is_loopback())
            .then(|| format!("prompts go to and from {address} unencrypted: use a private network"));
        Endpoint { service: "computed prompts", address: address.to_string(), warning }
    }

    /// The words that tell another server where the pages are.
    pub fn told(&self, ticket: Option<&Ticket>) -> Struct {
        let text = |text: String| Value { kind: Some(Kind::StringValue(text)) };
        let mut fields = BTreeMap::from([
            ("do_remote_decode".to_owned(), Value { kind: Some(Kind::BoolValue(false)) }),
            ("do_remote_prefill".to_owned(), Value { kind: Some(Kind::BoolValue(ticket.is_some())) }),
        ]);
        if let Some(ticket) = ticket {
            let n_tokens = Value { kind: Some(Kind::NumberValue(ticket.n_tokens as f64)) };
            fields.extend([
                ("remote_host".to_owned(), text(self.address.ip().to_string())),
                ("remote_port".to_owned(), text(self.address.port().to_string())),
                ("remote_key".to_owned(), text(ticket.key_text())),
                ("remote_num_tokens".to_owned(), n_tokens),
            ]);
        }
        Struct { fields }
    }

    /// Fetches pages of at most `most` bytes. `None`, and a line in the log, if they cannot be had.
    pub async fn fetch(&self, source: &Source, most: usize) -> Option<Handed> {
        let begun = Instant::now();
        let fetched = timeout(self.fetch_time, self.try_fetch(source, most)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(format!("that took over {:?}", self.fetch_time)));
        match fetched {
            Ok((handed, n_bytes)) => {
                let ms = begun.elapsed().as_millis() as u64;
                tracing::info!(n_bytes, ms, "pages fetched from {}", source.address);
                Some(handed)
            }
            Err(why) => {
                tracing::warn!("{COMPUTED_HERE} from {}: {why}", source.address);
                None
            }
        }
    }

    async fn try_fetch(&self, source: &Source, most: usize) -> Result<(Handed, usize), String> {
        let peer = source.address.ip();
        if !peer.is_loopback() && !self.peers.contains(&peer) {
            return Err("it is not one of the addresses that pages may be fetched from".into());
        }
        let failed = |err: io::Error| err.to_string();
        let connected = within(TcpStream::connect(source.address)).await;
        let mut stream = connected.map_err(failed)?;
        within(stream.write_all(&[&HELLO[..], &source.key].concat())).await.map_err(failed)?;
        let mut hello = [0; HELLO.len()];
        within(stream.read_exact(&mut hello)).await.map_err(failed)?;
        if hello != *HELLO {
            return Err("it does not serve computed prompts".into());
        }
        let n_bytes = within(stream.read_u64_le()).await.map_err(failed)?;
        if n_bytes == 0 {
            return Err("they are not there, or no longer".into());
        }
        let n_bytes = usize::try_from(n_bytes).ok().filter(|n_bytes| *n_bytes <= most);
        let n_bytes =
            n_bytes.ok_or_else(|| format!("they are larger than this prompt's can be, {most} bytes"))?;
        let units = u32::try_from(n_bytes.div_ceil(UNIT)).ok().filter(|_| n_bytes <= self.most_bytes);
        let units = units.ok_or_else(|| format!("{n_bytes} bytes are more than may be fetched"))?;
        let room = Arc::clone(&self.room).acquire_many_owned(units).await.map_err(|err| err.to_string())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n_bytes).map_err(|err| err.to_string())?;
        // Memory is touched as bytes come, whatever number was said.
        while bytes.len() < n_bytes {
            let more = (n_bytes - bytes.len()).min(PIECE);
            let begin = bytes.len();
            bytes.resize(begin + more, 0);
            within(stream.read_exact(&mut bytes[begin..])).await.map_err(failed)?;
        }
        Ok((Handed::new(bytes, room), n_bytes))
    }
}

/// Waits for `done`, with a limit.
async fn within<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, done).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Answers fetches, and forgets what is old.
async fn listen(listener: tokio::net::TcpListener, exported: Arc<ExportedPrompts>) {
    let places = Arc::new(Semaphore::new(FETCHES));
    let mut second = interval(Duration::from_secs(1));
    loop {
        let accepted = tokio::select! {
            _ = second.tick() => {
                exported.drop_old();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Too many open files, say: others close theirs in time.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Who comes when all places are taken is told nothing, and computes its prompt.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let exported = Arc::clone(&exported);
        tokio::spawn(async move {
            let begun = Instant::now();
            match answer(stream, &exported).await {
                Ok(0) => tracing::debug!("{peer} asked for pages that are not here"),
                Ok(n_bytes) => {
                    let ms = begun.elapsed().as_millis() as u64;
                    tracing::info!(n_bytes, ms, "pages handed over to {peer}");
                }
                Err(err) => tracing::debug!("no pages for {peer}: {err}"),
            }
            drop(place);
        });
    }
}

/// Hands the pages over that a connection has the key for. Returns how many bytes these were.
async fn answer(mut stream: TcpStream, exported: &ExportedPrompts) -> io::Result<usize> {
    let mut asked = [0; HELLO.len() + KEY_BYTES];
    within(stream.read_exact(&mut asked)).await?;
    let (hello, key) = asked.split_at(HELLO.len());
    if hello != HELLO {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it says something else"));
    }
    let pages = exported.take(key.try_into().expect("its bytes are that many"));
    let bytes = pages.as_ref().map_or(&[][..], |pages| pages.bytes());
    let head = [&HELLO[..], &(bytes.len() as u64).to_le_bytes()].concat();
    within(stream.write_all(&head)).await?;
    for piece in bytes.chunks(PIECE) {
        within(stream.write_all(piece)).await?;
    }
    within(stream.shutdown()).await?;
    Ok(bytes.len())
}

/// Reads the parameters of a request; other servers' words say nothing here.
///
/// # Errors
/// 400 for an address or a key that is none.
pub fn wanted(params: Option<&Struct>) -> Result<Option<Wanted>, ApiError> {
    let field = |name: &str| params.and_then(|params| params.fields.get(name)?.kind.as_ref());
    let is_set = |name: &str| matches!(field(name), Some(Kind::BoolValue(true)));
    if is_set("do_remote_decode") {
        return Ok(Some(Wanted::Keep));
    }
    if !is_set("do_remote_prefill") {
        return Ok(None);
    }
    let text = |name: &str| match field(name) {
        Some(Kind::StringValue(text)) => Some(text.as_str()),
        _ => None,
    };
    let port = match field("remote_port") {
        // A number is always a double there.
        Some(Kind::NumberValue(port)) if port.fract() == 0.0 && (0.0..65536.0).contains(port) => {
            Some(*port as u16)
        }
        _ => text("remote_port").and_then(|port| port.parse().ok()),
    };
    let ip: Option<IpAddr> = text("remote_host").and_then(|ip| ip.parse().ok());
    let address = ip.zip(port).map(SocketAddr::from);
    let key = text("remote_key").and_then(key_of_text);
    match address.zip(key) {
        Some((address, key)) => Ok(Some(Wanted::Fetch(Source { address, key }))),
        None => Err(ApiError::bad(
            "`kv_transfer_params`: want `remote_host`, an IP address, `remote_port` and `remote_key` as this \
             server's `finish_info` has them",
        )),
    }
}

fn key_of_text(text: &str) -> Option<Key> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..KEY_BYTES).map(byte).collect();
    bytes?.try_into().ok()
}
