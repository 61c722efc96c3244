//! Programs, and the engine that runs them: golden logits, generation, sessions, memory.

mod batch;
mod batch_claims;
mod batch_faults;
mod batch_moves;
mod batch_pages;
mod batch_swap;
mod broken_logits;
mod control;
mod cpu_offload;
mod cpu_stream;
mod cuda_waves;
mod drafts;
mod every_architecture;
mod generation;
mod golden_bitnet;
#[cfg(feature = "convert")]
mod golden_hf;
mod golden_llama;
mod hollow;
mod hostile_model;
mod key_stats;
mod kv_memory;
mod kv_sessions;
mod kv_sliding;
mod kv_state;
mod late_masks;
mod lora;
mod mtp;
mod own_type;
mod plan;
mod program;
mod program_parts;
mod program_text;
mod recurrent;
mod sources;
mod speculation;
mod streamed;
#[cfg(feature = "grammar")]
mod structured;
mod vectors;
mod vision;
#[cfg(feature = "convert")]
mod vision_checkpoints;
#[cfg(feature = "wgpu")]
mod wgpu_launches;
