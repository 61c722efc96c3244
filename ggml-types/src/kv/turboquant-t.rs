//! turboquant-t: as `turboquant`, with the codes of trellises: the same bytes and smaller errors, but slower
//! to encode.

use super::{CodeValues, KvCodes};
use crate::turboquant::{KeyBasis, LogScale, PathSearch, TrellisSplit, TrellisVector, plain_search};
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// Trellis codes, in pages that have left the window.
#[derive(Debug)]
pub struct TrellisCodec {
    side: KvSide,
    /// The form of that side.
    form: KvForm,
}

/// Keys in two groups, with 4 and 2 bits.
pub static TURBOQUANT_T: TrellisCodec = TrellisCodec { side: KvSide::Keys, form: KvForm::Trellis42 };

/// Values, with 3 bits. It has the same name: the registry has the codec of keys, which refers to this one
/// [instead](KvCodec::instead).
static VALUES: TrellisCodec = TrellisCodec { side: KvSide::Values, form: KvForm::Trellis3 };

impl KvCodec for TrellisCodec {
    fn name(&self) -> &'static str {
        "turboquant-t"
    }

    fn form(&self) -> KvForm {
        self.form
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        KeyBasis::check(self.name(), head_dim)?;
        Ok(match self.side {
            KvSide::Keys => TrellisSplit::new(head_dim).bytes(),
            KvSide::Values => TrellisVector::new(head_dim).bytes(),
        })
    }

    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim)?;
        match (self.side, side) {
            (KvSide::Keys, KvSide::Keys) => Ok(Box::new(TrellisSplit::new(head_dim))),
            (KvSide::Values, KvSide::Values) => Ok(Box::new(TrellisVector::new(head_dim))),
            (KvSide::Keys, KvSide::Values) => Err(self.only("keys")),
            (KvSide::Values, KvSide::Keys) => Err(self.only("values")),
        }
    }

    fn instead(&self, side: KvSide) -> Option<&'static dyn KvCodec> {
        let other: &dyn KvCodec = if side == KvSide::Keys { &TURBOQUANT_T } else { &VALUES };
        (side != self.side).then_some(other)
    }
}

impl TrellisCodec {
    fn only(&self, side: &str) -> QuantError {
        QuantError::Shape { ty: self.name(), detail: format!("these codes are for {side} only") }
    }
}

impl KvVectors for TrellisSplit {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        self.encode_all(1, x, out, plain_search) == 0
    }

    fn encode_all(&self, _: usize, x: &[f32], out: &mut [u8], search: PathSearch) -> usize {
        TrellisSplit::encode(self, x, out, search)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        TrellisSplit::decode(self, bytes, out);
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        Some(self)
    }
}

impl KvCodes for TrellisSplit {
    fn values(&self) -> CodeValues {
        CodeValues::Trellises(Self::TRELLISES)
    }

    fn block(&self) -> usize {
        self.dim() / 2
    }

    fn log_scales(&self) -> Option<[LogScale; 2]> {
        Some([0, 1].map(Self::scale))
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        scales.copy_from_slice(&TrellisSplit::split(self, bytes, codes));
    }
}

impl KvVectors for TrellisVector {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        self.encode_all(1, x, out, plain_search) == 0
    }

    fn encode_all(&self, _: usize, x: &[f32], out: &mut [u8], search: PathSearch) -> usize {
        TrellisVector::encode(self, x, out, search)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        TrellisVector::decode(self, bytes, out);
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        Some(self)
    }
}

impl KvCodes for TrellisVector {
    fn values(&self) -> CodeValues {
        CodeValues::Trellis(Self::TRELLIS)
    }

    fn block(&self) -> usize {
        self.dim()
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        scales.copy_from_slice(&TrellisVector::split(self, bytes, codes).to_le_bytes());
    }
}
