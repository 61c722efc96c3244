//! Mixtures of experts in place of feed-forward networks, with an expert that every row uses.

use super::build::{Mixture, times};
use super::{Builder, ModelError};
use sterna_program::{Act, Buf, Experts, FfnIn, Norm, ProjAdd, Routing};

/// Number of layers before the first mixture.
const N_DENSE: &str = "leading_dense_block_count";

/// Width of the shared expert.
const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

/// Its width in experts, if the file does not specify the width.
const N_SHARED: &str = "expert_shared_count";

/// The mixtures of a model.
#[derive(Clone, Debug)]
pub(super) struct Sparse {
    /// Number of layers before the first mixture, which have a feed-forward network.
    pub n_dense: usize,
    /// Width of the shared expert, if there is one.
    pub shared_dim: Option<usize>,
    /// Routing; files may have a bias in each layer.
    pub routing: Routing,
}

impl Sparse {
    /// Mixtures in all layers, without a shared expert.
    pub const PLAIN: Self = Self { n_dense: 0, shared_dim: None, routing: Routing::SOFTMAX };

    /// The mixtures that the file describes; `routing` is the default of its architecture.
    ///
    /// # Errors
    /// As [`Builder::routing`]; [`ModelError::Metadata`] for an invalid width of the shared expert.
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
        let routing = m.routing(mixture.n_experts, routing)?;
        Ok(Self { n_dense: m.number_or(N_DENSE, 0)?, shared_dim: Some(width).filter(|n| *n > 0), routing })
    }

    /// Pushes a layer's mixture, whose outputs are multiplied by `factor`: `x += factor * (shared expert +
    /// experts)` of `norm(x)`. If the file has `ffn_gate_inp_shexp`, the shared expert has a share per row.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing or of another shape.
    pub fn push(
        &self,
        m: &mut Builder<'_>,
        mixture: Mixture,
        layer: usize,
        (x, norm): (Buf, Norm),
        factor: f32,
    ) -> Result<(), ModelError> {
        let Mixture { n_experts, n_used, ffn_dim } = mixture;
        let (blk, dim) = (format!("blk.{layer}"), m.hyper().dim);
        if let Some(shared_dim) = self.shared_dim {
            let [gate, up] =
                ["gate", "up"].map(|name| m.projection(&format!("{blk}.ffn_{name}_shexp"), shared_dim, dim));
            let share = format!("{blk}.ffn_gate_inp_shexp");
            let has_share = m.has(&format!("{share}.weight"));
            let share = has_share.then(|| m.exact(&share, 1, dim)).transpose()?;
            let h = m.buf_of_width("h", shared_dim);
            let stage = FfnIn::gated(x, norm.clone(), gate?, up?, Act::Silu, h);
            m.push(format!("{layer}.shared_in"), FfnIn { share, ..stage });
        }
        let router = m.exact(&format!("{blk}.ffn_gate_inp"), n_experts, dim)?;
        let bias = format!("{blk}.exp_probs_b.bias");
        let bias = if m.has(&bias) { Some(m.vector(&bias, n_experts)?) } else { None };
        let mut experts = m.experts(&blk, n_experts, ffn_dim, dim)?;
        for expert in &mut experts {
            expert.down = times(factor, expert.down.clone())?;
        }
        let routing = Routing { bias, ..self.routing.clone() };
        let stage = Experts::of(x, norm, router, experts, n_used, Act::Silu);
        m.push(format!("{layer}.experts"), Experts { routing, ..stage });
        if let Some(shared_dim) = self.shared_dim {
            let w = times(factor, m.projection(&format!("{blk}.ffn_down_shexp"), dim, shared_dim)?)?;
            let h = m.buf_of_width("h", shared_dim);
            m.push(format!("{layer}.shared_out"), ProjAdd::plain(h, w, x));
        }
        Ok(())
    }
}
