//! GGUF files: names, metadata, typed tensors.
