//! The order in which a step uses the weights that are read from files.

use super::FileWeight;
use crate::cpu::weights::StoredWeight;
use sterna_program::{Expert, Program, Stage, Weight};

/// A piece of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub weight: Weight,
    pub piece: usize,
}

/// Next item to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Piece(Piece),
    /// Pieces of the experts that a stage will choose.
    Chosen,
}

/// The pieces that a step reads if it runs all stages, in order; the next step reads them again.
pub struct Order {
    pub all: Vec<Next>,
    /// Index in `all` of each weight's first piece or, for an expert's weight, of its stage's choice.
    starts: Vec<Option<Start>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    At(usize),
    Chosen(usize),
}

/// The matrices that a stage always multiplies by, in order, and its experts.
fn used(stage: &Stage) -> (Vec<Weight>, &[Expert]) {
    match stage {
        Stage::AttnIn(s) => {
            ([&s.wq].into_iter().chain(&s.wk).chain(&s.wv).map(|linear| linear.w).collect(), &[])
        }
        Stage::LatentIn(s) => {
            let latent = s.q_latent.iter().map(|(linear, _)| linear);
            (latent.chain([&s.wkv, &s.wq]).chain(&s.wk).map(|linear| linear.w).collect(), &[])
        }
        Stage::HeadProj(s) => (s.w.iter().map(|linear| linear.w).collect(), &[]),
        Stage::ProjAdd(s) => (vec![s.w.w], &[]),
        Stage::ProjIn(s) => (s.products.iter().map(|(linear, _)| linear.w).collect(), &[]),
        Stage::FfnIn(s) => {
            (s.share.iter().chain(&s.gate).chain([&s.up]).map(|linear| linear.w).collect(), &[])
        }
        Stage::Experts(s) => (vec![s.router.w], &s.experts),
        Stage::Logits(s) => (vec![s.w.w], &[]),
        Stage::Embed(_) | Stage::Attend(_) | Stage::Conv(_) => (Vec::new(), &[]),
        Stage::AltUpPredict(_) | Stage::AltUpCorrect(_) | Stage::Rescale(_) => (Vec::new(), &[]),
        Stage::Delta(_) | Stage::Mamba(_) | Stage::Sample(_) => (Vec::new(), &[]),
        Stage::NormAdd(_) | Stage::AddVector(_) => (Vec::new(), &[]),
    }
}

impl Order {
    /// Builds the order for a program with these weights.
    pub fn new(p: &Program, weights: &[StoredWeight]) -> Self {
        let file = |w: Weight| weights[w.0 as usize].file();
        let (mut all, mut starts) = (Vec::new(), vec![None; weights.len()]);
        for (_, stage) in &p.stages {
            let (always, experts) = used(stage);
            for w in always {
                let Some(weight) = file(w) else { continue };
                starts[w.0 as usize].get_or_insert(Start::At(all.len()));
                all.extend((0..weight.n_pieces()).map(|piece| Next::Piece(Piece { weight: w, piece })));
            }
            let of_experts = experts.iter().flat_map(Expert::layers);
            let of_experts: Vec<Weight> = of_experts.map(|l| l.w).filter(|w| file(*w).is_some()).collect();
            if !of_experts.is_empty() {
                of_experts.iter().for_each(|w| starts[w.0 as usize] = Some(Start::Chosen(all.len())));
                all.push(Next::Chosen);
            }
        }
        Self { all, starts }
    }

    /// Index of a piece in `all`; `None` for a piece of an expert.
    pub fn place(&self, Piece { weight, piece }: Piece) -> Option<usize> {
        match self.starts[weight.0 as usize] {
            Some(Start::At(at)) => Some(at + piece),
            Some(Start::Chosen(_)) | None => None,
        }
    }

    /// Index of the choice by the stage that an expert's weight belongs to.
    pub fn choice(&self, weight: Weight) -> Option<usize> {
        match self.starts[weight.0 as usize] {
            Some(Start::Chosen(at)) => Some(at),
            Some(Start::At(_)) | None => None,
        }
    }

    /// The index after `at`; the last one is followed by the first of the next step.
    pub fn next(&self, at: usize) -> usize {
        if at + 1 < self.all.len() { at + 1 } else { 0 }
    }
}

/// All pieces of a weight.
pub fn pieces(w: Weight, weight: &FileWeight) -> impl Iterator<Item = Piece> + use<> {
    (0..weight.n_pieces()).map(move |piece| Piece { weight: w, piece })
}
