//! Inputs of one run of a program.

use std::ops::Range;
use std::sync::Arc;

use super::{Sampling, TokenChange};

/// Number of positions per KV page.
pub const PAGE: usize = 64;

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id, below the rows of the embedding table, or [`Row::PICKED`].
    pub token: u32,
    /// Position in its sequence, from 0.
    pub pos: u32,
    /// Sequence slot, an index into the page table.
    pub seq: u32,
    /// True if this row needs logits.
    pub logits: bool,
}

impl Row {
    /// Used instead of an id: the last token that a previous run sampled for the row's slot. Allows a run to
    /// be queued before the host knows the token.
    pub const PICKED: u32 = u32::MAX;
}

/// Inputs of one run of a program. Nothing else may change between two runs.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One entry per token. Rows of one sequence are in the order of their positions; if the program has
    /// recurrent states, they are consecutive and skip no position.
    pub rows: &'a [Row],
    /// Per sequence slot, the pages of its positions.
    pub pages: &'a PageTable,
    /// Per output row, in order, its sampling parameters; `None` if the caller reads its logits instead.
    /// Empty if no token is sampled.
    pub sampling: &'a [Option<Sampling>],
    /// Changes to the logits before sampling, in the order of the output rows, each token of a row at most
    /// once. If the row's own input is a sampled token, that token counts once more. The logits buffer is not
    /// modified. Only for rows sampled on the device, and no more per row than the backend supports.
    pub changes: &'a [TokenChange],
}

impl Step<'_> {
    /// Scale with which a row's sequence uses an adapter, 0 if it does not.
    pub fn scale(&self, row: &Row, adapter: u32) -> f32 {
        let of = self.pages.adapters(row.seq).iter().filter(|of| of.adapter == adapter);
        of.map(|of| of.scale).sum()
    }

    /// Number of rows that need logits.
    pub fn n_outputs(&self) -> usize {
        self.rows.iter().filter(|row| row.logits).count()
    }

    /// Per row, the position of the last row of its run: if rows see ahead, the end of its sequence.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        let runs = self.rows.chunk_by(|a, b| a.seq == b.seq);
        runs.flat_map(|run| run.iter().map(|_| run[run.len() - 1].pos))
    }

    /// Runs of rows of one sequence, as ranges of the rows: if the program has recurrent states, one per
    /// sequence.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.rows.chunk_by(|a, b| a.seq == b.seq).map(move |run| {
            start += run.len();
            start - run.len()..start
        })
    }

    /// Output rows whose sampled token a slot keeps, with that slot and the sampling parameters: the last
    /// sampled output row of each sequence.
    pub fn kept_picks(&self) -> impl Iterator<Item = (usize, u32, &Sampling)> {
        let picked = || {
            let outputs = self.rows.iter().filter(|row| row.logits).zip(self.sampling).enumerate();
            outputs.filter_map(|(output, (row, how))| Some((output, row.seq, how.as_ref()?)))
        };
        let is_last =
            move |output: usize, seq: u32| !picked().any(|(later, of, _)| later > output && of == seq);
        picked().filter(move |&(output, seq, _)| is_last(output, seq))
    }
}

/// Positions that a sequence reads exactly if a codec is [`windowed`](ggml_types::KvCodec::windowed): whole
/// pages, because positions are encoded page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvWindow {
    /// Number of first pages that are never encoded, at least one.
    pub sink_pages: usize,
    /// Number of newest full pages, at least one. The page of the row itself is exact in addition.
    pub newest_pages: usize,
}

impl Default for KvWindow {
    fn default() -> Self {
        Self::of_positions(Self::DEFAULT_SINKS, Self::DEFAULT_NEWEST)
    }
}

impl KvWindow {
    /// Default number of first positions that are kept exactly (attention sinks).
    pub const DEFAULT_SINKS: usize = 4;
    /// Default number of newest positions that are kept exactly.
    pub const DEFAULT_NEWEST: usize = 64;

    /// The smallest window that keeps this number of first and newest positions.
    pub fn of_positions(sinks: usize, newest: usize) -> Self {
        Self { sink_pages: sinks.div_ceil(PAGE).max(1), newest_pages: newest.div_ceil(PAGE).max(1) }
    }

    /// Number of newest positions that every row reads exactly, including its own.
    pub fn newest(&self) -> usize {
        self.newest_pages * PAGE
    }

