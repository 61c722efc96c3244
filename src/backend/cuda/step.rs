//! The tables of a step on the device: one fixed piece of memory, of which a run writes only what has
//! changed.

use std::ops::Range;

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::params::{
    NO_MAILBOX, NO_OUTPUT, NO_PAGE, NO_STATE, NextWeights, SAMPLE_CHANGES, StepCounts, StepRow, StepRun,
    StepSampling, StepTables, StepText, StepTile, TOKEN_PICKED, TokenChange,
};
use super::picks::Picks;
use super::tiled::most_tiles;
use crate::device::adapters::{AdaptersAt, Tiles};
use crate::device::step::{Image, PagesAt};
use crate::device::tiles::Tiling;
use crate::{BackendError, device};
use sterna_program::{KvDecl, Program, Row, Sampling, Stage, Step};

/// Addresses of the tables of a step.
pub struct StepMemory {
    base: Address,
    sections: Sections,
}

/// First word of each table, in memory order.
#[derive(Clone)]
struct Sections {
    sampling: usize,
    rows: usize,
    outputs: usize,
    tiles: usize,
    changes: usize,
    /// Per sequence slot, for programs with recurrent states.
    runs: Range<usize>,
    /// Per row, for programs with recurrent states: the slot for the state after it.
    kept: Range<usize>,
    /// Per row, for programs whose rows see later positions or have token types.
    texts: Range<usize>,
    pages: PagesAt,
    adapters: AdaptersAt,
}

/// Words for the changes to a row's logits.
const CHANGES_WORDS: usize = SAMPLE_CHANGES as usize * words::<TokenChange>();

/// Size of a struct in words.
const fn words<T>() -> usize {
    size_of::<T>() / 4
}

impl Sections {
    fn of(p: &Program) -> Self {
        let limits = &p.limits;
        let sampling = words::<StepCounts>();
        // Kernels copy rows 16 bytes at a time.
        let rows = (sampling + limits.outputs * words::<StepSampling>()).next_multiple_of(4);
        let outputs = rows + limits.rows * words::<StepRow>();
        let tiles = (outputs + limits.outputs).next_multiple_of(4);
        let changes = (tiles + most_tiles(limits.rows) * words::<StepTile>()).next_multiple_of(4);
        let runs = changes + limits.outputs * CHANGES_WORDS;
        let n_runs = if limits.states > 0 { limits.seqs } else { 0 };
        let runs = runs..runs + n_runs * words::<StepRun>();
        let kept = runs.end..runs.end + if limits.states > 0 { limits.rows } else { 0 };
        let has_types = |(_, stage): &(String, Stage)| matches!(stage, Stage::Embed(s) if s.types.is_some());
        let has_images = p.sees_whole_images() || p.ropes.iter().any(|rope| rope.axes.is_some());
        let of_texts = has_images || p.sees_ahead() || p.stages.iter().any(has_types);
        let n_texts = if of_texts { limits.rows } else { 0 };
        let texts = kept.end..kept.end + n_texts * words::<StepText>();
        let pages = PagesAt::new(texts.end, limits);
        let adapters = AdaptersAt::new(pages.end(), p);
        Self { sampling, rows, outputs, tiles, changes, runs, kept, texts, pages, adapters }
    }
}

/// Parameters of a row that the kernel picks nothing for: it takes the largest logit, which is not read.
fn no_sampling() -> StepSampling {
    step_sampling(&Sampling::GREEDY, NO_MAILBOX, 0)
}

/// Parameters of a row that the kernel picks a token for, including the word of host memory that receives the
/// token, and the number of changed logits.
fn step_sampling(how: &Sampling, mailbox: u32, changes: u32) -> StepSampling {
    StepSampling {
        temperature: how.temperature,
        top_p: how.top_p,
        min_p: how.min_p,
        top_k: if how.is_greedy() { 1 } else { how.top_k },
        seed: how.seed,
        counter: how.counter,
        mailbox,
        changes,
        repeat_penalty: how.repeat_penalty,
        presence_penalty: how.presence_penalty,
        frequency_penalty: how.frequency_penalty,
        reserved: 0,
    }
}

