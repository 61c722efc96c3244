//! Parts of layers that hybrids combine: attention, a Mamba-2 recurrence, a feed-forward network.
//!
//! Each pushes its stages up to the last projection, which is returned: a layer may have two parts on one
//! norm.

use std::ops::RangeInclusive;

use super::build::times;
use super::{Builder, LayerHyper, ModelError};
use sterna_program::{
    Act, Attend, AttnIn, Buf, Conv, FfnIn, Mamba, Norm, NormKind, ProjAdd, ProjIn, RopeId, StateDecl,
};

/// A projection that is added to the residual stream, and its label.
pub(super) type Pending = (String, ProjAdd);

/// Attention of a layer.
pub(super) struct Attention {
    pub rope: Option<RopeId>,
    /// Factor on the scores; by default 1 over the square root of the head dimension.
    pub scale: Option<f32>,
    pub window: Option<u32>,
    /// True if queries and keys have a norm over each head, before RoPE.
    pub head_norms: bool,
    /// Factor on the output.
    pub residual: f32,
}

impl Attention {
    pub(super) const PLAIN: Self =
        Self { rope: None, scale: None, window: None, head_norms: false, residual: 1.0 };

    /// Pushes the stages of a layer.
    pub(super) fn push(&self, m: &mut Builder<'_>, layer: usize, x: Buf) -> Result<Pending, ModelError> {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let Self { rope, scale, window, head_norms, residual } = *self;
        let (dim, head_dim) = (m.hyper().dim, m.hyper().head_dim);
        let LayerHyper { n_heads, n_kv_heads, .. } = m.hyper().layer(layer);
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        let [q, y] = ["q", "y"].map(|name| m.buf_of_width(name, q_dim));
        let kv = m.kv_of(n_kv_heads);
        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        let [q_norm, k_norm] = ["attn_q_norm", "attn_k_norm"]
            .map(|name| head_norms.then(|| m.rms_norm(&blk(name), head_dim)).transpose());
        let (q_norm, k_norm) = (q_norm?, k_norm?);
        let attn_in = AttnIn { q_norm, k_norm, rope, ..AttnIn::of(x, norm, qkv, kv, q) };
        m.push(format!("{layer}.attn_in"), attn_in);
        let scale = scale.unwrap_or(1.0 / (head_dim as f32).sqrt());
        m.push(format!("{layer}.attend"), Attend { window, ..Attend::causal(q, kv, scale, y) });
        let w = times(residual, m.projection(&blk("attn_output"), dim, q_dim)?)?;
        Ok((format!("{layer}.attn_out"), ProjAdd::plain(y, w, x)))
    }
}

/// Mamba-2 of a model's layers.
pub(super) struct MambaLayers {
    /// The state of the recurrence.
    decl: StateDecl,
    /// Rows that the convolution reads.
    taps: usize,
    /// Factor on the output.
    residual: f32,
}

impl MambaLayers {
    /// Reads the sizes.
    pub(super) fn read(m: &Builder<'_>, residual: f32) -> Result<Self, ModelError> {
        const VALUES: &str = "ssm.inner_size";
        const GROUPS: &str = "ssm.group_count";
        /// Larger values are treated as a damaged file.
        const MAX: usize = 1 << 20;
        let within = |key: &str, range: RangeInclusive<usize>| match m.number(key)? {
            number if range.contains(&number) => Ok(number),
            number => Err(m.wrong(key, format!("{} to {}", range.start(), range.end()), number)),
        };
        let (n_heads, values) = (within("ssm.time_step_rank", 1..=MAX)?, within(VALUES, 1..=MAX)?);
        if !values.is_multiple_of(n_heads) {
            return Err(m.wrong(VALUES, format!("a multiple of the {n_heads} heads"), values));
        }
        let n_key_heads = within(GROUPS, 1..=MAX)?;
        if !n_heads.is_multiple_of(n_key_heads) {
            return Err(m.wrong(GROUPS, format!("a divisor of the {n_heads} heads"), n_key_heads));
        }
        let taps = within("ssm.conv_kernel", 2..=StateDecl::MAX_TAPS)?;
        let (head_dim, key_dim) = (values / n_heads, within("ssm.state_size", 1..=1 << 12)?);
        Ok(Self { decl: StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: 1 }, taps, residual })
    }

    /// Pushes the stages of a layer.
    pub(super) fn push(&self, m: &mut Builder<'_>, layer: usize, x: Buf) -> Result<Pending, ModelError> {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let Self { decl, taps, residual } = *self;
        let (dim, eps) = (m.hyper().dim, m.hyper().norm_eps);
        let (n_heads, channels, values) = (decl.n_heads, decl.channels(), decl.n_heads * decl.head_dim);
        let [u, c] = ["u", "c"].map(|name| m.buf_of_width(name, channels));
        let [z, out] = ["z", "o"].map(|name| m.buf_of_width(name, values));
        let a = m.buf_of_width("a", n_heads);

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let [wz, wu, wa] = m.divided(&blk("ssm_in"), [values, channels, n_heads], dim)?;
        let products = vec![(wz, z), (wu, u), (wa, a)];
        m.push(format!("{layer}.mamba_in"), ProjIn { x, norm, products });

        let state = m.state(StateDecl::of_conv(channels, taps));
        let w = m.flattened(&blk("ssm_conv1d.weight"), channels, taps)?;
        let bias = blk("ssm_conv1d.bias");
        let bias = if m.has(&bias) { Some(m.vector(&bias, channels)?) } else { None };
        let (before, after) = (None, None);
        m.push(format!("{layer}.conv"), Conv { u, before, after, state, w, bias, silu: true, out: c });

        let state = m.state(decl);
        let [decay, skip] = ["ssm_a", "ssm_d"].map(|name| m.flattened(&blk(name), n_heads, 1));
        let (decay, skip) = (decay?, skip?);
        let dt = m.vector(&blk("ssm_dt.bias"), n_heads)?;
        let name = blk("ssm_norm.weight");
        let norm = match m.has(&name) {
            true => {
                let weight = m.flattened(&name, decl.n_key_heads, values / decl.n_key_heads)?;
                Some(Norm { kind: NormKind::Rms, weight, bias: None, eps })
            }
            false => None,
        };
        m.push(format!("{layer}.mamba"), Mamba { c, z, a, state, decay, dt, skip, norm, out });
        let w = times(residual, m.projection(&blk("ssm_out"), dim, values)?)?;
        Ok((format!("{layer}.mamba_out"), ProjAdd::plain(out, w, x)))
    }
}

/// Pushes the first half of a gated feed-forward network, `ffn_gate`, `ffn_up` and `ffn_down` with this
/// suffix. `residual` is a factor on the output.
pub(super) fn gated_ffn(
    m: &mut Builder<'_>,
    [label, suffix]: [&str; 2],
    layer: usize,
    [x, hidden]: [Buf; 2],
    norm: Norm,
    residual: f32,
) -> Result<Pending, ModelError> {
    let blk = |name: &str| format!("blk.{layer}.ffn_{name}{suffix}");
    let (dim, ffn_dim) = (m.hyper().dim, m.width_of(hidden));
    let [gate, up] = ["gate", "up"].map(|name| m.projection(&blk(name), ffn_dim, dim));
    m.push(format!("{layer}.{label}_in"), FfnIn::gated(x, norm, gate?, up?, Act::Silu, hidden));
    let w = times(residual, m.projection(&blk("down"), dim, ffn_dim)?)?;
    Ok((format!("{layer}.{label}_out"), ProjAdd::plain(hidden, w, x)))
}