    /// True if a row at `pos` reads page `i` of its sequence exactly.
    pub fn is_exact(&self, pos: usize, i: usize) -> bool {
        i < self.sink_pages || i >= self.first_newest(pos)
    }

    /// Number of positions that a row at `pos` reads exactly.
    pub fn exact_positions(&self, pos: usize) -> usize {
        let sinks = self.sink_pages * PAGE;
        (pos + 1).min(sinks + pos + 1 - self.first_newest(pos).max(self.sink_pages) * PAGE)
    }

    fn first_newest(&self, pos: usize) -> usize {
        ((pos + 1) / PAGE).saturating_sub(self.newest_pages)
    }
}

/// Page table: position `p` of a sequence is in page `pages[seq][p / PAGE]` at offset `p % PAGE`. A page id
/// refers to the same page in every layer's cache.
///
/// Sliding-window layers ([`KvDecl::sliding`](super::KvDecl::sliding)) have a separate list of pages from
/// another pool. It contains every page that a row of the step, or a later one, reads.
///
/// With windowed codecs a sequence also has exact pages: its first pages, which it keeps, and the newest
/// ones. A page is written exactly, and encoded as soon as it is full. Which of the two a row reads
/// ([`KvWindow`]) depends only on the row's position, so the result does not depend on how the rows before it
/// were split into steps.
///
/// If the program has recurrent states, a sequence also has two slots for these ([`StateSlots`]), and more
/// for the states between the rows of a step ([`RowStates`]). A sequence of two texts stores the start of the
/// second one, one with LoRA adapters their scales, and one with images where their rows are.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    seqs: Vec<Vec<u32>>,
    exact: Vec<Vec<Option<u32>>>,
    sliding: Vec<Vec<Option<u32>>>,
    states: Vec<Option<StateSlots>>,
    row_states: Vec<RowStates>,
    seconds: Vec<Option<u32>>,
    adapters: Vec<Arc<[AdapterScale]>>,
    images: Vec<Vec<ImageSpan>>,
}

/// A LoRA adapter that a sequence uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterScale {
    /// Index into [`Program::adapters`](super::Program::adapters).
    pub adapter: u32,
    /// Factor on the adapter's products; 0 does nothing.
    pub scale: f32,
}

/// The rows of an image in a sequence: one per cell of its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSpan {
    /// Position of the first row.
    pub start: u32,
    /// Rows and columns of the grid, both at least 1.
    pub grid: [u32; 2],
    /// Side of the square blocks of cells that are listed one after another, a divisor of both; 1 lists the
    /// grid row by row.
    pub block: u32,
}

impl ImageSpan {
    /// Number of positions.
    pub fn len(&self) -> u32 {
        self.grid[0] * self.grid[1]
    }

    /// False: an image has at least one row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position after the last row.
    pub fn end(&self) -> u32 {
        self.start + self.len()
    }

    /// Row and column of the `i`-th listed cell.
    pub fn cell(&self, i: u32) -> [u32; 2] {
        let side = self.block;
        let (block, within, blocks) = (i / (side * side), i % (side * side), self.grid[1] / side);
        [block / blocks * side + within / side, block % blocks * side + within % side]
    }
}

/// Slots of a sequence's recurrent states in a step. A slot id refers to the same slot in every layer. Both
/// may be the same slot; otherwise the first is not modified, so that a state is kept without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// Input state of the sequence's first row in the step; `None` at position 0.
    pub from: Option<u32>,
    /// Slot for the state after its last row. No other sequence of the step uses it.
    pub to: u32,
}

/// Slots for the states after some rows of a sequence, before its last one: a sequence whose drafted tokens
/// are rejected continues from the state after the last accepted row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowStates {
    /// The first of these rows, counted from the sequence's first row in the step.
    pub first: usize,
    /// A slot per row. Nothing else in the step uses it.
    pub slots: Vec<u32>,
}

impl RowStates {
    /// The rows with their slots, each as the number of rows up to it.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u32)> {
        self.slots.iter().enumerate().map(|(i, slot)| (self.first + i + 1, *slot))
    }
}

impl PageTable {
    /// A table of `seqs` empty sequences, each with reserved space for `pages` pages.
    pub fn new(seqs: usize, pages: usize) -> Self {
        Self {
            seqs: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            exact: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            sliding: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            states: vec![None; seqs],
            row_states: vec![RowStates::default(); seqs],
            seconds: vec![None; seqs],
            adapters: vec![Arc::default(); seqs],
            images: vec![Vec::new(); seqs],
        }
    }

