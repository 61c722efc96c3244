//! The lowering of a stage to operations, which the plan and the compiled program ask for everything else.

use super::adapters::OfTokens;
use super::cx::{Cx, Place};
use super::driver::{Launch, Limits};
use super::experts::Mixed;
use super::kernel_name::KernelName;
use super::op::{Op, Ops};
use super::post_norm::PostNorm;
use super::{attend, attn_in, ffn_in, latent_in, logits, proj_add, proj_in};
use crate::Macs;
use sterna_program::{NormAdd, Program, Stage};

/// A stage as its operations.
pub struct Lowered<'a> {
    ops: Ops<'a>,
    /// The operations in steps whose rows use adapters, if the stage has pairs.
    adapted: Option<Ops<'a>>,
}

impl<'a> Lowered<'a> {
    pub fn of(p: &Program, stage: &'a Stage) -> Self {
        let adapted = stage.has_adapters().then(|| Self::ops(p, stage, true));
        Self { ops: Self::ops(p, stage, false), adapted }
    }

    fn ops(p: &Program, stage: &'a Stage, adapted: bool) -> Ops<'a> {
        match stage {
            Stage::Embed(s) if adapted => vec![Box::new(s), Box::new(OfTokens(s))],
            Stage::Embed(s) => vec![Box::new(s)],
            Stage::AttnIn(s) => attn_in::lower(p, s, adapted),
            Stage::LatentIn(s) => latent_in::lower(p, s, adapted),
            Stage::Attend(s) => attend::lower(p, s),
            Stage::ProjIn(s) => proj_in::lower(s, adapted),
            Stage::Conv(s) => vec![Box::new(s)],
            Stage::HeadProj(s) => latent_in::lower_heads(p, s),
            Stage::Delta(s) => vec![Box::new(s)],
            Stage::Mamba(s) => vec![Box::new(s)],
            Stage::ProjAdd(s) => proj_add::lower(p, s, adapted),
            Stage::NormAdd(s) => {
                let NormAdd { y, ref norm, scale, x } = *s;
                let (norms, product, cols) = ([Some(norm), None], Place::Buf(y), p.buf_decl(x).cols);
                vec![Box::new(PostNorm { norms, product, x, cols, scale })]
            }
            Stage::AltUpPredict(s) => vec![Box::new(s)],
            Stage::AltUpCorrect(s) => vec![Box::new(s)],
            Stage::Rescale(s) => vec![Box::new(s)],
            Stage::AddVector(s) => vec![Box::new(s)],
            Stage::FfnIn(s) => ffn_in::lower(p, s, adapted),
            Stage::Experts(s) => vec![Box::new(Mixed { s, adapted })],
            Stage::Logits(s) => logits::lower(s, adapted),
            Stage::Sample(s) => vec![Box::new(s)],
        }
    }

    /// The operations in steps with and without adapters.
    fn all_ops(&self) -> impl Iterator<Item = &(dyn Op + 'a)> {
        self.ops.iter().chain(self.adapted.iter().flatten()).map(|op| &**op)
    }

    /// All stages of a program.
    pub fn all(p: &'a Program) -> Vec<Self> {
        p.stages.iter().map(|(_, stage)| Self::of(p, stage)).collect()
    }

    /// The kernels of the stage.
    ///
    /// # Errors
    /// The missing kernel or feature, for a message.
    pub fn kernels(&self, p: &Program, limits: Limits) -> Result<Vec<KernelName>, String> {
        let all: Vec<_> = self.all_ops().map(|op| op.kernels(p, limits)).collect::<Result<_, _>>()?;
        Ok(all.concat())
    }

    /// Floats per row of the products that are kept between the stage's launches.
    pub fn kept(&self, p: &Program) -> usize {
        self.all_ops().map(|op| op.kept(p)).max().unwrap_or(0)
    }

    pub fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let ops = self.adapted.as_ref().filter(|_| cx.shape.adapted).unwrap_or(&self.ops);
        ops.iter().flat_map(|op| op.launches(cx)).collect()
    }
}

/// Multiply-adds per row of a large batch, by the arithmetic that the launches use for them.
pub fn macs(p: &Program) -> Macs {
    let mut all = Macs::default();
    Lowered::all(p).iter().flat_map(|stage| &stage.ops).for_each(|op| op.add_macs(p, &mut all));
    all
}
