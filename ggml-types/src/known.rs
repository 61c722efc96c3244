//! Every type id that files carry, whether or not a type is implemented here: name and block size,
//! so that a file can be described that cannot be run.

use crate::{Dialect, by_id, ids::*};

/// Ids below this mean the same in both dialects.
pub(crate) const FIRST_CLASH: u32 = 36;

/// What is known of an id without an implementation.
pub(crate) struct Known {
    pub name: &'static str,
    /// `None` for an id of ik_llama.cpp's own, which means the same in files of either.
    pub dialect: Option<Dialect>,
    pub id: u32,
    /// Elements and bytes of a block, where the type has blocks of one size.
    pub block: Option<(usize, usize)>,
}

const fn ggml(id: u32, name: &'static str, block_elems: usize, block_bytes: usize) -> Known {
    Known { name, dialect: Some(Dialect::Ggml), id, block: Some((block_elems, block_bytes)) }
}

const fn bitnet(id: u32, name: &'static str) -> Known {
    Known { name, dialect: Some(Dialect::BitNet), id, block: None }
}

const fn ik(id: u32, name: &'static str) -> Known {
    Known { name, dialect: None, id, block: None }
}

/// Every id of `ggml_type_ids.h`.
pub(crate) static KNOWN: &[Known] = &[
    ggml(GGML_TYPE_F32, "f32", 1, 4),
    ggml(GGML_TYPE_F16, "f16", 1, 2),
    ggml(GGML_TYPE_Q4_0, "q4_0", 32, 18),
    ggml(GGML_TYPE_Q4_1, "q4_1", 32, 20),
    ggml(GGML_TYPE_Q5_0, "q5_0", 32, 22),
    ggml(GGML_TYPE_Q5_1, "q5_1", 32, 24),
    ggml(GGML_TYPE_Q8_0, "q8_0", 32, 34),
    ggml(GGML_TYPE_Q8_1, "q8_1", 32, 36),
    ggml(GGML_TYPE_Q2_K, "q2_k", 256, 84),
    ggml(GGML_TYPE_Q3_K, "q3_k", 256, 110),
    ggml(GGML_TYPE_Q4_K, "q4_k", 256, 144),
    ggml(GGML_TYPE_Q5_K, "q5_k", 256, 176),
    ggml(GGML_TYPE_Q6_K, "q6_k", 256, 210),
    ggml(GGML_TYPE_Q8_K, "q8_k", 256, 292),
    ggml(GGML_TYPE_IQ2_XXS, "iq2_xxs", 256, 66),
    ggml(GGML_TYPE_IQ2_XS, "iq2_xs", 256, 74),
    ggml(GGML_TYPE_IQ3_XXS, "iq3_xxs", 256, 98),
    ggml(GGML_TYPE_IQ1_S, "iq1_s", 256, 50),
    ggml(GGML_TYPE_IQ4_NL, "iq4_nl", 32, 18),
    ggml(GGML_TYPE_IQ3_S, "iq3_s", 256, 110),
    ggml(GGML_TYPE_IQ2_S, "iq2_s", 256, 82),
    ggml(GGML_TYPE_IQ4_XS, "iq4_xs", 256, 136),
    ggml(GGML_TYPE_I8, "i8", 1, 1),
    ggml(GGML_TYPE_I16, "i16", 1, 2),
    ggml(GGML_TYPE_I32, "i32", 1, 4),
    ggml(GGML_TYPE_I64, "i64", 1, 8),
    ggml(GGML_TYPE_F64, "f64", 1, 8),
    ggml(GGML_TYPE_IQ1_M, "iq1_m", 256, 56),
    ggml(GGML_TYPE_BF16, "bf16", 1, 2),
    ggml(GGML_TYPE_TQ1_0, "tq1_0", 256, 54),
    ggml(GGML_TYPE_TQ2_0, "tq2_0", 256, 66),
    ggml(GGML_TYPE_MXFP4, "mxfp4", 32, 17),
    ggml(GGML_TYPE_NVFP4, "nvfp4", 64, 36),
    ggml(GGML_TYPE_Q1_0, "q1_0", 128, 18),
    ggml(GGML_TYPE_Q2_0, "q2_0", 64, 18),
    // PrismML's own, in files of upstream's numbering.
    ggml(GGML_TYPE_PQ2_0, "pq2_0", 128, 34),
    ggml(GGML_TYPE_PTQ1_0, "ptq1_0", 128, 28),
    bitnet(BITNET_TYPE_I2_S, "i2_s"),
    bitnet(BITNET_TYPE_TL1, "tl1"),
    bitnet(BITNET_TYPE_TL2_OLD, "tl2"),
    bitnet(BITNET_TYPE_TL2, "tl2"),
    ik(IK_TYPE_Q6_0, "q6_0"),
    ik(IK_TYPE_IQ1_BN, "iq1_bn"),
    ik(IK_TYPE_IQ2_BN, "iq2_bn"),
    ik(IK_TYPE_Q8_K64, "q8_k64"),
    ik(IK_TYPE_IQ2_K, "iq2_k"),
    ik(IK_TYPE_IQ3_K, "iq3_k"),
    ik(IK_TYPE_IQ4_K, "iq4_k"),
    ik(IK_TYPE_IQ5_K, "iq5_k"),
    ik(IK_TYPE_IQ6_K, "iq6_k"),
    ik(IK_TYPE_IQ4_KS, "iq4_ks"),
    ik(IK_TYPE_IQ2_KS, "iq2_ks"),
    ik(IK_TYPE_IQ4_KSS, "iq4_kss"),
    ik(IK_TYPE_Q8_K16, "q8_k16"),
    ik(IK_TYPE_Q8_K32, "q8_k32"),
    ik(IK_TYPE_Q8_KR8, "q8_kr8"),
    ik(IK_TYPE_Q8_K128, "q8_k128"),
    ik(IK_TYPE_Q8_KV, "q8_kv"),
    ik(IK_TYPE_IQ5_KS, "iq5_ks"),
    ik(IK_TYPE_IQ2_KT, "iq2_kt"),
    ik(IK_TYPE_IQ3_KT, "iq3_kt"),
    ik(IK_TYPE_IQ4_KT, "iq4_kt"),
    ik(IK_TYPE_IQ3_KS, "iq3_ks"),
    ik(IK_TYPE_IQ2_KL, "iq2_kl"),
    ik(IK_TYPE_IQ1_KT, "iq1_kt"),
    ik(IK_TYPE_Q4_0_R8, "q4_0_r8"),
    ik(IK_TYPE_Q5_0_R4, "q5_0_r4"),
    ik(IK_TYPE_Q8_0_R8, "q8_0_r8"),
    ik(IK_TYPE_Q2_K_R4, "q2_k_r4"),
    ik(IK_TYPE_Q3_K_R4, "q3_k_r4"),
    ik(IK_TYPE_Q4_K_R4, "q4_k_r4"),
    ik(IK_TYPE_Q5_K_R4, "q5_k_r4"),
    ik(IK_TYPE_Q6_K_R4, "q6_k_r4"),
    ik(IK_TYPE_IQ2_XXS_R4, "iq2_xxs_r4"),
    ik(IK_TYPE_IQ2_XS_R4, "iq2_xs_r4"),
    ik(IK_TYPE_IQ3_XXS_R4, "iq3_xxs_r4"),
    ik(IK_TYPE_IQ1_S_R4, "iq1_s_r4"),
    ik(IK_TYPE_IQ4_NL_R4, "iq4_nl_r4"),
    ik(IK_TYPE_IQ3_S_R4, "iq3_s_r4"),
    ik(IK_TYPE_IQ2_S_R4, "iq2_s_r4"),
    ik(IK_TYPE_IQ4_XS_R8, "iq4_xs_r8"),
    ik(IK_TYPE_IQ1_M_R4, "iq1_m_r4"),
    ik(IK_TYPE_BF16_R16, "bf16_r16"),
    ik(IK_TYPE_Q6_0_R4, "q6_0_r4"),
    ik(IK_TYPE_IQ2_BN_R4, "iq2_bn_r4"),
    ik(IK_TYPE_IQ2_K_R4, "iq2_k_r4"),
    ik(IK_TYPE_IQ3_K_R4, "iq3_k_r4"),
    ik(IK_TYPE_IQ4_K_R4, "iq4_k_r4"),
    ik(IK_TYPE_IQ5_K_R4, "iq5_k_r4"),
    ik(IK_TYPE_IQ4_KS_R4, "iq4_ks_r4"),
    ik(IK_TYPE_IQ5_KS_R4, "iq5_ks_r4"),
    ik(IK_TYPE_MXFP4_R8, "mxfp4_r8"),
    ik(IK_TYPE_Q8_K_R16, "q8_k_r16"),
    ik(IK_TYPE_Q8_KV_R8, "q8_kv_r8"),
    ik(IK_TYPE_Q8_K_R8, "q8_k_r8"),
];

