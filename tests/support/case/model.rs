//! A complete synthetic BitNet model, small enough for every backend.

use ggml_types::{KvSide, kv_by_name, kv_on};
use sterna::program::{
    Act, ActQuant, Attend, AttnIn, Buf, Embed, Expert, Experts, FfnIn, KvDecl, KvWindow, Limits, Linear,
    Logits, NormKind, ProjAdd, Rope, RopeStyle, RowsOf, Sample,
};

use super::{Case, ty};

#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub n_layers: usize,
    pub dim: usize,
    pub ffn_dim: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub n_vocab: usize,
    pub weights: &'static str,
    pub kv: &'static str,
    /// Norms of query and key heads, as in Qwen3.
    pub head_norms: bool,
    /// Type of the gate and value weights, if different.
    pub other: Option<&'static str>,
    /// Number of experts instead of a feed-forward network, and number used per row.
    pub experts: Option<(usize, usize)>,
}

/// Two layers, two KV heads with four query heads each.
pub const SMALL: Model = Model {
    n_layers: 2,
    dim: 256,
    ffn_dim: 384,
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 32,
    n_vocab: 300,
    weights: "i2_s",
    kv: "f16",
    head_norms: false,
    other: None,
    experts: None,
};

/// The same model with experts.
pub const MIXTURE: Model = Model { weights: "f16", experts: Some((6, 2)), ..SMALL };

impl Model {
    pub fn case(&self, name: &str, limits: Limits) -> (Case, Buf) {
        let mut case = Case::new(name, limits);
        let Self { n_layers, dim, ffn_dim, n_heads, n_kv_heads, head_dim, n_vocab, .. } = *self;
        let (q_cols, kv_cols) = (n_heads * head_dim, n_kv_heads * head_dim);
        let (weights, codec) = (ty(self.weights), kv_by_name(self.kv).expect("a KV codec"));
        let act_of = |name| match name {
            "i2_s" => ActQuant::I8PerToken,
            "q4_k" | "q6_k" => ActQuant::I8PerBlock,
            _ => ActQuant::None,
        };
        let act = act_of(self.weights);
        let (other, other_act) = self.other.map_or((weights, act), |name| (ty(name), act_of(name)));
        let [x, q, y] = [("x", dim), ("q", q_cols), ("y", q_cols)].map(|(n, c)| case.buf(n, c));
        // Experts do not use it.
        let h = self.experts.is_none().then(|| case.buf("h", ffn_dim));
        let logits = case.p.buf("logits", RowsOf::Outputs, n_vocab);
        let inv_freq =
            (0..head_dim / 2).map(|i| 500_000.0_f64.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        let rope = Some(case.p.rope(Rope {
            style: RopeStyle::Halves,
            inv_freq,
            magnitude: 1.0,
            axes: None,
            ahead: 0,
        }));
        let embed: Vec<f32> = case.numbers.values(n_vocab * dim);
        let table = case.weight_of(ty("f16"), n_vocab, dim, &embed);
        case.p.push("embed", Embed::tokens(table, x));
        for i in 0..n_layers {
            let norm = case.norm(NormKind::Rms, dim);
            let wq = case.linear(weights, q_cols, dim, act);
            let wk = case.linear(weights, kv_cols, dim, act);
            let wv = case.linear(other, kv_cols, dim, other_act);
            let v = kv_on(KvSide::Values, codec);
            let kv = case.p.kv(KvDecl {
                n_kv_heads,
                head_dim,
                k: codec,
                v,
                basis: None,
                window: KvWindow::default(),
                sliding: None,
                values_are_keys: false,
            });
            let mut head_norm = || self.head_norms.then(|| case.norm(NormKind::Rms, head_dim));
            let (q_norm, k_norm) = (head_norm(), head_norm());
            case.p.push(
                format!("{i}.attn_in"),
                AttnIn { q_norm, k_norm, rope, ..AttnIn::of(x, norm, [wq, wk, wv], kv, q) },
            );
            let scale = 1.0 / (head_dim as f32).sqrt();
            case.p.push(format!("{i}.attend"), Attend::causal(q, kv, scale, y));
            let norm = Some(case.norm(NormKind::Rms, q_cols));
            let w = Linear { norm, ..case.linear(weights, dim, q_cols, act) };
            case.p.push(format!("{i}.attn_out"), ProjAdd::plain(y, w, x));
            let norm = case.norm(NormKind::Rms, dim);
            if let Some((n_experts, n_used)) = self.experts {
                let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
                let expert = |_| Expert {
                    gate: Some(case.linear(other, ffn_dim, dim, other_act)),
                    up: case.linear(weights, ffn_dim, dim, act),
                    down: case.linear(weights, dim, ffn_dim, act),
                };
                let experts = (0..n_experts).map(expert).collect();
                let act = Act::Silu;
                case.p.push(format!("{i}.experts"), Experts::of(x, norm, router, experts, n_used, act));
                continue;
            }
            let Some(h) = h else { continue };
            let gate = Some(case.linear(other, ffn_dim, dim, other_act));
            let up = case.linear(weights, ffn_dim, dim, act);
            case.p.push(format!("{i}.ffn_in"), FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Relu2, h) });
            let norm = Some(case.norm(NormKind::Rms, ffn_dim));
            let w = Linear { norm, ..case.linear(weights, dim, ffn_dim, act) };
            case.p.push(format!("{i}.ffn_out"), ProjAdd::plain(h, w, x));
        }
        let norm = case.norm(NormKind::Rms, dim);
        let w = Linear::of(table);
        case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
        case.p.push("sample", Sample { logits });
        (case, logits)
    }
}