impl StepMemory {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let sections = Sections::of(p);
        let base = on.buffer("tables of a step", 4 * sections.adapters.end() as u64)?;
        Ok(Self { base, sections })
    }

    /// Contents of the tables before the first step.
    pub fn image(&self) -> Image {
        Image::new(self.sections.adapters.end())
    }

    fn at(&self, word: usize) -> Address {
        self.base + 4 * word as u64
    }

    /// Addresses of the tables, and the next stage's weights.
    pub fn tables(&self, next: NextWeights) -> StepTables {
        self.tables_at(self.sections.pages.pages, next)
    }

    /// The same with the pages of a cache.
    pub fn tables_for(&self, kv: &KvDecl, next: NextWeights) -> StepTables {
        self.tables_at(self.sections.pages.offset(kv), next)
    }

    fn tables_at(&self, pages_at: usize, next: NextWeights) -> StepTables {
        let Sections { rows, outputs, pages, .. } = self.sections;
        StepTables {
            counts: self.base,
            rows: self.at(rows),
            outputs: self.at(outputs),
            pages: self.at(pages_at),
            exact: pages.exact.map_or(0, |exact| self.at(exact)),
            pages_stride: pages.stride() as u32,
            reserved: 0,
            next,
        }
    }

    /// Address of the sampling parameters of each row of logits.
    pub fn sampling(&self) -> Address {
        self.at(self.sections.sampling)
    }

    /// Address of the changes to each row of logits.
    pub fn changes(&self) -> Address {
        self.at(self.sections.changes)
    }

    /// Address of each sequence's range of rows, for delta nets.
    pub fn runs(&self) -> Address {
        self.at(self.sections.runs.start)
    }

    /// Address of the ends, types and places of rows; 0 if the program needs none.
    pub fn texts(&self) -> Address {
        let texts = &self.sections.texts;
        if texts.is_empty() { 0 } else { self.at(texts.start) }
    }

    /// Address of each sequence's adapters.
    pub fn adapters(&self) -> Address {
        self.at(self.sections.adapters.seqs)
    }

    /// Addresses of the number of tiles of rows that use adapters, and of the tiles: of the step's rows, or
    /// of those that request logits.
    pub fn adapter_tiles(&self, of_outputs: bool) -> [Address; 2] {
        let (AdaptersAt { counts, tiles, .. }, which) = (self.sections.adapters, usize::from(of_outputs));
        [self.at(counts + which), self.at(tiles[which])]
    }

    /// Address of the tiles of the step's rows, for attention.
    pub fn tiles(&self) -> Address {
        self.at(self.sections.tiles)
    }

    /// Writes a step that fits the program, and returns the tiles of rows that use adapters. Its rows of
    /// logits have `n_vocab` elements each; the tiles of its rows are written if attention uses them.
    pub fn write(
        &self,
        driver: &mut dyn Driver,
        image: &mut Image,
        step: &Step<'_>,
        n_vocab: usize,
        picks: &Picks,
        tiling: Option<Tiling>,
    ) -> Result<Tiles, BackendError> {
        let Sections {
            sampling,
            rows,
            outputs,
            tiles,
            changes,
            ref runs,
            ref kept,
            ref texts,
            pages,
            adapters,
        } = self.sections;
        let mut n_tiles = 0;
        for tile in tiling.into_iter().flat_map(|tiling| device::tiles::tiles(step.rows, tiling)) {
            let tile = StepTile { first: tile.start as u32, rows: tile.len() as u32 };
            image.put(tiles + n_tiles * words::<StepTile>(), &tile);
            n_tiles += 1;
        }
        let (n_outputs, sampled) = (step.n_outputs(), device::sampling::device_rows(step, n_vocab));
        let counts = StepCounts {
            rows: step.rows.len() as u32,
            outputs: n_outputs as u32,
            sampled: sampled as u32,
            tiles: n_tiles as u32,
        };
        image.put(0, &counts);
        let of_row = |output| {
            let first = step.changes.partition_point(|change| (change.output as usize) < output);
            let n =
                step.changes[first..].iter().take_while(|change| change.output as usize == output).count();
            &step.changes[first..first + n]
        };
        for output in 0..sampled {
            let of_row = of_row(output);
            assert!(of_row.len() <= SAMPLE_CHANGES as usize, "{} changes of a row", of_row.len());
            for (i, change) in of_row.iter().enumerate() {
                let &sterna_program::TokenChange { token, count, bias, .. } = change;
                let entry = TokenChange { token, count, bias, reserved: 0 };
                image.put(changes + output * CHANGES_WORDS + i * words::<TokenChange>(), &entry);
            }
        }
        let n_changes = |output| of_row(output).len() as u32;
        let on_device = |how: &&Sampling| device::sampling::on_device(how, n_vocab);
        for (i, how) in step.sampling[..sampled].iter().enumerate() {
            let how = how.as_ref().filter(on_device);
            let how = how.map_or_else(no_sampling, |how| step_sampling(how, NO_MAILBOX, n_changes(i)));
            image.put(sampling + i * words::<StepSampling>(), &how);
        }
        for (i, seq, how) in step.kept_picks().filter(|(_, _, how)| on_device(how)) {
            let how = step_sampling(how, picks.next_mailbox(seq), n_changes(i));
            image.put(sampling + i * words::<StepSampling>(), &how);
        }
        const { assert!(Row::PICKED == TOKEN_PICKED) };
        let mut output = 0;
        for (i, row) in step.rows.iter().enumerate() {
            let of_row = if row.logits { output } else { NO_OUTPUT };
            let entry = StepRow { token: row.token, pos: row.pos, seq: row.seq, output: of_row };
            image.put(rows + i * words::<StepRow>(), &entry);
            if row.logits {
                image.put(outputs + output as usize, &(i as u32));
                output += 1;
            }
        }
        let mut of_step = step.runs();
        for at in runs.clone().step_by(words::<StepRun>()) {
            let Some(run) = of_step.next() else {
                image.put(at, &<StepRun as bytemuck::Zeroable>::zeroed());
                continue;
            };
            let seq = step.rows[run.start].seq;
            let slots = step.pages.state(seq).expect("the step was checked");
            let of_rows = step.pages.row_states(seq);
            for (n_rows, slot) in of_rows.iter() {
                image.put(kept.start + run.start + n_rows - 1, &slot);
            }
            let run = StepRun {
                first: run.start as u32,
                rows: run.len() as u32,
                from: slots.from.unwrap_or(NO_STATE),
                to: slots.to,
                kept: (kept.start - runs.start) as u32,
                first_kept: of_rows.first as u32,
                n_kept: of_rows.slots.len() as u32,
                reserved: 0,
            };
            image.put(at, &run);
        }
        drop(of_step);
        let entries = texts.clone().step_by(words::<StepText>());
        for ((at, row), end) in entries.zip(step.rows).zip(step.ends()) {
            let text = StepText {
                end,
                token_type: step.pages.token_type(row.seq, row.pos),
                image_end: step.pages.image_at(row.seq, row.pos).map_or(0, |image| image.end()),
                place: step.pages.place(row.seq, row.pos),
            };
            image.put(at, &text);
        }
        let base = self.base;
        let mut write =
            |word: usize, words: &[u32]| driver.write(base + 4 * word as u64, bytemuck::cast_slice(words));
        image.bring(0..rows + step.rows.len() * words::<StepRow>(), &mut write)?;
        image.bring(outputs..outputs + n_outputs, &mut write)?;
        image.bring(runs.clone(), &mut write)?;
        image.bring(kept.start..kept.start + step.rows.len().min(kept.len()), &mut write)?;
        image.bring(texts.clone(), &mut write)?;
        image.bring(tiles..tiles + n_tiles * words::<StepTile>(), &mut write)?;
        for output in 0..sampled {
            let at = changes + output * CHANGES_WORDS;
            image.bring(at..at + of_row(output).len() * words::<TokenChange>(), &mut write)?;
        }
        const { assert!(device::step::NO_PAGE == NO_PAGE) };
        let adapted = adapters.bring(image, step, &mut write)?;
        image.bring_pages(step.pages, pages, write)?;
        Ok(adapted)
    }
}
