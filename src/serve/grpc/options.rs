//! Options of gRPC and of the transfer of prompts.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Options of [`Grpc`](super::Grpc).
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Folder with the Hugging Face files of the model (`sterna export-card`), which routers read templates
    /// and the tokenizer from; `None` tells them the model's name alone.
    pub card: Option<PathBuf>,
    /// Prefill and decode apart: pages of prompts are handed to other servers and taken from them.
    pub kv_transfer: Option<KvTransferOptions>,
}

/// Transfer of the pages of prompts between servers, by TCP without encryption: for a network of their own.
#[derive(Clone, Debug)]
pub struct KvTransferOptions {
    /// Address that others fetch pages from, by the one-time key that they were told.
    pub address: SocketAddr,
    /// Addresses to fetch pages from, beside loopback: whatever a request says, no other is asked.
    pub peers: Vec<IpAddr>,
    /// Most bytes that are kept for others, and as many of what was fetched and not taken up.
    pub most_bytes: usize,
    /// Most prompts whose pages are kept for others.
    pub most_prompts: usize,
    /// Time for which they are kept.
    pub kept_time: Duration,
    /// Longest time of a fetch. The prompt is computed here if it takes longer.
    pub fetch_time: Duration,
}

impl KvTransferOptions {
    /// At `address`, with servers of this machine alone.
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
