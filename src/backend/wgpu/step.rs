//! The tables of a step on the device: one buffer of words, of which a run writes only the changed ones.
//! `shaders/lib/step.wgsl` reads it.

use wgpu::Buffer;

use super::alloc::Allocator;
use super::device::Gpu;
use super::sample;
use crate::device::adapters::{AdaptersAt, Tiles};
use crate::device::step::{Image, PagesAt};
use crate::device::tiles::Tiling;
use crate::{BackendError, device};
use sterna_program::{PAGE, Program, Row, Sampling, Stage, Step};

/// Words before the tables: counts, offsets, and a 0 among them.
const HEADER: usize = 17;

/// Words per row of the step.
const ROW: usize = 3;

/// Words per run of rows.
const RUN: usize = 7;

/// Words per row that only encoders and programs with images read.
const ENCODER_ROW: usize = 6;

/// Placeholder for the slot of a state if the sequence begins.
const NO_STATE: u32 = u32::MAX;

/// The buffer with the tables of a step.
pub struct StepMemory<B = Buffer> {
    pub buffer: B,
    sections: Sections,
}

/// First word of each table, in the order of the buffer.
#[derive(Clone, Copy)]
struct Sections {
    sampling: usize,
    rows: usize,
    outputs: usize,
    filled: usize,
    tiles: usize,
    runs: usize,
    /// Per row, the slot for the state after it.
    kept: usize,
    /// Rows of encoders and of programs with images; empty for other programs.
    encoder_rows: usize,
    adapters: AdaptersAt,
    pages: PagesAt,
}

impl Sections {
    fn of(p: &Program) -> Self {
        let limits = &p.limits;
        let sampling = HEADER;
        let rows = sampling + limits.outputs * sample::HOW;
        let outputs = rows + limits.rows * ROW;
        let filled = outputs + limits.outputs;
        let tiles = filled + limits.rows;
        let runs = tiles + 2 * limits.rows;
        let n_runs = if limits.states > 0 { limits.seqs } else { 0 };
        let kept = runs + n_runs * RUN;
        let encoder_rows = kept + if limits.states > 0 { limits.rows } else { 0 };
        let n_encoder_rows = if is_encoder(p) { limits.rows } else { 0 };
        let adapters = AdaptersAt::new(encoder_rows + n_encoder_rows * ENCODER_ROW, p);
        let pages = PagesAt::new(adapters.end(), limits);
        Self { sampling, rows, outputs, filled, tiles, runs, kept, encoder_rows, adapters, pages }
    }
}

impl<B> StepMemory<B> {
    pub fn new(on: &mut impl Allocator<Buffer = B>, p: &Program) -> Result<Self, BackendError> {
        let sections = Sections::of(p);
        let buffer = on.scratch("tables of a step", 4 * sections.pages.end() as u64)?;
        Ok(Self { buffer, sections })
    }
}

impl StepMemory {
    /// Content of the tables before the first step.
    pub fn image(&self) -> Image {
        Image::new(self.sections.pages.end())
    }

