//! q8_0: the weight type's blocks, 136 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::{CodeValues, KvCodes, on_processor};
use crate::block::{Block, ONES};
use crate::types::q8_0;
use crate::{KvCodec, KvForm, KvSide, KvVectors, QuantError};

/// Blocks of a weight type.
#[derive(Debug)]
pub struct Blocks<B>(pub(super) PhantomData<fn() -> B>);

/// Blocks of Q8_0.
pub static Q8_0: Blocks<q8_0::Q8_0> = Blocks(PhantomData);

/// Blocks in which vectors are stored. If [`values`](Self::values) is `Some`, a block is one scale followed
/// by codes.
pub trait CodedBlock: Block {
    /// The form of a codec with such blocks.
    const FORM: KvForm;
    /// Elements beyond this are clamped, so that f16 can hold the scale of every block. In q4_0, whose scale
    /// is the best of a few, it is at most a quarter of a block's largest element.
    const LARGEST: f32 = 4.0 * 65_504.0;
    /// Values of its codes, if an element is a scale times its value.
    fn values() -> Option<CodeValues> {
        None
    }
    /// The codes of a block, `[ELEMS]`, from the bytes after its scale.
    fn codes(_bytes: &[u8], _codes: &mut [u8]) {
        unreachable!("{} has more than codes and a scale", Self::NAME)
    }
}

impl CodedBlock for q8_0::Q8_0 {
    const FORM: KvForm = KvForm::Q8_0;

    fn values() -> Option<CodeValues> {
        Some(CodeValues::Int8)
    }

    fn codes(bytes: &[u8], codes: &mut [u8]) {
        codes.copy_from_slice(bytes);
    }
}

impl<B: CodedBlock + 'static> KvCodec for Blocks<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn note(&self) -> Option<&'static str> {
        on_processor(B::FORM)
    }

    fn is_compared(&self) -> bool {
        on_processor(B::FORM).is_none()
    }

    fn form(&self) -> KvForm {
        B::FORM
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        /// Maximum for which the bytes of any number of pages do not overflow.
        const MAX_DIM: usize = 1 << 20;
        if !head_dim.is_power_of_two() || !(B::ELEMS..=MAX_DIM).contains(&head_dim) {
            let want = format!("a head dimension that is a power of two from {} on", B::ELEMS);
            return Err(QuantError::Shape { ty: B::NAME, detail: format!("want {want}, found {head_dim}") });
        }
        Ok(head_dim / B::ELEMS * B::BYTES)
    }

    fn open(&self, _: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        self.vec_bytes(head_dim).map(|_| Box::new(Self(PhantomData)) as Box<dyn KvVectors>)
    }
}

impl<B: CodedBlock> KvVectors for Blocks<B> {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        assert_eq!(x.len() * B::BYTES, out.len() * B::ELEMS);
        out.fill(0);
        let mut whole = true;
        for (x, block) in x.chunks_exact(B::ELEMS).zip(out.chunks_exact_mut(B::BYTES)) {
            if x.iter().all(|x| x.abs() <= B::LARGEST) {
                B::encode(x, &ONES[..B::ELEMS], block);
            } else {
                let mut clamped = [0.0; 32];
                for (to, x) in clamped[..B::ELEMS].iter_mut().zip(x) {
                    *to = if x.is_finite() { x.clamp(-B::LARGEST, B::LARGEST) } else { 0.0 };
                }
                B::encode(&clamped[..B::ELEMS], &ONES[..B::ELEMS], block);
                whole = false;
            }
        }
        whole
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(out.len() * B::BYTES, bytes.len() * B::ELEMS);
        for (block, out) in bytes.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::ELEMS)) {
            B::decode(block, out);
        }
    }

    fn codes(&self) -> Option<&dyn KvCodes> {
        B::values().map(|_| self as &dyn KvCodes)
    }
}

impl<B: CodedBlock> KvCodes for Blocks<B> {
    fn values(&self) -> CodeValues {
        B::values().expect("blocks of codes and a scale")
    }

    fn block(&self) -> usize {
        B::ELEMS
    }

    fn split(&self, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        let n = scales.len() / 2;
        assert_eq!((codes.len(), bytes.len()), (n * B::ELEMS, n * B::BYTES));
        let blocks = bytes.chunks_exact(B::BYTES).zip(codes.chunks_exact_mut(B::ELEMS));
        for ((bytes, codes), scale) in blocks.zip(scales.chunks_exact_mut(2)) {
            scale.copy_from_slice(&bytes[..2]);
            B::codes(&bytes[2..], codes);
        }
    }
}
