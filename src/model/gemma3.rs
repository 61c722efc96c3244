//! Gemma 3: norms after the projections as well as before them, norms over each query and key head, and two
//! kinds of layers. Most have a sliding window and a separate RoPE base; every sixth sees everything. If a
//! file has no window (BitNet-embedding 270M), all layers do.

use super::{Architecture, Builder, ModelError, Windows};
use sterna_program::{Act, Attend, AttnIn, FfnIn, Norm, ProjAdd, RopeStyle, RowsOf};

/// Gemma 3.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["gemma3", "gemma-embedding"], build, per_layer: false };

/// Distance between layers without a window, if a file does not specify it.
const PERIOD: usize = 6;

/// Base of the local layers' frequencies, if a file does not specify it.
const LOCAL_BASE: f32 = 10000.0;

/// Differences between Gemma 2 and 3.
pub(super) struct Variant {
    /// The layers with a window.
    pub windows: Option<Windows>,
    /// Number of layers of the 27B model: only this model divides scores by the default head width `dim /
    /// n_heads` instead of its head dimension.
    pub wide: usize,
    /// True if queries and keys have a norm over each head.
    pub head_norms: bool,
    /// Soft cap of attention scores.
    pub soft_cap: Option<f32>,
    /// RoPE base of layers with a window, if a file does not specify it. `None`: all layers have the same
    /// RoPE.
    pub local_base: Option<f32>,
}

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let slides = m.value("attention.sliding_window").is_some();
    let windows = slides.then(|| m.windows(PERIOD)).transpose()?;
    if !slides {
        m.overrules("rope.freq_base_swa");
        m.overrules("attention.sliding_window_pattern");
    }
    let local_base = Some(LOCAL_BASE);
    decoder(m, &Variant { windows, wide: 62, head_norms: true, soft_cap: None, local_base })
}

/// Embedding, blocks with norms before and after each projection, head.
pub(super) fn decoder(m: &mut Builder<'_>, form: &Variant) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim) = (h.dim, h.ffn_dim);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let per_head = if h.n_layers == form.wide { dim as f32 / h.n_heads as f32 } else { h.head_dim as f32 };
    let scale = 1.0 / per_head.sqrt();
    let soft_cap = m.soft_cap("final_logit_softcapping")?;

    let x = m.embed((dim as f32).sqrt())?;
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);
    let window_of = |layer| form.windows.as_ref().and_then(|windows| windows.of(layer));
    let has = |slides: bool| (0..h.n_layers).any(|layer| window_of(layer).is_some() == slides);
    let is_one = form.local_base.is_none();
    let global = (is_one || has(false)).then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let local = form.local_base.filter(|_| has(true));
    let local = local.map(|base| m.rope_of_windows(RopeStyle::Halves, base)).transpose()?;

    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let kv = m.kv();
        let window = window_of(layer);
        let rope = if window.is_some() && !is_one { local } else { global };

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        let mut head_norm = |name: &str| -> Result<Option<Norm>, ModelError> {
            form.head_norms.then(|| m.rms_norm(&blk(name), h.head_dim)).transpose()
        };
        let (q_norm, k_norm) = (head_norm("attn_q_norm")?, head_norm("attn_k_norm")?);
        m.push(
            format!("{layer}.attn_in"),
            AttnIn { q_norm, k_norm, rope, ..AttnIn::of(x, norm, qkv, kv, q) },
        );
        let whole_images = m.has_images();
        let attend =
            Attend { window, soft_cap: form.soft_cap, whole_images, ..Attend::causal(q, kv, scale, y) };
        m.push(format!("{layer}.attend"), attend);

        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        let post = Some(m.rms_norm(&blk("post_attention_norm"), dim)?);
        m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, Act::GeluTanh, hidden));

        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        let post = Some(m.rms_norm(&blk("post_ffw_norm"), dim)?);
        m.push(format!("{layer}.ffn_out"), ProjAdd { post, ..ProjAdd::plain(hidden, w, x) });
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, soft_cap)
}
