//! Changes of the prefix cache, published by ZeroMQ in vLLM's format: a message is an empty topic, a sequence
//! number (u64, big-endian, from 0), and in msgpack `[seconds since 1970, [events], rank]`. Events are maps.
//!
//! Subscribers hash tokens and do not know salts, so only pages of prompts without a salt are published.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use sterna_engine::{PAGE, PageEvent};
use sterna_serve::companion::{App, Companion, Endpoint, PageEvents, Started, salt};

/// Maximum changes per message.
const CHANGES: usize = 256;
/// Time for the last message to be sent.
const LINGER: Duration = Duration::from_millis(100);
/// Storage medium of a page: the only one that subscribers count as ready for use.
const MEDIUM: &str = "GPU";

/// Publisher of prefix cache changes, for a server with a single model.
pub struct KvEvents {
    endpoint: String,
}

impl KvEvents {
    /// Publishes at `endpoint`, `tcp://HOST:PORT`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into() }
    }
}

impl Companion for KvEvents {
    fn start(self: Box<Self>, app: &Arc<App>, _: watch::Receiver<bool>) -> io::Result<Started> {
        let endpoint = self.endpoint;
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        if app.models.by_name {
            return Err(invalid(
                "KV cache events support a single model, and this server has several".into(),
            ));
        }
        if !endpoint.starts_with("tcp://") {
            return Err(invalid(format!("KV cache events: want tcp://HOST:PORT, got `{endpoint}`")));
        }
        let mut socket = PubSocket::new();
        let bound = Handle::current().block_on(socket.bind(&endpoint));
        let bound = bound.map_err(|err| invalid(format!("cannot publish at {endpoint}: {err}")))?;
        let (sender, receiver) = unbounded_channel();
        let endpoint = bound.to_string();
        // No other code sets it.
        let ended: Arc<Notify> = Arc::default();
        let events = PageEvents { endpoint: endpoint.clone(), sender, ended: Arc::clone(&ended) };
        let _ = app.page_events.set(events);
        tokio::spawn(async move {
            publish(socket, receiver).await;
            ended.notify_one();
        });
        let address: Option<SocketAddr> = endpoint.trim_start_matches("tcp://").parse().ok();
        let is_open = !address.is_some_and(|address| address.ip().is_loopback());
        let warning = (is_open && app.options.keys.is_empty()).then(|| {
            format!("anyone who can reach {endpoint} can read prompts without a salt: use a private network")
        });
        let endpoint = Endpoint { service: "KV cache events", address: endpoint, warning };
        // The cache is dropped after the last request, and the server waits for `ended`.
        Ok(Started { endpoints: vec![endpoint], task: None })
    }
}

/// Publishes changes until the cache is dropped.
async fn publish(mut socket: PubSocket, mut changes: UnboundedReceiver<PageEvent>) {
    let mut told = Told::default();
    let mut batch = Vec::new();
    let mut number = 0u64;
    while changes.recv_many(&mut batch, CHANGES).await > 0 {
        let is_last = batch.contains(&PageEvent::Cleared);
        let events = told.events(batch.drain(..));
        if events.is_empty() {
            continue;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let body = match rmp_serde::to_vec_named(&(now, events, 0u32)) {
            Ok(body) => body,
            Err(err) => {
                tracing::error!("KV cache events could not be encoded: {err}");
                continue;
            }
        };
        let mut message = ZmqMessage::from(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_back(body.into());
        number += 1;
        if let Err(err) = socket.send(message).await {
            tracing::debug!("KV cache events could not be sent: {err}");
        }
        if is_last {
            return tokio::time::sleep(LINGER).await;
        }
    }
}

/// An event in vLLM's format.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
enum KvEvent {
    /// Consecutive pages can be shared.
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        lora_id: Option<u32>,
        medium: &'static str,
        lora_name: Option<&'static str>,
    },
    /// Pages can no longer be shared.
    BlockRemoved { block_hashes: Vec<u64>, medium: &'static str },
    /// No page can be shared any more.
    AllBlocksCleared,
}

/// The hash of a page in 63 bits, which subscribers expect.
fn hash(key: u64) -> u64 {
    key & (u64::MAX >> 1)
}

/// Pages that subscribers know.
#[derive(Default)]
struct Told(HashSet<u64>);

impl Told {
    /// The events of these changes, as few as possible.
    fn events(&mut self, changes: impl Iterator<Item = PageEvent>) -> Vec<KvEvent> {
        let open = salt("", "");
        let mut events: Vec<KvEvent> = Vec::new();
        for change in changes {
            match change {
                PageEvent::Stored { key, parent, salt, tokens } => {
                    let is_open = match parent {
                        None => salt.is_none_or(|salt| salt == open),
                        Some(parent) => self.0.contains(&parent),
                    };
                    if is_open {
                        self.0.insert(key);
                        store(&mut events, hash(key), parent.map(hash), &tokens);
                    }
                }
                PageEvent::Removed { key } if self.0.remove(&key) => match events.last_mut() {
                    Some(KvEvent::BlockRemoved { block_hashes, .. }) => block_hashes.push(hash(key)),
                    _ => {
                        events.push(KvEvent::BlockRemoved { block_hashes: vec![hash(key)], medium: MEDIUM });
                    }
                },
                PageEvent::Removed { .. } => {}
                PageEvent::Cleared => {
                    self.0.clear();
                    events.push(KvEvent::AllBlocksCleared);
                }
            }
        }
        events
    }
}

fn store(events: &mut Vec<KvEvent>, key: u64, parent: Option<u64>, tokens: &[u32]) {
    if let Some(KvEvent::BlockStored { block_hashes, token_ids, .. }) = events.last_mut()
        && parent.is_some()
        && block_hashes.last().copied() == parent
    {
        block_hashes.push(key);
        return token_ids.extend(tokens);
    }
    events.push(KvEvent::BlockStored {
        block_hashes: vec![key],
        parent_block_hash: parent,
        token_ids: tokens.to_vec(),
        block_size: PAGE,
        lora_id: None,
        medium: MEDIUM,
        lora_name: None,
    });
}
