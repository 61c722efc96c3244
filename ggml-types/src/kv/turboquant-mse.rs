//! turboquant-mse: the TurboQuant paper's first algorithm, 3 bits per element and one f16 scale, 50 bytes for
//! 128 elements. Keys use the scale for which
//! inner products are unbiased, values the one with the smallest error.

use super::{CodeValues, KvCodes};
use crate::turboquant::{Lloyd, MAX_DIM, ScaleRule};
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// Lloyd-Max codes of rotated vectors, in pages that have left the window.
#[derive(Debug)]
pub struct LloydCodec {
    pub(super) name: &'static str,
    /// Bits of one code, 3 or 4.
    pub(super) bits: usize,
    /// The form with that many bits.
    pub(super) form: KvForm,
}

/// 3 bits.
pub static TURBOQUANT_MSE: LloydCodec = LloydCodec { name: "turboquant-mse", bits: 3, form: KvForm::Lloyd3 };

impl LloydCodec {
    /// Checks that codecs of this kind support the head dimension.
    pub(super) fn check(ty: &'static str, head_dim: usize) -> Result<(), QuantError> {
        if !head_dim.is_power_of_two() || !(8..=MAX_DIM).contains(&head_dim) {
            let want = format!("a head dimension that is a power of two from 8 to {MAX_DIM}");
            let detail = format!("want {want}, found {head_dim}; f16 takes any head dimension");
            return Err(QuantError::Shape { ty, detail });
        }
        Ok(())
    }
}

impl KvCodec for LloydCodec {
    fn name(&self) -> &'static str {
        self.name
    }

    fn form(&self) -> KvForm {
        self.form
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        Self::check(self.name, head_dim)?;
        Ok(2 + self.bits * head_dim / 8)
    }

    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim)?;
        let rule = match side {
            KvSide::Keys => ScaleRule::InnerProduct,
            KvSide::Values => ScaleRule::LeastSquares,
        };
        Ok(Box::new(Lloyd::new(head_dim, self.bits as u32, rule)))
    }
}

impl KvVectors for Lloyd {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        Lloyd::encode(self, x, out)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        Lloyd::decode(self, bytes, out);
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        Some(self)
    }
}

impl KvCodes for Lloyd {
    fn values(&self) -> CodeValues {
        let centroids = self.codebook().centroids();
        match self.bits() {
            3 => CodeValues::Signed3(std::array::from_fn(|i| centroids[4 + i] as f32)),
            _ => CodeValues::Table4(std::array::from_fn(|i| centroids[i] as f32)),
        }
    }

    fn block(&self) -> usize {
        self.dim()
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        scales.copy_from_slice(&Lloyd::split(self, bytes, codes).to_le_bytes());
    }
}