    /// The pages of a sequence, in the order of its positions.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn seq(&self, seq: u32) -> &[u32] {
        &self.seqs[seq as usize]
    }

    /// The pages of a sequence, mutable.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn seq_mut(&mut self, seq: u32) -> &mut Vec<u32> {
        &mut self.seqs[seq as usize]
    }

    /// The exact pages of a sequence: an entry per page, `None` if only the quantised page is left. Shorter
    /// if no codec is windowed.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn exact(&self, seq: u32) -> &[Option<u32>] {
        &self.exact[seq as usize]
    }

    /// The exact pages of a sequence, mutable.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn exact_mut(&mut self, seq: u32) -> &mut Vec<Option<u32>> {
        &mut self.exact[seq as usize]
    }

    /// The pages of a sequence in sliding-window layers: an entry per page, `None` if all positions have left
    /// the window. Shorter if there are no such layers.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn sliding(&self, seq: u32) -> &[Option<u32>] {
        &self.sliding[seq as usize]
    }

    /// The pages of a sequence in sliding-window layers, mutable.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn sliding_mut(&mut self, seq: u32) -> &mut Vec<Option<u32>> {
        &mut self.sliding[seq as usize]
    }

    /// The state slots of a sequence; `None` if no step follows, or the program has no recurrent states.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn state(&self, seq: u32) -> Option<StateSlots> {
        self.states[seq as usize]
    }

    /// Sets the state slots of a sequence.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn set_state(&mut self, seq: u32, slots: Option<StateSlots>) {
        self.states[seq as usize] = slots;
    }

    /// Slots for the states after rows of a sequence before its last one; empty if none are kept.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn row_states(&self, seq: u32) -> &RowStates {
        &self.row_states[seq as usize]
    }

    /// Slots for the states after rows of a sequence, mutable.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn row_states_mut(&mut self, seq: u32) -> &mut RowStates {
        &mut self.row_states[seq as usize]
    }

    /// Type of the token at a position, for models with token types: 1 in the second of two texts, 0
    /// elsewhere.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn token_type(&self, seq: u32, pos: u32) -> u32 {
        u32::from(self.seconds[seq as usize].is_some_and(|second| pos >= second))
    }

    /// Sets the position where the second of two texts begins in a sequence, `None` if it has one text.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn set_second(&mut self, seq: u32, at: Option<u32>) {
        self.seconds[seq as usize] = at;
    }

    /// The adapters of a sequence; none for a slot that does not exist.
    pub fn adapters(&self, seq: u32) -> &[AdapterScale] {
        self.adapters.get(seq as usize).map_or(&[], |adapters| adapters)
    }

    /// Sets the adapters of a sequence.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn set_adapters(&mut self, seq: u32, adapters: Arc<[AdapterScale]>) {
        self.adapters[seq as usize] = adapters;
    }

    /// The image that a position of a sequence is a row of.
    pub fn image_at(&self, seq: u32, pos: u32) -> Option<ImageSpan> {
        let images = self.images.get(seq as usize)?;
        images.iter().find(|image| (image.start..image.end()).contains(&pos)).copied()
    }

    /// Sets the images of a sequence, in the order of their positions.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn set_images(&mut self, seq: u32, images: impl IntoIterator<Item = ImageSpan>) {
        let of_seq = &mut self.images[seq as usize];
        of_seq.clear();
        of_seq.extend(images);
    }

    /// Rotary position of a position on each [`Axis`](super::Axis), as in M-RoPE: text advances all axes by
    /// one. The cells of an image have the time of its first row, their row and column added to it on the
    /// other axes, and text after an image continues after its longer side.
    pub fn place(&self, seq: u32, pos: u32) -> [u32; 3] {
        let mut passed = 0;
        for image in self.images.get(seq as usize).into_iter().flatten() {
            if pos < image.start {
                break;
            }
            let start = image.start - passed;
            if pos < image.end() {
                let [row, col] = image.cell(pos - image.start);
                return [start, start + row, start + col];
            }
            passed += image.len() - image.grid[0].max(image.grid[1]);
        }
        [pos - passed; 3]
    }

    /// The exact page in which `row` reads page `i` of its sequence; `None` if it reads the quantised page.
    pub fn exact_for(&self, window: KvWindow, row: &Row, i: usize) -> Option<u32> {
        let exact = *self.exact(row.seq).get(i)?;
        exact.filter(|_| window.is_exact(row.pos as usize, i))
    }

    /// Number of sequence slots.
    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }
}
