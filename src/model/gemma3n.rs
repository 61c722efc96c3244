//! Gemma 3n: four residual streams with alternating updates (AltUp), of which a layer computes the first and
//! predicts the others; a projection of low rank next to attention (LAuReL); an embedding per layer, as in
//! Gemma 4; and gates of which only the largest elements remain in the first layers. Most layers have a
//! sliding window and a separate RoPE base. The last layers read the caches of earlier ones.

use super::gemma4::{LayerInputs, own_caches};
use super::{Architecture, Builder, ModelError};
use sterna_gguf::Value;
use sterna_program::{
    Act, AltUpCorrect, AltUpPredict, Attend, AttnIn, Buf, FfnIn, HeadProj, Kv, Linear, NormAdd, ProjAdd,
    ProjIn, Rescale, RopeStyle, STREAMS,
};

/// Gemma 3n.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gemma3n"], build, per_layer: true };

/// Distance between layers without a window, if a file does not specify it.
const PERIOD: usize = 5;

/// Layers with a cache of their own, if a file does not specify it.
const OWN_CACHES: usize = 20;

/// Base of the local layers' frequencies, if a file does not specify it.
const LOCAL_BASE: f32 = 10000.0;

/// Layers whose gates have a cutoff, if a file does not specify it, and the cutoff, above which 5 % of a
/// normal distribution are.
const CUT_LAYERS: usize = 10;
const CUTOFF: f32 = 1.644_853_6;

