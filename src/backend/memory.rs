//! The memory that a program needs, part by part.

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
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Weights, Self::Kv, Self::Buffers];

    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Kv => "kv",
            Self::Buffers => "buffers",
        }
    }
}

/// Name of the part for recurrent states.
pub(super) const STATES_PART: &str = "recurrent states";

/// A part of the memory that a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its purpose.
    pub kind: MemoryKind,
    /// Its name for users: `layers (i2_s)`.
    pub name: String,
    /// Bytes that are allocated on the device.
    pub bytes: u64,
}

/// Memory that a driver needs in addition: an estimate, because drivers do not report it in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Its name for users.
    pub name: String,
    /// Estimated bytes.
    pub bytes: u64,
    /// Source of the estimate.
    pub source: &'static str,
}

/// Peak rates per second of a card, by its vendor; kernels stay below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardRates {
    /// Bytes from its own memory.
    pub memory_bytes: u64,
    /// Bytes from page-locked host memory, in a slot with all lanes. Measured, not a vendor value.
    pub link_bytes: u64,
    /// int8 operations (multiplications and additions) of its tensor cores, without sparsity.
    pub int8_ops: u64,
    /// The same for f16 with f32 accumulation.
    pub half_ops: u64,
    /// The same for f32, without tensor cores.
    pub float_ops: u64,
}

/// Multiply-accumulates with weights per row of a large batch, by the unit that a device's kernels use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Macs {
    /// int8 on tensor cores.
    pub int8: u64,
    /// The same with a float sum per block, which scales multiply.
    pub int8_blocks: u64,
    /// f16 on tensor cores, with each activation split into two f16.
    pub two_halves: u64,
    /// f32.
    pub float: u64,
}

impl Macs {
    /// Sum of all kinds.
    pub fn sum(&self) -> u64 {
        self.int8 + self.int8_blocks + self.two_halves + self.float
    }
}

/// Float operations per multiply-accumulate of int8 blocks: a subtraction, a multiplication and a
/// multiply-add per sum of 32.
const FLOAT_OPS_OF_BLOCKS: f64 = 6.0 / 32.0;

impl CardRates {
    /// Lower bound on the seconds of such products; scales are multiplied in parallel with the products.
    pub fn seconds(&self, macs: &Macs) -> f64 {
        let of = |macs: u64, ops: u64| 2.0 * macs as f64 / ops as f64;
        let scales = FLOAT_OPS_OF_BLOCKS * macs.int8_blocks as f64 / self.float_ops as f64;
        of(macs.int8, self.int8_ops)
            + of(macs.int8_blocks, self.int8_ops).max(scales)
            + 2.0 * of(macs.two_halves, self.half_ops)
            + of(macs.float, self.float_ops)
    }

    /// Operations per second for such products.
    pub fn ops(&self, macs: &Macs) -> f64 {
        2.0 * macs.sum() as f64 / self.seconds(macs)
    }
}

/// Memory that a program needs on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceMemory {
    /// Description of the device for the user.
    pub device: String,
    /// Parts that are allocated on it; none has 0 bytes.
    pub parts: Vec<MemoryPart>,
    /// Memory that its driver will allocate in addition, if it has not yet.
    pub overhead: Vec<Overhead>,
    /// Page-locked host memory, for weights that do not fit. All of it is copied to the device in every step,
    /// except [chosen experts](Self::chosen_share).
    pub host_bytes: u64,
    /// Bytes of weights that are read from their file in every step, for lack of memory.
    pub file_bytes: u64,
    /// Bytes of weights in their file that the CPU reads in some steps instead of copying them: those of
    /// streamed layers, which are in memory twice.
    pub shared_bytes: u64,
    /// Share of `host_bytes` that a row reads, if only experts are streamed: in steps of few rows the device
    /// reads the chosen ones from host memory.
    pub chosen_share: Option<f64>,
    /// Rows of the largest steps that do so.
    pub in_place_rows: usize,
    /// Layers whose weights are streamed, from the host or from the file.
    pub streamed_layers: usize,
    /// Peak rates of the device, if known.
    pub rates: Option<CardRates>,
    /// Products per row of a large batch.
    pub macs: Macs,
    /// Free bytes for parts and overhead, if known.
    pub free_bytes: Option<u64>,
    /// Bytes to keep free for later allocations of the driver and others.
    pub margin_bytes: u64,
}

impl DeviceMemory {
    /// Parts of a device about which nothing else is known.
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

    /// Bytes that are allocated on the device for one kind.
    pub fn bytes_of(&self, kind: MemoryKind) -> u64 {
        let of_kind = self.parts.iter().filter(|part| part.kind == kind);
        of_kind.fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Bytes that are allocated on the device.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Estimated bytes that its driver allocates in addition.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Sums without the details.
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

/// Parts under construction: equal names are merged, in the order of their first use.
#[derive(Default)]
pub(super) struct Parts(Vec<MemoryPart>);

impl Parts {
    pub fn add(&mut self, kind: MemoryKind, name: &str, bytes: u64) {
        match self.0.iter_mut().find(|part| part.kind == kind && part.name == name) {
            Some(part) => part.bytes = part.bytes.saturating_add(bytes),
            None => self.0.push(MemoryPart { kind, name: name.to_owned(), bytes }),
        }
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Non-empty parts, kind by kind.
    pub fn finish(self) -> Vec<MemoryPart> {
        let of_kind = |kind| self.0.iter().filter(move |part| part.kind == kind && part.bytes > 0);
        MemoryKind::ALL.into_iter().flat_map(of_kind).cloned().collect()
    }
}

/// The part that each weight of a program belongs to: embedding and head separately, norms and biases, pairs
/// of adapters, and all others by type. `lies_as` returns the type of a declaration on the device, if it
/// differs.
pub(super) fn weight_parts(
    p: &Program,
    lies_as: impl Fn(&WeightDecl) -> Option<&'static str>,
) -> Vec<String> {
    let head = p.logits().map(|s| s.w.w);
    let embeds =
        p.stages.iter().filter_map(|(_, stage)| if let Stage::Embed(s) = stage { Some(s) } else { None });
    let (tables, places): (Vec<_>, Vec<_>) = embeds.map(|s| (s.table, s.positions)).unzip();
    let mut of_adapters = vec![false; p.weights.len()];
    for (_, stage) in &p.stages {
        let of_table = if let Stage::Embed(s) = stage { s.lora.as_slice() } else { &[] };
        let pairs = stage.linears().1.flat_map(|linear| &linear.lora).chain(of_table);
        pairs.flat_map(|pair| [pair.a, pair.b]).for_each(|w| of_adapters[w.0 as usize] = true);
    }
    let part = |(i, decl): (usize, &WeightDecl)| {
        let w = Weight(i as u32);
        let role = match (tables.contains(&w), head == Some(w)) {
            (true, true) => "embedding and output head",
            (true, false) => "embedding",
            (false, true) => "output head",
            (false, false) if places.contains(&Some(w)) => "positions",
            (false, false) if of_adapters[i] => "adapters",
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

/// The part that the pages of a cache belong to, named by the types of keys and values.
pub(super) fn cache_part(decl: &KvDecl) -> String {
    let of = if decl.sliding.is_some() { " of sliding windows" } else { "" };
    match (decl.k.name(), decl.v.name()) {
        (k, v) if k == v => format!("KV cache{of} ({k})"),
        (k, v) => format!("KV cache{of} (keys {k}, values {v})"),
    }
}

/// The part for exact pages.
pub(super) const EXACT_PART: &str = "exact pages of the KV cache (f16)";