    /// Writes a step that fits the program. Its rows of logits have `n_vocab` elements each. Row tiles are
    /// written if attention uses them. Returns the tiles of rows that use adapters.
    pub fn write(
        &self,
        gpu: &Gpu,
        image: &mut Image,
        step: &Step<'_>,
        n_vocab: usize,
        tiling: Option<Tiling>,
    ) -> Result<Tiles, BackendError> {
        let Sections {
            sampling,
            rows,
            outputs,
            filled: filled_at,
            tiles,
            runs,
            kept,
            encoder_rows,
            adapters,
            pages,
        } = self.sections;
        let (n_outputs, sampled) = (step.n_outputs(), device::sampling::device_rows(step, n_vocab));
        // Without windowed caches, no kernel reads the offset of the exact pages.
        let exact = pages.exact.unwrap_or(pages.end());
        let counts = [step.rows.len(), n_outputs, sampled, pages.stride()];
        let tables = [sampling, rows, outputs, pages.pages, 0, exact, filled_at, tiles, runs, encoder_rows];
        let of_adapters = [adapters.seqs, adapters.tiles[0], adapters.tiles[1]];
        for (i, word) in counts.into_iter().chain(tables).chain(of_adapters).enumerate() {
            image.put(i, &(word as u32));
        }
        let on_device = |how: &&Sampling| device::sampling::on_device(how, n_vocab);
        for (i, how) in step.sampling[..sampled].iter().enumerate() {
            let how = how.as_ref().filter(on_device);
            let how = how.map_or_else(sample::nothing, |how| sample::params(how, sample::NO_SLOT));
            image.put(sampling + i * sample::HOW, &how);
        }
        for (i, seq, how) in step.kept_picks().filter(|(_, _, how)| on_device(how)) {
            image.put(sampling + i * sample::HOW, &sample::params(how, seq));
        }
        let mut output = outputs;
        for (i, row) in step.rows.iter().enumerate() {
            image.put(rows + i * ROW, &[row.token, row.pos, row.seq]);
            if row.logits {
                image.put(output, &(i as u32));
                output += 1;
            }
        }
        let mut n_filled = 0;
        for row in filled(step) {
            image.put(filled_at + n_filled, &(row as u32));
            n_filled += 1;
        }
        let mut n_tiles = 0;
        for tile in tiling.into_iter().flat_map(|tiling| device::tiles::tiles(step.rows, tiling)) {
            image.put(tiles + 2 * n_tiles, &[tile.start as u32, tile.len() as u32]);
            n_tiles += 1;
        }
        let mut n_runs = 0;
        for run in step.runs().take((kept - runs) / RUN) {
            let seq = step.rows[run.start].seq;
            let slots = step.pages.state(seq).expect("the step was checked");
            let from = slots.from.unwrap_or(NO_STATE);
            let of_rows = step.pages.row_states(seq);
            let kept_of_run = kept + run.start;
            for (n_rows, slot) in of_rows.iter() {
                image.put(kept_of_run + n_rows - 1, &slot);
            }
            let [first, rows] = [run.start, run.len()].map(|n| n as u32);
            let kept = [kept_of_run, of_rows.first, of_rows.slots.len()].map(|n| n as u32);
            let words = [first, rows, from, slots.to, kept[0], kept[1], kept[2]];
            image.put(runs + n_runs * RUN, &words);
            n_runs += 1;
        }
        let n_encoder_rows = step.rows.len().min((adapters.counts - encoder_rows) / ENCODER_ROW);
        for (i, (row, end)) in step.rows.iter().zip(step.ends()).take(n_encoder_rows).enumerate() {
            let token_type = step.pages.token_type(row.seq, row.pos);
            // The end of the row's image is 0 without one.
            let image_end = step.pages.image_at(row.seq, row.pos).map_or(0, |image| image.end());
            let [time, grid_row, column] = step.pages.place(row.seq, row.pos);
            let of_row = [end, token_type, image_end, time, grid_row, column];
            image.put(encoder_rows + i * ENCODER_ROW, &of_row);
        }
        let buffer = &self.buffer;
        let mut write = |word: usize, words: &[u32]| {
            gpu.write(buffer, 4 * word as u64, bytemuck::cast_slice(words));
            Ok(())
        };
        image.bring(0..rows + step.rows.len() * ROW, &mut write)?;
        image.bring(filled_at..filled_at + n_filled, &mut write)?;
        image.bring(tiles..tiles + 2 * n_tiles, &mut write)?;
        image.bring(outputs..outputs + n_outputs, &mut write)?;
        image.bring(runs..runs + n_runs * RUN, &mut write)?;
        image.bring(kept..kept + step.rows.len().min(encoder_rows - kept), &mut write)?;
        image.bring(encoder_rows..encoder_rows + n_encoder_rows * ENCODER_ROW, &mut write)?;
        let of_adapters = adapters.bring(image, step, &mut write)?;
        image.bring_pages(step.pages, pages, write)?;
        Ok(of_adapters)
    }
}

/// True if a stage reads data that only encoders have, rows that see later positions or token types, or data
/// of images.
fn is_encoder(p: &Program) -> bool {
    let has_images = p.sees_whole_images() || p.ropes.iter().any(|rope| rope.axes.is_some());
    has_images
        || p.sees_ahead()
        || p.stages.iter().any(|(_, stage)| matches!(stage, Stage::Embed(s) if s.types.is_some()))
}

/// Rows that hold the last position of a page.
pub fn filled(step: &Step<'_>) -> impl Iterator<Item = usize> {
    let fills = |row: &Row| row.pos as usize % PAGE == PAGE - 1;
    step.rows.iter().enumerate().filter(move |(_, row)| fills(row)).map(|(i, _)| i)
}
