//! Inputs of one run of a program.

use std::ops::Range;

use super::{Sampling, TokenChange};

/// Positions of one KV page.
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
    /// True if this row's logits are wanted.
    pub logits: bool,
}

impl Row {
    /// In place of an id: the token that the last run which picked one for the row's slot has picked. So a
    /// run can be queued before the host knows the token.
    pub const PICKED: u32 = u32::MAX;
}

/// Inputs of one run of a program. Nothing else may change between two runs.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One entry a token. Rows of one sequence stand in the order of their positions; where a program has
    /// recurrent states, they stand next to each other and leave out none.
    pub rows: &'a [Row],
    /// For each sequence slot, the pages that hold its positions.
    pub pages: &'a PageTable,
    /// For each output row, in order, how to pick a token from it; `None` where the caller reads its logits
    /// instead. Empty where nothing is picked from any.
    pub sampling: &'a [Option<Sampling>],
    /// What changes logits before tokens are picked by them, in the order of the output rows, each token of a
    /// row once. A row that is fed with a pick counts that token once more. The buffer of logits stays as it
    /// is. Only for rows that a backend picks from on the device, and no more for a row than it can apply.
    pub changes: &'a [TokenChange],
}

impl Step<'_> {
    /// Number of rows that ask for logits.
    pub fn n_outputs(&self) -> usize {
        self.rows.iter().filter(|row| row.logits).count()
    }

    /// For each row, the position of the last row of its run: where rows see ahead, the end of its sequence.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        let runs = self.rows.chunk_by(|a, b| a.seq == b.seq);
        runs.flat_map(|run| run.iter().map(|_| run[run.len() - 1].pos))
    }

    /// Runs of rows of one sequence, as ranges of the rows: where a program has recurrent states, one a
    /// sequence.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.rows.chunk_by(|a, b| a.seq == b.seq).map(move |run| {
            start += run.len();
            start - run.len()..start
        })
    }

    /// Output rows whose picks a slot keeps, with that slot and how they are picked: of each sequence the
    /// last output row that a token is picked from.
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
/// pages, because positions are encoded a page at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvWindow {
    /// Pages from the first on, which are never encoded; at least one, which the mean of the keys is taken
    /// of.
    pub sink_pages: usize,
    /// Full pages of the newest positions, at least one. The page that a row stands in comes to them.
    pub newest_pages: usize,
}

impl Default for KvWindow {
    fn default() -> Self {
        Self::of_positions(Self::DEFAULT_SINKS, Self::DEFAULT_NEWEST)
    }
}

impl KvWindow {
    /// First positions that are kept exactly where nothing else is asked for: what attention sinks to.
    pub const DEFAULT_SINKS: usize = 4;
    /// Newest positions that are kept exactly where nothing else is asked for.
    pub const DEFAULT_NEWEST: usize = 64;

    /// The smallest that keeps so many first and newest positions.
    pub fn of_positions(sinks: usize, newest: usize) -> Self {
        Self { sink_pages: sinks.div_ceil(PAGE).max(1), newest_pages: newest.div_ceil(PAGE).max(1) }
    }

    /// Newest positions that every row reads exactly, its own among them.
    pub fn newest(&self) -> usize {
        self.newest_pages * PAGE
    }

    /// True if a row at `pos` reads page `i` of its sequence exactly.
    pub fn is_exact(&self, pos: usize, i: usize) -> bool {
        i < self.sink_pages || i >= self.first_newest(pos)
    }

    /// Positions that a row at `pos` reads exactly.
    pub fn exact_positions(&self, pos: usize) -> usize {
        let sinks = self.sink_pages * PAGE;
        (pos + 1).min(sinks + pos + 1 - self.first_newest(pos).max(self.sink_pages) * PAGE)
    }

    fn first_newest(&self, pos: usize) -> usize {
        ((pos + 1) / PAGE).saturating_sub(self.newest_pages)
    }
}

