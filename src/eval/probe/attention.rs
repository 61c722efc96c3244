//! Change of attention when keys come from a cache.

use ggml_types::turboquant::{KeyBasis, Rotation};
use ggml_types::{KvCodec, KvSide, QuantError};
use half::f16;

use super::Vectors;
use crate::score::Mean;
use sterna_program::{KvWindow, PAGE};

/// KL divergence of the attention weights with each of several KV codecs from those with a base codec.
#[derive(Debug)]
pub struct AttentionKl {
    base: &'static dyn KvCodec,
    others: Vec<&'static dyn KvCodec>,
    window: KvWindow,
    kl: Vec<Mean>,
}

impl AttentionKl {
    /// Compares `others` to `base`; `window` is the exact window of windowed codecs.
    pub fn new(base: &'static dyn KvCodec, others: Vec<&'static dyn KvCodec>, window: KvWindow) -> Self {
        let kl = vec![Mean::default(); others.len()];
        Self { base, others, window, kl }
    }

    /// Adds one layer's vectors: for the rows at some positions and each of their query heads, the
    /// Kullback-Leibler divergence of the attention weights, with keys in the state in which the row reads
    /// them from a cache. `bases` are those of the layer's KV heads, for codecs whose keys have one.
    ///
    /// # Errors
    /// [`QuantError::Shape`] if a codec does not support the head dimension, or has no basis and needs one.
    ///
    /// # Panics
    /// If the text is shorter than a position.
    pub fn add(
        &mut self,
        vectors: &Vectors<'_>,
        bases: Option<&[KeyBasis]>,
        positions: &[usize],
    ) -> Result<(), QuantError> {
        let Vectors { n_heads, n_kv_heads, head_dim, scale, .. } = *vectors;
        let group = n_heads / n_kv_heads;
        let (mut want, mut got) = (Vec::new(), Vec::new());
        for head in 0..n_kv_heads {
            let keys = |codec| Keys::new(codec, self.window, vectors, bases, head);
            let base = keys(self.base)?;
            let others = self.others.iter().map(|codec| keys(*codec)).collect::<Result<Vec<_>, _>>()?;
            for &pos in positions {
                for head in head * group..(head + 1) * group {
                    let q = &vectors.q[(pos * n_heads + head) * head_dim..][..head_dim];
                    base.attend(q, pos, scale, &mut want);
                    for (keys, kl) in others.iter().zip(&mut self.kl) {
                        keys.attend(q, pos, scale, &mut got);
                        kl.add(want.iter().zip(&got).map(|(w, g)| w.exp() * (w - g)).sum());
                    }
                }
            }
        }
        Ok(())
    }

    /// The mean for each of the other codecs, over everything added.
    pub fn means(&self) -> &[Mean] {
        &self.kl
    }
}

/// Transform of a codec.
enum Transform<'a> {
    Nothing,
    Rotation(Rotation),
    Basis(&'a KeyBasis),
}

/// One head's keys in a cache: `[n, head_dim]`, rotated if the codec rotates them.
struct Keys<'a> {
    codec: &'static dyn KvCodec,
    rotation: Transform<'a>,
    head_dim: usize,
    /// Keys in exact pages; empty for codecs without a window.
    exact: Vec<f32>,
    /// Decoded keys.
    coded: Vec<f32>,
    window: KvWindow,
}

impl<'a> Keys<'a> {
    fn new(
        codec: &'static dyn KvCodec,
        window: KvWindow,
        vectors: &Vectors<'_>,
        bases: Option<&'a [KeyBasis]>,
        head: usize,
    ) -> Result<Self, QuantError> {
        let Vectors { n, n_kv_heads, head_dim, .. } = *vectors;
        let missing = || QuantError::Shape { ty: codec.name(), detail: "its keys need a basis".into() };
        let rotation = match (codec.form().has_basis(), codec.rotates()) {
            (true, _) => Transform::Basis(&bases.ok_or_else(missing)?[head]),
            (false, true) => Transform::Rotation(Rotation::new(head_dim)?),
            (false, false) => Transform::Nothing,
        };
        let mut keys = Vec::with_capacity(n * head_dim);
        for row in vectors.k.chunks_exact(n_kv_heads * head_dim) {
            keys.extend_from_slice(&row[head * head_dim..][..head_dim]);
        }
        for key in keys.chunks_exact_mut(head_dim) {
            match &rotation {
                Transform::Nothing => {}
                Transform::Rotation(rotation) => rotation.apply(key),
                Transform::Basis(basis) => basis.apply_to_key(key),
            }
        }
        if codec.windowed() {
            keys.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
        }
        let (vecs, mut bytes) = (codec.open(KvSide::Keys, head_dim)?, vec![0; codec.vec_bytes(head_dim)?]);
        let (mut mean, mut centred) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        let mut coded = vec![0.0; keys.len()];
        let page_elems = PAGE * head_dim;
        for (keys, coded) in keys.chunks(page_elems).zip(coded.chunks_mut(page_elems)) {
            // A page that is not full is not read from its codes.
            if let Some(of_keys) = codec.key_mean(KvSide::Keys, head_dim) {
                let mut bytes = vec![0; of_keys.bytes()];
                let of_dim = |dim| keys.iter().skip(dim).step_by(head_dim).map(|x| f16::from_f32(*x));
                of_keys.encode((0..head_dim).map(of_dim), &mut bytes);
                of_keys.decode(&bytes, &mut mean);
            }
            for (key, out) in keys.chunks_exact(head_dim).zip(coded.chunks_exact_mut(head_dim)) {
                centred.iter_mut().zip(key.iter().zip(&mean)).for_each(|(c, (x, mean))| *c = x - mean);
                vecs.encode(&centred, &mut bytes);
                vecs.decode(&bytes, out);
                out.iter_mut().zip(&mean).for_each(|(x, mean)| *x += mean);
            }
        }
        let exact = if codec.windowed() { keys } else { Vec::new() };
        Ok(Self { codec, rotation, head_dim, exact, coded, window })
    }

