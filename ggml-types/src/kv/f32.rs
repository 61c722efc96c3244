//! f32: 4 bytes per element, lossless.

use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// IEEE single precision, little-endian.
#[derive(Debug)]
pub struct F32;

impl KvCodec for F32 {
    fn name(&self) -> &'static str {
        "f32"
    }

    fn form(&self) -> KvForm {
        KvForm::F32
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        head_dim.checked_mul(4).ok_or(QuantError::Overflow { ty: self.name(), rows: 1, cols: head_dim })
    }

    fn open(&self, _: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim).map(|_| Box::new(F32) as Box<dyn KvVectors>)
    }
}

impl KvVectors for F32 {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        assert_eq!(out.len(), x.len() * 4);
        for (value, out) in x.iter().zip(out.chunks_exact_mut(4)) {
            out.copy_from_slice(&value.to_le_bytes());
        }
        true
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 4);
        for (bytes, out) in bytes.chunks_exact(4).zip(out) {
            *out = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
}
