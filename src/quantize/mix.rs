//! Mixes: llama.cpp's rules for the type of every tensor of a file called `Q4_K_M` and its like.
//!
//! A mix is an entry of [`MIXES`]. The rules are those of llama-quantize in llama.cpp with ggml 0.25.3; the
//! content of a file with such a name follows them exactly, odd cases included.

use ggml_types::{QuantType, types};

/// A weight type, as used in tables.
type Ty = &'static dyn QuantType;

/// A rule for the type of every tensor, under the name that llama-quantize gives it.
#[derive(Debug)]
pub struct Mix {
    /// Name as in file names: `Q4_K_M`.
    pub name: &'static str,
    /// A shorter name, or the same name.
    pub alias: &'static str,
    /// `general.file_type`.
    pub file_type: u32,
    /// Type of every tensor without another rule.
    pub body: Ty,
    /// `attn_v`, fused `attn_qkv`, `attn_kv_b`.
    pub(super) attn_v: Rule,
    pub(super) ffn_down: Rule,
    pub(super) attn_output: Rule,
    /// `attn_output` of a model with eight experts.
    pub(super) attn_output_of_eight: Rule,
    /// The embedding of a model that has a separate head.
    pub(super) token_embd: Rule,
    /// The head, or the embedding if that is the head.
    pub(super) output: Ty,
    /// Types of experts' matrices and of all others, for mixes that distinguish only these.
    pub(super) experts: Option<(Ty, Ty)>,
    /// True if matrices of the body's type are useless without an importance matrix.
    pub(super) needs_imatrix: bool,
}

/// One type in some layers and the body's in the others, unless `Either` names both.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Body,
    In(Layers, Ty),
    Either(Layers, Ty, Ty),
}

/// A selection of layers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layers {
    All,
    /// The first eighth, the last eighth, and every third layer between.
    More,
    /// The first `n` layers.
    First(usize),
    /// The first `1 / parts` of the layers.
    Part(usize),
    /// As `Part`, if there is an importance matrix.
    PartWith(usize),
    /// As `Part`, if there is no importance matrix.
    PartWithout(usize),
    /// All layers, if four or more query heads share a KV head.
    Grouped,
}

/// Position of a tensor, as far as the rules need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorPosition {
    pub layer: usize,
    pub n_layers: usize,
    /// Query heads that share a KV head.
    pub group: usize,
    pub has_imatrix: bool,
}

impl Rule {
    pub(super) fn ty(self, body: Ty, at: TensorPosition) -> Ty {
        match self {
            Self::Body => body,
            Self::In(layers, ty) if layers.hold(at) => ty,
            Self::In(..) => body,
            Self::Either(layers, ty, other) => {
                if layers.hold(at) {
                    ty
                } else {
                    other
                }
            }
        }
    }
}

impl Layers {
    fn hold(self, TensorPosition { layer, n_layers, group, has_imatrix }: TensorPosition) -> bool {
        match self {
            Self::All => true,
            Self::More => {
                let eighth = n_layers / 8;
                layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
            }
            Self::First(n) => layer < n,
            Self::Part(parts) => layer < n_layers / parts,
            Self::PartWith(parts) => has_imatrix && layer < n_layers / parts,
            Self::PartWithout(parts) => !has_imatrix && layer < n_layers / parts,
            Self::Grouped => group >= 4,
        }
    }
}

impl Mix {
    /// The mix with this name or alias, ignoring case.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        MIXES.iter().find(|mix| [mix.name, mix.alias].iter().any(|known| known.eq_ignore_ascii_case(name)))
    }

    /// A mix that uses the body's type for everything except the head.
    const fn of(name: &'static str, file_type: u32, body: Ty) -> Self {
        Self {
            name,
            alias: name,
            file_type,
            body,
            attn_v: Rule::Body,
            ffn_down: Rule::Body,
            attn_output: Rule::Body,
            attn_output_of_eight: Rule::Body,
            token_embd: Rule::Body,
            output: &types::Q6K,
            experts: None,
            needs_imatrix: false,
        }
    }
}

const Q4_K: Ty = &types::Q4K;
const Q5_K: Ty = &types::Q5K;
const Q6_K: Ty = &types::Q6K;
const Q8_0: Ty = &types::Q8_0;
const ALL_Q5_K: Rule = Rule::In(Layers::All, Q5_K);
const ALL_Q4_K: Rule = Rule::In(Layers::All, Q4_K);
const ALL_Q3_K: Rule = Rule::In(Layers::All, &types::Q3K);