/// Least mean square of a stream at the beginning and the end, where streams get the magnitude of the first.
const FLOOR: f32 = 1e-5;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, n_layers, head_dim) = (h.dim, h.n_layers, h.head_dim);
    let (q_dim, kv_dim) = (h.n_heads * head_dim, h.n_kv_heads * head_dim);
    for (key, want) in [("altup.num_inputs", STREAMS), ("altup.active_idx", 0)] {
        let found = m.number_or(key, want)?;
        if found != want {
            return Err(m.wrong(key, want.to_string(), found));
        }
    }
    let windows = m.windows(PERIOD)?;
    let is_local = |layer: usize| windows.of(layer).is_some();
    let n_own = own_caches(m, n_layers, n_layers.saturating_sub(OWN_CACHES))?;
    let cutoffs = cutoffs(m, n_layers)?;
    let soft_cap = m.soft_cap("final_logit_softcapping")?;
    const RANK: &str = "blk.0.laurel_l.weight";
    let Some(rank) = m.rows_of(RANK) else { return Err(m.lacks(RANK, dim)) };

    let first = m.embed((dim as f32).sqrt())?;
    let Some(by_layer) = LayerInputs::read(m)? else {
        return Err(m.wrong("embedding_length_per_layer_input", "above 0", 0));
    };
    let [x1, x2, x3] = ["x1", "x2", "x3"].map(|name| m.buf_of_width(name, dim));
    let x: [Buf; STREAMS] = [first, x1, x2, x3];
    let predicted = ["p", "p1", "p2", "p3"].map(|name| m.buf_of_width(name, dim));
    let [y, scaled, mean] = ["y", "scaled", "mean"].map(|name| m.buf_of_width(name, dim));
    let (q, out) = (m.buf_of_width("q", q_dim), m.buf_of_width("o", q_dim));
    let (c, low) = (m.buf_of_width("c", STREAMS), m.buf_of_width("l", rank));
    let has = |local: bool| (0..n_layers).any(|layer| is_local(layer) == local);
    let global = has(false).then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let local = has(true).then(|| m.rope_of_windows(RopeStyle::Halves, LOCAL_BASE)).transpose()?;
    let mut caches: Vec<Kv> = Vec::with_capacity(n_own);

    for (i, w) in of_streams(m, "altup_proj", dim)?.into_iter().enumerate() {
        m.push(format!("stream_{}", i + 1), HeadProj { x: first, w: vec![w], out: x[i + 1] });
    }
    m.push("streams", Rescale { like: first, y: [x1, x2, x3], floor: FLOOR, mean: None });

    for (layer, cutoff) in cutoffs.into_iter().enumerate() {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let ffn_dim = h.layer(layer).ffn_dim;
        let hidden = m.buf_of_width("h", ffn_dim);

        let router_norm = m.rms_norm(&blk("altup_router_norm"), dim)?;
        let router = m.exact(&blk("altup_router"), STREAMS, dim)?;
        let router = Linear { scale: router.scale / dim as f32, ..router };
        let route = |x: Buf| ProjIn { x, norm: router_norm.clone(), products: vec![(router.clone(), c)] };
        m.push(format!("{layer}.altup_in"), route(first));
        let w = m.flattened(&blk("altup_predict_coef.weight"), STREAMS * STREAMS, STREAMS)?;
        m.push(format!("{layer}.altup_predict"), AltUpPredict { c, w, x, active: 0, out: predicted, y });
        let active = predicted[0];

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        m.push(format!("{layer}.laurel_norm"), NormAdd { y: active, norm: norm.clone(), scale: 1.0, x: y });
        let products = vec![(m.projection(&blk("laurel_l"), rank, dim)?, low)];
        m.push(format!("{layer}.laurel_in"), ProjIn { x: active, norm: norm.clone(), products });
        let w = m.projection(&blk("laurel_r"), dim, rank)?;
        let post = Some(m.rms_norm(&blk("laurel_post_norm"), dim)?);
        m.push(format!("{layer}.laurel_out"), ProjAdd { post, ..ProjAdd::plain(low, w, y) });

        let wq = m.projection(&blk("attn_q"), q_dim, dim)?;
        let q_norm = Some(m.rms_norm(&blk("attn_q_norm"), head_dim)?);
        let rope = if is_local(layer) { local } else { global };
        let kv = if layer < n_own {
            let kv = m.kv();
            caches.push(kv);
            kv
        } else {
            let alike = (0..n_own).rfind(|other| is_local(*other) == is_local(layer));
            let Some(other) = alike else {
                let want = "layers of each kind with caches of their own";
                return Err(m.wrong("attention.shared_kv_layers", want, n_layers - n_own));
            };
            // Some files contain these, although nothing reads them.
            m.leave_out(|name| {
                ["attn_k", "attn_v", "attn_k_norm"].iter().any(|k| name == blk(k) + ".weight")
            });
            caches[other]
        };
        let queries = AttnIn { q_norm, rope, ..AttnIn::queries(active, norm, wq, kv, q) };
        if layer < n_own {
            let wk = Some(m.projection(&blk("attn_k"), kv_dim, dim)?);
            let wv = Some(m.projection(&blk("attn_v"), kv_dim, dim)?);
            let k_norm = Some(m.rms_norm(&blk("attn_k_norm"), head_dim)?);
            let v_norm = Some(m.bare_rms_norm(head_dim));
            m.push(format!("{layer}.attn_in"), AttnIn { wk, wv, k_norm, v_norm, ..queries });
        } else {
            m.push(format!("{layer}.attn_in"), queries);
        }
        let window = windows.of(layer);
        m.push(format!("{layer}.attend"), Attend { window, ..Attend::causal(q, kv, 1.0, out) });
        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        let post = Some(m.rms_norm(&blk("post_attention_norm"), dim)?);
        // The sum of the outputs of attention and of LAuReL.
        let scale = std::f32::consts::FRAC_1_SQRT_2;
        m.push(format!("{layer}.attn_out"), ProjAdd { post, scale, ..ProjAdd::plain(out, w, y) });

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        let gated = FfnIn::gated(y, norm, gate, up, Act::GeluTanh, hidden);
        m.push(format!("{layer}.ffn_in"), FfnIn { cutoff, ..gated });
        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        let post = Some(m.rms_norm(&blk("post_ffw_norm"), dim)?);
        m.push(format!("{layer}.ffn_out"), ProjAdd { post, ..ProjAdd::plain(hidden, w, y) });

        m.push(format!("{layer}.altup_out"), route(y));
        let w = m.flattened(&blk("altup_correct_coef.weight"), STREAMS, STREAMS)?;
        let factors = m.vector(&blk("altup_correct_scale.weight"), dim)?;
        let correct = AltUpCorrect { c, w, y, predicted, active: 0, x, factors, scaled };
        m.push(format!("{layer}.altup_correct"), correct);

        by_layer.push_input(m, layer)?;
        by_layer.push_gate(m, layer, scaled)?;
        let w = m.projection(&blk("proj"), dim, by_layer.width)?;
        let norm = m.rms_norm(&blk("post_norm"), dim)?;
        for (j, x) in x.into_iter().enumerate().skip(1) {
            let post = Some(norm.clone());
            let stage = ProjAdd { post, ..ProjAdd::plain(by_layer.hidden, w.clone(), x) };
            m.push(format!("{layer}.layer_out_{j}"), stage);
        }
    }
    for (i, w) in of_streams(m, "altup_unembd_proj", dim)?.into_iter().enumerate() {
        m.push(format!("unstream_{}", i + 1), HeadProj { x: x[i + 1], w: vec![w], out: predicted[i + 1] });
    }
    let [_, p1, p2, p3] = predicted;
    m.push("mean", Rescale { like: first, y: [p1, p2, p3], floor: FLOOR, mean: Some(mean) });
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(mean, norm, 1.0, soft_cap)
}

/// A matrix for each stream but the first, from one tensor.
fn of_streams(m: &mut Builder<'_>, stem: &str, dim: usize) -> Result<Vec<Linear>, ModelError> {
    m.heads(stem, STREAMS - 1, dim, dim)
}

/// The cutoffs of the layers' gates. Files store minus infinity for none.
fn cutoffs(m: &Builder<'_>, n_layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    const KEY: &str = "activation_sparsity_scale";
    let all: Option<Vec<f32>> = match m.value(KEY) {
        None => return Ok((0..n_layers).map(|layer| (layer < CUT_LAYERS).then_some(CUTOFF)).collect()),
        Some(Value::Array(array)) => array.f32s().map(Iterator::collect),
        Some(_) => None,
    };
    let all =
        all.filter(|all| all.len() == n_layers && all.iter().all(|x| !x.is_nan() && *x != f32::INFINITY));
    let all =
        all.ok_or_else(|| m.wrong(KEY, format!("a number for each of {n_layers} layers"), "another value"));
    Ok(all?.into_iter().map(|cutoff| Some(cutoff).filter(|cutoff| cutoff.is_finite())).collect())
}
