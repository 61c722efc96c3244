//! Attention: one block per row, tile of query heads, and split of the positions. For many consecutive rows
//! of one sequence, one block per tile of rows, or per split of its positions, on tensor cores. Caches of
//! codes use tensor cores for single rows as well, if there is a kernel for their head length; in steps of
//! one row such a kernel also does the work of `append`. Latent attention is always row by row.

use ggml_types::{KvForm, kv as registry};

use super::combine::Combine;
use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::kv::{self, KvLayout, VectorForm, stride};
use super::occupancy;
use super::op::{Op, Ops};
use super::params::{
    ACT_GATE, ACT_SOFTPLUS, ATTEND_HEADS, ATTEND_LEAST, ATTEND_MMA_BLOCKS_SHARED_BYTES_64,
    ATTEND_MMA_BLOCKS_SHARED_BYTES_128, ATTEND_MMA_BLOCKS_SHARED_BYTES_256, ATTEND_MMA_CODES_RESIDENT,
    ATTEND_MMA_CODES_SHARED_BYTES_64, ATTEND_MMA_CODES_SHARED_BYTES_128, ATTEND_MMA_CODES_SHARED_BYTES_256,
    ATTEND_MMA_HEADS, ATTEND_MMA_RESIDENT, ATTEND_MMA_SHARED_BYTES_64, ATTEND_MMA_SHARED_BYTES_128,
    ATTEND_MMA_SHARED_BYTES_256, ATTEND_MMA_THREADS_64, ATTEND_MMA_THREADS_128, ATTEND_MMA_THREADS_256,
    ATTEND_MMA_VECTORS, ATTEND_MMA_VECTORS_256, ATTEND_ROW_HEADS, ATTEND_ROW_THREADS_128,
    ATTEND_ROW_THREADS_256, ATTEND_THREADS, ATTEND_THREADS_512, ATTEND_WHOLE, ATTEND_WIDE_THREADS,
    AttendCommon, AttendRowsParams, AttendTilesParams, CODES_PIECE, LATENT_HEADS, LATENT_SHARED_BYTES,
    LATENT_THREADS, MAX_PARTS,
};
use super::tiled::most_tiles;
use crate::device::tiles::Tiling;
use sterna_program::{Attend, GateAct, Kv, KvDecl, PAGE, Program, Stage};

const WARP: usize = 32;

/// A kernel on tensor cores for tiles of rows.
#[derive(Clone, Copy)]
struct ByTiles {
    /// Elements per head; shorter heads are supported as well if the cache has neither codes nor blocks.
    elems: u32,
    /// Query vectors per block: rows times heads.
    vectors: u32,
    threads: u32,
}

const TILES: [ByTiles; 3] = [
    ByTiles { elems: 64, vectors: ATTEND_MMA_VECTORS, threads: ATTEND_MMA_THREADS_64 },
    ByTiles { elems: 128, vectors: ATTEND_MMA_VECTORS, threads: ATTEND_MMA_THREADS_128 },
    ByTiles { elems: 256, vectors: ATTEND_MMA_VECTORS_256, threads: ATTEND_MMA_THREADS_256 },
];

/// Shared memory per block for each of [`TILES`].
const ELEMENTS_SHARED: [u32; 3] =
    [ATTEND_MMA_SHARED_BYTES_64, ATTEND_MMA_SHARED_BYTES_128, ATTEND_MMA_SHARED_BYTES_256];
const CODES_SHARED: [u32; 3] =
    [ATTEND_MMA_CODES_SHARED_BYTES_64, ATTEND_MMA_CODES_SHARED_BYTES_128, ATTEND_MMA_CODES_SHARED_BYTES_256];
const BLOCKS_SHARED: [u32; 3] = [
    ATTEND_MMA_BLOCKS_SHARED_BYTES_64,
    ATTEND_MMA_BLOCKS_SHARED_BYTES_128,
    ATTEND_MMA_BLOCKS_SHARED_BYTES_256,
];

