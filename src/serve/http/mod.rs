//! HTTP below the endpoints: connections, who may ask, bodies, streams.

pub mod body;
pub mod connection;
pub mod guard;
pub mod stream;
