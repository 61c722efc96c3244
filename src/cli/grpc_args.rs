//! Flags of the services besides HTTP: gRPC, KV cache transfer, KV cache events.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use crate::serve::Companion;

/// Flags of the services besides HTTP.
#[derive(Args, Debug)]
pub struct GrpcArgs {
    /// Also serve vLLM's gRPC API at this address, for routers such as Dynamo (builds with the feature
    /// `grpc`)
    #[arg(long, value_name = "HOST:PORT")]
    grpc: Option<String>,
    /// Folder written by `sterna export-card`, from which routers of --grpc read tokenizer and chat template
    #[arg(long, value_name = "DIR", requires = "grpc")]
    model_card: Option<PathBuf>,
    /// Exchange computed prompts with other servers at this address, unencrypted, for disaggregated prefill
    /// and decode (builds with the feature `grpc`)
    #[arg(long, value_name = "HOST:PORT", requires = "grpc")]
    kv_transfer: Option<String>,
    /// Addresses of servers to fetch computed prompts from, comma-separated: IP:PORT, or an IP with the port
    /// of --kv-transfer
    #[arg(long, value_name = "LIST", requires = "kv_transfer")]
    kv_transfer_peers: Option<String>,
    /// Maximum MiB of computed prompts kept for other servers, and the same again for prompts received
    #[arg(long, value_name = "MIB", requires = "kv_transfer", default_value_t = 2048)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    kv_transfer_memory: u32,
    /// Publish events of the prefix cache over ZeroMQ, in vLLM's format (builds with the feature `grpc`)
    #[arg(long, value_name = "tcp://HOST:PORT")]
    kv_events: Option<String>,
}

/// Address of the KV cache transfer, its peers, and the maximum bytes kept.
type Transfer = (SocketAddr, Vec<SocketAddr>, usize);

impl GrpcArgs {
    /// Starts the requested services.
    ///
    /// # Errors
    /// An invalid address; a card without its files; a build without the services.
    pub fn companions(&self) -> Result<Vec<Box<dyn Companion>>, CliError> {
        let mut companions = Vec::new();
        if let Some(card) = self.model_card.as_deref().filter(|card| !card.join("config.json").is_file()) {
            let card = card.display();
            return Err(format!(
                "--model-card {card}: config.json is missing; `sterna export-card` writes it"
            )
            .into());
        }
        if let Some(address) = &self.grpc {
            let address = socket_address("--grpc", address)?;
            let card = self.model_card.as_deref().map(std::path::absolute).transpose()?;
            companions.push(grpc(address, card, self.transfer()?)?);
        }
        if let Some(endpoint) = &self.kv_events {
            companions.push(kv_events(endpoint)?);
        }
        Ok(companions)
    }

    fn transfer(&self) -> Result<Option<Transfer>, CliError> {
        let Some(address) = &self.kv_transfer else { return Ok(None) };
        let address = socket_address("--kv-transfer", address)?;
        let peers = list(&self.kv_transfer_peers).into_iter().map(|peer| {
            let of_ip = |ip: IpAddr| SocketAddr::new(ip, address.port());
            peer.parse()
                .or_else(|_| peer.parse().map(of_ip))
                .map_err(|_| format!("--kv-transfer-peers {peer}: want an IP address, or IP:PORT").into())
        });
        let peers = peers.collect::<Result<_, CliError>>()?;
        Ok(Some((address, peers, (self.kv_transfer_memory as usize) << 20)))
    }
}

fn socket_address(flag: &str, address: &str) -> Result<SocketAddr, CliError> {
    let addresses = address.to_socket_addrs();
    let first = addresses.map_err(|err| format!("{flag} {address}: want HOST:PORT: {err}"))?.next();
    first.ok_or_else(|| format!("{flag} {address}: no such address").into())
}

#[cfg(feature = "grpc")]
fn grpc(
    address: SocketAddr,
    card: Option<PathBuf>,
    transfer: Option<Transfer>,
) -> Result<Box<dyn Companion>, CliError> {
    use crate::grpc::{Grpc, GrpcOptions, KvTransferOptions};

    let kv_transfer = transfer.map(|(address, peers, most_bytes)| KvTransferOptions {
        peers,
        most_bytes,
        ..KvTransferOptions::new(address)
    });
    Ok(Box::new(Grpc::new(GrpcOptions { address, card, kv_transfer })))
}

#[cfg(feature = "grpc")]
fn kv_events(endpoint: &str) -> Result<Box<dyn Companion>, CliError> {
    Ok(Box::new(crate::grpc::KvEvents::new(endpoint)))
}

#[cfg(not(feature = "grpc"))]
fn grpc(_: SocketAddr, _: Option<PathBuf>, _: Option<Transfer>) -> Result<Box<dyn Companion>, CliError> {
    Err("this build has no gRPC support: it was built without the feature `grpc`".into())
}

#[cfg(not(feature = "grpc"))]
fn kv_events(_: &str) -> Result<Box<dyn Companion>, CliError> {
    Err("this build has no KV cache events: it was built without the feature `grpc`".into())
}

/// Entries of a comma-separated list.
pub fn list(list: &Option<String>) -> Vec<String> {
    let entries = list.iter().flat_map(|list| list.split(','));
    entries.map(|entry| entry.trim().to_owned()).filter(|entry| !entry.is_empty()).collect()
}
