//! Gemma 4, dense, with experts and E2B, E4B: Gemma 3's form with two kinds of layers, local ones with a
//! sliding window and global ones, which differ in the length and number of their heads and in RoPE. Values
//! have a norm without weight; without a product of their own they are those of the keys. The last layers may
//! read the caches of earlier ones. E2B and E4B add an embedding per layer. The residual stream has a factor
//! per layer. With experts, a layer adds up its feed-forward network and a mixture, each with norms of its
//! own.

use super::build::Mixture;
use super::{Architecture, Builder, LayerHyper, ModelError};
use sterna_program::{
    Act, Attend, AttnIn, Buf, Embed, Experts, FfnIn, Kv, Linear, Norm, NormAdd, ProjAdd, RopeStyle, RowsOf,
    Weight,
};

/// Gemma 4.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gemma4"], build, per_layer: true };

/// Distance between layers without a window, if a file does not specify it.
const PERIOD: usize = 6;

/// Base of the local layers' frequencies, if a file does not specify it.
const LOCAL_BASE: f32 = 10000.0;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, n_layers) = (h.dim, h.n_layers);
    let windows = m.windows(PERIOD)?;
    let is_local = |layer: usize| windows.of(layer).is_some();
    let n_own = own_caches(m, n_layers, 0)?;
    let local_dim = m.number_or("attention.key_length_swa", h.head_dim)?;
    let value_dim = m.number_or("attention.value_length_swa", local_dim)?;
    if local_dim == 0 || !local_dim.is_multiple_of(2) || value_dim != local_dim {
        let want = "an even head length, the same for keys and values";
        return Err(m.wrong("attention.key_length_swa", want, format!("{local_dim} and {value_dim}")));
    }
    let soft_cap = m.soft_cap("final_logit_softcapping")?;
    let mixture = m.mixture()?;

    let x = m.embed((dim as f32).sqrt())?;
    let by_layer = LayerInputs::read(m)?;
    let has = |local: bool| (0..n_layers).any(|layer| is_local(layer) == local);
    let global = has(false).then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let local = has(true).then(|| m.rope_of_windows(RopeStyle::Halves, LOCAL_BASE)).transpose()?;
    let mut caches: Vec<Kv> = Vec::with_capacity(n_own);

    for layer in 0..n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let LayerHyper { ffn_dim, n_heads, n_kv_heads } = h.layer(layer);
        let head_dim = if is_local(layer) { local_dim } else { h.head_dim };
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        let (q, y) = (m.buf_of_width("q", q_dim), m.buf_of_width("y", q_dim));
        let rope = if is_local(layer) { local } else { global };

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let wq = m.projection(&blk("attn_q"), q_dim, dim)?;
        let q_norm = Some(m.rms_norm(&blk("attn_q_norm"), head_dim)?);
        let kv = if layer < n_own {
            let kv = m.kv_of_heads(n_kv_heads, head_dim);
            caches.push(kv);
            kv
        } else {
            let alike = (0..n_own).rfind(|other| is_local(*other) == is_local(layer));
            let Some(other) = alike else {
                let want = "layers of each kind with caches of their own";
                return Err(m.wrong(SHARED, want, n_layers - n_own));
            };
            caches[other]
        };
        let queries = AttnIn { q_norm, rope, ..AttnIn::queries(x, norm, wq, kv, q) };
        if layer < n_own {
            let wk = Some(m.projection(&blk("attn_k"), kv_dim, dim)?);
            let has_values = m.has(&blk("attn_v.weight"));
            let wv = has_values.then(|| m.projection(&blk("attn_v"), kv_dim, dim)).transpose()?;
            let k_norm = Some(m.rms_norm(&blk("attn_k_norm"), head_dim)?);
            let v_norm = Some(m.bare_rms_norm(head_dim));
            m.push(format!("{layer}.attn_in"), AttnIn { wk, wv, k_norm, v_norm, ..queries });
        } else {
            m.push(format!("{layer}.attn_in"), queries);
        }
        let window = windows.of(layer);
        // In the larger models, the rows of an image see each other in the layers with a window.
        let whole_images = m.has_images() && is_local(layer) && !CAUSAL_IMAGES.contains(&dim);
        let attend = Attend { window, whole_images, ..Attend::causal(q, kv, 1.0, y) };
        m.push(format!("{layer}.attend"), attend);

        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        let post = Some(m.rms_norm(&blk("post_attention_norm"), dim)?);
        m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        let hidden = m.buf_of_width("h", ffn_dim);
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, Act::GeluTanh, hidden));

        let scale = blk("layer_output_scale.weight");
        let scale = if m.has(&scale) { m.scalar(&scale)? } else { 1.0 };
        let of_ffn = if by_layer.is_some() { 1.0 } else { scale };
        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        let norm = m.rms_norm(&blk("post_ffw_norm"), dim)?;
        match mixture.filter(|_| m.has(&blk("ffn_gate_inp.weight"))) {
            None => {
                let ffn_out = ProjAdd { post: Some(norm), scale: of_ffn, ..ProjAdd::plain(hidden, w, x) };
                m.push(format!("{layer}.ffn_out"), ffn_out);
            }
            Some(mixture) => {
                let sum = experts(m, mixture, layer, x)?;
                let [post, residual] =
                    ["post_ffw_norm_1", "post_ffw_norm_2"].map(|name| m.rms_norm(&blk(name), dim));
                let (post, residual) = (Some(post?), Some(residual?));
                let dense = ProjAdd { post, residual, ..ProjAdd::plain(hidden, w, sum) };
                m.push(format!("{layer}.dense_out"), dense);
                m.push(format!("{layer}.ffn_out"), NormAdd { y: sum, norm, scale: of_ffn, x });
            }
        }
        if let Some(by_layer) = &by_layer {
            by_layer.push(m, layer, x, scale)?;
        }
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, soft_cap)
}

