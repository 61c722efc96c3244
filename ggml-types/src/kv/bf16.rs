//! bf16: 2 bytes per element, encoded as the weight type. llama.cpp uses it for models that exceed f16's
//! range.

use super::on_processor;
use crate::block::{Block, ONES};
use crate::types::bf16;
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// bfloat16, little-endian.
#[derive(Debug)]
pub struct Bf16;

impl KvCodec for Bf16 {
    fn name(&self) -> &'static str {
        bf16::Bf16::NAME
    }

    fn note(&self) -> Option<&'static str> {
        on_processor(self.form())
    }

    fn is_compared(&self) -> bool {
        false
    }

    fn form(&self) -> KvForm {
        KvForm::Bf16
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        head_dim.checked_mul(2).ok_or(QuantError::Overflow { ty: self.name(), rows: 1, cols: head_dim })
    }

    fn open(&self, _: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim).map(|_| Box::new(Bf16) as Box<dyn KvVectors>)
    }
}

impl KvVectors for Bf16 {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        assert_eq!(out.len(), x.len() * 2);
        for (value, out) in x.chunks_exact(1).zip(out.chunks_exact_mut(2)) {
            bf16::Bf16::encode(value, &ONES[..1], out);
        }
        true
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 2);
        for (bytes, out) in bytes.chunks_exact(2).zip(out.chunks_exact_mut(1)) {
            bf16::Bf16::decode(bytes, out);
        }
    }
}
