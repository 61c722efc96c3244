//! Bytes and operations of each stage, so that every timing is also a share of the roofline.

/// What one stage moves and computes in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights that must be read.
    pub weight_bytes: u64,
    /// Bytes of KV cache that must be read.
    pub kv_bytes: u64,
    /// Multiply-accumulates.
    pub macs: u64,
}
