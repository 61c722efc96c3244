//! Stages that make the queries, keys and values of a program readable, on any backend.

use super::{AttnIn, Buf, Kv, Program, QkNorm, RopeId, RowsOf, Stage};

/// Location of the vectors of an attention layer, after RoPE and before any cache.
#[derive(Clone, Copy, Debug)]
pub struct LayerVectors {
    /// The stage after which they are ready.
    pub end: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries, `[rows, n_heads * head_dim]`.
    pub q: Buf,
    /// Keys, `[rows, n_kv_heads * head_dim]`.
    pub k: Buf,
    /// Values, `[rows, n_kv_heads * head_dim]`, if they were requested.
    pub v: Option<Buf>,
    /// The cache.
    pub kv: Kv,
    /// Rotary embedding of queries and keys.
    pub rope: Option<RopeId>,
}

impl Program {
    /// Inserts stages before every `AttnIn`: one computes keys as queries and, if `values`, one computes
    /// values as queries. `AttnIn` itself overwrites what they write to the cache. Queries and keys are those
    /// of the model only if the cache's codec does not rotate them.
    ///
    /// # Panics
    /// If an `AttnIn` has no `Attend`.
    pub fn read_out(&mut self, values: bool) -> Vec<LayerVectors> {
        let stages = std::mem::take(&mut self.stages);
        let scale_of = |q: Buf, kv: Kv| {
            let scale = stages.iter().find_map(|(_, stage)| match stage {
                Stage::Attend(s) if (s.q, s.kv) == (q, kv) => Some(s.scale),
                _ => None,
            });
            scale.expect("every cache has an attention stage")
        };
        let mut layers = Vec::new();
        for (label, stage) in &stages {
            // A layer that reads another one's cache has no keys and values of its own.
            if let Stage::AttnIn(s) = stage
                && let Some(wk) = &s.wk
            {
                let decl = self.kv_decl(s.kv);
                let cols = decl.n_kv_heads * decl.head_dim;
                let k = self.buf_of("k", cols);
                let bare = AttnIn { gate: None, q_scale: None, ..s.clone() };
                let keys = AttnIn { wq: wk.clone(), q_norm: s.k_norm.clone(), q: k, ..bare.clone() };
                self.push(format!("{label}.keys"), keys);
                let v = values.then(|| {
                    let v = self.buf_of("v", cols);
                    let wq = s.wv.as_ref().unwrap_or(wk).clone();
                    let (q_norm, k_norm, qk_norm) = (s.v_norm.clone(), None, QkNorm::Heads);
                    let values = AttnIn { wq, q_norm, k_norm, qk_norm, rope: None, q: v, ..bare.clone() };
                    self.push(format!("{label}.values"), values);
                    v
                });
                let (end, scale) = (self.stages.len() + 1, scale_of(s.q, s.kv));
                layers.push(LayerVectors { end, scale, q: s.q, k, v, kv: s.kv, rope: s.rope });
            }
            self.push(label.clone(), stage.clone());
        }
        layers
    }

    /// The buffer of this name with `cols` columns; declares a new one if there is none.
    fn buf_of(&mut self, name: &'static str, cols: usize) -> Buf {
        match self.bufs.iter().position(|buf| buf.name == name && buf.cols == cols) {
            Some(at) => Buf(at as u32),
            None => self.buf(name, RowsOf::Step, cols),
        }
    }
}
