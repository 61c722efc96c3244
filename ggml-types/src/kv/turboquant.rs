//! turboquant: keys in the basis of their head, 4 bits per element of one half and 2 bits per element of
//! the other, and two scales of 8 bits: 50 bytes for 128 elements. Values are stored as `turboquant-mse`.

use super::turboquant_mse::TURBOQUANT_MSE;
use super::{CodeValues, KvCodes};
use crate::turboquant::{KeyBasis, LogScale, Split};
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// Codes of keys in two groups, in pages that have left the window.
#[derive(Debug)]
pub struct TurboQuant;

impl KvCodec for TurboQuant {
    fn name(&self) -> &'static str {
        "turboquant"
    }

    fn form(&self) -> KvForm {
        KvForm::Lloyd42
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        KeyBasis::check(self.name(), head_dim).map(|()| Split::bytes_of(head_dim))
    }

    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim)?;
        match side {
            KvSide::Keys => Ok(Box::new(Split::new(head_dim))),
            KvSide::Values => {
                let detail = format!("it is for keys only; use {} for values", TURBOQUANT_MSE.name);
                Err(QuantError::Shape { ty: self.name(), detail })
            }
        }
    }

    fn instead(&self, side: KvSide) -> Option<&'static dyn KvCodec> {
        (side == KvSide::Values).then_some(&TURBOQUANT_MSE as &dyn KvCodec)
    }
}

impl KvVectors for Split {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        Split::encode(self, x, out)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        Split::decode(self, bytes, out);
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        Some(self)
    }
}

impl KvCodes for Split {
    fn values(&self) -> CodeValues {
        let [four, two] = [0, 1].map(|group| self.codebook(group).centroids());
        CodeValues::FourAndTwo {
            four: std::array::from_fn(|i| four[i] as f32),
            two: std::array::from_fn(|i| two[i] as f32),
        }
    }

    fn block(&self) -> usize {
        self.dim() / 2
    }

    fn log_scales(&self) -> Option<[LogScale; 2]> {
        Some([0, 1].map(|group| self.scale(group)))
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        scales.copy_from_slice(&Split::split(self, bytes, codes));
    }
}
