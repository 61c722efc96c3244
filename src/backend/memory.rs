//! The memory that a program takes, part by part: what a plan adds up.

use super::Plan;
use sterna_program::{KvDecl, Program, Stage, Weight, WeightDecl};

/// Purpose of a part of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Weights.
    Weights,
    /// Keys and values.
    Kv,
    /// Activation buffers, tables and scratch.
    Buffers,
}

impl MemoryKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Weights, Self::Kv, Self::Buffers];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Kv => "kv",
            Self::Buffers => "buffers",
        }
    }
}

/// A part of the memory that a program takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its purpose.
    pub kind: MemoryKind,
    /// Its name for users: `layers (i2_s)`.
    pub name: String,
    /// Bytes that are asked of the device.
    pub bytes: u64,
}

/// Memory that a driver takes besides: an estimate, because drivers do not report it in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Its name for users.
    pub name: String,
    /// About so many bytes.
    pub bytes: u64,
    /// Where the estimate comes from.
    pub source: &'static str,
}

/// Peak rates of a card, by its maker; no kernel reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardRates {
    /// Bytes of its own memory.
    pub memory_bytes: u64,
    /// Bytes from page-locked memory of the host, in a slot with all its lanes. This one was measured.
    pub link_bytes: u64,
    /// Multiplications and additions of int8, by its tensor cores and without sparsity.
    pub int8_ops: u64,
    /// The same of halves that are added as floats.
    pub half_ops: u64,
}

/// The memory of one device that a program takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device, for people.
    pub device: String,
    /// Parts that are allocated on it; none is 0 bytes.
    pub parts: Vec<MemoryPart>,
    /// Memory that its driver will take on top, if it has not done so yet.
    pub overhead: Vec<Overhead>,
    /// Page-locked memory of the host, for weights that it has no room for. All of it is copied to the
    /// device in every step.
    pub host_bytes: u64,
    /// Bytes of weights that are read from their file in every step, for want of memory of any kind.
    pub file_bytes: u64,
    /// Bytes of weights in their file that the processor reads in some steps instead of copies: those of
    /// streamed layers, in memory a second time.
    pub shared_bytes: u64,
    /// Layers whose weights those are, on the host or in the file.
    pub streamed_layers: usize,
    /// Peak rates of the device, if they are known.
    pub rates: Option<CardRates>,
    /// Bytes that are free for both, if that is known.
    pub free_bytes: Option<u64>,
    /// Bytes that should stay free besides: for what the driver and others take later.
    pub margin_bytes: u64,
}

impl DeviceMemory {
    /// Parts of a device of which nothing else is known.
    pub fn of(device: String, parts: Vec<MemoryPart>) -> Self {
        Self {
            device,
            parts,
            overhead: Vec::new(),
            host_bytes: 0,
            file_bytes: 0,
            shared_bytes: 0,
            streamed_layers: 0,
            rates: None,
            free_bytes: None,
            margin_bytes: 0,
        }
    }

    /// Bytes that are asked of the device for one thing.
    pub fn bytes_of(&self, kind: MemoryKind) -> u64 {
        let of_kind = self.parts.iter().filter(|part| part.kind == kind);
        of_kind.fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Bytes that are asked of the device.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// About as many as its driver takes on top.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// The sums alone.
    pub fn plan(&self) -> Plan {
        Plan {
            weights_bytes: self.bytes_of(MemoryKind::Weights),
            kv_bytes: self.bytes_of(MemoryKind::Kv),
            bufs_bytes: self.bytes_of(MemoryKind::Buffers),
            host_bytes: self.host_bytes,
            free_bytes: self.free_bytes,
        }
    }
}

/// Parts of one kind under construction: equal names are one part, in the order of the first.
pub(super) struct Parts {
    kind: MemoryKind,
    parts: Vec<MemoryPart>,
}

impl Parts {
    pub fn new(kind: MemoryKind) -> Self {
        Self { kind, parts: Vec::new() }
    }

    pub fn add(&mut self, name: impl Into<String>, bytes: u64) {
        let (kind, name) = (self.kind, name.into());
        match self.parts.iter_mut().find(|part| part.name == name) {
            Some(part) => part.bytes = part.bytes.saturating_add(bytes),
            None => self.parts.push(MemoryPart { kind, name, bytes }),
        }
    }

    /// Those that take something.
    pub fn finish(self) -> Vec<MemoryPart> {
        self.parts.into_iter().filter(|part| part.bytes > 0).collect()
    }
}

/// The weights of a program: embedding and head apart, norms and biases, and all others by type. `on_device`
/// says of a declaration what it lies there as, if that is another type, and its bytes.
pub(super) fn weights(
    p: &Program,
    on_device: impl Fn(&WeightDecl) -> (Option<&'static str>, u64),
) -> Vec<MemoryPart> {
    let head = p.logits().map(|s| s.w.w);
    let is_table = |w: Weight, of: fn(&Stage, Weight) -> bool| p.stages.iter().any(|(_, stage)| of(stage, w));
    let mut parts = Parts::new(MemoryKind::Weights);
    for (i, decl) in p.weights.iter().enumerate() {
        let w = Weight(i as u32);
        let embeds = is_table(w, |stage, w| matches!(stage, Stage::Embed(s) if s.table == w));
        let places = is_table(w, |stage, w| matches!(stage, Stage::Embed(s) if s.positions == Some(w)));
        let role = match (embeds, head == Some(w)) {
            (true, true) => "embedding and output head",
            (true, false) => "embedding",
            (false, true) => "output head",
            (false, false) if places => "positions",
            (false, false) if decl.rows == 1 => "norms and biases",
            (false, false) => "layers",
        };
        let (lies_as, bytes) = on_device(decl);
        let ty = decl.ty.name();
        let of =
            lies_as.filter(|other| *other != ty).map_or(ty.to_owned(), |other| format!("{ty} as {other}"));
        parts.add(format!("{role} ({of})"), bytes);
    }
    parts.finish()
}

/// Codecs of a cache for users: `keys q8_0, values f16`.
pub(super) fn codecs(decl: &KvDecl) -> String {
    let (k, v) = (decl.k.name(), decl.v.name());
    if k == v { k.to_owned() } else { format!("keys {k}, values {v}") }
}

/// The parts of caches from what each has: bytes of its pages, and of its exact pages with the means of keys.
pub(super) fn caches<'a>(caches: impl IntoIterator<Item = (&'a KvDecl, u64, u64)>) -> Vec<MemoryPart> {
    let (mut pages, mut exact) = (Parts::new(MemoryKind::Kv), Parts::new(MemoryKind::Kv));
    for (decl, page_bytes, exact_bytes) in caches {
        let of = if decl.sliding.is_some() { " of sliding windows" } else { "" };
        pages.add(format!("KV cache{of} ({})", codecs(decl)), page_bytes);
        exact.add("exact pages of the KV cache (f16)", exact_bytes);
    }
    [pages.finish(), exact.finish()].concat()
}
