//! iq4_nl: the weight type's blocks, 72 bytes for 128 elements, of rotated vectors.

use std::marker::PhantomData;

use super::CodeValues;
use super::q8_0::{Blocks, CodedBlock};
use crate::KvForm;
use crate::types::{iq4_nl, q4_0};
use crate::uneven::VALUES;

/// Blocks of IQ4_NL.
pub static IQ4_NL: Blocks<iq4_nl::Iq4Nl> = Blocks(PhantomData);

impl CodedBlock for iq4_nl::Iq4Nl {
    const FORM: KvForm = KvForm::Iq4Nl;

    fn values() -> Option<CodeValues> {
        Some(CodeValues::Table4(VALUES.map(f32::from)))
    }

    fn codes(bytes: &[u8], codes: &mut [u8]) {
        // The same order as in Q4_0.
        q4_0::Q4_0::codes(bytes, codes);
    }
}
