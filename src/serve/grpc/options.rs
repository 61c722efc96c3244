//! Options of gRPC and of the transfer of prompts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of [`Grpc`](super::Grpc).
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Folder with the Hugging Face files of the model (`sterna export-card`), from which routers read
    /// templates and the tokenizer. With `None` they only get the model's name.
    pub card: Option<PathBuf>,
    /// Disaggregated prefill and decode: sends KV pages of prompts to other servers, and fetches pages from
    /// them.
    pub kv_transfer: Option<KvTransferOptions>,
}

/// Transfer of the KV pages of prompts between servers, over unencrypted TCP: for private networks.
#[derive(Clone, Debug)]
pub struct KvTransferOptions {
    /// Address that other servers fetch pages from, with a one-time key.
    pub address: SocketAddr,
    /// Addresses to fetch pages from. No others are contacted, whatever a request contains.
    pub peers: Vec<SocketAddr>,
    /// Maximum bytes of pages kept for other servers; the same limit applies to fetched pages that are not in
    /// use yet.
    pub most_bytes: usize,
    /// Maximum prompts whose pages are kept for other servers.
    pub most_prompts: usize,
    /// Time after which kept pages expire.
    pub kept_time: Duration,
    /// Maximum time of a fetch. The prompt is computed locally if it takes longer.
    pub fetch_time: Duration,
}

impl KvTransferOptions {
    /// Transfer at `address`, to other servers and from none.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            peers: Vec::new(),
            most_bytes: 2 << 30,
            most_prompts: 256,
            kept_time: Duration::from_secs(60),
            fetch_time: Duration::from_secs(20),
        }
    }
}