/// All supported mixes, in order of their numbers.
pub static MIXES: &[Mix] = &[
    Mix { ffn_down: Rule::In(Layers::PartWith(8), &types::Q4_1), ..Mix::of("Q4_0", 2, &types::Q4_0) },
    Mix::of("Q4_1", 3, &types::Q4_1),
    Mix { output: Q8_0, ..Mix::of("Q8_0", 7, Q8_0) },
    Mix { ffn_down: Rule::In(Layers::PartWith(8), &types::Q5_1), ..Mix::of("Q5_0", 8, &types::Q5_0) },
    Mix::of("Q5_1", 9, &types::Q5_1),
    Mix {
        attn_v: Rule::Either(Layers::Grouped, Q4_K, &types::Q3K),
        ffn_down: ALL_Q3_K,
        attn_output: ALL_Q3_K,
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("Q2_K", 10, &types::Q2K)
    },
    Mix { attn_output_of_eight: ALL_Q5_K, ..Mix::of("Q3_K_S", 11, &types::Q3K) },
    Mix {
        alias: "Q3_K",
        attn_v: Rule::Either(Layers::First(2), Q5_K, Q4_K),
        ffn_down: Rule::Either(Layers::Part(16), Q5_K, Q4_K),
        attn_output: ALL_Q4_K,
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("Q3_K_M", 12, &types::Q3K)
    },
    Mix { attn_v: ALL_Q5_K, ffn_down: ALL_Q5_K, attn_output: ALL_Q5_K, ..Mix::of("Q3_K_L", 13, &types::Q3K) },
    Mix {
        attn_v: Rule::In(Layers::First(4), Q5_K),
        ffn_down: Rule::In(Layers::Part(8), Q5_K),
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("Q4_K_S", 14, Q4_K)
    },
    Mix {
        alias: "Q4_K",
        attn_v: Rule::In(Layers::More, Q6_K),
        ffn_down: Rule::In(Layers::More, Q6_K),
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("Q4_K_M", 15, Q4_K)
    },
    Mix::of("Q5_K_S", 16, Q5_K),
    Mix {
        alias: "Q5_K",
        attn_v: Rule::In(Layers::More, Q6_K),
        ffn_down: Rule::In(Layers::More, Q6_K),
        ..Mix::of("Q5_K_M", 17, Q5_K)
    },
    Mix::of("Q6_K", 18, Q6_K),
    Mix {
        attn_v: Rule::In(Layers::Grouped, Q4_K),
        ffn_down: Rule::In(Layers::Part(8), Q4_K),
        needs_imatrix: true,
        ..Mix::of("Q2_K_S", 21, &types::Q2K)
    },
    Mix {
        attn_v: Rule::In(Layers::Grouped, Q5_K),
        ffn_down: Rule::In(Layers::PartWithout(8), Q5_K),
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("IQ4_NL", 25, &types::Iq4Nl)
    },
    Mix {
        attn_v: Rule::In(Layers::Grouped, Q5_K),
        ffn_down: Rule::In(Layers::PartWithout(8), Q5_K),
        attn_output_of_eight: ALL_Q5_K,
        ..Mix::of("IQ4_XS", 30, &types::Iq4Xs)
    },
    Mix { token_embd: ALL_Q4_K, ..Mix::of("TQ1_0", 36, &types::Tq1_0) },
    Mix { token_embd: ALL_Q4_K, ..Mix::of("TQ2_0", 37, &types::Tq2_0) },
    Mix { output: Q8_0, experts: Some((&types::Mxfp4, Q8_0)), ..Mix::of("MXFP4_MOE", 38, &types::Mxfp4) },
    Mix::of("Q1_0", 40, &types::Q1_0),
    Mix { token_embd: ALL_Q4_K, ..Mix::of("Q2_0", 41, &types::Q2_0) },
];

/// Types with their replacements for rows that are not a whole number of blocks.
static FALLBACKS: &[(Ty, Ty)] = &[
    (&types::Iq4Xs, &types::Iq4Nl),
    (&types::Q2_0, &types::Q4_0),
    (&types::Q2K, &types::Q4_0),
    (&types::Q3K, &types::Q4_0),
    (&types::Tq1_0, &types::Q4_0),
    (&types::Tq2_0, &types::Q4_0),
    (&types::Q4K, &types::Q5_0),
    (&types::Q5K, &types::Q5_1),
    (&types::Q6K, &types::Q8_0),
];

/// The type itself, or its replacement for rows that it cannot store; f16 if the replacement cannot either.
pub(super) fn fallback(ty: Ty, cols: usize) -> Ty {
    let holds = |ty: Ty| cols.is_multiple_of(ty.block_elems());
    let other = || FALLBACKS.iter().find(|(from, _)| from.is(ty)).map(|&(_, to)| to);
    let found = if holds(ty) { Some(ty) } else { other() };
    found.filter(|ty| holds(*ty)).unwrap_or(&types::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique() {
        let mut names: Vec<_> = MIXES.iter().map(|mix| mix.name).collect();
        names.extend(
            MIXES.iter().map(|mix| mix.alias).filter(|alias| Mix::by_name(alias).unwrap().name != *alias),
        );
        let mut numbers: Vec<_> = MIXES.iter().map(|mix| mix.file_type).collect();
        let (n_names, n_numbers) = (names.len(), numbers.len());
        names.sort_unstable();
        names.dedup();
        numbers.dedup();
        assert_eq!((names.len(), numbers.len()), (n_names, n_numbers));
        assert!(numbers.is_sorted());
        assert_eq!(Mix::by_name("q4_k").unwrap().name, "Q4_K_M");
        assert!(Mix::by_name("q9_k").is_none());
    }

    #[test]
    fn rows_that_no_block_fits_fall_back() {
        for (ty, cols, want) in [
            (Q4_K, 512, "q4_k"),
            (Q4_K, 896, "q5_0"),
            (Q4_K, 40, "f16"),
            (Q6_K, 576, "q8_0"),
            (Q8_0, 40, "f16"),
            (&types::Q1_0 as Ty, 64, "f16"),
            (&types::Tq2_0 as Ty, 96, "q4_0"),
        ] {
            assert_eq!(fallback(ty, cols).name(), want, "{} of {cols}", ty.name());
        }
    }
}
