//! Multi-head latent attention: there are no kernels, and the plan rejects it by name.

use sterna_program::{HeadProj, LatentIn};

pub const MISSING: &str = "latent_in: multi-head latent attention runs only on the CPU (backend cpu)";

pub fn missing(s: &LatentIn) -> Vec<String> {
    let LatentIn { x: _, norm: _, q_latent: _, wq: _, wk: _, wkv: _, kv_norm: _, rope: _, kv: _, q: _ } = s;
    vec![MISSING.to_owned()]
}

pub fn missing_heads(s: &HeadProj) -> Vec<String> {
    let HeadProj { x: _, w: _, out: _ } = s;
    vec![MISSING.to_owned()]
}
