//! Qwen3-Next and Qwen3-Coder-Next: the form of Qwen3.5 with experts, but in files the value heads of a delta
//! net are grouped by key head. Their rows are reordered when they are read.

use std::ops::Range;

use super::qwen35::{DeltaWeights, hybrid};
use super::{Architecture, Builder, ModelError};
use sterna_program::StateDecl;

/// Qwen3-Next.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["qwen3next"], build: |m| hybrid(m, grouped), per_layer: false };

/// Order of gathered rows, in the names of weights.
const ORDER: &str = "by value head";

fn grouped(m: &mut Builder<'_>, layer: usize, decl: StateDecl) -> Result<DeltaWeights, ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let StateDecl { n_heads, n_key_heads, head_dim, taps, .. } = decl;
    let dim = m.hyper().dim;
    let (keys, values) = (n_key_heads * head_dim, n_heads * head_dim);
    let per_key = n_heads / n_key_heads;
    // Head `h` of the program is head `h / n_key_heads` of key head `h % n_key_heads`.
    let heads = move || (0..n_heads).map(move |head| (head % n_key_heads, head / n_key_heads));
    let run = |start: usize, len: usize| start..start + len;
    // Value heads of `len` rows each.
    let by_head = |lead: usize, len: usize| -> Vec<Range<usize>> {
        heads().map(|(key, of_key)| run(lead + (key * per_key + of_key) * len, len)).collect()
    };
    let channels = std::iter::once(run(0, 2 * keys)).chain(by_head(2 * keys, head_dim)).collect::<Vec<_>>();

    let together = blk("ssm_in");
    let (wu, wz) = if m.has(&format!("{together}.weight")) {
        // Per key head: its query, its key, its values, their gates.
        let shape = [2 * keys + 2 * values, dim];
        let group = 2 * (1 + per_key) * head_dim;
        let part = |first: usize| (0..n_key_heads).map(move |key| run(key * group + first, head_dim));
        let values_from = |first: usize| -> Vec<Range<usize>> {
            heads().map(|(key, of_key)| run(key * group + first + of_key * head_dim, head_dim)).collect()
        };
        let mut u: Vec<Range<usize>> = part(0).chain(part(head_dim)).collect();
        u.extend(values_from(2 * head_dim));
        let z = values_from((2 + per_key) * head_dim);
        (m.gathered(&together, shape, ORDER, &u)?, m.gathered(&together, shape, "gates by value head", &z)?)
    } else {
        let (u, z) = (blk("attn_qkv"), blk("attn_gate"));
        (
            m.gathered(&u, [decl.channels(), dim], ORDER, &channels)?,
            m.gathered(&z, [values, dim], ORDER, &by_head(0, head_dim))?,
        )
    };
    // Per key head: beta of its value heads, then alpha.
    let of_heads = |first: usize| -> Vec<Range<usize>> {
        heads().map(|(key, of_key)| run(key * 2 * per_key + first + of_key, 1)).collect()
    };
    let both = blk("ssm_ba");
    let taps_of = |rows: &Range<usize>| rows.start * taps..rows.end * taps;
    let conv: Vec<Range<usize>> = channels.iter().map(taps_of).collect();
    Ok(DeltaWeights {
        wu,
        wz,
        wa: m.gathered(&both, [2 * n_heads, dim], "alpha by value head", &of_heads(per_key))?,
        wb: m.gathered(&both, [2 * n_heads, dim], "beta by value head", &of_heads(0))?,
        conv: m.gathered_f32(&blk("ssm_conv1d.weight"), decl.channels() * taps, &conv)?,
        decay: m.gathered_f32(&blk("ssm_a"), n_heads, &by_head(0, 1))?,
        dt: m.gathered_f32(&blk("ssm_dt.bias"), n_heads, &by_head(0, 1))?,
        grouped: true,
    })
}