fn known(dialect: Dialect, id: u32) -> Option<&'static Known> {
    let same =
        |known: &&Known| known.id == id && (known.dialect.is_none_or(|of| of == dialect) || id < FIRST_CLASH);
    KNOWN.iter().find(same)
}

/// The name that files' makers gave a type id.
pub(crate) fn name(dialect: Dialect, id: u32) -> Option<&'static str> {
    known(dialect, id).map(|known| known.name)
}

/// The name of a type id, for people: also of types that have no implementation here.
pub fn id_name(dialect: Dialect, id: u32) -> Option<&'static str> {
    by_id(dialect, id).map(|ty| ty.name()).or_else(|| name(dialect, id))
}

/// Bytes of a tensor of `rows` x `cols` by type id, also of types that have no implementation here.
///
/// `None` where the size does not follow from the id, or no such tensor can be.
pub fn byte_len_of(dialect: Dialect, id: u32, rows: usize, cols: usize) -> Option<usize> {
    if let Some(ty) = by_id(dialect, id) {
        return ty.byte_len(rows, cols).ok();
    }
    let (block_elems, block_bytes) = known(dialect, id)?.block?;
    let row_bytes =
        cols.is_multiple_of(block_elems).then_some(cols / block_elems)?.checked_mul(block_bytes)?;
    row_bytes.checked_mul(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::types::REGISTRY;

    const HEADER: &str = include_str!("../include/ggml_type_ids.h");
    const IDS: &str = include_str!("ids.rs");

    fn constants(text: &str, before: &str, between: &str, after: &str) -> BTreeMap<String, u32> {
        let constant = |line: &str| {
            let (name, id) = line.strip_prefix(before)?.strip_suffix(after)?.split_once(between)?;
            Some((name.to_owned(), id.parse().ok()?))
        };
        text.lines().filter_map(constant).collect()
    }

    #[test]
    fn ids_are_the_headers() {
        let header = constants(HEADER, "#define ", " ", "");
        assert!(header.len() > 30, "{header:?}");
        assert_eq!(constants(IDS, "pub const ", ": u32 = ", ";"), header, "run scripts/bindgen.sh");
        for (name, id) in header {
            let dialect = match name.split_once('_').map(|(of, _)| of) {
                Some("GGML") => Some(Dialect::Ggml),
                Some("BITNET") => Some(Dialect::BitNet),
                _ => None,
            };
            assert!(KNOWN.iter().any(|known| (known.dialect, known.id) == (dialect, id)), "{name}");
        }
    }

    #[test]
    fn registered_types_are_as_they_are_known() {
        for ty in REGISTRY {
            for &(dialect, id) in ty.ids() {
                let known = known(dialect, id).expect("an id of the header");
                assert_eq!(known.name, ty.name());
                if let Some((block_elems, block_bytes)) = known.block {
                    assert_eq!(ty.block_elems(), block_elems, "{}", ty.name());
                    assert_eq!(ty.byte_len(3, 2 * block_elems), Ok(6 * block_bytes), "{}", ty.name());
                }
            }
        }
    }

    #[test]
    fn both_dialects_agree_below_the_clash() {
        for id in 0..FIRST_CLASH {
            assert_eq!(id_name(Dialect::Ggml, id), id_name(Dialect::BitNet, id));
        }
        assert_eq!(id_name(Dialect::Ggml, 42), Some("q2_0"));
        assert_eq!(id_name(Dialect::BitNet, 42), Some("tl2"));
        assert_eq!(id_name(Dialect::Ggml, 36), None);
    }
}
