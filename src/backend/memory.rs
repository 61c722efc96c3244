//! The memory that a program takes, part by part: what a plan adds up.

use super::Plan;
use sterna_program::{BufDecl, KvDecl, Program, RowsOf, Stage, Weight, WeightDecl};

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

/// The part of recurrent states.
pub(super) const STATES_PART: &str = "recurrent states";

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
    /// The same of floats, without tensor cores.
    pub float_ops: u64,
}

/// Multiply-accumulates with weights of one row among many, by what a device's kernels compute them with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Macs {
    /// int8 on tensor cores.
    pub int8: u64,
    /// The same where each block's sum is a float of its own, which scales multiply.
    pub int8_blocks: u64,
    /// Halves on tensor cores, an activation being two of them.
    pub two_halves: u64,
    /// Floats.
    pub float: u64,
}

impl Macs {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.int8 + self.int8_blocks + self.two_halves + self.float
    }
}

/// Operations of floats for a multiply-accumulate of a block of int8: a difference, a product and a
/// multiply-accumulate for each sum of 32.
const FLOAT_OPS_OF_BLOCKS: f64 = 6.0 / 32.0;

impl CardRates {
    /// Seconds of such products, as kernels cannot be faster: scales are multiplied beside the products.
    pub fn seconds(&self, macs: &Macs) -> f64 {
        let of = |macs: u64, ops: u64| 2.0 * macs as f64 / ops as f64;
        let scales = FLOAT_OPS_OF_BLOCKS * macs.int8_blocks as f64 / self.float_ops as f64;
        of(macs.int8, self.int8_ops)
            + of(macs.int8_blocks, self.int8_ops).max(scales)
            + 2.0 * of(macs.two_halves, self.half_ops)
            + of(macs.float, self.float_ops)
    }

    /// Their operations in a second.
    pub fn ops(&self, macs: &Macs) -> f64 {
        2.0 * macs.sum() as f64 / self.seconds(macs)
    }
}

/// The memory of one device that a program takes.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMemory {
    /// The device, for people.
    pub device: String,
    /// Parts that are allocated on it; none is 0 bytes.
    pub parts: Vec<MemoryPart>,
    /// Memory that its driver will take on top, if it has not done so yet.
    pub overhead: Vec<Overhead>,
    /// Page-locked memory of the host, for weights that it has no room for. All of it is copied to the
    /// device in every step, but for [chosen experts](Self::chosen_share).
    pub host_bytes: u64,
    /// Bytes of weights that are read from their file in every step, for want of memory of any kind.
    pub file_bytes: u64,
    /// Bytes of weights in their file that the processor reads in some steps instead of copies: those of
    /// streamed layers, in memory a second time.
    pub shared_bytes: u64,
    /// The share of those that a row reads, where they are experts alone: in steps of few rows the device
    /// reads chosen ones where they lie.
    pub chosen_share: Option<f64>,
    /// Rows of the largest steps that do so.
    pub in_place_rows: usize,
    /// Layers whose weights those are, on the host or in the file.
    pub streamed_layers: usize,
    /// Peak rates of the device, if they are known.
    pub rates: Option<CardRates>,
    /// Products of a row in steps of many.
    pub macs: Macs,
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
            chosen_share: None,
            in_place_rows: 0,
            streamed_layers: 0,
            rates: None,
            macs: Macs::default(),
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

/// Parts under construction: equal names are one part, in the order of the first.
#[derive(Default)]
pub(super) struct Parts(Vec<MemoryPart>);

impl Parts {
    pub fn add(&mut self, kind: MemoryKind, name: &str, bytes: u64) {
        match self.0.iter_mut().find(|part| part.kind == kind && part.name == name) {
            Some(part) => part.bytes = part.bytes.saturating_add(bytes),
            None => self.0.push(MemoryPart { kind, name: name.to_owned(), bytes }),
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Those that take something, kind by kind.
    pub fn finish(self) -> Vec<MemoryPart> {
        let of_kind = |kind| self.0.iter().filter(move |part| part.kind == kind && part.bytes > 0);
        MemoryKind::ALL.into_iter().flat_map(of_kind).cloned().collect()
    }
}

/// The part that each weight of a program belongs to: embedding and head apart, norms and biases, and all
/// others by type. `lies_as` says what type a declaration has on the device, if that is another one.
pub(super) fn weight_parts(
    p: &Program,
    lies_as: impl Fn(&WeightDecl) -> Option<&'static str>,
) -> Vec<String> {
    let head = p.logits().map(|s| s.w.w);
    let embeds =
        p.stages.iter().filter_map(|(_, stage)| if let Stage::Embed(s) = stage { Some(s) } else { None });
    let (tables, places): (Vec<_>, Vec<_>) = embeds.map(|s| (s.table, s.positions)).unzip();
    let part = |(i, decl): (usize, &WeightDecl)| {
        let w = Weight(i as u32);
        let role = match (tables.contains(&w), head == Some(w)) {
            (true, true) => "embedding and output head",
            (true, false) => "embedding",
            (false, true) => "output head",
            (false, false) if places.contains(&Some(w)) => "positions",
            (false, false) if decl.rows == 1 => "norms and biases",
            (false, false) => "layers",
        };
        let ty = decl.ty.name();
        match lies_as(decl).filter(|other| *other != ty) {
            Some(other) => format!("{role} ({ty} as {other})"),
            None => format!("{role} ({ty})"),
        }
    };
    p.weights.iter().enumerate().map(part).collect()
}

/// The part that a buffer of a program belongs to.
pub(super) fn buffer_part(decl: &BufDecl) -> &'static str {
    match decl.rows {
        RowsOf::Step => "activations",
        RowsOf::Outputs => "logits",
    }
}

/// The part that the pages of a cache belong to, with what it keeps keys and values as.
pub(super) fn cache_part(decl: &KvDecl) -> String {
    let of = if decl.sliding.is_some() { " of sliding windows" } else { "" };
    match (decl.k.name(), decl.v.name()) {
        (k, v) if k == v => format!("KV cache{of} ({k})"),
        (k, v) => format!("KV cache{of} (keys {k}, values {v})"),
    }
}

/// The part that exact pages belong to, with the means of keys.
pub(super) const EXACT_PART: &str = "exact pages of the KV cache (f16)";