    /// Attention weights of the row at `pos`, as natural logarithms: `[pos + 1]`.
    fn attend(&self, q: &[f32], pos: usize, scale: f32, out: &mut Vec<f64>) {
        let mut q = q.to_vec();
        match &self.rotation {
            Transform::Nothing => {}
            Transform::Rotation(rotation) => rotation.apply(&mut q),
            Transform::Basis(basis) => basis.apply_to_query(&mut q),
        }
        let dot = |key: &[f32]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        out.clear();
        for first in (0..=pos).step_by(PAGE) {
            let is_exact = self.codec.windowed() && self.window.is_exact(pos, first / PAGE);
            let keys = if is_exact { &self.exact } else { &self.coded };
            let last = (first + PAGE).min(pos + 1);
            let keys = keys[first * self.head_dim..last * self.head_dim].chunks_exact(self.head_dim);
            out.extend(keys.map(|key| f64::from(scale) * dot(key)));
        }
        let most = out.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = most + out.iter().map(|score| (score - most).exp()).sum::<f64>().ln();
        out.iter_mut().for_each(|score| *score -= log_sum);
    }
}

#[cfg(test)]
mod tests {
    use ggml_types::kv_by_name;

    use super::*;

    /// Roughly normally distributed, and the same in every run.
    fn numbers(n: usize) -> Vec<f32> {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum()).collect()
    }

    fn kl(base: &str, other: &str, positions: &[usize], offset: f32) -> f64 {
        let (n, head_dim) = (400, 64);
        let (mut q, mut k) = (numbers(n * 4 * head_dim), numbers(n * 2 * head_dim));
        q.iter_mut().for_each(|q| *q *= 2.0);
        k.iter_mut().step_by(8).for_each(|k| *k += offset);
        let vectors = Vectors { n, n_heads: 4, n_kv_heads: 2, head_dim, scale: 0.125, q: &q, k: &k, v: &k };
        let codec = |name| kv_by_name(name).unwrap();
        let bases = [0, 1].map(|_| KeyBasis::plain(head_dim).unwrap());
        let mut kl = AttentionKl::new(codec(base), vec![codec(other)], KvWindow::default());
        kl.add(&vectors, Some(&bases), positions).unwrap();
        assert_eq!(kl.means()[0].n(), 4 * positions.len() as u64);
        kl.means()[0].mean()
    }

    #[test]
    fn it_is_what_the_window_the_mean_and_the_codes_make_it() {
        let far = [300, 350, 399];
        assert_eq!(kl("f16", "f16", &far, 0.0), 0.0);
        // Scores have a deviation of 2, so the divergence of plain keys is twice the codec's `dim var`: see
        // ggml-types/tests/types/attention.rs. About half of these positions are read exactly, and do not
        // contribute to it.
        let three = kl("f32", "turboquant-mse", &far, 0.0);
        assert!((0.02..0.06).contains(&three), "{three}");
        let four = kl("f32", "turboquant-4", &far, 0.0);
        assert!(4.0 * four < 1.5 * three && four > 1e-3, "{four}, {three}");
        // Without statistics the first half of the elements is no better than the second.
        let split = kl("f32", "turboquant", &far, 0.0);
        assert!((1.2 * three..2.5 * three).contains(&split), "{split}, {three}");
        // All positions that rows read up to there are exact.
        assert!(kl("f32", "turboquant-mse", &[10, 63, 127], 0.0) < 1e-5);
        // A common offset of channels costs nothing if it is subtracted, and much if it is not.
        assert!(kl("f32", "turboquant-mse", &far, 9.0) < 1.3 * three);
        assert!(kl("f32", "q4_0", &far, 9.0) > 1.3 * kl("f32", "q4_0", &far, 0.0));
    }
}