/// Widths of the models whose images are causal like text: E2B and E4B.
pub(super) const CAUSAL_IMAGES: [usize; 2] = [1536, 2560];
/// Pushes a layer's mixture and returns the buffer of its sum. The router has a norm of its own, a factor per
/// element and `1 / sqrt(dim)`.
fn experts(m: &mut Builder<'_>, mixture: Mixture, layer: usize, x: Buf) -> Result<Buf, ModelError> {
    let Mixture { n_experts, n_used, ffn_dim } = mixture;
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let dim = m.hyper().dim;
    let sum = m.buf_of_width("sum", dim);
    let norm = m.rms_norm(&blk("pre_ffw_norm_2"), dim)?;
    let weight = m.vector(&blk("ffn_gate_inp.scale"), dim)?;
    let router_norm = Some(Norm { weight, ..norm.clone() });
    let w = m.table(&blk("ffn_gate_inp.weight"), n_experts, dim)?;
    let router = Linear { scale: 1.0 / (dim as f32).sqrt(), ..Linear::of(w) };
    let experts = m.experts(&format!("blk.{layer}"), n_experts, ffn_dim, dim)?;
    let stage = Experts::of(x, norm, router, experts, n_used, Act::GeluTanh);
    m.push(format!("{layer}.experts"), Experts { router_norm, out: Some(sum), ..stage });
    Ok(sum)
}

const SHARED: &str = "attention.shared_kv_layers";

/// Number of layers with a cache of their own; the others come after them, `usual` ones if the file does not
/// specify it.
pub(super) fn own_caches(m: &Builder<'_>, n_layers: usize, usual: usize) -> Result<usize, ModelError> {
    let shared = m.number_or(SHARED, usual)?;
    match n_layers.checked_sub(shared).filter(|own| *own > 0) {
        Some(own) => Ok(own),
        None => Err(m.wrong(SHARED, format!("less than the {n_layers} layers"), shared)),
    }
}

/// The embeddings per layer of E2B and E4B: a table with a row per token and layer, and a projection of the
/// token's embedding.
pub(super) struct LayerInputs {
    /// Number of elements per layer.
    pub(super) width: usize,
    /// `[n_layers * n_vocab, width]`.
    table: Weight,
    /// The token's embedding, which the layers do not change.
    x0: Buf,
    /// The input of the current layer, and the hidden layer that it is multiplied with.
    input: Buf,
    pub(super) hidden: Buf,
    /// Norm of a layer's projection.
    norm: Norm,
}

impl LayerInputs {
    pub(super) fn read(m: &mut Builder<'_>) -> Result<Option<Self>, ModelError> {
        let width = m.number_or("embedding_length_per_layer_input", 0)?;
        if width == 0 {
            return Ok(None);
        }
        let (n_vocab, n_layers) = (m.hyper().n_vocab, m.hyper().n_layers);
        let table = m.split_table("per_layer_token_embd.weight", n_vocab, n_layers, width)?;
        let x0 = m.embed_again();
        let [input, hidden] = ["layer_input", "layer_hidden"].map(|name| m.buf(name, RowsOf::Step, width));
        let norm = m.rms_norm("per_layer_proj_norm", width)?;
        Ok(Some(Self { width, table, x0, input, hidden, norm }))
    }

    /// The last stages of a layer: `x = scale * (x + norm(proj (gelu(gate x) * input)))`.
    fn push(&self, m: &mut Builder<'_>, layer: usize, x: Buf, scale: f32) -> Result<(), ModelError> {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        self.push_input(m, layer)?;
        self.push_gate(m, layer, x)?;
        let w = m.projection(&blk("proj"), m.hyper().dim, self.width)?;
        let post = Some(m.rms_norm(&blk("post_norm"), m.hyper().dim)?);
        m.push(format!("{layer}.layer_out"), ProjAdd { post, scale, ..ProjAdd::plain(self.hidden, w, x) });
        Ok(())
    }

    /// The input of a layer: `input = (embedding + norm(W x0 / sqrt(dim))) / sqrt(2)`.
    pub(super) fn push_input(&self, m: &mut Builder<'_>, layer: usize) -> Result<(), ModelError> {
        let Self { width, table, x0, input, hidden: _, ref norm } = *self;
        let (dim, n_layers) = (m.hyper().dim, m.hyper().n_layers);
        let (stride, first) = (n_layers as u32, layer as u32);
        let embed = Embed { stride, first, scale: (width as f32).sqrt(), ..Embed::tokens(table, input) };
        m.push(format!("{layer}.layer_embed"), embed);

        let rows = layer * width..(layer + 1) * width;
        let mut w = m.part("per_layer_model_proj", [n_layers * width, dim], rows)?;
        w.scale /= (dim as f32).sqrt();
        let post = Some(norm.clone());
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let of_x0 = ProjAdd { post, scale: half, ..ProjAdd::plain(x0, w, input) };
        m.push(format!("{layer}.layer_input"), of_x0);
        Ok(())
    }

    /// `hidden = gelu(gate x) * input`.
    pub(super) fn push_gate(&self, m: &mut Builder<'_>, layer: usize, x: Buf) -> Result<(), ModelError> {
        let gate = m.projection(&format!("blk.{layer}.inp_gate"), self.width, m.hyper().dim)?;
        let gated = FfnIn::plain(x, None, gate, Act::GeluTanh, self.hidden);
        m.push(format!("{layer}.layer_gate"), FfnIn { times: Some(self.input), ..gated });
        Ok(())
    }
}
