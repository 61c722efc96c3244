//! Launches of a step: the sizes of its dispatches, its division into submissions, and counts of both for
//! programs that are not loaded.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;

use wgpu::BufferUsages;

use super::alloc::{Allocator, BufferPart};
use super::device::{Gpu, SUBMISSION_MS};
use super::memory::{Memory, constant_places};
use super::shader::Binding;
use super::step::filled;
use super::upload::DeviceWeight;
use super::{Cx, Grid, attend, dispatches, join};
use crate::BackendError;
use crate::device::adapters::Tiles;
use crate::device::sampling::{Sampler, device_rows};
use crate::device::tiles::{Tiling, tiles};
use sterna_program::{PAGE, Program, RowsOf, Stage, Step, Weight};

/// Rates of a slow device, an integrated GPU. wgpu does not report those of the device.
const BYTES_PER_MS: f64 = 50e6;
const MACS_PER_MS: f64 = 200e6;

/// Milliseconds that a stage takes on a slow device.
pub fn stage_ms(p: &Program, stage: &Stage, step: &Step<'_>) -> f64 {
    let cost = p.stage_cost(stage, step);
    (cost.bytes() as f64 / BYTES_PER_MS).max(cost.macs as f64 / MACS_PER_MS)
}

/// Size of a step.
#[derive(Clone, Copy)]
pub struct Counts {
    rows: usize,
    outputs: usize,
    /// Output rows that the device scans to pick tokens.
    pub sampled: usize,
    filled: usize,
    runs: usize,
    /// Tiles of rows, if attention takes them in tiles.
    tiles: Option<usize>,
    /// Pages of the longest sequence.
    pages: usize,
    /// Tiles of rows that use adapters.
    adapted: Tiles,
}

impl Counts {
    pub fn of(step: &Step<'_>, n_vocab: usize, tiling: Option<Tiling>, adapted: Tiles) -> Self {
        let pages = step.rows.iter().map(|row| row.pos as usize / PAGE + 1).max().unwrap_or(0);
        Self {
            rows: step.rows.len(),
            outputs: step.n_outputs(),
            sampled: device_rows(step, n_vocab),
            filled: filled(step).count(),
            runs: step.runs().count(),
            tiles: tiling.map(|tiling| tiles(step.rows, tiling).count()),
            pages,
            adapted,
        }
    }

    fn rows(&self, of: RowsOf) -> usize {
        match of {
            RowsOf::Step => self.rows,
            RowsOf::Outputs => self.outputs,
        }
    }

    /// Rows, workgroups per row (or rows of a weight), and depth of a grid. Without rows, nothing is
    /// launched.
    pub fn of_grid(&self, grid: Grid) -> (usize, u32, u32) {
        match grid {
            Grid::Rows { x, rows } => (self.rows(rows), x, 1),
            Grid::Products { of_weight, rows } => (self.rows(rows), of_weight, 1),
            Grid::Splits { x, least, rows } => {
                let rows = self.rows(rows);
                let splits = attend::splits(rows, x as usize, self.pages) as u32;
                (if splits < least || self.tiles.is_some() { 0 } else { rows }, x, splits)
            }
            Grid::Layers { of_weight, layers, rows } => (self.rows(rows), of_weight, layers),
            Grid::Normed { of_weight, layers, rows, one_row } => {
                let rows = self.rows(rows);
                (if (rows == 1) == one_row { rows } else { 0 }, of_weight, layers)
            }
            Grid::Tiles { x } => (self.tiles.unwrap_or(0), x, 1),
            Grid::Experts { of_weight, experts, .. } => (self.rows, of_weight, experts),
            Grid::Adapted { x, rows } => (self.adapted.of(rows), x, 1),
            Grid::Slots { x, each } => (self.rows, x, each),
            Grid::Once => (self.rows.min(1), 1, 1),
            Grid::Filled { x } => (self.filled, x, 1),
            Grid::Runs { x } => (self.runs, x, 1),
            Grid::Sampled { x } => (self.sampled, x, 1),
        }
    }
}

/// Launches of some stages, in submissions of about `most_ms` milliseconds: of each stage, or of a part of
/// it, its index and its launches. A stage is divided only if `divides`. `stages` has the index, the launches
/// and the milliseconds of each.
pub fn submissions<L>(
    stages: impl Iterator<Item = (usize, Vec<L>, f64)>,
    most_ms: f64,
    divides: bool,
) -> Vec<Vec<(usize, Vec<L>)>> {
    let (mut all, mut spent_ms) = (vec![Vec::new()], 0.0);
    let mut last = Vec::new();
    for (stage, launches, ms) in stages {
        let each_ms = ms / launches.len().max(1) as f64;
        let mut part = Vec::new();
        for launch in launches {
            if spent_ms >= most_ms && (divides || part.is_empty()) {
                if !part.is_empty() {
                    last.push((stage, std::mem::take(&mut part)));
                }
                all.push(std::mem::take(&mut last));
                spent_ms = 0.0;
            }
            spent_ms += each_ms;
            part.push(launch);
        }
        last.push((stage, part));
    }
    all.push(last);
    all.retain(|submission| !submission.is_empty());
    all
}