/// For each sequence slot, the pages of its positions: position `p` lies in page `pages[seq][p / PAGE]`
/// at offset `p % PAGE`. A page number means the same page in every layer's cache.
///
/// Layers that keep a sliding window ([`KvDecl::sliding`](super::KvDecl::sliding)) have a list of their own,
/// of pages of another pool: of every page that a row of the step, or one that follows, sees a position of.
///
/// For windowed codecs a sequence has exact pages besides: of its first pages, which it keeps, and of the
/// newest ones. A page is written exactly, and encoded as soon as it is full; which of the two a row reads
/// ([`KvWindow`]) depends on the row's position alone, so that it is the same however the rows before it were
/// cut into steps.
///
/// Where a program has recurrent states, a sequence has two slots of these besides ([`StateSlots`]). A
/// sequence of two texts says where the second one begins.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    seqs: Vec<Vec<u32>>,
    exact: Vec<Vec<Option<u32>>>,
    sliding: Vec<Vec<Option<u32>>>,
    states: Vec<Option<StateSlots>>,
    seconds: Vec<Option<u32>>,
}

/// Slots of a sequence's recurrent states in a step. A slot number means the same slot in every layer. They
/// may be one slot; if they are not, the first is left as it is, so that a state is kept without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlots {
    /// What the sequence's first row of the step goes on from, `None` at position 0.
    pub from: Option<u32>,
    /// Where the state behind its last row goes. No other sequence of the step names it.
    pub to: u32,
}

impl PageTable {
    /// A table of `seqs` empty sequences, each with room for `pages` pages without allocating.
    pub fn new(seqs: usize, pages: usize) -> Self {
        Self {
            seqs: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            exact: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            sliding: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            states: vec![None; seqs],
            seconds: vec![None; seqs],
        }
    }

    /// The pages of a sequence, in the order of its positions.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn seq(&self, seq: u32) -> &[u32] {
        &self.seqs[seq as usize]
    }

    /// The pages of a sequence, to change.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn seq_mut(&mut self, seq: u32) -> &mut Vec<u32> {
        &mut self.seqs[seq as usize]
    }

    /// The exact pages of a sequence: one for each of its pages, or none where only the codes are left.
    /// Shorter where no codec is windowed.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn exact(&self, seq: u32) -> &[Option<u32>] {
        &self.exact[seq as usize]
    }

    /// The exact pages of a sequence, to change.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn exact_mut(&mut self, seq: u32) -> &mut Vec<Option<u32>> {
        &mut self.exact[seq as usize]
    }

    /// The pages of a sequence in layers that keep a sliding window: one for each of its pages, or none where
    /// all positions have left the window. Shorter where no layer keeps one.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn sliding(&self, seq: u32) -> &[Option<u32>] {
        &self.sliding[seq as usize]
    }

    /// These pages, to change.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn sliding_mut(&mut self, seq: u32) -> &mut Vec<Option<u32>> {
        &mut self.sliding[seq as usize]
    }

    /// The state slots of a sequence; `None` where no step is to come, or programs have no such states.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn state(&self, seq: u32) -> Option<StateSlots> {
        self.states[seq as usize]
    }

    /// Says which state slots a sequence has.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_state(&mut self, seq: u32, slots: Option<StateSlots>) {
        self.states[seq as usize] = slots;
    }

    /// Type of the token at a position, for models that embed it: 1 in the second of two texts, 0 elsewhere.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn token_type(&self, seq: u32, pos: u32) -> u32 {
        u32::from(self.seconds[seq as usize].is_some_and(|second| pos >= second))
    }

    /// Says where the second of two texts begins in a sequence, `None` if it has one text.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_second(&mut self, seq: u32, at: Option<u32>) {
        self.seconds[seq as usize] = at;
    }

    /// The exact page in which `row` reads page `i` of its sequence; `None` where it reads the codes.
    pub fn exact_for(&self, window: KvWindow, row: &Row, i: usize) -> Option<u32> {
        let exact = *self.exact(row.seq).get(i)?;
        exact.filter(|_| window.is_exact(row.pos as usize, i))
    }

    /// Number of sequence slots.
    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }
}
