//! f16: 2 bytes per element, rounded to nearest, ties to even. The default of llama.cpp.

use half::f16;

use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// IEEE half precision, little-endian.
#[derive(Debug)]
pub struct F16;

impl KvCodec for F16 {
    fn name(&self) -> &'static str {
        "f16"
    }

    fn form(&self) -> KvForm {
        KvForm::F16
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        head_dim.checked_mul(2).ok_or(QuantError::Overflow { ty: self.name(), rows: 1, cols: head_dim })
    }

    fn open(&self, _: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim).map(|_| Box::new(F16) as Box<dyn KvVectors>)
    }
}

impl KvVectors for F16 {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        assert_eq!(out.len(), x.len() * 2);
        for (value, out) in x.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&f16::from_f32(*value).to_le_bytes());
        }
        true
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * 2);
        for (bytes, out) in bytes.chunks_exact(2).zip(out) {
            *out = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        }
    }
}