/// Number of launches, barriers and submissions of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launches {
    /// Dispatches with workgroups.
    pub launches: usize,
    /// Launches that wait for the ones before: they read what another one wrote, or write what another one
    /// read or wrote.
    pub barriers: usize,
    /// Command buffers that are submitted.
    pub submissions: usize,
}

/// Counts for a step of a program whose plan has no errors.
pub fn count(gpu: &Gpu, p: &Program, step: &Step<'_>) -> Result<Launches, BackendError> {
    let mut weights: Vec<_> =
        p.weights.iter().map(|decl| DeviceWeight::hollow(gpu, decl)).collect::<Result<_, _>>()?;
    join(gpu, p, &mut weights, |w: Weight| w.0 as usize)?;
    let memory = Memory::new(&mut Hollow { gpu }, p, true)?;
    let (constants, tables) = (constant_places(p), RefCell::new(Vec::new()));
    let cx =
        Cx { p, weights: &weights, memory: &memory, constants: &constants, adapted: false, tables: &tables };
    let tiling = attend::tiling(p).filter(|tiling| attend::is_tiled(step.rows, *tiling));
    let counts = Counts::of(step, Sampler::new(p).n_vocab(), tiling, Tiles::default());
    let stages = p.stages.iter().enumerate().map(|(i, (_, stage))| {
        let all = dispatches(&cx, stage).into_iter();
        let launched = all.filter(|dispatch| counts.of_grid(dispatch.grid).0 > 0);
        (i, launched.collect::<Vec<_>>(), stage_ms(p, stage, step))
    });
    let submissions = submissions(stages, SUBMISSION_MS, true);
    let launched: Vec<_> = submissions.iter().flatten().flat_map(|(_, launches)| launches).collect();
    // Last use of each buffer.
    let (mut used, mut barriers) = (HashMap::new(), 0);
    for dispatch in &launched {
        let uses = dispatch.buffers.iter().zip(dispatch.kernels[0].1.bindings());
        let conflicts = uses.filter(|(buffer, of)| {
            let before = used.insert(**buffer, **of);
            before.is_some_and(|before| before == Binding::Write || **of == Binding::Write)
        });
        barriers += usize::from(conflicts.count() > 0);
    }
    Ok(Launches { launches: launched.len(), barriers, submissions: submissions.len() })
}

/// Allocates small buffers instead of those that are asked for.
struct Hollow<'a> {
    gpu: &'a Gpu,
}

impl Allocator for Hollow<'_> {
    type Buffer = wgpu::Buffer;

    fn buffer(
        &mut self,
        usage: BufferUsages,
        _: &dyn Display,
        _: &[BufferPart<'_>],
    ) -> Result<wgpu::Buffer, BackendError> {
        self.gpu.buffer(0, usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(ms: &[(usize, f64)]) -> impl Iterator<Item = (usize, Vec<usize>, f64)> {
        ms.iter().enumerate().map(|(i, (n, ms))| (i, (0..*n).collect(), *ms))
    }

    #[test]
    fn a_submission_ends_once_it_takes_long_enough() {
        let short = [(2, 10.0), (3, 30.0), (1, 5.0), (0, 0.0)];
        let whole = vec![(0, vec![0, 1]), (1, vec![0, 1, 2]), (2, vec![0]), (3, vec![])];
        assert_eq!(submissions(stages(&short), 50.0, true), std::slice::from_ref(&whole));
        assert_eq!(submissions(stages(&short), f64::MAX, false), [whole]);
        // 40 ms are not enough, 60 are; then 20 each.
        let long = [(1, 40.0), (1, 20.0), (3, 60.0), (1, 1.0)];
        let [first, second] = [(0, vec![0]), (1, vec![0])];
        let want = [vec![first.clone(), second.clone()], vec![(2, vec![0, 1, 2])], vec![(3, vec![0])]];
        assert_eq!(submissions(stages(&long), 50.0, true), want);
        assert_eq!(submissions(stages(&long), 50.0, false), want);
        let divided = [vec![first, second], vec![(2, vec![0, 1])], vec![(2, vec![2]), (3, vec![0])]];
        assert_eq!(
            submissions(stages(&long), 40.0, true),
            [vec![(0, vec![0])], vec![(1, vec![0]), (2, vec![0])], vec![(2, vec![1, 2])], vec![(3, vec![0])],]
        );
        let third = [(1, 40.0), (1, 20.0), (3, 75.0), (1, 1.0)];
        assert_eq!(submissions(stages(&third), 50.0, true), divided);
        assert_eq!(submissions(stages(&[]), 50.0, true), Vec::<Vec<(usize, Vec<usize>)>>::new());
    }
}
