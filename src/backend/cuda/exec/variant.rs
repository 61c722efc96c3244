//! The launches of a program for steps up to some shape, and their recordings.

use crate::BackendError;
use crate::cuda::attn_in;
use crate::cuda::cx::{Cx, Shape};
use crate::cuda::driver::{Driver, Launch, Limits, Recording};
use crate::cuda::host::{Host, Piece};
use crate::cuda::lower::Lowered;
use crate::cuda::memory::Memory;
use crate::cuda::params::NextWeights;
use crate::cuda::profile::Profile;
use crate::cuda::stream::{Layout, Segment};
use crate::cuda::weight::{DeviceWeight, device_bytes};
use sterna_program::{Linear, Program, Stage};

/// The launches for steps up to a shape.
pub struct Variant {
    pub shape: Shape,
    pub segments: Vec<Segment>,
    /// The launches of each stage on its own.
    pub launches: Vec<Vec<Launch>>,
    /// Recordings of each segment's stages; empty if no step runs on the GPU alone.
    pub recordings: Vec<Recording>,
    /// For stages that the CPU computes, the launches that follow their products.
    pub tails: Vec<Vec<Launch>>,
    /// Recordings of the GPU's pieces of a step in which the CPU takes part; `None` for the CPU's.
    pub pieces: Vec<Option<Recording>>,
}

/// Everything that launches are made of.
pub struct Recorder<'a> {
    pub p: &'a Program,
    /// One per stage.
    pub stages: &'a [Lowered<'a>],
    pub limits: Limits,
    pub layout: &'a Layout,
    pub weights: &'a [DeviceWeight],
    pub memory: &'a Memory,
    pub profile: Option<&'a Profile>,
    pub host: Option<&'a Host>,
    /// The pieces of a step in which the CPU takes part.
    pub pieces: &'a [Piece],
    /// Rows of the largest steps that read streamed experts directly from host memory.
    pub most_in_place: usize,
    /// Rows of the largest shape of steps in which the CPU takes part.
    pub most_with_host: usize,
}

impl Recorder<'_> {
    /// Makes the launches for a shape, and records them.
    pub fn variant(&self, driver: &mut dyn Driver, shape: Shape) -> Result<Variant, BackendError> {
        let segments = match shape.rows <= self.most_in_place {
            true => vec![Segment { stages: 0..self.p.stages.len(), layer: None }],
            false => self.layout.segments(self.p.stages.len()),
        };
        let is_there = |i: usize| {
            let is_copied = segments.iter().any(|next| next.layer.is_some() && next.stages.start == i);
            let never = !self.layout.copies() && self.host.is_some_and(|host| host.has(i));
            !is_copied && !never
        };
        let launches = self.launches(driver, shape, false, &is_there);
        let recorded = self.launches(driver, shape, true, &is_there);
        let recorded = match self.profile {
            Some(profile) => profile.around(driver, recorded),
            None => recorded,
        };
        let whole = if self.layout.copies() { segments.as_slice() } else { &[] };
        let record = |segment: &Segment| driver.record(recorded[segment.stages.clone()].concat());
        let recordings = whole.iter().map(record).collect::<Result<_, _>>()?;
        let (tails, pieces) = match self.host.filter(|_| shape.rows <= self.most_with_host) {
            Some(host) => (self.tails(driver, shape, false, host), self.record_pieces(driver, shape, host)?),
            None => (Vec::new(), Vec::new()),
        };
        Ok(Variant { shape, segments, launches, recordings, tails, pieces })
    }

    fn cx<'a>(&'a self, driver: &'a dyn Driver, shape: Shape, whole: bool) -> Cx<'a> {
        let Self { p, limits, weights, memory, .. } = *self;
        let in_place = shape.rows <= self.most_in_place;
        Cx { p, driver, limits, weights, memory, shape, stage: 0, next: NO_WEIGHTS, whole, in_place }
    }

    /// The launches of each stage. `is_there` tells if a stage's weights are on the GPU before it runs.
    fn launches(
        &self,
        driver: &dyn Driver,
        shape: Shape,
        whole: bool,
        is_there: &dyn Fn(usize) -> bool,
    ) -> Vec<Vec<Launch>> {
        let of_stage = |(i, stage): (usize, &Lowered<'_>)| {
            let next = self.next_weights(i, is_there);
            stage.launches(&Cx { stage: i, next, ..self.cx(driver, shape, whole) })
        };
        self.stages.iter().enumerate().map(of_stage).collect()
    }

    /// The launches that follow the products of each stage that the CPU computes.
    fn tails(&self, driver: &dyn Driver, shape: Shape, whole: bool, host: &Host) -> Vec<Vec<Launch>> {
        let tail = |(i, (_, stage)): (usize, &(String, Stage))| match stage {
            Stage::AttnIn(s) if host.has(i) => {
                let cx = Cx { stage: i, ..self.cx(driver, shape, whole) };
                let kv_cols = attn_in::kv_cols(self.p, s);
                let ops = attn_in::after_products(s, host.keys_and_values(kv_cols));
                ops.iter().flat_map(|op| op.launches(&cx)).collect()
            }
            _ => Vec::new(),
        };
        self.p.stages.iter().enumerate().map(tail).collect()
    }

    /// Records the GPU's pieces of a step in which the CPU takes part.
    fn record_pieces(
        &self,
        driver: &mut dyn Driver,
        shape: Shape,
        host: &Host,
    ) -> Result<Vec<Option<Recording>>, BackendError> {
        let tails = self.tails(driver, shape, true, host);
        let launches = self.launches(driver, shape, true, &|i| !host.has(i));
        let record = |piece: &Piece| {
            let Piece::Card(tail, stages) = piece else { return Ok(None) };
            let tail = tail.map_or(&[][..], |tail| &tails[tail]);
            driver.record([tail, &launches[stages.clone()].concat()].concat()).map(Some)
        };
        self.pieces.iter().map(record).collect()
    }

    /// The weights that the stage after stage `i` reads first, at most as many bytes as are worth
    /// prefetching; none if they are not on the GPU by then.
    fn next_weights(&self, i: usize, is_there: &dyn Fn(usize) -> bool) -> NextWeights {
        let Self { p, weights, limits, .. } = self;
        let next = p.stages.get(i + 1).filter(|_| is_there(i + 1));
        let linears = next.map(|(_, stage)| stage.linears().1);
        let first = linears.and_then(|linears| linears.into_iter().next());
        let of = |linear: &Linear| {
            let decl = p.weight_decl(linear.w);
            let bytes = device_bytes(decl).min(limits.prefetch_bytes);
            NextWeights { data: weights[linear.w.0 as usize].data, bytes }
        };
        first.map_or(NO_WEIGHTS, of)
    }
}

const NO_WEIGHTS: NextWeights = NextWeights { data: 0, bytes: 0 };
