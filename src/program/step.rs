//! What may change between two runs of one program.

use super::Sampling;

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
    /// Whether this row's logits are wanted.
    pub logits: bool,
}

impl Row {
    /// In place of an id: the token that the last run which picked one for the row's slot has picked. So a run can be
    /// queued before the host knows the token.
    pub const PICKED: u32 = u32::MAX;
}

/// What may change between two runs of one program. Nothing else may.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// One entry a token. Rows of one sequence stand in the order of their positions.
    pub rows: &'a [Row],
    /// For each sequence slot, the pages that hold its positions.
    pub pages: &'a PageTable,
    /// How to pick a token from each output row, in order; empty where the caller reads logits instead.
    pub sampling: &'a [Sampling],
}

impl Step<'_> {
    /// How many rows ask for logits.
    pub fn n_outputs(&self) -> usize {
        self.rows.iter().filter(|row| row.logits).count()
    }

    /// Output rows whose picks a slot keeps, with that slot: the last output of each sequence. None where nothing is picked.
    pub fn kept_picks(&self) -> impl Iterator<Item = (usize, u32)> {
        let outputs =
            || self.rows.iter().filter(|row| row.logits).map(|row| row.seq).take(self.sampling.len());
        let is_last = move |at: usize, seq: u32| !outputs().skip(at + 1).any(|later| later == seq);
        outputs().enumerate().filter(move |&(at, seq)| is_last(at, seq))
    }
}

/// Positions that a row reads exactly at least where a codec is [`windowed`](ggml_types::KvCodec::windowed), its own
/// among them: whole pages, because positions are encoded a page at a time.
pub const WINDOW: usize = PAGE;

/// For each sequence slot, the pages of its positions: position `p` lies in page `pages[seq][p / PAGE]`
/// at offset `p % PAGE`. A page number means the same page in every layer's cache.
///
/// For windowed codecs a sequence has exact pages besides: of its first page for ever, and of the newest ones. A page is
/// written exactly, and encoded as soon as it is full; which of the two a row reads depends on the row's position
/// alone, so that it is the same however the rows before it were cut into steps.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    seqs: Vec<Vec<u32>>,
    exact: Vec<Vec<Option<u32>>>,
}

impl PageTable {
    /// A table of `seqs` empty sequences, each with room for `pages` pages without allocating.
    pub fn new(seqs: usize, pages: usize) -> Self {
        Self {
            seqs: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
            exact: (0..seqs).map(|_| Vec::with_capacity(pages)).collect(),
        }
    }

    /// The pages of a sequence, in the order of its positions.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn seq(&self, seq: u32) -> &[u32] {
        &self.seqs[seq as usize]
    }

    /// The pages of a sequence, to change.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn seq_mut(&mut self, seq: u32) -> &mut Vec<u32> {
        &mut self.seqs[seq as usize]
    }

    /// The exact pages of a sequence: one for each of its pages, or none where only the codes are left. Shorter where
    /// no codec is windowed.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn exact(&self, seq: u32) -> &[Option<u32>] {
        &self.exact[seq as usize]
    }

    /// The exact pages of a sequence, to change.
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn exact_mut(&mut self, seq: u32) -> &mut Vec<Option<u32>> {
        &mut self.exact[seq as usize]
    }

    /// The exact page in which `row` reads page `i` of its sequence; `None` where it reads the codes.
    pub fn exact_for(&self, row: &Row, i: usize) -> Option<u32> {
        let exact = *self.exact(row.seq).get(i)?;
        exact.filter(|_| i == 0 || i >= window_page(row.pos as usize))
    }

    /// Number of sequence slots.
    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }
}

/// The first page of the window of a row at `pos`.
fn window_page(pos: usize) -> usize {
    ((pos + 1) / PAGE).saturating_sub(WINDOW / PAGE)
}

/// Positions that a row at `pos` reads exactly where a codec is windowed.
pub fn exact_positions(pos: usize) -> usize {
    (pos + 1).min(PAGE + pos + 1 - window_page(pos).max(1) * PAGE)
}
