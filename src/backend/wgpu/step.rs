//! The step on the device: one buffer of words, of which a run writes what has changed. `shaders/lib/step.wgsl` reads it.

use wgpu::Buffer;

use super::device::Gpu;
use super::sample;
use crate::backend::BackendError;
use crate::program::{Limits, Step};

/// Words in front of the tables: counts, places, and a 0.
const HEADER: usize = 9;

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
    pages: usize,
    end: usize,
}

impl Sections {
    fn of(limits: &Limits) -> Self {
        let sampling = HEADER;
        let rows = sampling + limits.outputs * sample::HOW;
        let outputs = rows + limits.rows * ROW;
        let pages = outputs + limits.outputs;
        Self { sampling, rows, outputs, pages, end: pages + limits.seqs * limits.pages }
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

    /// Writes a step that fits the program, whose rows of logits have `n_vocab` each.
    pub fn write(&mut self, gpu: &Gpu, step: &Step<'_>, n_vocab: usize) {
        let Sections { sampling: sampling_at, rows: rows_at, outputs: outputs_at, pages: pages_at, .. } =
            self.sections;
        let n_outputs = step.n_outputs();
        let counts = [step.rows.len(), n_outputs, step.sampling.len(), self.pages_stride];
        let tables = [sampling_at, rows_at, outputs_at, pages_at];
        for (to, word) in self.wanted.iter_mut().zip(counts.into_iter().chain(tables)) {
            *to = word as u32;
        }
        for (how, to) in step.sampling.iter().zip(self.wanted[sampling_at..].chunks_exact_mut(sample::HOW)) {
            to.copy_from_slice(&sample::params(how, n_vocab, sample::NO_POST));
        }
        for (output, seq) in step.kept_picks() {
            let to = &mut self.wanted[sampling_at + output * sample::HOW..][..sample::HOW];
            to.copy_from_slice(&sample::params(&step.sampling[output], n_vocab, seq));
        }
        for (row, to) in step.rows.iter().zip(self.wanted[rows_at..].chunks_exact_mut(ROW)) {
            to.copy_from_slice(&[row.token, row.pos, row.seq]);
        }
        let asked = step.rows.iter().enumerate().filter(|(_, row)| row.logits);
        for ((row, _), to) in asked.zip(&mut self.wanted[outputs_at..]) {
            *to = row as u32;
        }
        self.bring(gpu, 0, rows_at + step.rows.len() * ROW);
        self.bring(gpu, outputs_at, outputs_at + n_outputs);
        for seq in 0..step.pages.n_seqs() as u32 {
            let at = pages_at + seq as usize * self.pages_stride;
            // A table may hold more sequences than the program, and more pages than any row of it needs.
            let pages = step.pages.seq(seq);
            let pages = &pages[..pages.len().min(self.pages_stride)];
            if at + pages.len() > self.sections.end {
                break;
            }
            self.wanted[at..at + pages.len()].copy_from_slice(pages);
            self.bring(gpu, at, at + pages.len());
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
