//! Distribution of a linear layer's work over blocks: one function per way of multiplying.

use super::matmul::Matmul;
use super::shared::{Part, norm_bytes, part};
use crate::cuda::driver::Limits;
use crate::cuda::occupancy;
use crate::cuda::octets::OctetTiles;
use crate::cuda::params::{
    LINEAR_HEADER_BYTES, LINEAR_ROWS, LINEAR_THREADS, MANY_ROWS, MANY_SHARED_BYTES, MMA_CODES_ROWS,
    MMA_CODES_SHARED_BYTES, MMA_FEW_TILE_BYTES, MMA_HALVES_SHARED_BYTES, MMA_INTS_COLS,
    MMA_INTS_SHARED_BYTES, MMA_ROWS, OCTET_CODES_BYTES, OCTET_COLS, OCTET_FIXED_BYTES, OCTET_MAX_SLOTS,
    OCTET_SCALES_BYTES, OCTET_SLOTS_BYTES, OCTET_UNITS,
};
use crate::cuda::weight::Products;

/// Warps of a block.
pub const WARPS: usize = LINEAR_THREADS as usize / 32;

/// Distribution of a stage's rows of weights over warps.
#[derive(Clone, Copy)]
pub struct Work {
    /// Rows of weights, of all layers.
    pub rows: usize,
    /// True if pairs of rows must be in the same warp.
    pub paired: bool,
    /// True if every 16 rows that tensor cores multiply together are in two octets.
    pub in_octets: bool,
    /// Rows and pairing by which the number of lanes per row is chosen.
    lanes_as: (usize, bool),
}

impl Work {
    pub fn new(rows: usize, paired: bool) -> Self {
        Self { rows, paired, in_octets: false, lanes_as: (rows, paired) }
    }

    /// The same with rows in octets or not.
    pub fn in_octets(self, in_octets: bool) -> Self {
        Self { in_octets, ..self }
    }

    /// The same with as many lanes per row as other work, so that sums have the same bits.
    pub fn with_lanes_of(self, other: Self) -> Self {
        Self { lanes_as: other.lanes_as, ..self }
    }
}

/// Blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub blocks: usize,
    /// Tiles of the step's rows that have blocks of their own.
    pub tiles: usize,
    /// Warps per block.
    pub warps: usize,
    pub shared_bytes: usize,
    /// Lanes that share a row of weights.
    pub lanes_log2: u32,
    /// Chunks of a row of activations in shared memory at a time.
    pub part_chunks: usize,
}

/// The products of one launch.
#[derive(Clone, Copy)]
pub struct Problem {
    pub products: Products,
    pub limits: Limits,
    /// Inputs.
    pub cols: usize,
    /// Rows of activations.
    pub rows: usize,
    pub work: Work,
    /// True if each block normalises its rows.
    pub is_normed: bool,
}

impl Problem {
    /// The blocks of the products in this way.
    ///
    /// # Panics
    /// If the inputs are too long, which the plan rejects first.
    pub fn geometry(&self, matmul: Matmul) -> Geometry {
        match matmul {
            Matmul::Single | Matmul::Dp4a => self.by_row(),
            Matmul::Rows => self.by_rows(),
            Matmul::Ints => self.ints(self.cols.div_ceil(MMA_INTS_COLS as usize)),
            Matmul::IntBlocks => self.ints(1),
            Matmul::Halves => self.halves(),
            Matmul::Few => self.few(),
            Matmul::Codes => self.codes(),
            Matmul::Octets(tiles) => self.octets(tiles),
            Matmul::OctetsMany => self.octets_many(),
        }
    }

    /// Shared memory of a block that holds one row of activations.
    pub fn single_bytes(&self) -> usize {
        let norm = if self.is_normed { norm_bytes(self.cols) } else { 0 };
        self.part(1).shared_bytes.max(norm)
    }

    fn by_row(&self) -> Geometry {
        self.without_tensor_cores(self.part(1), self.single_bytes())
    }

    fn by_rows(&self) -> Geometry {
        let part = self.part(LINEAR_ROWS as usize);
        self.without_tensor_cores(part, part.shared_bytes)
    }

    /// Units are dealt to blocks round robin: one block per multiprocessor if its warps suffice for all
    /// units. Several waves of blocks are only needed for the sums that each block keeps from part to part.
    fn without_tensor_cores(&self, part: Part, shared_bytes: usize) -> Geometry {
        let lanes_log2 = lanes_log2(self.limits, self.products.chunks(self.cols), self.work);
        let (units, multiprocessors) = (self.units(lanes_log2), self.multiprocessors());
        let wave =
            if units <= multiprocessors * WARPS { multiprocessors } else { self.resident(shared_bytes) };
        let least = units.div_ceil(WARPS.saturating_mul(part.units));
        let blocks = units.clamp(1, least.max(1).next_multiple_of(wave));
        Geometry { blocks, tiles: 1, warps: WARPS, shared_bytes, lanes_log2, part_chunks: part.chunks }
    }

    /// Blocks have equal shares of all spans of columns, or of all tiles if these are not split.
    fn ints(&self, spans: usize) -> Geometry {
        let shared_bytes = MMA_INTS_SHARED_BYTES as usize;
        let (shares, resident) =
            (tiles_of_ints(self.work.rows, self.rows) * spans, self.resident(shared_bytes));
        let full = if shares < resident { self.multiprocessors() } else { resident };
        self.on_tensor_cores(shares.min(full), shared_bytes)
    }

