//! `sterna serve`: requests of clients and their answers, also of hostile clients.
#![cfg(feature = "serve")]

mod answers;
mod attacker;
mod attacks;
mod client;
mod codex;
mod dialects;
mod embeddings;
mod fairness;
mod families;
mod grpc;
mod histories;
mod hostile;
mod images;
mod in_process;
mod kv_transfer;
mod load;
mod lora;
mod multi_model;
mod nan_logits;
mod openapi;
mod schedules;
mod slots;
mod structured;
mod tls;
