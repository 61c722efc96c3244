//! The layers after the trunk of embedding and reranking models, which turn the rows of a text into one
//! embedding or score. The engine computes them; this module reads them from a file.

use super::{Builder, ModelError};
use sterna_gguf::FileTensor;
use sterna_program::{Attend, Norm, Stage};

/// Method of combining the normalised rows of a text into its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// No pooling: one vector per token.
    None,
    /// Their mean.
    Mean,
    /// The first row: BERT's `[CLS]`.
    Cls,
    /// The last row.
    Last,
    /// A score, from the first row for an encoder and from the last one for a decoder.
    Rank,
}

impl Pooling {
    /// Every pooling, indexed by its number in files.
    pub const ALL: [Self; 5] = [Self::None, Self::Mean, Self::Cls, Self::Last, Self::Rank];

    /// Its name, as in llama.cpp's `--pooling`.
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

/// A dense layer after pooling.
#[derive(Clone, Debug)]
pub struct Dense {
    /// `[outputs, inputs]`.
    pub weight: FileTensor,
    /// `[outputs]`.
    pub bias: Option<FileTensor>,
}

/// Layers that compute a score from a row.
#[derive(Clone, Debug)]
pub struct RankHead {
    /// BERT's pooler, followed by tanh: `[dim, dim]`.
    pub pooler: Option<Dense>,
    /// `[labels, dim]`.
    pub output: Dense,
}

/// Pooling and the layers after the trunk, as found in a file.
#[derive(Clone, Debug)]
pub struct PoolingHead {
    /// Pooling specified by the file, if any.
    pub of_file: Option<Pooling>,
    /// Norm of each row; its weights are declared by the program.
    pub norm: Norm,
    /// Layers after pooling, in order (EmbeddingGemma).
    pub dense: Vec<Dense>,
    /// Present in reranking models.
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
    /// Reads the layers after the trunk of a complete program, instead of a head or in addition to it. If the
    /// file is not causal, makes its rows see the whole text.
    ///
    /// # Errors
    /// [`ModelError`] for an invalid tensor or key.
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
            // A single layer is the classifier itself.
            None => match m.rows_of("cls.weight") {
                Some(labels) => Some(RankHead { pooler: None, output: Dense::read(m, "cls", labels, dim)? }),
                None => None,
            },
        };
        Ok(Self { of_file, norm, dense, rank, sees_ahead })
    }
}

/// Makes the rows of a decoder see the whole text, or within sliding windows half of the file's window size
/// on either side.
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
