//! tq3_0: the TurboQuant paper's second algorithm, for keys: 2 bits per element, one bit for the residual,
//! and two f16, 52 bytes for 128 elements. Values use the 3 bits of `turboquant`, because decoding signs
//! makes sums of values less accurate.
//!
//! Other projects use this name for at least three other formats. This one exists only in memory: no file
//! contains it, and it has no id.

use half::f16;

use super::turboquant_mse::{LloydCodec, TURBOQUANT_MSE};
use super::{CodeValues, KvCodes};
use crate::turboquant::{Prod, Qjl};
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// Two-part codes of rotated keys, in pages that have left the window.
#[derive(Debug)]
pub struct Tq3_0;

impl KvCodec for Tq3_0 {
    fn name(&self) -> &'static str {
        "tq3_0"
    }

    fn note(&self) -> Option<&'static str> {
        Some("keys only; values are stored as turboquant-mse")
    }

    fn form(&self) -> KvForm {
        KvForm::Lloyd2Signs
    }

    fn alias(&self) -> Option<&'static str> {
        Some("turboquant-prod")
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        LloydCodec::check(self.name(), head_dim).map(|()| 4 + 3 * head_dim / 8)
    }

    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim)?;
        match side {
            KvSide::Keys => Ok(Box::new(Prod::new(head_dim, Qjl::srht(head_dim)?))),
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

impl KvVectors for Prod {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        Prod::encode(self, x, out)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        Prod::decode(self, bytes, out);
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        Some(self)
    }
}

impl KvCodes for Prod {
    fn values(&self) -> CodeValues {
        let centroids = self.codebook().centroids();
        CodeValues::TwoAndSign {
            values: std::array::from_fn(|i| centroids[i] as f32),
            sign: self.qjl().factor() as f32,
        }
    }

    fn block(&self) -> usize {
        self.dim()
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        scales.copy_from_slice(Prod::split(self, bytes, codes).map(f16::to_le_bytes).as_flattened());
    }

    fn projection(&self) -> Option<&Qjl> {
        Some(self.qjl())
    }
}
