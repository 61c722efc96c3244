//! The HTTP layer below the endpoints: connections, access checks, bodies, streams.

pub mod arriving;
pub mod body;
pub mod connection;
pub mod decoding;
pub mod guard;
pub mod host;
pub mod json;
pub mod places;
pub mod stream;
pub mod surrogates;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
pub mod tls;
