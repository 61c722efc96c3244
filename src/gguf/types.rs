//! How files name and number weight types.

use ggml_types::{Dialect, QuantType, by_name, types::REGISTRY};

use super::GgufError;

/// `general.file_type` of a model most of whose weights have a type.
const FILE_TYPES: &[(&str, u32)] = &[
    ("f32", 0),
    ("f16", 1),
    ("q4_0", 2),
    ("q8_0", 7),
    ("q6_k", 18),
    ("bf16", 32),
    ("tq1_0", 36),
    ("tq2_0", 37),
    // In the forks of microsoft/BitNet; upstream has another type there.
    ("i2_s", 40),
];

/// The type called `name`, in capitals or not, if files can carry it.
///
/// # Errors
/// [`GgufError::UnknownType`], which lists the known ones.
pub fn type_named(name: &str) -> Result<&'static dyn QuantType, GgufError> {
    let found = by_name(&name.to_ascii_lowercase()).filter(|ty| type_id(*ty).is_some());
    found.ok_or_else(|| {
        let known = REGISTRY.iter().filter(|ty| type_id(**ty).is_some()).map(|ty| ty.name());
        GgufError::UnknownType { name: name.to_owned(), known: known.collect::<Vec<_>>().join(", ") }
    })
}

/// The number under which a file carries the type: upstream's where there is one. `None` for a type that
/// lives in memory alone.
pub fn type_id(ty: &dyn QuantType) -> Option<u32> {
    let ids = ty.ids();
    let upstream = ids.iter().find(|(dialect, _)| *dialect == Dialect::Ggml);
    upstream.or(ids.first()).map(|&(_, id)| id)
}

/// `general.file_type` of a model most of whose weights have the type, where there is a number for it.
pub fn file_type(ty: &dyn QuantType) -> Option<u32> {
    FILE_TYPES.iter().find(|(name, _)| *name == ty.name()).map(|&(_, number)| number)
}
