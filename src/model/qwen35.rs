//! Qwen3.5, 3.6 and 3.8, dense and with experts, and Bonsai 27B: repeats three layers with a gated delta net
//! and one with gated attention.
//!
//! In files the rows of the delta net's values are ordered so that value head `h` belongs to key head
//! `h % n_key_heads`, and in attention's queries each head's part of the gate follows its query. Norm weights
//! are stored ready to multiply. A multi-token prediction (MTP) block after the trunk is a layer with gated
//! attention.

use super::build::Mixture;
use super::{Architecture, Builder, Hyper, ModelError};
use sterna_gguf::Value;
use sterna_program::{
    Act, Attend, AttnIn, Axis, Buf, Delta, Experts, FfnIn, Linear, NormKind, ProjAdd, ProjIn, RopeId,
    RopeStyle, RowsOf, StateDecl, Weight,
};

/// Qwen3.5.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["qwen35", "qwen35moe"], build: |m| hybrid(m, tiled), per_layer: false };

/// Distance between attention layers, if a file does not specify it.
const PERIOD: usize = 4;

/// Maximum number of heads of a delta net; larger values are treated as a damaged file.
const MAX_HEADS: usize = 1 << 16;

/// Maximum head dimension of a delta net.
const MAX_HEAD_DIM: usize = 1 << 10;

/// Weights of a layer with a delta net, whose value heads alternate between key heads.
pub(super) struct DeltaWeights {
    pub wu: Linear,
    pub wz: Linear,
    pub wa: Linear,
    pub wb: Linear,
    pub conv: Weight,
    pub decay: Weight,
    pub dt: Weight,
    /// True if the columns of the output projection are grouped by key head.
    pub grouped: bool,
}

