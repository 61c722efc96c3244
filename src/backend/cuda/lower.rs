//! What a stage needs and launches.

use super::cx::Cx;
use super::driver::{Launch, Limits};
use super::{attend, attn_in, delta, delta_in, embed, experts, ffn_in, linear, logits, proj_add, sample};
use sterna_program::{Program, Stage};

/// The kernels that a stage needs, or a message about what is missing.
pub fn kernels(p: &Program, stage: &Stage, limits: Limits) -> Result<Vec<String>, String> {
    match stage {
        Stage::Embed(s) => embed::kernels(p, s),
        Stage::AttnIn(s) => attn_in::kernels(p, s),
        Stage::Attend(s) => attend::kernels(p, s, limits),
        Stage::DeltaIn(s) => delta_in::kernels(p, s),
        Stage::Delta(s) => delta::kernels(p, s),
        Stage::ProjAdd(s) => proj_add::kernels(p, s),
        Stage::FfnIn(s) => ffn_in::kernels(p, s),
        Stage::Logits(s) => linear::kernels(p, "logits", &[&s.w]),
        Stage::Experts(s) => experts::kernels(p, s),
        Stage::Sample(_) => Ok(vec![sample::KERNEL.to_owned()]),
    }
}

pub fn launches(cx: &Cx<'_>, stage: &Stage) -> Vec<Launch> {
    match stage {
        Stage::Embed(s) => embed::launches(cx, s),
        Stage::AttnIn(s) => attn_in::launches(cx, s),
        Stage::Attend(s) => attend::launches(cx, s),
        Stage::DeltaIn(s) => delta_in::launches(cx, s),
        Stage::Delta(s) => delta::launches(cx, s),
        Stage::ProjAdd(s) => proj_add::launches(cx, s),
        Stage::FfnIn(s) => ffn_in::launches(cx, s),
        Stage::Experts(s) => experts::launches(cx, s),
        Stage::Logits(s) => logits::launches(cx, s),
        Stage::Sample(s) => vec![sample::launch(cx, s)],
    }
}

/// Floats per row of the products that a stage keeps between its launches.
pub fn products(p: &Program, stage: &Stage) -> usize {
    match stage {
        Stage::AttnIn(s) => attn_in::products(p, s),
        Stage::ProjAdd(s) => proj_add::products(p, s),
        Stage::FfnIn(s) => ffn_in::products(p, s),
        Stage::Embed(_)
        | Stage::Attend(_)
        | Stage::DeltaIn(_)
        | Stage::Delta(_)
        | Stage::Experts(_)
        | Stage::Logits(_)
        | Stage::Sample(_) => 0,
    }
}
