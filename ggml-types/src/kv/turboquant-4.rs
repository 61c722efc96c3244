//! turboquant-4: `turboquant` with 4 bits per element: 66 bytes for 128 elements.

use super::turboquant::TurboQuant;
use crate::KvForm;

/// 4 bits.
pub static TURBOQUANT_4: TurboQuant = TurboQuant { name: "turboquant-4", bits: 4, form: KvForm::Lloyd4 };
