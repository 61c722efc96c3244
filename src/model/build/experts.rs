//! Mixtures of experts of a model that is being built.

use super::Builder;
use crate::ModelError;
use sterna_gguf::Value;
use sterna_program::{Expert, Gating, Groups, Linear, Routing};

/// Maximum number of experts; larger values are treated as a damaged file.
const MAX_EXPERTS: usize = 4096;

/// Parameters of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    /// Number of experts per layer.
    pub n_experts: usize,
    /// Number of experts used per row.
    pub n_used: usize,
    /// Columns of an expert's hidden layer.
    pub ffn_dim: usize,
}

impl Mixture {
    /// Maximum number of columns of an expert.
    pub const MAX_WIDTH: usize = 1 << 24;
}

impl Builder<'_> {
    /// The mixture of experts that the file's layers have instead of a feed-forward network, if any.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for invalid numbers.
    pub fn mixture(&self) -> Result<Option<Mixture>, ModelError> {
        self.overrules("expert_used_count");
        let wrong = |name, want: String, got: usize| Err(self.wrong(name, want, got));
        let n_experts = match self.count("expert_count")? {
            None | Some(0) => return Ok(None),
            Some(n) if n > MAX_EXPERTS => return wrong("expert_count", format!("0 to {MAX_EXPERTS}"), n),
            Some(n) => n,
        };
        let n_used = self.number("expert_used_count")?;
        if !(1..=n_experts).contains(&n_used) {
            return wrong("expert_used_count", format!("1 to the {n_experts} experts"), n_used);
        }
        const WIDTH: &str = "expert_feed_forward_length";
        let ffn_dim = match self.count(WIDTH)? {
            None => self.hyper.ffn_dim,
            Some(n) if n == 0 || n > Mixture::MAX_WIDTH => {
                return wrong(WIDTH, format!("1 to {}", Mixture::MAX_WIDTH), n);
            }
            Some(n) => n,
        };
        Ok(Some(Mixture { n_experts, n_used, ffn_dim }))
    }

    /// The routing of rows to `n_experts` experts: `default`, changed by the file's keys of gating,
    /// normalisation, factor and groups.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for an invalid value.
    pub fn routing(&mut self, n_experts: usize, default: &Routing) -> Result<Routing, ModelError> {
        const GATING: &str = "expert_gating_func";
        const NORMALISE: &str = "expert_weights_norm";
        const SCALE: &str = "expert_weights_scale";
        let (gating, of_chosen) = match self.number_or(GATING, 0)? {
            0 => (default.gating, false),
            1 => (Gating::Softmax, false),
            2 => (Gating::Sigmoid, false),
            // Softmax over the chosen logits.
            3 => (Gating::Softmax, true),
            other => return Err(self.wrong(GATING, "1, 2 or 3", other)),
        };
        let normalise = match self.value(NORMALISE) {
            None => default.normalise,
            Some(Value::Bool(normalise)) => *normalise,
            Some(other) => return Err(self.wrong(NORMALISE, "true or false", other.describe())),
        };
        let scale = match self.gguf.metadata().f32(&self.key(SCALE))? {
            // Converters write 0 for models without a factor.
            Some(0.0) => 1.0,
            _ => self.factor(SCALE, default.scale)?,
        };
        let groups = self.groups(n_experts)?;
        Ok(Routing { gating, bias: None, groups, normalise: normalise || of_chosen, scale })
    }

    /// The groups of experts, if there are several.
    fn groups(&self, n_experts: usize) -> Result<Option<Groups>, ModelError> {
        const GROUPS: &str = "expert_group_count";
        const USED: &str = "expert_group_used_count";
        let n = self.number_or(GROUPS, 1)?;
        let n_used = self.number_or(USED, n)?;
        if n <= 1 || n_used == n {
            return Ok(None);
        }
        if !n_experts.is_multiple_of(n) || n_experts / n < 2 {
            let want = format!("a divisor of the {n_experts} experts with at least 2 in each group");
            return Err(self.wrong(GROUPS, want, n));
        }
        let least = self.number("expert_used_count")?.div_ceil(n_experts / n);
        match (least..n).contains(&n_used) {
            true => Ok(Some(Groups { n, n_used })),
            false => Err(self.wrong(USED, format!("{least} to the {n} groups"), n_used)),
        }
    }

    /// The experts of a block: `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`, each with all experts
    /// concatenated, or gates and ups in one tensor, `ffn_gate_up_exps`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing, of another shape, or of a type whose rows depend on
    /// each other.
    pub fn experts(
        &mut self,
        blk: &str,
        n: usize,
        ffn_dim: usize,
        dim: usize,
    ) -> Result<Vec<Expert>, ModelError> {
        let both = format!("{blk}.ffn_gate_up_exps");
        self.check_scale(&both)?;
        let (gates, ups) = if self.has(&format!("{both}.weight")) {
            let halves = (0..2 * n).map(|half| half * ffn_dim..(half + 1) * ffn_dim);
            let all = self.parts(&both, 2 * n * ffn_dim, dim, halves)?;
            let scales = self.scales(&both, n)?;
            let half = |first: usize| all.iter().skip(first).step_by(2).cloned().zip(&scales);
            let scaled = |(layer, scale): (Linear, &f32)| Linear { scale: *scale, ..layer };
            (half(0).map(scaled).collect::<Vec<_>>(), half(1).map(scaled).collect())
        } else {
            (self.of_experts(blk, "gate", n, [ffn_dim, dim])?, self.of_experts(blk, "up", n, [ffn_dim, dim])?)
        };
        let downs = self.of_experts(blk, "down", n, [dim, ffn_dim])?;
        let layers = gates.into_iter().zip(ups).zip(downs);
        Ok(layers.map(|((gate, up), down)| Expert { gate: Some(gate), up, down }).collect())
    }

    /// Like [`experts`](Self::experts), without gates.
    ///
    /// # Errors
    /// As [`experts`](Self::experts).
    pub fn plain_experts(
        &mut self,
        blk: &str,
        n: usize,
        ffn_dim: usize,
        dim: usize,
    ) -> Result<Vec<Expert>, ModelError> {
        let ups = self.of_experts(blk, "up", n, [ffn_dim, dim])?;
        let downs = self.of_experts(blk, "down", n, [dim, ffn_dim])?;
        Ok(ups.into_iter().zip(downs).map(|(up, down)| Expert { gate: None, up, down }).collect())
    }

    /// One layer of all experts, `[outputs, inputs]` each.
    fn of_experts(
        &mut self,
        blk: &str,
        name: &str,
        n: usize,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Vec<Linear>, ModelError> {
        let stem = format!("{blk}.ffn_{name}_exps");
        self.check_scale(&stem)?;
        let each = (0..n).map(|i| i * outputs..(i + 1) * outputs);
        let layers = self.parts(&stem, n * outputs, inputs, each)?;
        let scales = self.scales(&stem, n)?;
        Ok(layers.into_iter().zip(scales).map(|(layer, scale)| Linear { scale, ..layer }).collect())
    }
}
