//! Weights that do not fit in memory: the matrices of some layers stay in their file and are read in every
//! step, ahead of their use, into a ring of slots.
//!
//! The other layers are copied to memory once, so that they cannot be evicted: a model that is larger than
//! the system's page cache and is read from front to back repeatedly never hits that cache. Weights are read
//! in pieces of several rows. A slot holds one piece; the thread in `reader.rs` fills one slot while the
//! pieces before it are multiplied. `file_weight.rs` has the weight that stays in its file.

mod file_weight;
mod order;
mod reader;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use ggml_types::HostTensor;

use super::alloc::{Counter, PartAllocator};
use crate::{BackendError, DeviceOptions, MemoryKind, Resident, WeightRows, memory};
pub(super) use file_weight::FileWeight;
pub(super) use reader::Reader;
use sterna_cpu_kernels::Aligned;
use sterna_program::part::spread;
use sterna_program::{Program, Stage, Weight, WeightDecl};

/// Selection of the weights that are read in every step, and how they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Layers whose weights stay in memory; the others are spread evenly between them.
    pub resident: Resident,
    /// Number of pieces that fit in memory at a time, at least 1: with more than one, a piece is read while
    /// the one before it is multiplied.
    pub slots: usize,
    /// Maximum bytes of a piece, unless a single row is larger.
    pub piece_bytes: usize,
    /// Upper limit for the bytes that are regarded as free.
    pub most_bytes: Option<u64>,
}

impl Default for Streaming {
    fn default() -> Self {
        // WebAssembly has neither threads nor a file.
        let resident = if cfg!(target_arch = "wasm32") { Resident::All } else { Resident::Auto };
        let (slots, piece_bytes) = (Self::DEFAULT_SLOTS, Self::DEFAULT_PIECE_BYTES);
        Self { resident, slots, piece_bytes, most_bytes: None }
    }
}

impl Streaming {
    /// Default number of slots.
    pub const DEFAULT_SLOTS: usize = 4;

    /// Default bytes of a piece: enough to read a disk at full speed, for a few milliseconds at most.
    pub const DEFAULT_PIECE_BYTES: usize = 8 << 20;

    /// The streaming that the backend's options choose.
    ///
    /// # Errors
    /// [`BackendError::Option`] for an invalid number of slots.
    pub fn new(options: &DeviceOptions) -> Result<Self, BackendError> {
        let default = Self::default();
        let resident = options.resident_layers.unwrap_or(default.resident);
        Ok(Self { resident, slots: options.slots(default.slots, 64)?, ..default })
    }
}

/// Location of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightLocation {
    /// In memory of its own, or in the owner's memory if no weight of the program is read in every step.
    Memory,
    /// In its file, read in every step that uses it.
    File,
}

/// Locations of a program's weights.
pub(super) struct Layout {
    /// Number of layers that could be read in every step.
    n_layers: usize,
    n_streamed: usize,
    /// Location of each weight.
    places: Vec<WeightLocation>,
    /// True if weights take no memory because all of them are in a mapped file.
    mapped: bool,
    slots: usize,
    slot_bytes: usize,
    /// Bytes of weights that a step reads; all of them if the file is mapped.
    file_bytes: u64,
    resident_bytes: u64,
    /// True if the layout was chosen because the weights do not fit in memory.
    is_needed: bool,
}

/// Bytes that stay free for memory that is not planned: the vocabulary, file pages, other programs.
fn margin(free: u64) -> u64 {
    const VOCABULARY: u64 = 128 << 20;
    (VOCABULARY + free / 32).min(free / 8)
}

/// Reads a weight into memory of its own.
///
/// # Errors
/// If the read fails or a code is invalid.
pub(super) fn in_memory(w: &dyn WeightRows) -> Result<HostTensor, BackendError> {
    let decl = w.decl();
    if w.reader().is_none() {
        return w.read(0..decl.rows);
    }
    let weight = FileWeight::new(w, usize::MAX)?;
    let mut bytes = Aligned::<u8>::new(weight.slot_bytes());
    weight.read_piece(0, &mut bytes)?;
    Ok(HostTensor {
        name: decl.name.clone(),
        ty: decl.ty,
        rows: decl.rows,
        cols: decl.cols,
        bytes: Bytes::from_owner(bytes),
    })
}

/// Size of a weight in bytes.
fn bytes(decl: &WeightDecl) -> u64 {
    decl.ty.byte_len(decl.rows, decl.cols).map_or(u64::MAX, |n| n as u64)
}

/// Embedding tables, from which single rows are read.
fn tables(p: &Program) -> Vec<Weight> {
    let of = |stage: &Stage| if let Stage::Embed(s) = stage { Some(s.table) } else { None };
    p.stages.iter().filter_map(|(_, stage)| of(stage)).collect()
}

