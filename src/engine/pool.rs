//! Pools the rows of a text into its embedding or score, including the layers after pooling, on the host.
//! Takes a few million operations per text at most, on rows that have to be copied to the host anyway.

use std::ops::Range;

use super::error::Error;
use sterna_gguf::FileTensor;
use sterna_model::{Dense, ModelError, Pooling, PoolingHead};
use sterna_program::{Norm, NormKind};

/// The pooling and the layers after it, with their weights.
pub(super) struct Pooler {
    kind: Pooling,
    dim: usize,
    norm: RowNorm,
    dense: Vec<Layer>,
    rank: Option<Rank>,
    sees_ahead: bool,
}

/// A norm that the host applies to rows of the residual stream.
pub(super) struct RowNorm {
    pub kind: NormKind,
    /// `[dim]`.
    pub weight: Vec<f32>,
    /// `[dim]`.
    pub bias: Option<Vec<f32>>,
    pub eps: f64,
}

struct Rank {
    pooler: Option<Layer>,
    output: Layer,
}

struct Layer {
    /// `[outputs, inputs]`.
    weight: Vec<f32>,
    inputs: usize,
    /// `[outputs]`.
    bias: Option<Vec<f32>>,
}

/// Pooled rows of a text so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Sum of the normalised rows, the selected row, or all rows.
    values: Vec<f64>,
    /// Number of rows added.
    n: usize,
}

impl Pooler {
    /// Reads the weights; `asked` takes precedence over the file.
    ///
    /// # Errors
    /// [`Error::Gguf`], [`Error::Model`] for weights that cannot be read; [`Error::Option`] for a pooling
    /// that the model has no weights for.
    pub fn read(head: &PoolingHead, weights: &[FileTensor], asked: Option<Pooling>) -> Result<Self, Error> {
        let default = if head.sees_ahead { Pooling::Mean } else { Pooling::Last };
        let kind = asked.or(head.of_file).unwrap_or(default);
        let rank = match (&head.rank, kind) {
            (None, Pooling::Rank) => {
                let want =
                    "none, mean, cls or last for a model without a classifier (cls.output.weight)".into();
                return Err(Error::Option { option: "EngineOptions::pooling", want, got: "rank".into() });
            }
            (Some(rank), Pooling::Rank) => {
                let pooler = rank.pooler.as_ref().map(Layer::read).transpose()?;
                Some(Rank { pooler, output: Layer::read(&rank.output)? })
            }
            _ => None,
        };
        let norm = RowNorm::read(&head.norm, weights)?;
        let dense = head.dense.iter().map(Layer::read).collect::<Result<_, _>>()?;
        Ok(Self { kind, dim: norm.weight.len(), norm, dense, rank, sees_ahead: head.sees_ahead })
    }

    pub fn kind(&self) -> Pooling {
        self.kind
    }

    /// True if all rows of a text have to run in one step.
    pub fn sees_ahead(&self) -> bool {
        self.sees_ahead
    }

    /// Length of an embedding, or number of scored labels.
    pub fn len(&self) -> usize {
        match &self.rank {
            Some(rank) => rank.output.outputs(),
            None => self.dense.last().map_or(self.dim, Layer::outputs),
        }
    }

    /// True if scores are probabilities: those of a decoder, of "yes" and "no" as the next token.
    pub fn has_probabilities(&self) -> bool {
        !self.sees_ahead && self.rank.is_some() && self.len() > 1
    }

    /// The subset of `positions` of a text whose rows are pooled.
    pub fn wanted(&self, positions: Range<usize>, n_tokens: usize) -> Range<usize> {
        let only = |at: usize| if positions.contains(&at) { at..at + 1 } else { at..at };
        match self.kind {
            Pooling::None | Pooling::Mean => positions,
            Pooling::Cls => only(0),
            Pooling::Rank if self.sees_ahead => only(0),
            Pooling::Last | Pooling::Rank => only(n_tokens - 1),
        }
    }

    /// Adds rows of the residual stream, `[n, dim]`.
    pub fn add(&self, pool: &mut Pool, rows: &[f32]) {
        for row in rows.chunks_exact(self.dim) {
            let row = self.norm.apply(row);
            match self.kind {
                Pooling::Mean if pool.n > 0 => pool.values.iter_mut().zip(row).for_each(|(sum, x)| *sum += x),
                _ => pool.values.extend(row),
            }
            pool.n += 1;
        }
    }

