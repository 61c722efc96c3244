//! Mixtures of experts in place of feed-forward networks, with an expert that every row uses.

use super::build::{Mixture, times};
use super::{Builder, ModelError};
use sterna_program::{Act, Buf, Experts, FfnIn, Norm, NormAdd, ProjAdd, ProjIn, Routing};

/// Number of layers before the first mixture.
const N_DENSE: &str = "leading_dense_block_count";

/// Distance between layers with a mixture.
const STEP: &str = "interleave_moe_layer_step";

/// Width of the shared expert.
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

/// Its width in experts, if the file does not specify the width.
const N_SHARED: &str = "expert_shared_count";

/// The mixtures of a model.
#[derive(Clone, Debug)]
pub(super) struct Sparse {
    /// Number of layers before the first mixture, which have a feed-forward network.
    pub n_dense: usize,
    /// Distance between layers with a mixture, at least 1: the last of each run of `step` layers has one.
    pub step: usize,
    /// Width of the shared expert, if there is one.
    pub shared_dim: Option<usize>,
    /// Routing; files may have a bias in each layer.
    pub routing: Routing,
    /// Activation function of the experts and of the shared one.
    pub act: Act,
    /// True if they have a gate.
    pub gated: bool,
    /// True if the experts may have a latent vector of their input as theirs, whose sum is projected back.
    /// The router and the shared expert have the input itself. Without a norm of the sum and a factor.
    pub latent: bool,
}

impl Sparse {
    /// Mixtures in all layers, without a shared expert.
    pub const PLAIN: Self = Self {
        n_dense: 0,
        step: 1,
        shared_dim: None,
        routing: Routing::SOFTMAX,
        act: Act::Silu,
        gated: true,
        latent: false,
    };

    /// The mixtures that the file describes; `routing` is the default of its architecture.
    ///
    /// # Errors
    /// As [`Builder::routing`]; [`ModelError::Metadata`] for an invalid width of the shared expert or an
    /// invalid distance between mixtures.
    pub fn read(m: &mut Builder<'_>, routing: &Routing) -> Result<Self, ModelError> {
        m.overrules(N_SHARED);
        let Some(mixture) = m.mixture()? else { return Ok(Self::PLAIN) };
        let (key, width) = match m.value(SHARED_WIDTH) {
            Some(_) => (SHARED_WIDTH, m.number(SHARED_WIDTH)?),
            None => (N_SHARED, m.number_or(N_SHARED, 0)?.saturating_mul(mixture.ffn_dim)),
        };
        if width > Mixture::MAX_WIDTH {
            return Err(m.wrong(key, format!("at most {} columns", Mixture::MAX_WIDTH), width));
        }
        let step = m.number_or(STEP, 1)?;
        if step == 0 {
            return Err(m.wrong(STEP, "at least 1", step));
        }
        let routing = m.routing(mixture.n_experts, routing)?;
        let (n_dense, shared_dim) = (m.number_or(N_DENSE, 0)?, Some(width).filter(|n| *n > 0));
        Ok(Self { n_dense, step, shared_dim, routing, ..Self::PLAIN })
    }

    /// True if a layer has a mixture.
    pub fn is_at(&self, layer: usize) -> bool {
        layer >= self.n_dense && (layer + 1).is_multiple_of(self.step)
    }

    /// Pushes a layer's mixture, whose outputs are multiplied by `factor`: `x += factor * (shared expert +
    /// experts)` of `norm(x)`, or `x += post(..)` of that sum. If the file has `ffn_gate_inp_shexp`, the
    /// shared expert has a share per row.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing or of another shape.
    pub fn push(
        &self,
        m: &mut Builder<'_>,
        mixture: Mixture,
        layer: usize,
        (x, norm, post): (Buf, Norm, Option<Norm>),
        factor: f32,
    ) -> Result<(), ModelError> {
        let Mixture { n_experts, n_used, ffn_dim } = mixture;
        let Self { shared_dim, ref routing, act, gated, .. } = *self;
        let (blk, dim) = (format!("blk.{layer}"), m.hyper().dim);
        if let Some(shared_dim) = shared_dim {
            let mut of = |name: &str| m.projection(&format!("{blk}.ffn_{name}_shexp"), shared_dim, dim);
            let (gate, up) = (gated.then(|| of("gate")).transpose()?, of("up")?);
            let share = format!("{blk}.ffn_gate_inp_shexp");
            let has_share = m.has(&format!("{share}.weight"));
            let share = has_share.then(|| m.exact(&share, 1, dim)).transpose()?;
            let h = m.buf_of_width("h", shared_dim);
            let stage = FfnIn::plain(x, norm.clone(), up, act, h);
            m.push(format!("{layer}.shared_in"), FfnIn { gate, share, ..stage });
        }
        let router = m.exact(&format!("{blk}.ffn_gate_inp"), n_experts, dim)?;
        let bias = format!("{blk}.exp_probs_b.bias");
        let bias = if m.has(&bias) { Some(m.vector(&bias, n_experts)?) } else { None };
        let latent = self.latent.then(|| m.rows_of(&format!("{blk}.ffn_latent_down.weight"))).flatten();
        let width = latent.unwrap_or(dim);
        let mut experts = match gated {
            true => m.experts(&blk, n_experts, ffn_dim, width)?,
            false => m.plain_experts(&blk, n_experts, ffn_dim, width)?,
        };
        for expert in &mut experts {
            expert.down = times(factor, expert.down.clone())?;
        }
        let routing = Routing { bias, ..routing.clone() };
        let mut input = None;
        if let Some(width) = latent {
            let buf = m.buf_of_width("latent", width);
            let products = vec![(m.projection(&format!("{blk}.ffn_latent_down"), width, dim)?, buf)];
            m.push(format!("{layer}.latent_in"), ProjIn { x, norm: norm.clone(), products });
            input = Some(buf);
        }
        let sum = match latent {
            Some(width) => Some(m.buf_of_width("latent_sum", width)),
            None => post.is_some().then(|| m.buf_of_width("sum", dim)),
        };
        let stage = Experts::of(x, norm, router, experts, n_used, act);
        m.push(format!("{layer}.experts"), Experts { routing, input, out: sum, ..stage });
        if let (Some(width), Some(sum)) = (latent, sum) {
            let w = m.projection(&format!("{blk}.ffn_latent_up"), dim, width)?;
            m.push(format!("{layer}.latent_out"), ProjAdd::plain(sum, w, x));
        }
        // A sum of latent vectors is already in the stream.
        let out = sum.filter(|_| latent.is_none());
        if let Some(shared_dim) = shared_dim {
            let w = times(factor, m.projection(&format!("{blk}.ffn_down_shexp"), dim, shared_dim)?)?;
            let h = m.buf_of_width("h", shared_dim);
            m.push(format!("{layer}.shared_out"), ProjAdd::plain(h, w, out.unwrap_or(x)));
        }
        if let (Some(y), Some(norm)) = (out, post) {
            m.push(format!("{layer}.ffn_out"), NormAdd { y, norm, scale: 1.0, x });
        }
        Ok(())
    }
}
