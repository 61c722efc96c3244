//! Names and ids of weight types in files.

use ggml_types::ids;
use ggml_types::types::{self, REGISTRY};
use ggml_types::{Dialect, QuantType, by_id, by_name};

use super::GgufError;

/// llama.cpp's names of the values of `general.file_type`.
static FILE_TYPE_NAMES: &[(u32, &str)] = &[
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS - 2.0625 bpw"),
    (20, "IQ2_XS - 2.3125 bpw"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS - 3.3 bpw"),
    (23, "IQ3_XXS - 3.0625 bpw"),
    (24, "IQ1_S - 1.5625 bpw"),
    (25, "IQ4_NL - 4.5 bpw"),
    (26, "IQ3_S - 3.4375 bpw"),
    (27, "IQ3_S mix - 3.66 bpw"),
    (28, "IQ2_S - 2.5 bpw"),
    (29, "IQ2_M - 2.7 bpw"),
    (30, "IQ4_XS - 4.25 bpw"),
    (31, "IQ1_M - 1.75 bpw"),
    (32, "BF16"),
    (36, "TQ1_0 - 1.69 bpw ternary"),
    (37, "TQ2_0 - 2.06 bpw ternary"),
    (38, "MXFP4 MoE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Types for which some files use the id of another type. Their tensors have other sizes.
static OTHER_LAYOUTS: &[(Dialect, u32, &dyn QuantType)] = &[
    // Older files of PrismML, before the type had its own id.
    (Dialect::Ggml, ids::GGML_TYPE_Q2_0, &types::Pq2_0),
];

/// The type with id `id` in `dialect` whose tensor of `rows` x `cols` fits a span of bytes with less than
/// `alignment` padding; the usual type if none fits.
pub(super) fn by_id_and_size(
    (dialect, id): (Dialect, u32),
    (rows, cols): (usize, usize),
    span_bytes: u64,
    alignment: usize,
) -> Option<&'static dyn QuantType> {
    let fills = |ty: &&dyn QuantType| {
        let padding = ty.byte_len(rows, cols).ok().and_then(|want| span_bytes.checked_sub(want as u64));
        padding.is_some_and(|padding| padding < alignment as u64)
    };
    let usual = by_id(dialect, id);
    let others =
        OTHER_LAYOUTS.iter().filter(|other| (other.0, other.1) == (dialect, id)).map(|other| other.2);
    usual.into_iter().chain(others).find(fills).or(usual)
}

/// The type called `name` (case-insensitive), if it has an id in files.
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

/// The id of the type in files, preferably upstream's. `None` for a type that exists only in memory.
pub fn type_id(ty: &dyn QuantType) -> Option<u32> {
    let ids = ty.ids();
    let upstream = ids.iter().find(|(dialect, _)| *dialect == Dialect::Ggml);
    upstream.or(ids.first()).map(|&(_, id)| id)
}

/// llama.cpp's name of a `general.file_type`, as printed by llama-bench: `Q4_K - Medium`. `body` is the type
/// of most weights: the forks of microsoft/BitNet use the same number for I2_S as upstream for Q1_0.
pub fn file_type_name(number: u32, body: &dyn QuantType) -> Option<&'static str> {
    let named = FILE_TYPE_NAMES.iter().find(|(known, _)| *known == number && !body.is(&types::I2S));
    named.map(|&(_, name)| name)
}
