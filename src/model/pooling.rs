//! From the rows of a text to one vector, or to a score: what stands behind the layers of models that embed
//! and rank. The engine computes it; this says what a file has.

use super::{Builder, ModelError};
use sterna_gguf::FileTensor;
use sterna_program::{Attend, Norm, Stage};

/// How the normed rows of a text become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Not at all: a vector for each token.
    None,
    /// Their mean.
    Mean,
    /// The first row: BERT's `[CLS]`.
    Cls,
    /// The last row.
    Last,
    /// A score, of the first row in an encoder and of the last one in a decoder.
    Rank,
}

impl Pooling {
    /// Every pooling, by the number that files have for it.
    pub const ALL: [Self; 5] = [Self::None, Self::Mean, Self::Cls, Self::Last, Self::Rank];

    /// The word for it, as in llama.cpp's `--pooling`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }
}

/// A layer that multiplies a text's vector.
#[derive(Clone, Debug)]
pub struct Dense {
    /// `[outputs, inputs]`.
    pub weight: FileTensor,
    /// `[outputs]`.
    pub bias: Option<FileTensor>,
}

/// What makes a score of a row.
#[derive(Clone, Debug)]
pub struct RankHead {
    /// BERT's pooler, whose results go through tanh: `[dim, dim]`.
    pub pooler: Option<Dense>,
    /// `[labels, dim]`.
    pub output: Dense,
}

/// What a file has behind its layers.
#[derive(Clone, Debug)]
pub struct PoolingHead {
    /// The pooling that the file asks for, if it does.
    pub of_file: Option<Pooling>,
    /// Norm of each row, whose weights the program declares.
    pub norm: Norm,
    /// Layers behind the pooling, one after the other (EmbeddingGemma).
    pub dense: Vec<Dense>,
    /// Present in models that rank.
    pub rank: Option<RankHead>,
    /// True if rows see the whole text.
    pub sees_ahead: bool,
}

impl Dense {
    fn read(m: &mut Builder<'_>, stem: &str, outputs: usize, inputs: usize) -> Result<Self, ModelError> {
        let (weight, bias) = m.host_layer(stem, outputs, inputs)?;
        Ok(Self { weight, bias })
    }
}

impl PoolingHead {
    /// Reads what stands behind the layers of a program that is written, in place of a head or beside it.
    /// Rows of a file that says so see the whole text.
    ///
    /// # Errors
    /// [`ModelError`] for a tensor or a key that makes no sense.
    pub(super) fn read(m: &mut Builder<'_>) -> Result<Self, ModelError> {
        let norm = m.last_norm();
        if m.sees_ahead() {
            see_ahead(&mut m.program().stages);
        }
        let sees_ahead = m.program().sees_ahead();
        const KEY: &str = "pooling_type";
        let of_file = match m.value(KEY) {
            None => None,
            Some(_) => {
                let number = m.number(KEY)?;
                let known = Pooling::ALL.get(number).copied();
                Some(known.ok_or_else(|| {
                    m.wrong(KEY, "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)", number)
                })?)
            }
        };
        let dim = m.hyper().dim;
        let (mut dense, mut inputs) = (Vec::new(), dim);
        for stem in ["dense_2", "dense_3"] {
            if let Some(outputs) = m.rows_of(&format!("{stem}.weight")) {
                dense.push(Dense::read(m, stem, outputs, inputs)?);
                inputs = outputs;
            }
        }
        let rank = match m.rows_of("cls.output.weight") {
            Some(labels) => {
                let pooler = m.rows_of("cls.weight").map(|_| Dense::read(m, "cls", dim, dim)).transpose()?;
                Some(RankHead { pooler, output: Dense::read(m, "cls.output", labels, dim)? })
            }
            // One layer is the classifier itself.
            None => match m.rows_of("cls.weight") {
                Some(labels) => Some(RankHead { pooler: None, output: Dense::read(m, "cls", labels, dim)? }),
                None => None,
            },
        };
        Ok(Self { of_file, norm, dense, rank, sees_ahead })
    }
}

/// Lets the rows of a decoder see the whole text, or as far ahead as its windows reach back: half of the
/// window that the file says, on either side.
fn see_ahead(stages: &mut [(String, Stage)]) {
    for (_, stage) in stages {
        if let Stage::Attend(s) = stage {
            (s.window, s.ahead) = match s.window {
                Some(window) => (Some(window / 2 + 1), window / 2),
                None => (None, Attend::ALL),
            };
        }
    }
}
