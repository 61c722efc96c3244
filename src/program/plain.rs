//! Constructors of stages in their common form, without optional features. A model with a feature sets it and
//! takes the rest from here, as in `Attend { window, ..Attend::causal(q, kv, scale, out) }`. So a new
//! optional field of a stage does not change models without it.

use ggml_types::{Act, ActQuant};

use super::{
    Attend, AttnIn, Buf, Embed, Expert, Experts, FfnIn, GateAct, Kv, Linear, Norm, ProjAdd, QkNorm, Routing,
    Weight,
};

impl Linear {
    /// A linear layer that takes its input as it is.
    pub fn of(w: Weight) -> Self {
        let (norm, bias, basis, clamp) = (None, None, None, None);
        Self { w, norm, bias, act: ActQuant::None, scale: 1.0, basis, lora: Vec::new(), clamp }
    }
}

impl Embed {
    /// Rows of an embedding table without a basis, positions and token types.
    pub fn tokens(table: Weight, x: Buf) -> Self {
        let (positions, types, lora) = (None, None, Vec::new());
        Self { table, stride: 1, first: 0, basis: None, scale: 1.0, positions, types, lora, x }
    }
}

impl AttnIn {
    /// Queries, keys and values without head norms, RoPE and a gate.
    pub fn of(x: Buf, norm: impl Into<Option<Norm>>, [wq, wk, wv]: [Linear; 3], kv: Kv, q: Buf) -> Self {
        Self { wk: Some(wk), wv: Some(wv), ..Self::queries(x, norm, wq, kv, q) }
    }

    /// Only queries, over a cache that another stage has written.
    pub fn queries(x: Buf, norm: impl Into<Option<Norm>>, wq: Linear, kv: Kv, q: Buf) -> Self {
        Self {
            x,
            norm: norm.into(),
            wq,
            wk: None,
            wv: None,
            q_norm: None,
            k_norm: None,
            qk_norm: QkNorm::Heads,
            v_norm: None,
            rope: None,
            q_scale: None,
            kv,
            q,
            gate: None,
        }
    }
}

impl Attend {
    /// Attention of each row to all rows of its sequence up to itself.
    pub fn causal(q: Buf, kv: Kv, scale: f32, out: Buf) -> Self {
        Self {
            q,
            kv,
            scale,
            soft_cap: None,
            window: None,
            ahead: 0,
            whole_images: false,
            sinks: None,
            gate: None,
            gate_act: GateAct::Sigmoid,
            out,
        }
    }
}

impl ProjAdd {
    /// A product added as it is.
    pub fn plain(y: Buf, w: Linear, x: Buf) -> Self {
        Self { y, w, post: None, residual: None, scale: 1.0, x }
    }
}

impl FfnIn {
    /// A gated network: the gate's activation is multiplied with `up`.
    pub fn gated(x: Buf, norm: impl Into<Option<Norm>>, gate: Linear, up: Linear, act: Act, h: Buf) -> Self {
        Self { gate: Some(gate), ..Self::plain(x, norm, up, act, h) }
    }

    /// One product and an activation function.
    pub fn plain(x: Buf, norm: impl Into<Option<Norm>>, up: Linear, act: Act, h: Buf) -> Self {
        Self { x, norm: norm.into(), gate: None, up, act, share: None, times: None, cutoff: None, h }
    }
}

impl Experts {
    /// The experts with the largest logits, weighted with the softmax over these.
    pub fn of(x: Buf, norm: Norm, router: Linear, experts: Vec<Expert>, n_used: usize, act: Act) -> Self {
        let (router_norm, routing, input, out) = (None, Routing::SOFTMAX, None, None);
        Self { x, norm, router_norm, router, routing, experts, n_used, act, input, out }
    }
}