/// Head lengths with a tensor core kernel for single rows. It needs fewer instructions than the kernel
/// without tensor cores even for a single query head, so every cache that has one uses it. There is none for
/// heads of 32 elements, nor for keys with residual signs, which are counted.
fn row_sizes(form: KvForm) -> &'static [usize] {
    match form {
        KvForm::Lloyd3 | KvForm::Lloyd4 | KvForm::Lloyd42 | KvForm::Trellis42 => &[64, 128, 256],
        KvForm::F16 | KvForm::F32 | KvForm::Q8_0 | KvForm::Q4_0 | KvForm::Lloyd2Signs | KvForm::Opaque => &[],
        KvForm::Bf16 | KvForm::Q4_1 | KvForm::Q5_0 | KvForm::Q5_1 | KvForm::Iq4Nl => &[],
        // Values have the name of their keys' codec.
        KvForm::Trellis3 => &[],
    }
}

pub fn mma_kernels() -> impl Iterator<Item = KernelName> {
    let of_rows = registry::REGISTRY
        .iter()
        .flat_map(|codec| row_sizes(codec.form()).iter().map(move |elems| row_kernel(codec.name(), *elems)));
    let of_tiles = kv::tiled_kernels().flat_map(|kernel| TILES.map(|tiles| tiles.kernel(kernel)));
    of_rows.chain(of_tiles).chain([WIDE_KERNEL]).chain(["f16", "f32"].map(latent_kernel))
}

/// The kernel for heads of 257 to 512 elements.
const WIDE_KERNEL: KernelName = KernelName::of("attend", "f16").of_kind("of").of_heads(512);

/// The kernel for a cache whose keys are also the values.
fn latent_kernel(codec: &'static str) -> KernelName {
    KernelName::of("attend", codec).of_kind("latent")
}

fn row_kernel(codec: &'static str, elems: usize) -> KernelName {
    KernelName::of("attend", codec).of_kind("row").of_heads(elems)
}

/// The kernel for single rows.
struct ByRows {
    kernel: KernelName,
    /// Query heads per block.
    heads: usize,
    /// Threads per block. `blocks` is the number of blocks per multiprocessor that its registers allow.
    threads: u32,
    blocks: usize,
    /// Partial results that a block merges: one per warp, or one per group of lanes.
    parts: usize,
}

/// True if a cache has a tensor core kernel for single rows.
fn has_row_kernel(kv: &KvDecl) -> bool {
    matches!(kv::form(kv), Some(VectorForm::Codes(_) | VectorForm::Split(_) | VectorForm::Trellis))
        && row_sizes(kv.k.form()).contains(&kv.head_dim)
}

fn by_rows(kv: &KvDecl) -> ByRows {
    let wide = ATTEND_WIDE_THREADS as usize;
    if has_row_kernel(kv) {
        let (threads, blocks) = match kv.head_dim {
            64 => (ATTEND_WIDE_THREADS, 2),
            128 => (ATTEND_ROW_THREADS_128, 1),
            _ => (ATTEND_ROW_THREADS_256, 1),
        };
        return ByRows {
            kernel: row_kernel(kv.k.name(), kv.head_dim),
            heads: ATTEND_ROW_HEADS as usize,
            threads,
            blocks,
            parts: threads as usize / WARP,
        };
    }
    let (kernel, heads) = (kv::kernel("attend", kv), ATTEND_HEADS as usize);
    if kv.values_are_keys {
        return ByRows {
            kernel: latent_kernel(kv.k.name()),
            heads: LATENT_HEADS as usize,
            threads: LATENT_THREADS,
            blocks: 2,
            parts: 1,
        };
    }
    if !kv::is_appended(kv) && kv.head_dim > 256 {
        let threads = ATTEND_THREADS_512;
        return ByRows { kernel: WIDE_KERNEL, heads, threads, blocks: 2, parts: threads as usize / WARP };
    }
    if !kv::is_appended(kv) {
        return ByRows { kernel, heads, threads: ATTEND_WIDE_THREADS, blocks: 2, parts: wide / WARP };
    }
    let parts = ATTEND_THREADS as usize / (kv.head_dim / CODES_PIECE as usize);
    ByRows { kernel, heads, threads: ATTEND_THREADS, blocks: 3, parts }
}

