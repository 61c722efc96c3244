//! `sterna serve`: what clients send and see, and what hostile ones try.
#![cfg(feature = "serve")]

mod answers;
mod attacks;
mod broken;
mod client;
mod codex;
mod described;
mod dialects;
mod embeddings;
mod families;
mod grpc;
mod hostile;
mod in_process;
mod kv_transfer;
mod load;
mod schedules;
mod several;
mod slots;
mod structured;
mod tls;
