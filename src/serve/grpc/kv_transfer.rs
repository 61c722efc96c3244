//! Disaggregated prefill and decode: servers send each other the KV pages of prompts over TCP.
//!
//! For a request with `kv_transfer_params {do_remote_decode: true}` the pages are kept, and its answer
//! contains the address and a one-time key for fetching them. A request that repeats these parameters fetches
//! the pages before it starts. Both directions start with the same line. Then the client sends the key (32
//! bytes), and the server replies with the number of bytes (u64, little-endian, 0 if it has no such pages)
//! and the pages, in the format of a saved session with its checksum. Nothing is encrypted: use a private
//! network.
//!
//! Addresses come from requests, so only peers that the operator configured are contacted. Every wait has a
//! time limit, and memory is limited as well. If anything fails, the prompt is computed locally.

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
    ApiError, COMPUTED_HERE, Endpoint, ExportedPrompts, KEY_BYTES, Key, Ticket, TransferredPages,
};

/// First line in both directions.
const HELLO: &[u8; 16] = b"sterna kv pages\n";
/// Maximum fetches served at a time.
const FETCHES: usize = 64;
/// Maximum time for a peer to send its request, and to send or receive a piece.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one piece.
const PIECE: usize = 1 << 20;
/// Bytes of a memory unit: the semaphore counts in these.
const UNIT: usize = 1 << 10;

/// A request's use of the transfer.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Keep its pages for another server.
    Keep,
    /// Fetch its pages from another server.
    Fetch(Source),
}

/// Server that holds pages, and their key.
#[derive(Clone)]
pub struct Source {
    address: SocketAddr,
    key: Key,
}

/// Hides the key, which is a secret.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Both directions of the transfer.
pub struct Transfer {
    /// Prompts that are kept for other servers.
    pub exported: Arc<ExportedPrompts>,
    /// Address that other servers fetch from.
    address: SocketAddr,
    peers: Vec<SocketAddr>,
    /// Memory for fetched pages, in units.
    room: Arc<Semaphore>,
    most_bytes: usize,
    fetch_time: Duration,
}

impl Transfer {
    /// Starts to listen. Must be called on a runtime.
    ///
    /// # Errors
    /// The address cannot be bound, or other servers cannot reach it.
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

    /// The address that other servers fetch pages from.
    pub fn endpoint(&self) -> Endpoint {
        let address = self.address;
        let warning = (!address.ip().is_loopback())
            .then(|| format!("prompts go to and from {address} unencrypted: use a private network"));
        Endpoint { service: "computed prompts", address: address.to_string(), warning }
    }

    /// Parameters that tell another server how to fetch the pages.
    pub fn transfer_params(&self, ticket: Option<&Ticket>) -> Struct {
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

    /// Fetches pages of at most `most` bytes. Returns `None` and logs the reason if that fails.
    pub async fn fetch(&self, source: &Source, most: usize) -> Option<TransferredPages> {
        let begun = Instant::now();
        let fetched = timeout(self.fetch_time, self.try_fetch(source, most)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(format!("it took more than {:?}", self.fetch_time)));
        match fetched {
            Ok((pages, n_bytes)) => {
                let ms = begun.elapsed().as_millis() as u64;
                tracing::info!(n_bytes, ms, "pages fetched from {}", source.address);
                Some(pages)
            }
            Err(why) => {
                tracing::warn!("{COMPUTED_HERE} from {}: {why}", source.address);
                None
            }
        }
    }

    async fn try_fetch(&self, source: &Source, most: usize) -> Result<(TransferredPages, usize), String> {
        if !self.peers.contains(&source.address) {
            return Err("this address is not a configured peer".into());
        }
        let failed = |err: io::Error| err.to_string();
        let connected = within(TcpStream::connect(source.address)).await;
        let mut stream = connected.map_err(failed)?;
        within(stream.write_all(&[&HELLO[..], &source.key].concat())).await.map_err(failed)?;
        let mut hello = [0; HELLO.len()];
        within(stream.read_exact(&mut hello)).await.map_err(failed)?;
        if hello != *HELLO {
            return Err("the server there does not serve computed prompts".into());
        }
        let n_bytes = within(stream.read_u64_le()).await.map_err(failed)?;
        if n_bytes == 0 {
            return Err("the pages do not exist or have expired".into());
        }
        let n_bytes = usize::try_from(n_bytes).ok().filter(|n_bytes| *n_bytes <= most);
        let n_bytes =
            n_bytes.ok_or_else(|| format!("the pages are larger than the prompt's {most} bytes"))?;
        let units = u32::try_from(n_bytes.div_ceil(UNIT)).ok().filter(|_| n_bytes <= self.most_bytes);
        let units = units.ok_or_else(|| format!("{n_bytes} bytes are over the limit for fetched pages"))?;
        let room = Arc::clone(&self.room).acquire_many_owned(units).await.map_err(|err| err.to_string())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n_bytes).map_err(|err| err.to_string())?;
        // Allocated as bytes arrive, not by the announced number.
        while bytes.len() < n_bytes {
            let more = (n_bytes - bytes.len()).min(PIECE);
            let begin = bytes.len();
            bytes.resize(begin + more, 0);
            within(stream.read_exact(&mut bytes[begin..])).await.map_err(failed)?;
        }
        Ok((TransferredPages::new(bytes, room), n_bytes))
    }
}

/// Waits for `done`, with a time limit.
async fn within<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, done).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Serves fetches, and drops expired prompts.
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
            // Too many open files, for instance: other connections will close.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Over the limit, the connection is closed without an answer, and the peer computes its prompt.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let exported = Arc::clone(&exported);
        tokio::spawn(async move {
            let begun = Instant::now();
            match answer(stream, &exported).await {
                Ok(0) => tracing::debug!("{peer} asked for pages that do not exist"),
                Ok(n_bytes) => {
                    let ms = begun.elapsed().as_millis() as u64;
                    tracing::info!(n_bytes, ms, "pages sent to {peer}");
                }
                Err(err) => tracing::debug!("no pages sent to {peer}: {err}"),
            }
            drop(place);
        });
    }
}

/// Sends the pages that the connection has the key for. Returns the number of bytes.
async fn answer(mut stream: TcpStream, exported: &ExportedPrompts) -> io::Result<usize> {
    let mut asked = [0; HELLO.len() + KEY_BYTES];
    within(stream.read_exact(&mut asked)).await?;
    let (hello, key) = asked.split_at(HELLO.len());
    if hello != HELLO {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak this protocol"));
    }
    let pages = exported.take(key.try_into().expect("the key has this length"));
    let bytes = pages.as_ref().map_or(&[][..], |pages| pages.bytes());
    let head = [&HELLO[..], &(bytes.len() as u64).to_le_bytes()].concat();
    within(stream.write_all(&head)).await?;
    for piece in bytes.chunks(PIECE) {
        within(stream.write_all(piece)).await?;
    }
    within(stream.shutdown()).await?;
    Ok(bytes.len())
}

/// Reads the parameters of a request. Those of other servers' protocols are ignored.
///
/// # Errors
/// 400 for an invalid address or key.
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
        // Numbers are always doubles here.
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
            "`kv_transfer_params`: want `remote_host`, an IP address, `remote_port` and `remote_key` from \
             this server's `finish_info`",
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
