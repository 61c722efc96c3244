//! The step on the device: one fixed piece of memory, of which a run writes what has changed.

use super::attend::Tiling;
use super::driver::{Address, Driver};
use super::params::{
    NO_OUTPUT, NO_PAGE, NO_POST, NextWeights, StepCounts, StepRow, StepSampling, StepTables, StepTile,
    TOKEN_PICKED,
};
use super::picks::Picks;
use super::{attend, sample};
use crate::backend::BackendError;
use crate::backend::device::sampling;
use crate::program::{Limits, Row, Sampling, Step};

/// Where the tables of a step lie, and what they held last.
pub struct StepMemory {
    base: Address,
    sections: Sections,
    n_seqs: usize,
    pages_stride: usize,
    /// What the device has.
    there: Vec<u8>,
    /// What it is to have.
    wanted: Vec<u8>,
}

/// Offsets of the tables, in the order in which they lie.
#[derive(Clone, Copy)]
struct Sections {
    sampling: usize,
    rows: usize,
    outputs: usize,
    tiles: usize,
    pages: usize,
    /// Of exact pages; of no length where no codec is windowed.
    exact: usize,
    end: usize,
}

impl Sections {
    fn of(limits: &Limits) -> Self {
        let sampling = size_of::<StepCounts>();
        let rows = sampling + limits.outputs * size_of::<StepSampling>();
        let outputs = rows + limits.rows * size_of::<StepRow>();
        let tiles = (outputs + limits.outputs * 4).next_multiple_of(16);
        let pages = (tiles + attend::most_tiles(limits.rows) * size_of::<StepTile>()).next_multiple_of(16);
        let table = limits.seqs * limits.pages * 4;
        let exact = pages + table;
        let end = if limits.exact_pages > 0 { exact + table } else { exact };
        Self { sampling, rows, outputs, tiles, pages, exact, end }
    }
}

impl StepMemory {
    /// Bytes on the device.
    pub fn bytes(limits: &Limits) -> u64 {
        Sections::of(limits).end as u64
    }

    pub fn new(driver: &mut dyn Driver, limits: &Limits) -> Result<Self, BackendError> {
        let sections = Sections::of(limits);
        let base = driver.alloc(sections.end as u64)?;
        let nothing = vec![0; sections.end];
        Ok(Self {
            base,
            sections,
            n_seqs: limits.seqs,
            pages_stride: limits.pages,
            there: nothing.clone(),
            wanted: nothing,
        })
    }

    /// Where kernels find them, and the next stage's weights.
    pub fn tables(&self, next: NextWeights) -> StepTables {
        let Sections { rows, outputs, pages, exact, end, .. } = self.sections;
        StepTables {
            counts: self.base,
            rows: self.base + rows as u64,
            outputs: self.base + outputs as u64,
            pages: self.base + pages as u64,
            exact: if exact < end { self.base + exact as u64 } else { 0 },
            pages_stride: self.pages_stride as u32,
            reserved: 0,
            next,
        }
    }

    /// Where `sample` finds how to pick from each row of logits.
    pub fn sampling(&self) -> Address {
        self.base + self.sections.sampling as u64
    }

    /// Where attention finds the tiles of the step's rows.
    pub fn tiles(&self) -> Address {
        self.base + self.sections.tiles as u64
    }

    /// Writes a step that fits the program, whose rows of logits have `n_vocab` each, and tiles of its rows where attention
    /// takes these.
    pub fn write(
        &mut self,
        driver: &mut dyn Driver,
        step: &Step<'_>,
        n_vocab: usize,
        picks: &Picks,
        tiling: Option<Tiling>,
    ) -> Result<(), BackendError> {
        let Sections { sampling: sampling_at, rows: rows_at, outputs: outputs_at, tiles: tiles_at, .. } =
            self.sections;
        let mut n_tiles = 0;
        for tile in tiling.into_iter().flat_map(|tiling| attend::tiles(step.rows, tiling)) {
            put(&mut self.wanted, tiles_at + n_tiles * size_of::<StepTile>(), &tile);
            n_tiles += 1;
        }
        let (n_outputs, sampled) = (step.n_outputs(), sampling::device_rows(step, n_vocab));
        let counts = StepCounts {
            rows: step.rows.len() as u32,
            outputs: n_outputs as u32,
            sampled: sampled as u32,
            tiles: n_tiles as u32,
        };
        put(&mut self.wanted, 0, &counts);
        let on_device = |how: &&Sampling| sampling::on_device(how, n_vocab);
        for (i, how) in step.sampling[..sampled].iter().enumerate() {
            let how = how.as_ref().filter(on_device);
            let how = how.map_or_else(sample::nothing, |how| sample::params(how, NO_POST));
            put(&mut self.wanted, sampling_at + i * size_of::<StepSampling>(), &how);
        }
        for (i, seq, how) in step.kept_picks().filter(|(_, _, how)| on_device(how)) {
            let how = sample::params(how, picks.next_post(seq));
            put(&mut self.wanted, sampling_at + i * size_of::<StepSampling>(), &how);
        }
        const { assert!(Row::PICKED == TOKEN_PICKED) };
        let mut output = 0;
        for (i, row) in step.rows.iter().enumerate() {
            let of_row = if row.logits { output } else { NO_OUTPUT };
            let entry = StepRow { token: row.token, pos: row.pos, seq: row.seq, output: of_row };
            put(&mut self.wanted, rows_at + i * size_of::<StepRow>(), &entry);
            if row.logits {
                put(&mut self.wanted, outputs_at + output as usize * 4, &(i as u32));
                output += 1;
            }
        }
        let rows_end = rows_at + step.rows.len() * size_of::<StepRow>();
        self.bring(driver, 0, rows_end)?;
        self.bring(driver, outputs_at, outputs_at + n_outputs * 4)?;
        self.bring(driver, tiles_at, tiles_at + n_tiles * size_of::<StepTile>())?;
        let Sections { pages, exact, end, .. } = self.sections;
        // A table may hold more sequences than the program, and more pages than any row of it needs.
        for seq in 0..step.pages.n_seqs().min(self.n_seqs) {
            let of_seq = seq * self.pages_stride * 4;
            self.write_table(driver, pages + of_seq, step.pages.seq(seq as u32).iter().copied())?;
            if exact < end {
                let numbers = step.pages.exact(seq as u32).iter().map(|page| page.unwrap_or(NO_PAGE));
                self.write_table(driver, exact + of_seq, numbers)?;
            }
        }
        Ok(())
    }

    /// Writes the entries of one sequence's table at `at`.
    fn write_table(
        &mut self,
        driver: &mut dyn Driver,
        at: usize,
        entries: impl ExactSizeIterator<Item = u32>,
    ) -> Result<(), BackendError> {
        let n = entries.len().min(self.pages_stride);
        let wanted = self.wanted[at..at + 4 * n].chunks_exact_mut(4);
        wanted.zip(entries).for_each(|(to, entry)| to.copy_from_slice(&entry.to_ne_bytes()));
        self.bring(driver, at, at + 4 * n)
    }

    /// Brings one stretch to the device, where it differs from what is there.
    fn bring(&mut self, driver: &mut dyn Driver, from: usize, to: usize) -> Result<(), BackendError> {
        let wanted = &self.wanted[from..to];
        if wanted == &self.there[from..to] {
            return Ok(());
        }
        driver.write(self.base + from as u64, wanted)?;
        self.there[from..to].copy_from_slice(wanted);
        Ok(())
    }
}

fn put<T: bytemuck::Pod>(bytes: &mut [u8], at: usize, value: &T) {
    bytes[at..at + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
}
