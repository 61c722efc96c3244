//! turboquant-4: `turboquant-mse` with 4 bits per element: 66 bytes for 128 elements.

use super::turboquant_mse::LloydCodec;
use crate::KvForm;

/// 4 bits.
pub static TURBOQUANT_4: LloydCodec = LloydCodec { name: "turboquant-4", bits: 4, form: KvForm::Lloyd4 };
