//! HTTP below the endpoints: connections, who may ask, bodies, streams.

pub mod arriving;
pub mod body;
pub mod connection;
pub mod guard;
pub mod json;
pub mod stream;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
pub mod tls;
