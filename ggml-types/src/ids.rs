//! Every type id that occurs in files, with its name and block: the only such list. The constants and the
//! table of `known.rs` are generated from it.
//!
//! `GGML_TYPE_*` is upstream llama.cpp's `enum ggml_type` (ggml 0.25), where ids 4, 5, 31 to 33 and 36 to 38
//! were removed. `BITNET_TYPE_*` is from the llama.cpp forks that microsoft/BitNet ships; below 36 they agree
//! with upstream. TL2 is 39 in the old fork and 42 in the new one. `IK_TYPE_*` is from ik_llama.cpp; below 36
//! it agrees with upstream as well.

/// Calls a macro with all rows: a constant, its number, and the function of `known.rs` that builds an entry
/// from name and block.
macro_rules! rows {
    ($table:ident) => {
        $table! {
            GGML_TYPE_F32 = 0: ggml("f32", 1, 4),
            GGML_TYPE_F16 = 1: ggml("f16", 1, 2),
            GGML_TYPE_Q4_0 = 2: ggml("q4_0", 32, 18),
            GGML_TYPE_Q4_1 = 3: ggml("q4_1", 32, 20),
            GGML_TYPE_Q5_0 = 6: ggml("q5_0", 32, 22),
            GGML_TYPE_Q5_1 = 7: ggml("q5_1", 32, 24),
            GGML_TYPE_Q8_0 = 8: ggml("q8_0", 32, 34),
            GGML_TYPE_Q8_1 = 9: ggml("q8_1", 32, 36),
            GGML_TYPE_Q2_K = 10: ggml("q2_k", 256, 84),
            GGML_TYPE_Q3_K = 11: ggml("q3_k", 256, 110),
            GGML_TYPE_Q4_K = 12: ggml("q4_k", 256, 144),
            GGML_TYPE_Q5_K = 13: ggml("q5_k", 256, 176),
            GGML_TYPE_Q6_K = 14: ggml("q6_k", 256, 210),
            GGML_TYPE_Q8_K = 15: ggml("q8_k", 256, 292),
            GGML_TYPE_IQ2_XXS = 16: ggml("iq2_xxs", 256, 66),
            GGML_TYPE_IQ2_XS = 17: ggml("iq2_xs", 256, 74),
            GGML_TYPE_IQ3_XXS = 18: ggml("iq3_xxs", 256, 98),
            GGML_TYPE_IQ1_S = 19: ggml("iq1_s", 256, 50),
            GGML_TYPE_IQ4_NL = 20: ggml("iq4_nl", 32, 18),
            GGML_TYPE_IQ3_S = 21: ggml("iq3_s", 256, 110),
            GGML_TYPE_IQ2_S = 22: ggml("iq2_s", 256, 82),
            GGML_TYPE_IQ4_XS = 23: ggml("iq4_xs", 256, 136),
            GGML_TYPE_I8 = 24: ggml("i8", 1, 1),
            GGML_TYPE_I16 = 25: ggml("i16", 1, 2),
            GGML_TYPE_I32 = 26: ggml("i32", 1, 4),
            GGML_TYPE_I64 = 27: ggml("i64", 1, 8),
            GGML_TYPE_F64 = 28: ggml("f64", 1, 8),
            GGML_TYPE_IQ1_M = 29: ggml("iq1_m", 256, 56),
            GGML_TYPE_BF16 = 30: ggml("bf16", 1, 2),
            GGML_TYPE_TQ1_0 = 34: ggml("tq1_0", 256, 54),
            GGML_TYPE_TQ2_0 = 35: ggml("tq2_0", 256, 66),
            GGML_TYPE_MXFP4 = 39: ggml("mxfp4", 32, 17),
            GGML_TYPE_NVFP4 = 40: ggml("nvfp4", 64, 36),
            GGML_TYPE_Q1_0 = 41: ggml("q1_0", 128, 18),
            GGML_TYPE_Q2_0 = 42: ggml("q2_0", 64, 18),
            // PrismML's own, in files with upstream's numbering.
            GGML_TYPE_PQ2_0 = 142: ggml("pq2_0", 128, 34),
            GGML_TYPE_PTQ1_0 = 143: ggml("ptq1_0", 128, 28),
            BITNET_TYPE_I2_S = 36: bitnet("i2_s"),
            BITNET_TYPE_TL1 = 38: bitnet("tl1"),
            BITNET_TYPE_TL2_OLD = 39: bitnet("tl2"),
            BITNET_TYPE_TL2 = 42: bitnet("tl2"),
            IK_TYPE_Q6_0 = 133: ik("q6_0"),
            IK_TYPE_IQ1_BN = 134: ik("iq1_bn"),
            IK_TYPE_IQ2_BN = 135: ik("iq2_bn"),
            IK_TYPE_Q8_K64 = 136: ik("q8_k64"),
            IK_TYPE_IQ2_K = 137: ik("iq2_k"),
            IK_TYPE_IQ3_K = 138: ik("iq3_k"),
            IK_TYPE_IQ4_K = 139: ik("iq4_k"),
            IK_TYPE_IQ5_K = 140: ik("iq5_k"),
            IK_TYPE_IQ6_K = 141: ik("iq6_k"),
            IK_TYPE_IQ4_KS = 144: ik("iq4_ks"),
            IK_TYPE_IQ2_KS = 145: ik("iq2_ks"),
            IK_TYPE_IQ4_KSS = 146: ik("iq4_kss"),
            IK_TYPE_Q8_K16 = 147: ik("q8_k16"),
            IK_TYPE_Q8_K32 = 148: ik("q8_k32"),
            IK_TYPE_Q8_KR8 = 149: ik("q8_kr8"),
            IK_TYPE_Q8_K128 = 150: ik("q8_k128"),
            IK_TYPE_Q8_KV = 151: ik("q8_kv"),
            IK_TYPE_IQ5_KS = 152: ik("iq5_ks"),
            IK_TYPE_IQ2_KT = 153: ik("iq2_kt"),
            IK_TYPE_IQ3_KT = 154: ik("iq3_kt"),
            IK_TYPE_IQ4_KT = 155: ik("iq4_kt"),
            IK_TYPE_IQ3_KS = 156: ik("iq3_ks"),
            IK_TYPE_IQ2_KL = 157: ik("iq2_kl"),
            IK_TYPE_IQ1_KT = 158: ik("iq1_kt"),
            IK_TYPE_Q4_0_R8 = 202: ik("q4_0_r8"),
            IK_TYPE_Q5_0_R4 = 206: ik("q5_0_r4"),
            IK_TYPE_Q8_0_R8 = 208: ik("q8_0_r8"),
            IK_TYPE_Q2_K_R4 = 210: ik("q2_k_r4"),
            IK_TYPE_Q3_K_R4 = 211: ik("q3_k_r4"),
            IK_TYPE_Q4_K_R4 = 212: ik("q4_k_r4"),
            IK_TYPE_Q5_K_R4 = 213: ik("q5_k_r4"),
            IK_TYPE_Q6_K_R4 = 214: ik("q6_k_r4"),
            IK_TYPE_IQ2_XXS_R4 = 216: ik("iq2_xxs_r4"),
            IK_TYPE_IQ2_XS_R4 = 217: ik("iq2_xs_r4"),
            IK_TYPE_IQ3_XXS_R4 = 218: ik("iq3_xxs_r4"),
            IK_TYPE_IQ1_S_R4 = 219: ik("iq1_s_r4"),
            IK_TYPE_IQ4_NL_R4 = 220: ik("iq4_nl_r4"),
            IK_TYPE_IQ3_S_R4 = 221: ik("iq3_s_r4"),
            IK_TYPE_IQ2_S_R4 = 222: ik("iq2_s_r4"),
            IK_TYPE_IQ4_XS_R8 = 223: ik("iq4_xs_r8"),
            IK_TYPE_IQ1_M_R4 = 229: ik("iq1_m_r4"),
            IK_TYPE_BF16_R16 = 230: ik("bf16_r16"),
            IK_TYPE_Q6_0_R4 = 233: ik("q6_0_r4"),
            IK_TYPE_IQ2_BN_R4 = 335: ik("iq2_bn_r4"),
            IK_TYPE_IQ2_K_R4 = 337: ik("iq2_k_r4"),
            IK_TYPE_IQ3_K_R4 = 338: ik("iq3_k_r4"),
            IK_TYPE_IQ4_K_R4 = 339: ik("iq4_k_r4"),
            IK_TYPE_IQ5_K_R4 = 340: ik("iq5_k_r4"),
            IK_TYPE_IQ4_KS_R4 = 344: ik("iq4_ks_r4"),
            IK_TYPE_IQ5_KS_R4 = 352: ik("iq5_ks_r4"),
            IK_TYPE_MXFP4_R8 = 353: ik("mxfp4_r8"),
            IK_TYPE_Q8_K_R16 = 397: ik("q8_k_r16"),
            IK_TYPE_Q8_KV_R8 = 398: ik("q8_kv_r8"),
            IK_TYPE_Q8_K_R8 = 399: ik("q8_k_r8"),
        }
    };
}
pub(crate) use rows;

macro_rules! constants {
    ($($constant:ident = $id:literal: $of:ident($($what:expr),*),)*) => {
        $(pub const $constant: u32 = $id;)*
    };
}
rows!(constants);
