//! Look-up tables of kernels: cosines and sines of RoPE, and the signs of a Hadamard rotation.

use ggml_types::turboquant::Rotation;

use sterna_program::Rope;

/// Cosines and sines of every position, `[positions, 2, pairs]`, so that steps need not upload them. A RoPE
/// of several axes reads those of the position on each pair's axis; the axes follow them, `[pairs]`.
pub fn rope(rope: &Rope, positions: usize) -> Vec<f32> {
    let pairs = rope.inv_freq.len();
    let mut table = vec![0.0_f32; positions * 2 * pairs];
    for (pos, of_pos) in table.chunks_exact_mut(2 * pairs).enumerate() {
        let (cos, sin) = of_pos.split_at_mut(pairs);
        rope.cos_sin([pos as u32 + rope.ahead; 3], cos, sin);
    }
    table.extend(rope.axes.iter().flat_map(|axes| axes.iter()).map(|axis| *axis as u32 as f32));
    table
}

/// Bytes of such a table.
pub fn rope_bytes(rope: &Rope, positions: usize) -> u64 {
    let axes = rope.axes.as_ref().map_or(0, |axes| 4 * axes.len() as u64);
    (positions as u64).saturating_mul(8 * rope.inv_freq.len() as u64).saturating_add(axes)
}

/// One bit per element, 1 where a rotation flips its sign.
///
/// # Panics
/// If a vector has more elements than there are bits.
pub fn sign_words<const WORDS: usize>(rotation: &Rotation) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (i, sign) in rotation.signs().iter().enumerate() {
        words[i / 32] |= u32::from(*sign < 0.0) << (i % 32);
    }
    words
}

/// Factor with which a Hadamard matrix of `dim` rows preserves lengths.
pub fn hadamard_factor(dim: usize) -> f32 {
    (1.0 / (dim as f64).sqrt()) as f32
}