/// Reads the weights of a layer with a delta net.
pub(super) type ReadDelta = fn(&mut Builder<'_>, usize, StateDecl) -> Result<DeltaWeights, ModelError>;

/// A model whose layers have delta nets with the weights that `read` returns, or gated attention.
pub(super) fn hybrid(m: &mut Builder<'_>, read: ReadDelta) -> Result<(), ModelError> {
    let mixture = m.mixture()?;
    let h = m.hyper().clone();
    let (dim, q_dim) = (h.dim, h.n_heads * h.head_dim);
    let n_layers = trunk(m)?;
    let recurrent = Recurrent::read(m, h.n_layers)?;
    let state = state(m)?;
    // These keys have no effect without experts or attention.
    m.overrules("expert_shared_feed_forward_length");
    m.overrules("rope.dimension_sections");
    let ffn_dim = shared_width(m, mixture)?;
    let recurs = (0..n_layers).any(|layer| recurrent.has(layer));
    let attends = (0..n_layers).any(|layer| !recurrent.has(layer));
    let rope = attends.then(|| rope(m, &h)).transpose()?;

    let x = m.embed(1.0)?;
    let heads = rope.map(|rope| HeadBufs::new(m, x, rope, q_dim));
    let delta = recurs.then(|| DeltaBufs {
        x,
        u: m.buf("u", RowsOf::Step, state.channels()),
        z: m.buf("z", RowsOf::Step, state.n_heads * state.head_dim),
        a: m.buf("a", RowsOf::Step, state.n_heads),
        b: m.buf("b", RowsOf::Step, state.n_heads),
        o: m.buf("o", RowsOf::Step, state.n_heads * state.head_dim),
    });
    for layer in 0..n_layers {
        match recurrent.has(layer) {
            true => delta_net(m, layer, state, read, delta.as_ref().expect("a layer recurs"))?,
            false => attention(m, layer, heads.as_ref().expect("a layer attends"))?,
        }
        feed_forward(m, layer, x, (mixture, ffn_dim))?;
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, None)
}

/// Builds the program of the MTP block, a layer with gated attention.
pub(super) fn block(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (h, mixture, layer) = (m.hyper().clone(), m.mixture()?, m.trunk()?);
    let ffn_dim = shared_width(m, mixture)?;
    super::mtp::block(m, layer, NormKind::Rms, |m, x| {
        let rope = rope(m, &h)?;
        let heads = HeadBufs::new(m, x, rope, h.n_heads * h.head_dim);
        attention(m, layer, &heads)?;
        feed_forward(m, layer, x, (mixture, ffn_dim))
    })
}

/// Width of the network that every row uses.
fn shared_width(m: &Builder<'_>, mixture: Option<Mixture>) -> Result<usize, ModelError> {
    match mixture {
        Some(mixture) => m.number_or("expert_shared_feed_forward_length", mixture.ffn_dim),
        None => Ok(m.hyper().ffn_dim),
    }
}

/// The network that every row uses, of `ffn_dim` columns, and a mixture of experts if the model has it.
fn feed_forward(
    m: &mut Builder<'_>,
    layer: usize,
    x: Buf,
    (mixture, ffn_dim): (Option<Mixture>, usize),
) -> Result<(), ModelError> {
    let (dim, blk) = (m.hyper().dim, |name: &str| format!("blk.{layer}.{name}"));
    let hidden = m.buf_of_width("h", ffn_dim);
    let norm = m.rms_norm(&blk("post_attention_norm"), dim)?;
    let (of_all, label) = if mixture.is_some() { ("_shexp", "shared") } else { ("", "ffn") };
    let gate = Some(m.projection(&blk(&format!("ffn_gate{of_all}")), ffn_dim, dim)?);
    let up = m.projection(&blk(&format!("ffn_up{of_all}")), ffn_dim, dim)?;
    let share = match mixture {
        Some(_) => Some(m.exact(&blk("ffn_gate_inp_shexp"), 1, dim)?),
        None => None,
    };
    let ffn_in = FfnIn { gate, share, ..FfnIn::plain(x, norm.clone(), up, Act::Silu, hidden) };
    m.push(format!("{layer}.{label}_in"), ffn_in);
    if let Some(Mixture { n_experts, n_used, ffn_dim }) = mixture {
        let router = m.exact(&blk("ffn_gate_inp"), n_experts, dim)?;
        let experts = m.experts(&format!("blk.{layer}"), n_experts, ffn_dim, dim)?;
        m.push(format!("{layer}.experts"), Experts::of(x, norm, router, experts, n_used, Act::Silu));
    }
    let w = m.projection(&blk(&format!("ffn_down{of_all}")), dim, ffn_dim)?;
    m.push(format!("{layer}.{label}_out"), ProjAdd::plain(hidden, w, x));
    Ok(())
}

struct HeadBufs {
    x: Buf,
    rope: RopeId,
    q: Buf,
    gate: Buf,
    y: Buf,
}

impl HeadBufs {
    fn new(m: &mut Builder<'_>, x: Buf, rope: RopeId, q_dim: usize) -> Self {
        let [q, gate, y] = ["q", "gate", "y"].map(|name| m.buf(name, RowsOf::Step, q_dim));
        Self { x, rope, q, gate, y }
    }
}

struct DeltaBufs {
    x: Buf,
    u: Buf,
    z: Buf,
    a: Buf,
    b: Buf,
    o: Buf,
}

/// The weights in a file of Qwen3.5.
fn tiled(m: &mut Builder<'_>, layer: usize, decl: StateDecl) -> Result<DeltaWeights, ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let StateDecl { n_heads, head_dim, taps, .. } = decl;
    let dim = m.hyper().dim;
    Ok(DeltaWeights {
        wu: m.projection(&blk("attn_qkv"), decl.channels(), dim)?,
        wz: m.projection(&blk("attn_gate"), n_heads * head_dim, dim)?,
        wa: m.projection(&blk("ssm_alpha"), n_heads, dim)?,
        wb: m.projection(&blk("ssm_beta"), n_heads, dim)?,
        conv: m.flattened(&blk("ssm_conv1d.weight"), decl.channels(), taps)?,
        decay: m.vector(&blk("ssm_a"), n_heads)?,
        dt: m.vector(&blk("ssm_dt.bias"), n_heads)?,
        grouped: m.has_grouped_values(),
    })
}

fn delta_net(
    m: &mut Builder<'_>,
    layer: usize,
    decl: StateDecl,
    read: ReadDelta,
    bufs: &DeltaBufs,
) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let Hyper { dim, norm_eps: eps, .. } = *m.hyper();
    let DeltaBufs { x, u, z, a, b, o } = *bufs;
    let state = m.state(decl);

    let norm = m.rms_norm(&blk("attn_norm"), dim)?;
    let DeltaWeights { wu, wz, wa, wb, conv, decay, dt, grouped } = read(m, layer, decl)?;
    let products = vec![(wu, u), (wz, z), (wa, a), (wb, b)];
    m.push(format!("{layer}.delta_in"), ProjIn { x, norm, products });

    let norm = m.rms_norm(&blk("ssm_norm"), decl.head_dim)?;
    m.push(
        format!("{layer}.delta"),
        Delta { u, z, a, b, state, conv, decay, dt, eps, norm, grouped, out: o },
    );

    let w = m.projection(&blk("ssm_out"), dim, decl.n_heads * decl.head_dim)?;
    m.push(format!("{layer}.delta_out"), ProjAdd::plain(o, w, x));
    Ok(())
}

fn attention(m: &mut Builder<'_>, layer: usize, bufs: &HeadBufs) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let Hyper { dim, n_heads, n_kv_heads, head_dim, .. } = *m.hyper();
    let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let HeadBufs { x, rope, q, gate, y } = *bufs;
    let (kv, rope, gate) = (m.kv(), Some(rope), Some(gate));

    let norm = m.rms_norm(&blk("attn_norm"), dim)?;
    let qkv = m.qkv(&format!("blk.{layer}"), 2 * q_dim, kv_dim, dim)?;
    let q_norm = Some(m.rms_norm(&blk("attn_q_norm"), head_dim)?);
    let k_norm = Some(m.rms_norm(&blk("attn_k_norm"), head_dim)?);
    m.push(
        format!("{layer}.attn_in"),
        AttnIn { q_norm, k_norm, rope, gate, ..AttnIn::of(x, norm, qkv, kv, q) },
    );
    m.push(format!("{layer}.attend"), Attend { gate, ..Attend::causal(q, kv, scale, y) });

    let w = m.projection(&blk("attn_output"), dim, q_dim)?;
    m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));
    Ok(())
}

