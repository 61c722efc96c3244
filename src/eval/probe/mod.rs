//! Inputs of attention on a text: queries, keys and values of every layer before they are rounded by a cache,
//! and the effect of each kind of cache on them.
//!
//! It does not depend on backend internals: the model's program gets additional stages that compute keys and
//! values as queries. Start at [`Probe`].

mod attention;
mod spread;

pub use attention::AttentionKl;
pub use spread::Spread;

use sterna_backend::{self as backend, Backend, Exec};
use sterna_engine::Error;
use sterna_engine::{self as engine, EngineOptions};
use sterna_gguf::Gguf;
use sterna_model::Model;
use sterna_program::{Buf, LayerVectors, Limits, PageTable, Program, Row, Step};

/// A model on the CPU backend whose queries, keys and values can be read.
pub struct Probe {
    backend: Box<dyn Backend>,
    exec: Exec,
    program: Program,
    layers: Vec<LayerVectors>,
}

/// One layer's vectors of a text, after RoPE and before any cache.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<'a> {
    /// Number of positions.
    pub n: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of KV heads.
    pub n_kv_heads: usize,
    /// Length of a vector.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries, `[n, n_heads * head_dim]`.
    pub q: &'a [f32],
    /// Keys, `[n, n_kv_heads * head_dim]`.
    pub k: &'a [f32],
    /// Values, `[n, n_kv_heads * head_dim]`.
    pub v: &'a [f32],
}

impl Probe {
    /// A probe for texts of up to `n` tokens, for the model in `gguf`. Of the options, only the number of
    /// threads is used.
    ///
    /// # Errors
    /// As [`Engine::from_gguf`](sterna_engine::Engine::from_gguf).
    pub fn new(gguf: &Gguf, options: &EngineOptions, n: usize) -> Result<Self, Error> {
        let options = super::one_text(options, n);
        let Model { mut program, weights, .. } = engine::model(gguf, &options)?;
        let layers = program.read_out(true);
        let mut backend = backend::open("cpu", options.n_threads())?;
        engine::fits(&backend.plan(&program)?, n)?;
        let ids = engine::upload(&mut *backend, weights, &program, options.n_threads(), |_| ())?;
        let exec = backend.compile(&program, &ids)?;
        Ok(Self { backend, exec, program, layers })
    }

    /// Number of layers of the model.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Runs a text, and passes the vectors of each layer to `each`.
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::ContextFull`], [`Error::Backend`].
    pub fn run(&mut self, tokens: &[u32], mut each: impl FnMut(usize, Vectors<'_>)) -> Result<(), Error> {
        let Limits { rows: n_ctx, pages, .. } = self.program.limits;
        let n = tokens.len();
        if n > n_ctx {
            return Err(Error::ContextFull { n_ctx, used: 0, more: n });
        }
        let n_vocab = self.program.weights[0].rows;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(Error::Token { token, n_vocab });
        }
        let rows: Vec<Row> =
            (0..n).map(|i| Row { token: tokens[i], pos: i as u32, seq: 0, logits: false }).collect();
        let mut table = PageTable::new(1, pages);
        table.seq_mut(0).extend(0..pages as u32);
        let step = Step { rows: &rows, pages: &table, sampling: &[], changes: &[] };
        let mut start = 0;
        for (i, layer) in self.layers.iter().enumerate() {
            self.backend.run_stages(self.exec, start..layer.end, &step)?;
            start = layer.end;
            let mut read = |buf: Buf| {
                let mut out = vec![0.0; n * self.program.buf_decl(buf).cols];
                self.backend.read(self.exec, buf, 0, &mut out).map(|()| out)
            };
            let LayerVectors { end: _, scale, q, k, v, kv, rope: _ } = *layer;
            let (q, k, v) = (read(q)?, read(k)?, read(v.expect("values were requested"))?);
            let (n_kv_heads, head_dim) = {
                let kv = self.program.kv_decl(kv);
                (kv.n_kv_heads, kv.head_dim)
            };
            let n_heads = q.len() / n.max(1) / head_dim;
            each(i, Vectors { n, n_heads, n_kv_heads, head_dim, scale, q: &q, k: &k, v: &v });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("program", &self.program.name).finish_non_exhaustive()
    }
}