    /// The embedding of a text, or its scores; without pooling, all token vectors concatenated.
    pub fn finish(&self, pool: Pool) -> Vec<f32> {
        let n = if self.kind == Pooling::Mean { pool.n.max(1) as f64 } else { 1.0 };
        let mut vector: Vec<f32> = pool.values.iter().map(|sum| (sum / n) as f32).collect();
        let Some(rank) = &self.rank else {
            for layer in &self.dense {
                vector = vector.chunks_exact(layer.inputs).flat_map(|vector| layer.apply(vector)).collect();
            }
            return vector;
        };
        if let Some(pooler) = &rank.pooler {
            vector = pooler.apply(&vector).into_iter().map(f32::tanh).collect();
        }
        let mut scores = rank.output.apply(&vector);
        if self.has_probabilities() {
            let max = scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(*score));
            scores.iter_mut().for_each(|score| *score = (*score - max).exp());
            let total: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= total);
        }
        scores
    }
}

impl RowNorm {
    /// Reads the weights of a program's norm.
    ///
    /// # Errors
    /// [`Error::Gguf`], [`Error::Model`] for weights that cannot be read.
    pub fn read(norm: &Norm, weights: &[FileTensor]) -> Result<Self, Error> {
        let of_norm = |w: sterna_program::Weight| floats(&weights[w.0 as usize]);
        let bias = norm.bias.map(of_norm).transpose()?;
        Ok(Self { kind: norm.kind, weight: of_norm(norm.weight)?, bias, eps: norm.eps.into() })
    }

    /// Normalises each of `rows`, `[n, dim]`.
    pub fn apply_to_rows(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.weight.len()) {
            let normed: Vec<f64> = self.apply(row).collect();
            row.iter_mut().zip(normed).for_each(|(x, normed)| *x = normed as f32);
        }
    }

    /// Normalises a row.
    pub fn apply(&self, x: &[f32]) -> impl Iterator<Item = f64> {
        let len = x.len() as f64;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().map(|x| f64::from(*x)).sum::<f64>() / len,
        };
        let mean_square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len;
        let factor = 1.0 / (mean_square + self.eps).sqrt();
        let bias = |i: usize| self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
        let scaled = move |(x, weight): (&f32, &f32)| (f64::from(*x) - mean) * factor * f64::from(*weight);
        x.iter().zip(&self.weight).map(scaled).enumerate().map(move |(i, x)| x + bias(i))
    }
}

impl Layer {
    fn read(dense: &Dense) -> Result<Self, Error> {
        let bias = dense.bias.as_ref().map(floats).transpose()?;
        Ok(Self { weight: floats(&dense.weight)?, inputs: dense.weight.cols, bias })
    }

    fn outputs(&self) -> usize {
        self.weight.len() / self.inputs
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        const LANES: usize = 16;
        let dot = |row: &[f32]| {
            let mut lanes = [0.0_f32; LANES];
            for (row, x) in row.chunks(LANES).zip(x.chunks(LANES)) {
                lanes.iter_mut().zip(row).zip(x).for_each(|((lane, w), x)| *lane += w * x);
            }
            lanes.iter().sum::<f32>()
        };
        let products = self.weight.chunks_exact(self.inputs).map(dot).enumerate();
        products.map(|(i, y)| y + self.bias.as_ref().map_or(0.0, |bias| bias[i])).collect()
    }
}

fn floats(tensor: &FileTensor) -> Result<Vec<f32>, Error> {
    let whole = tensor.read()?;
    let mut values = vec![0.0; whole.rows * whole.cols];
    for (row, values) in values.chunks_exact_mut(whole.cols).enumerate() {
        let decoded = whole.ty.decode_row(&whole.bytes, whole.rows, row, values);
        decoded.map_err(|source| ModelError::Quant { tensor: whole.name.clone(), source })?;
    }
    Ok(values)
}

/// Normalises a vector with the modes of llama.cpp's `--embd-normalize`: -1 does nothing, 0 scales to a
/// maximum magnitude of 32760, 1 to a sum of magnitudes of 1, 2 to a length of 1, and larger `p` to a
/// `p`-norm of 1. A zero vector is not changed.
pub fn normalise(vector: &mut [f32], p: i32) {
    let magnitudes = || vector.iter().map(|x| f64::from(x.abs()));
    let norm = match p {
        ..=-1 => return,
        0 => magnitudes().fold(0.0, f64::max) / 32760.0,
        2 => magnitudes().map(|x| x * x).sum::<f64>().sqrt(),
        _ => magnitudes().map(|x| x.powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
    };
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}