/// The number of layers without the multi-token prediction (MTP) blocks. Tensors for images are ignored.
fn trunk(m: &mut Builder<'_>) -> Result<usize, ModelError> {
    let n_layers = m.trunk()?;
    if m.leave_out(|name| name.starts_with("v.") || name.starts_with("mm.")) {
        m.note("the file's tensors for images are ignored: only text input is supported");
    }
    Ok(n_layers)
}

/// The blocks with a delta net.
enum Recurrent {
    /// Blocks `n - 1`, `2 n - 1`, .. have attention. Not stored as a list: a file may claim any number of
    /// blocks.
    AllButEvery(usize),
    /// One entry per block: true for a delta net.
    Listed(Vec<bool>),
}

impl Recurrent {
    fn read(m: &Builder<'_>, n_blocks: usize) -> Result<Self, ModelError> {
        const LISTED: &str = "attention.recurrent_layers";
        const EVERY: &str = "full_attention_interval";
        if let Some(value) = m.value(LISTED) {
            m.overrules(EVERY);
            let truth = |value: Value| match value {
                Value::Bool(truth) => Some(truth),
                value => value.as_int().map(|int| int != 0),
            };
            let listed: Option<Vec<bool>> = match value {
                Value::Array(array) if array.len() == n_blocks => array.values().map(truth).collect(),
                _ => None,
            };
            let want = format!("an array of {n_blocks} booleans");
            return listed.map(Self::Listed).ok_or_else(|| m.wrong(LISTED, want, "another type"));
        }
        let every = m.number_or(EVERY, PERIOD)?;
        match (1..=n_blocks).contains(&every) {
            true => Ok(Self::AllButEvery(every)),
            false => Err(m.wrong(EVERY, format!("1 to the {n_blocks} blocks"), every)),
        }
    }

    fn has(&self, layer: usize) -> bool {
        match self {
            Self::AllButEvery(n) => !(layer + 1).is_multiple_of(*n),
            Self::Listed(truths) => truths[layer],
        }
    }
}

fn state(m: &Builder<'_>) -> Result<StateDecl, ModelError> {
    const HEADS: &str = "ssm.time_step_rank";
    const KEY_HEADS: &str = "ssm.group_count";
    const HEAD_DIM: &str = "ssm.state_size";
    const VALUES: &str = "ssm.inner_size";
    const TAPS: &str = "ssm.conv_kernel";
    let within = |key: &str, range: std::ops::RangeInclusive<usize>| match m.number(key)? {
        number if range.contains(&number) => Ok(number),
        number => Err(m.wrong(key, format!("{} to {}", range.start(), range.end()), number)),
    };
    let (n_heads, n_key_heads) = (within(HEADS, 1..=MAX_HEADS)?, within(KEY_HEADS, 1..=MAX_HEADS)?);
    if !n_heads.is_multiple_of(n_key_heads) {
        return Err(m.wrong(KEY_HEADS, format!("a divisor of the {n_heads} value heads"), n_key_heads));
    }
    let (head_dim, step) = (within(HEAD_DIM, 1..=MAX_HEAD_DIM)?, StateDecl::HEAD_DIM_STEP);
    if !head_dim.is_multiple_of(step) {
        return Err(m.wrong(HEAD_DIM, format!("a multiple of {step}"), head_dim));
    }
    let values = m.number(VALUES)?;
    if values != n_heads * head_dim {
        let want = format!("{}, {n_heads} heads of {head_dim}", n_heads * head_dim);
        return Err(m.wrong(VALUES, want, values));
    }
    let taps = within(TAPS, 2..=StateDecl::MAX_TAPS)?;
    Ok(StateDecl { n_heads, n_key_heads, head_dim, key_dim: head_dim, taps })
}

/// The rotary embedding. For text, the positions of all sections are equal; a pair outside all sections would
/// not be rotated.
fn rope(m: &mut Builder<'_>, h: &Hyper) -> Result<RopeId, ModelError> {
    const SECTIONS: &str = "rope.dimension_sections";
    if let Some(Value::Array(array)) = m.value(SECTIONS) {
        let sections: Vec<i128> = array.values().filter_map(|value| value.as_int()).collect();
        let covered = |pair: usize| sections.get(pair % 3).is_some_and(|n| (pair as i128) < 3 * n);
        if let Some(pair) = (0..h.rope.dims / 2).find(|pair| !covered(*pair)) {
            let want = format!("sections that cover all {} pairs", h.rope.dims / 2);
            return Err(m.wrong(SECTIONS, want, format!("{sections:?}, without pair {pair}")));
        }
        if m.has_images() {
            // Interleaved: pairs of the sections alternate.
            let axes = [Axis::Time, Axis::Row, Axis::Column].into_iter().cycle();
            return m.rope_of_axes(RopeStyle::Halves, axes);
        }
    }
    m.rope(RopeStyle::Halves)
}