    /// A warp has two sets of rows at a time, and tiles of the step share the GPU.
    fn halves(&self) -> Geometry {
        let shared_bytes = MMA_HALVES_SHARED_BYTES as usize;
        let tiles = self.rows.div_ceil(MMA_ROWS as usize);
        let most = self.resident(shared_bytes).div_ceil(tiles);
        let blocks = self.units(MMA_LANES_LOG2).div_ceil(2 * WARPS).clamp(1, most);
        Geometry { tiles, ..self.on_tensor_cores(blocks, shared_bytes) }
    }

    /// The warps of a block share the columns of 16 rows of weights, and add up their sums of all rows of the
    /// step, in tiles of 8, 16, 32 or 64.
    fn few(&self) -> Geometry {
        let tiles = self.rows.div_ceil(8).next_power_of_two();
        let shared_bytes = LINEAR_HEADER_BYTES as usize + tiles * MMA_FEW_TILE_BYTES as usize;
        self.on_tensor_cores(self.units(MMA_LANES_LOG2).min(self.resident(shared_bytes)), shared_bytes)
    }

    /// Blocks have equal shares of all spans of columns. There is one per multiprocessor for any number of
    /// rows, because the order of a sum depends on their number.
    fn octets(&self, tiles: OctetTiles) -> Geometry {
        let octet_bytes = self.products.octets().expect("a type in octets").bytes;
        let spans = tiles_of_octets(self.work.rows) * self.cols.div_ceil(OCTET_COLS as usize);
        let acts = (OCTET_CODES_BYTES + OCTET_SCALES_BYTES) as usize;
        let slot_bytes = 2 * OCTET_UNITS as usize * octet_bytes + tiles as usize * acts;
        let slots = (OCTET_SLOTS_BYTES as usize / slot_bytes).min(OCTET_MAX_SLOTS as usize);
        let shared_bytes = OCTET_FIXED_BYTES as usize + slots * slot_bytes;
        self.on_tensor_cores(spans.min(self.multiprocessors()), shared_bytes)
    }

    /// Blocks have whole tiles, which are not split, because the order of a sum depends on that.
    fn octets_many(&self) -> Geometry {
        let shared_bytes = MANY_SHARED_BYTES as usize;
        let tiles = tiles_of_octets(self.work.rows) * self.rows.div_ceil(MANY_ROWS as usize);
        self.on_tensor_cores(tiles.min(self.resident(shared_bytes)), shared_bytes)
    }

    /// If tiles leave multiprocessors idle, each tile has only half as many rows of weights.
    fn codes(&self) -> Geometry {
        let shared_bytes = MMA_CODES_SHARED_BYTES as usize;
        let units = self.units(MMA_LANES_LOG2);
        let tiles = |warps: usize| units.div_ceil(warps) * self.rows.div_ceil(MMA_CODES_ROWS as usize);
        let warps = if tiles(WARPS) < self.multiprocessors() { WARPS / 2 } else { WARPS };
        let blocks = tiles(warps).min(self.resident(shared_bytes));
        Geometry { warps, ..self.on_tensor_cores(blocks, shared_bytes) }
    }

    fn on_tensor_cores(&self, blocks: usize, shared_bytes: usize) -> Geometry {
        let part_chunks = self.part(1).chunks;
        Geometry { blocks, tiles: 1, warps: WARPS, shared_bytes, lanes_log2: MMA_LANES_LOG2, part_chunks }
    }

    fn part(&self, rows: usize) -> Part {
        part(self.products, self.limits, self.cols, rows).expect("the plan rejects it first")
    }

    /// Sets of weight rows that a warp has at a time.
    fn units(&self, lanes_log2: u32) -> usize {
        self.work.rows.div_ceil(32 >> lanes_log2)
    }

    fn multiprocessors(&self) -> usize {
        self.limits.multiprocessors as usize
    }

    /// Resident blocks. Kernels have registers for two per multiprocessor; shared memory may allow only one.
    fn resident(&self, shared_bytes: usize) -> usize {
        let each = occupancy::by_shared(self.limits, shared_bytes as u32).clamp(1, 2);
        self.multiprocessors() * each as usize
    }
}

/// Lanes that share a row of weights on tensor cores.
const MMA_LANES_LOG2: u32 = 1;

/// Shared memory of a block whose kernel streams octets, at most.
pub const fn octets_shared_bytes() -> usize {
    (OCTET_FIXED_BYTES + OCTET_SLOTS_BYTES) as usize
}

/// Tiles of weights of products in octets.
pub fn tiles_of_octets(of_weights: usize) -> usize {
    of_weights.div_ceil(16 * OCTET_UNITS as usize)
}

/// Tiles of integer products on tensor cores, for `of_weights` rows of weights by `rows` rows of the step.
pub fn tiles_of_ints(of_weights: usize, rows: usize) -> usize {
    of_weights.div_ceil(16 * WARPS) * rows.div_ceil(MMA_ROWS as usize)
}

/// Lanes that share a row: 8, which read one cache line of it at a time; more if rows are long, or so few
/// that there would be fewer than four warps per multiprocessor.
pub fn lanes_log2(limits: Limits, chunks: usize, work: Work) -> u32 {
    let (rows, paired) = work.lanes_as;
    let most = if paired { 4 } else { 5 };
    let enough = |lanes: usize| {
        let warps = rows * lanes / 32;
        chunks <= 8 * lanes && (warps >= 4 * limits.multiprocessors as usize || chunks <= lanes)
    };
    (3..most).find(|log2| enough(1 << log2)).unwrap_or(most)
}