/// True if attention over a cache itself appends the step's keys and values: in a step of one row that runs
/// as a whole, if its kernel can, attention directly follows the only stage that writes the cache, and
/// nothing else reads the cache. Such kernels are for caches of codes, where rows do not see later positions.
pub fn appends(cx: &Cx<'_>, kv: Kv) -> bool {
    let (p, decl) = (cx.p, cx.p.kv_decl(kv));
    if !cx.whole || cx.shape.rows != 1 || !has_row_kernel(decl) {
        return false;
    }
    let of_cache = |stage: &Stage| match stage {
        Stage::AttnIn(s) => s.kv == kv,
        Stage::Attend(s) => s.kv == kv,
        _ => false,
    };
    let mut stages = p.stages.iter().map(|(_, stage)| stage).enumerate().filter(|(_, stage)| of_cache(stage));
    match (stages.next(), stages.next(), stages.next()) {
        (Some((i, Stage::AttnIn(_))), Some((j, Stage::Attend(s))), None) => {
            j == i + 1 && group(p, s) <= ATTEND_ROW_HEADS as usize
        }
        _ => false,
    }
}

impl ByTiles {
    fn kernel(&self, of_cache: KernelName) -> KernelName {
        of_cache.of_kind("mma").of_heads(self.elems as usize)
    }
}

/// The kernel for tiles of rows and its shared memory; `None` if the cache has none or a block cannot get
/// that much shared memory.
fn by_tiles(kv: &KvDecl, limits: Limits) -> Option<(ByTiles, u32)> {
    if kv.values_are_keys {
        return None;
    }
    let shared_bytes = match kv::form(kv)? {
        VectorForm::Elements(2) => ELEMENTS_SHARED,
        VectorForm::Codes(_) | VectorForm::Split(_) | VectorForm::Trellis => CODES_SHARED,
        VectorForm::Blocks(_) => BLOCKS_SHARED,
        VectorForm::Elements(_) | VectorForm::Signs(_) => return None,
    };
    let fits = |elems: usize| if kv::is_appended(kv) { kv.head_dim == elems } else { kv.head_dim <= elems };
    let found = TILES.into_iter().zip(shared_bytes).find(|(tiles, _)| fits(tiles.elems as usize));
    found.filter(|(_, shared_bytes)| shared_bytes + kv::table_bytes(kv) <= limits.shared_bytes)
}

/// Blocks of such a kernel that are resident on the GPU.
fn tile_blocks(kv: &KvDecl, shared_bytes: u32, limits: Limits) -> u32 {
    let by_registers = if kv::is_appended(kv) { ATTEND_MMA_CODES_RESIDENT } else { ATTEND_MMA_RESIDENT };
    let of_block = shared_bytes + kv::table_bytes(kv);
    limits.multiprocessors * occupancy::by_shared(limits, of_block).clamp(1, by_registers)
}

/// Query heads per KV head.
fn group(p: &Program, s: &Attend) -> usize {
    let kv = p.kv_decl(s.kv);
    p.buf_decl(s.q).cols / (kv.n_kv_heads * kv.head_dim)
}

/// Maximum number of positions that a row sees up to and including its own, in the kernels' encoding.
fn most_seen(window: Option<u32>) -> u32 {
    window.unwrap_or(u32::MAX)
}

