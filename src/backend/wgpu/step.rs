//! The step on the device: one buffer of words, of which a run writes what has changed. `shaders/lib/step.wgsl` reads it.

use wgpu::Buffer;

use super::device::Gpu;
use super::{attend, sample};
use crate::backend::BackendError;
use crate::backend::device::sampling;
use crate::program::{Limits, PAGE, Row, Sampling, Step};

/// Words in front of the tables: counts, places, and a 0 among them.
const HEADER: usize = 12;

/// What stands for an exact page that is not there.
const NO_PAGE: u32 = u32::MAX;

/// Words of a row of the step.
const ROW: usize = 3;

/// Where the tables of a step lie, and what they held last.
pub struct StepMemory {
    pub buffer: Buffer,
    sections: Sections,
    pages_stride: usize,
    /// What the device has.
    there: Vec<u32>,
    /// What it is to have.
    wanted: Vec<u32>,
}

/// The word at which each table begins, in the order in which they lie.
#[derive(Clone, Copy)]
struct Sections {
    sampling: usize,
    rows: usize,
    outputs: usize,
    filled: usize,
    tiles: usize,
    pages: usize,
    /// Of nothing where no cache is windowed.
    exact: usize,
    end: usize,
}

impl Sections {
    fn of(limits: &Limits) -> Self {
        let sampling = HEADER;
        let rows = sampling + limits.outputs * sample::HOW;
        let outputs = rows + limits.rows * ROW;
        let filled = outputs + limits.outputs;
        let tiles = filled + limits.rows;
        let pages = tiles + 2 * limits.rows;
        let exact = pages + limits.seqs * limits.pages;
        let end = if limits.exact_pages == 0 { exact } else { exact + (exact - pages) };
        Self { sampling, rows, outputs, filled, tiles, pages, exact, end }
    }
}

impl StepMemory {
    /// Bytes on the device.
    pub fn bytes(limits: &Limits) -> u64 {
        4 * Sections::of(limits).end as u64
    }

    pub fn new(gpu: &Gpu, limits: &Limits) -> Result<Self, BackendError> {
        let sections = Sections::of(limits);
        let nothing = vec![0; sections.end];
        Ok(Self {
            buffer: gpu.storage(Self::bytes(limits))?,
            sections,
            pages_stride: limits.pages,
            there: nothing.clone(),
            wanted: nothing,
        })
    }

    /// Writes a step that fits the program, whose rows of logits have `n_vocab` each; `tile_rows` is for steps that go in
    /// tiles.
    pub fn write(&mut self, gpu: &Gpu, step: &Step<'_>, n_vocab: usize, tile_rows: Option<usize>) {
        let Sections { sampling: sampling_at, rows: rows_at, outputs: outputs_at, .. } = self.sections;
        let Sections { filled: filled_at, tiles: tiles_at, pages: pages_at, exact: exact_at, end, .. } =
            self.sections;
        let (n_outputs, sampled) = (step.n_outputs(), sampling::device_rows(step, n_vocab));
        let counts = [step.rows.len(), n_outputs, sampled, self.pages_stride];
        let tables = [sampling_at, rows_at, outputs_at, pages_at, 0, exact_at, filled_at, tiles_at];
        for (to, word) in self.wanted.iter_mut().zip(counts.into_iter().chain(tables)) {
            *to = word as u32;
        }
        let on_device = |how: &&Sampling| sampling::on_device(how, n_vocab);
        let hows = self.wanted[sampling_at..rows_at].chunks_exact_mut(sample::HOW);
        for (how, to) in step.sampling[..sampled].iter().zip(hows) {
            let how = how.as_ref().filter(on_device);
            let how = how.map_or_else(sample::nothing, |how| sample::params(how, sample::NO_POST));
            to.copy_from_slice(&how);
        }
        for (output, seq, how) in step.kept_picks().filter(|(_, _, how)| on_device(how)) {
            let to = &mut self.wanted[sampling_at + output * sample::HOW..][..sample::HOW];
            to.copy_from_slice(&sample::params(how, seq));
        }
        for (row, to) in step.rows.iter().zip(self.wanted[rows_at..].chunks_exact_mut(ROW)) {
            to.copy_from_slice(&[row.token, row.pos, row.seq]);
        }
        let asked = step.rows.iter().enumerate().filter(|(_, row)| row.logits);
        for ((row, _), to) in asked.zip(&mut self.wanted[outputs_at..]) {
            *to = row as u32;
        }
        let mut n_filled = 0;
        for (row, to) in filled(step).zip(&mut self.wanted[filled_at..tiles_at]) {
            *to = row as u32;
            n_filled += 1;
        }
        self.bring(gpu, 0, rows_at + step.rows.len() * ROW);
        self.bring(gpu, filled_at, filled_at + n_filled);
        if let Some(most) = tile_rows {
            let mut n_tiles = 0;
            for (tile, to) in
                attend::tiles(step.rows, most).zip(self.wanted[tiles_at..pages_at].chunks_exact_mut(2))
            {
                to.copy_from_slice(&[tile.start as u32, tile.len() as u32]);
                n_tiles += 1;
            }
            self.bring(gpu, tiles_at, tiles_at + 2 * n_tiles);
        }
        self.bring(gpu, outputs_at, outputs_at + n_outputs);
        for seq in 0..step.pages.n_seqs() as u32 {
            let (pages, exact) = (step.pages.seq(seq), step.pages.exact(seq));
            // A table may hold more sequences than the program, and more pages than any row of it needs.
            let n = pages.len().min(self.pages_stride);
            let at = pages_at + seq as usize * self.pages_stride;
            if at + n > exact_at {
                break;
            }
            self.wanted[at..at + n].copy_from_slice(&pages[..n]);
            self.bring(gpu, at, at + n);
            if end > exact_at {
                let at = at - pages_at + exact_at;
                let exact = exact.iter().map(|page| page.unwrap_or(NO_PAGE));
                self.wanted[at..at + n].iter_mut().zip(exact).for_each(|(to, page)| *to = page);
                self.bring(gpu, at, at + n);
            }
        }
    }

    /// Brings one stretch to the device, where it differs from what is there.
    fn bring(&mut self, gpu: &Gpu, from: usize, to: usize) {
        let wanted = &self.wanted[from..to];
        if wanted != &self.there[from..to] {
            gpu.write(&self.buffer, 4 * from as u64, bytemuck::cast_slice(wanted));
            self.there[from..to].copy_from_slice(wanted);
        }
    }
}

/// Rows that hold the last position of a page.
pub fn filled(step: &Step<'_>) -> impl Iterator<Item = usize> {
    let fills = |row: &Row| row.pos as usize % PAGE == PAGE - 1;
    step.rows.iter().enumerate().filter(move |(_, row)| fills(row)).map(|(i, _)| i)
}