impl Layout {
    /// Chooses the layout of a program that takes `other_bytes` besides its weights, with `free` bytes
    /// available, if that is known.
    pub fn new(p: &Program, streaming: &Streaming, free: Option<u64>, other_bytes: u64) -> Self {
        let all: u64 = p.weights.iter().map(bytes).fold(0, u64::saturating_add);
        let layers: Vec<Vec<Weight>> = p.layers().into_iter().map(|layer| layer.matrices).collect();
        let layers: Vec<_> = layers.into_iter().filter(|matrices| !matrices.is_empty()).collect();
        let whole = |mapped| Self {
            n_layers: layers.len(),
            n_streamed: 0,
            places: vec![WeightLocation::Memory; p.weights.len()],
            mapped,
            slots: 0,
            slot_bytes: 0,
            file_bytes: if mapped { all } else { 0 },
            resident_bytes: if mapped { 0 } else { all },
            is_needed: false,
        };
        let with = |n_resident, head_stays| Self::with(p, streaming, &layers, n_resident, head_stays);
        let n_layers = layers.len();
        match streaming.resident {
            Resident::All => whole(false),
            Resident::Mapped => whole(true),
            Resident::Count(n) if n >= n_layers => whole(false),
            Resident::Count(n) => with(n, true),
            Resident::Nothing => with(0, false),
            Resident::Auto => {
                let Some(free) = free.filter(|free| all.saturating_add(other_bytes) > *free) else {
                    return whole(false);
                };
                let room = free.saturating_sub(margin(free)).saturating_sub(other_bytes);
                let candidates =
                    [true, false].into_iter().flat_map(|head| (0..=n_layers).map(move |n| (n, head)));
                let layouts = candidates.map(|(n, head_stays)| with(n, head_stays));
                let fits = layouts.filter(|layout| layout.memory_bytes() <= room);
                let best = fits.min_by_key(|layout| layout.file_bytes);
                Self { is_needed: true, ..best.unwrap_or_else(|| with(0, false)) }
            }
        }
    }

    /// The layout with `n_resident` of the layers in memory.
    fn with(
        p: &Program,
        streaming: &Streaming,
        layers: &[Vec<Weight>],
        n_resident: usize,
        head_stays: bool,
    ) -> Self {
        let n_streamed = layers.len().saturating_sub(n_resident);
        let streamed = spread(layers.len(), n_streamed);
        let mut places = vec![WeightLocation::Memory; p.weights.len()];
        // Rows of the embedding are few and read one by one, unless the table is also the head.
        tables(p).into_iter().for_each(|w| places[w.0 as usize] = WeightLocation::File);
        if let Some(head) = p.logits() {
            places[head.w.w.0 as usize] =
                if head_stays { WeightLocation::Memory } else { WeightLocation::File };
        }
        let of_layers = layers.iter().zip(streamed).filter(|(_, streamed)| *streamed);
        of_layers
            .flat_map(|(matrices, _)| matrices)
            .for_each(|w| places[w.0 as usize] = WeightLocation::File);
        let multiplied: HashSet<Weight> =
            p.stages.iter().flat_map(|(_, stage)| stage.linears().1).map(|linear| linear.w).collect();
        let of_files = |w: &Weight| places[w.0 as usize] == WeightLocation::File;
        let read: Vec<&WeightDecl> =
            multiplied.iter().filter(|w| of_files(w)).map(|w| p.weight_decl(*w)).collect();
        let stays = p.weights.iter().zip(&places).filter(|(_, place)| **place == WeightLocation::Memory);
        let sizes = read.iter().map(|decl| file_weight::slot_bytes(decl, streaming.piece_bytes));
        Self {
            n_layers: layers.len(),
            n_streamed,
            mapped: false,
            is_needed: false,
            slots: if read.is_empty() { 0 } else { streaming.slots.max(1) },
            slot_bytes: sizes.max().unwrap_or(0),
            file_bytes: read.iter().map(|decl| bytes(decl)).fold(0, u64::saturating_add),
            resident_bytes: stays.map(|(decl, _)| bytes(decl)).fold(0, u64::saturating_add),
            places,
        }
    }

    /// Bytes of memory taken by resident weights and by slots.
    fn memory_bytes(&self) -> u64 {
        self.resident_bytes.saturating_add(self.slots_bytes())
    }

    fn slots_bytes(&self) -> u64 {
        (self.slots as u64).saturating_mul(self.slot_bytes as u64)
    }

    /// Counts the memory of resident weights, and of the slots for the others.
    pub fn count(&self, counter: &mut Counter, p: &Program) {
        let weights = p.weights.iter().zip(memory::weight_parts(p, |_| None)).zip(&self.places);
        let stay = weights.filter(|(_, place)| !self.mapped && **place == WeightLocation::Memory);
        stay.for_each(|((decl, part), _)| counter.part(MemoryKind::Weights, &part).count(bytes(decl)));
        reader::slots(counter, self.slots, self.slot_bytes);
    }

    /// True if weights are read in every step, or rows of a table one by one.
    pub fn reads_files(&self) -> bool {
        self.places.contains(&WeightLocation::File)
    }

    /// Number of layers whose weights are read in every step.
    pub fn n_streamed(&self) -> usize {
        self.n_streamed
    }

    /// Bytes of weights that every step reads from files, or may have to.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Location of each weight by name.
    pub fn places(&self, p: &Program) -> HashMap<String, WeightLocation> {
        p.weights.iter().zip(&self.places).map(|(decl, place)| (decl.name.clone(), *place)).collect()
    }

    /// Note for the user if weights are read from files.
    pub fn note(&self) -> Option<String> {
        let stay = self.n_layers - self.n_streamed;
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let why = if self.is_needed { "the weights do not fit in memory: " } else { "" };
        let resident = megabytes(self.resident_bytes);
        self.reads_files().then(|| match self.slots {
            0 => format!("{why}{resident} stay in memory, and rows of the embedding are read from the file"),
            slots => format!(
                "{why}{stay} of {} layers stay in memory, {resident} in all; the others' weights, {}, are \
                 read from the file in every step, {slots} pieces of up to {} ahead",
                self.n_layers,
                megabytes(self.file_bytes),
                megabytes(self.slot_bytes as u64)
            ),
        })
    }
}