fn common(cx: &Cx<'_>, s: &Attend) -> AttendCommon {
    // The cache is in the parameters of each kernel; the gate is a separate launch.
    let Attend { q, kv: _, scale, soft_cap, window, ahead, whole_images, sinks, gate: _, gate_act: _, out } =
        *s;
    AttendCommon {
        q: cx.buf(q),
        out: cx.buf(out),
        partial: cx.memory.partial,
        arrived: cx.memory.attend_arrived,
        sinks: sinks.map_or(0, |sinks| cx.weights[sinks.0 as usize].data),
        texts: cx.memory.step.texts(),
        scale,
        group: group(cx.p, s) as u32,
        window: most_seen(window),
        ahead,
        soft_cap: soft_cap.unwrap_or(0.0),
        whole_images: u32::from(whole_images),
    }
}

/// The tiles of a program, if each of its attentions has a tile kernel on tensor cores.
pub fn tiling(p: &Program, limits: Limits) -> Option<Tiling> {
    let of_stage = |(_, stage): &(String, Stage)| match stage {
        Stage::Attend(s) => {
            let heads = group(p, s).min(ATTEND_MMA_HEADS as usize);
            Some(by_tiles(p.kv_decl(s.kv), limits).map(|(tiles, _)| tiles.vectors as usize / heads))
        }
        _ => None,
    };
    let rows = p.stages.iter().filter_map(of_stage).collect::<Option<Vec<_>>>()?;
    let by_window = p.kvs.iter().any(|kv| kv.k.windowed());
    rows.into_iter().min().map(|rows| Tiling { rows, by_window })
}

/// Split of one attention's work over blocks, for steps of up to `rows` rows.
pub struct Cut {
    /// Blocks for the query heads of one KV head.
    pub tiles: usize,
    /// Maximum number of splits of the positions.
    pub splits: usize,
}

impl Cut {
    pub fn new(p: &Program, s: &Attend, limits: Limits, rows: usize) -> Self {
        let kv = p.kv_decl(s.kv);
        let of_block = by_rows(kv);
        let tiles = group(p, s).div_ceil(of_block.heads);
        // At most as many as are resident at a time, as further blocks would be a second wave, and none
        // without positions, as each part takes time to merge.
        let places = of_block.blocks * limits.multiprocessors as usize;
        let wanted = (places / (kv.n_kv_heads * tiles * rows)).max(1);
        let positions = most_seen(s.window).saturating_add(s.ahead).min((p.limits.pages * PAGE) as u32);
        let least = if positions < ATTEND_WHOLE { ATTEND_WHOLE } else { ATTEND_LEAST };
        let most = positions.div_ceil(least) as usize;
        let splits = wanted.min(most).min(MAX_PARTS as usize);
        Self { tiles, splits }
    }

    /// Floats of the splits' partial results, which are merged at the end.
    pub fn partial_floats(&self, kv: &KvDecl, rows: usize) -> usize {
        let parts = if self.splits > 1 { rows * kv.n_kv_heads * self.tiles * self.splits } else { 0 };
        parts * by_rows(kv).heads * (2 + stride(kv))
    }
}

pub fn lower<'a>(p: &Program, s: &'a Attend) -> Ops<'a> {
    let (out, cols) = (Place::Buf(s.out), p.buf_decl(s.out).cols);
    let act = match s.gate_act {
        GateAct::Sigmoid => ACT_GATE,
        GateAct::Softplus => ACT_SOFTPLUS,
    };
    let gate = s.gate.map(|gate| {
        let run = cols / p.buf_decl(gate).cols;
        Combine::by_gate(Place::Buf(gate), out, cols, act, run)
    });
    let gate = gate.map(|gate| Box::new(gate) as Box<dyn Op>);
    [Box::new(s) as Box<dyn Op>].into_iter().chain(gate).collect()
}

impl Op for &Attend {
    fn kernels(&self, p: &Program, limits: Limits) -> Result<Vec<KernelName>, String> {
        let decl = p.kv_decl(self.kv);
        kv::check(decl)?;
        let of_tiles = by_tiles(decl, limits).map(|(tiles, _)| tiles.kernel(kv::kernel("attend", decl)));
        Ok([by_rows(decl).kernel].into_iter().chain(of_tiles).collect())
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        vec![if cx.shape.tiled { launch_tiles(cx, self) } else { launch(cx, self) }]
    }
}

