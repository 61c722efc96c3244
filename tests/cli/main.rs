//! Tests of the command line: what a user types and what they see.

mod convert;
mod demo;
mod embed;
mod hub;
mod kv_report;
mod llama_flags;
mod mtp;
mod other_programs;
mod plan;
mod program;
mod quantize;
mod run;
mod serve;
mod snapshots;
mod split_edit;
mod synth;
mod text;
mod tools;
mod vision;
