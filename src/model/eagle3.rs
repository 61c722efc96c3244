//! EAGLE-3: one layer that drafts from rows of three layers of another model.
//!
//! At position `p` it sees the token there and the hidden row `g` of position `p - 1`, its own last row while
//! it drafts further tokens, and a zero row at position 0:
//!
//! ```text
//! g = fc [input of layer a ; of layer b ; of layer c], or of their norm
//! q, k, v from [norm(embedding) ; norm_2(g)], residual r = g, or norm_2(g)
//! r += attention, r += ffn(ffn_norm(r)), logits = head output_norm(r)
//! ```
//!
//! `r` is the next `g`. The head often has only the frequent tokens; `d2t` says which. In files the rows of
//! queries and keys are permuted as in Llama's.

use super::draft::{DraftForm, Fusion};
use super::{Builder, Hyper, ModelError};
use sterna_gguf::Value;
use sterna_program::{
    Act, Attend, AttnIn, Embed, FfnIn, HeadProj, Linear, Logits, ProjAdd, ProjIn, RopeStyle, RowsOf, Sample,
};

/// Name of the architecture in files.
pub(super) const NAME: &str = "eagle3";

/// The layers, under the newer and the older name.
const LAYERS: [&str; 2] = ["target_layers", "extract_layers"];

/// Declares the weights and pushes the stages of the head for a model `of`.
///
/// # Errors
/// [`ModelError`] for a head of another model, and for tensors that are missing or of another shape.
pub(super) fn build(m: &mut Builder<'_>, of: &Hyper) -> Result<DraftForm, ModelError> {
    let h = m.hyper().clone();
    let (dim, n_vocab) = (h.dim, h.n_vocab);
    let layers = layers(m, of)?;
    const WIDTH: &str = "target_hidden_size";
    let width = m.number_or(WIDTH, dim)?;
    if width != of.dim {
        return Err(m.wrong(WIDTH, format!("{}, the width of the model", of.dim), width));
    }
    if h.n_layers != 1 {
        return Err(m.wrong("block_count", "1", h.n_layers));
    }
    m.overrules("vocab_size");
    let all = layers.len() * width;

    let [rows, joined] = [("rows", all), ("u", 2 * dim)].map(|(name, cols)| m.buf(name, RowsOf::Step, cols));
    let [fused, embedding, x] = ["g", "e", "x"].map(|name| m.buf(name, RowsOf::Step, dim));
    let fc = m.projection("fc", dim, all)?;
    match m.flag("norm_before_fc")? {
        true => {
            let norm = m.rms_norm("enc.output_norm", all)?;
            m.push("fc", ProjIn { x: rows, norm, products: vec![(fc, fused)] });
        }
        false => m.push("fc", HeadProj { x: rows, w: vec![fc], out: fused }),
    }
    let n_stages = m.program().stages.len();
    let table = m.table("token_embd.weight", n_vocab, dim)?;
    m.push("embed", Embed::tokens(table, embedding));

    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let [q, y] = ["q", "y"].map(|name| m.buf(name, RowsOf::Step, q_dim));
    let rope = Some(m.rope(RopeStyle::Adjacent)?);
    let kv = m.kv();
    let qkv = m.qkv("blk.0", q_dim, kv_dim, 2 * dim)?;
    m.push("0.attn_in", AttnIn { rope, ..AttnIn::of(joined, None, qkv, kv, q) });
    let n_fill = m.program().stages.len();
    m.push("0.attend", Attend::causal(q, kv, 1.0 / (h.head_dim as f32).sqrt(), y));
    let w = m.projection("blk.0.attn_output", dim, q_dim)?;
    m.push("0.attn_out", ProjAdd::plain(y, w, x));
    let norm = m.rms_norm("blk.0.ffn_norm", dim)?;
    let gate = m.projection("blk.0.ffn_gate", h.ffn_dim, dim)?;
    let up = m.projection("blk.0.ffn_up", h.ffn_dim, dim)?;
    let hidden = m.buf("h", RowsOf::Step, h.ffn_dim);
    m.push("0.ffn_in", FfnIn::gated(x, norm, gate, up, Act::Silu, hidden));
    let w = m.projection("blk.0.ffn_down", dim, h.ffn_dim)?;
    m.push("0.ffn_out", ProjAdd::plain(hidden, w, x));

    let norm = m.rms_norm("output_norm", dim)?;
    let ids = m.tokens_of_rows("d2t")?;
    let n_rows = ids.as_ref().map_or(n_vocab, |ids| ids.len());
    // A model whose head is its token table lends that.
    let w = match ids.is_some() || m.has("output.weight") {
        true => m.exact("output", n_rows, dim)?,
        false => Linear::of(table),
    };
    let logits = m.buf("logits", RowsOf::Outputs, n_rows);
    m.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    m.push("sample", Sample { logits });

    let fusion = Fusion {
        layers,
        rows,
        fused,
        n_stages,
        embedding,
        embedding_norm: m.rms_norm("blk.0.attn_norm", dim)?,
        hidden_norm: m.rms_norm("blk.0.attn_norm_2", dim)?,
        joined,
        residual_is_normed: m.flag("norm_before_residual")?,
    };
    let (reads_model, lent) = (false, None);
    let fusion = Some(fusion);
    Ok(DraftForm { hidden: x, next: x, next_norm: None, n_fill, fusion, reads_model, ids, lent })
}

/// The layers whose inputs are used.
fn layers(m: &Builder<'_>, of: &Hyper) -> Result<Vec<usize>, ModelError> {
    let given = LAYERS.into_iter().find_map(|key| Some((key, m.value(key)?)));
    let Some((key, value)) = given else {
        // The usual ones of a model with this number of layers.
        return match of.n_layers {
            n @ 5.. => Ok(vec![2, n / 2, n - 3]),
            _ => Err(m.wrong(LAYERS[0], "three layers", "none")),
        };
    };
    let numbers: Option<Vec<usize>> = match value {
        Value::Array(array) => {
            array.values().map(|value| value.as_int().and_then(|int| usize::try_from(int).ok())).collect()
        }
        _ => None,
    };
    let fits = |layers: &Vec<usize>| {
        layers.len() == 3 && layers.is_sorted() && layers.iter().all(|layer| *layer <= of.n_layers)
    };
    numbers.filter(fits).ok_or_else(|| {
        let want = format!("three numbers up to the {} layers of the model, in order", of.n_layers);
        m.wrong(key, want, value.describe())
    })
}