fn launch(cx: &Cx<'_>, s: &Attend) -> Launch {
    let (decl, rows) = (cx.p.kv_decl(s.kv), cx.shape.rows);
    let Cut { tiles, splits } = Cut::new(cx.p, s, cx.limits, rows);
    let (step, common) = (cx.tables_for(s.kv), common(cx, s));
    let [head_tiles, splits] = [tiles, splits].map(|n| n as u32);
    let ByRows { kernel, heads, threads, parts, .. } = by_rows(decl);
    let raw = if appends(cx, s.kv) { cx.memory.raw } else { 0 };
    let params = AttendRowsParams { step, raw, common, head_tiles, splits };
    // The result of each head may be transformed back in shared memory.
    let merged = if kv::is_appended(decl) { heads * decl.head_dim } else { 0 };
    // The merge's result comes before the parts (cuda/lib/parts.cuh); the splits' weights reuse their memory.
    let found = 2 * heads + 4;
    let parts = (parts * (2 + stride(decl))).max(2 * MAX_PARTS as usize) * heads;
    let of_results = ((found + parts + merged) * 4).next_multiple_of(16);
    // A page is encoded in the same memory, before anything else.
    let of_page = if raw == 0 { 0 } else { kv::append_shared_bytes(decl, threads) };
    let shared_bytes = of_results.max(of_page) as u32;
    Launch {
        kernel: cx.kernel(kernel),
        grid: [decl.n_kv_heads as u32 * head_tiles, splits, rows as u32],
        threads,
        shared_bytes: if decl.values_are_keys { LATENT_SHARED_BYTES } else { shared_bytes },
        params: over_cache(cx, s, &params),
    }
}

/// A kernel's parameters, followed by those of the cache (`cuda/lib/over_cache.cuh`).
fn over_cache<T: bytemuck::Pod>(cx: &Cx<'_>, s: &Attend, params: &T) -> Vec<u64> {
    let cache = match &cx.memory.kvs[s.kv.0 as usize] {
        KvLayout::Elements(kv) => words(kv),
        KvLayout::Codes(kv) => words(kv),
        KvLayout::Blocks(kv) => words(kv),
    };
    [words(params), cache].concat()
}

/// Floats of the partial results of the tiles' splits.
pub fn tiles_partial_floats(kv: &KvDecl, limits: Limits) -> usize {
    by_tiles(kv, limits).map_or(0, |(tiles, shared_bytes)| {
        (tile_blocks(kv, shared_bytes, limits) * tiles.vectors) as usize * (2 + kv.head_dim)
    })
}

fn launch_tiles(cx: &Cx<'_>, s: &Attend) -> Launch {
    let decl = cx.p.kv_decl(s.kv);
    let (by_tiles, shared_bytes) = by_tiles(decl, cx.limits).expect("the shape is tiled");
    let group = group(cx.p, s);
    let heads = group.min(ATTEND_MMA_HEADS as usize);
    let head_tiles = group.div_ceil(heads);
    let blocks_of_tile = (decl.n_kv_heads * head_tiles) as u32;
    let (step, tiles, common) = (cx.tables_for(s.kv), cx.memory.step.tiles(), common(cx, s));
    let [heads, head_tiles] = [heads, head_tiles].map(|n| n as u32);
    let (blocks, reserved) = (tile_blocks(decl, shared_bytes, cx.limits), 0);
    let params = AttendTilesParams { step, tiles, common, heads, head_tiles, blocks, reserved };
    // If there are few tiles, they are split.
    let tiles = (most_tiles(cx.shape.rows) as u32).max(blocks / blocks_of_tile);
    Launch {
        kernel: cx.kernel(by_tiles.kernel(kv::kernel("attend", decl))),
        grid: [blocks_of_tile, tiles, 1],
        threads: by_tiles.threads,
        shared_bytes,
        params: over_cache(cx, s, &params),
    }
}
