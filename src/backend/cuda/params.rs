// Made of cuda/params.h by scripts/bindgen.sh.

pub const NORM_NONE: u32 = 0;
pub const NORM_RMS: u32 = 1;
pub const NORM_LAYER: u32 = 2;
pub const ACT_RELU2: u32 = 0;
pub const ACT_SILU: u32 = 1;
pub const ACT_GELU_TANH: u32 = 2;
pub const ACT_CLAMPED_SWIGLU: u32 = 3;
pub const ACT_NONE: u32 = 4;
pub const NO_OUTPUT: u32 = 4294967295;
pub const TOKEN_PICKED: u32 = 4294967295;
pub const NO_MAILBOX: u32 = 4294967295;
pub const MAILBOXES: u32 = 2;
pub const PAGE_POSITIONS: u32 = 64;
pub const ATTEND_LEAST: u32 = 48;
pub const MAX_PARTS: u32 = 112;
pub const ATTEND_HEADS: u32 = 4;
pub const ATTEND_MMA_ROWS: u32 = 64;
pub const ATTEND_MMA_HEADS: u32 = 16;
pub const ATTEND_MMA_SHARED_BYTES_64: u32 = 28032;
pub const ATTEND_MMA_SHARED_BYTES_128: u32 = 52608;
pub const ATTEND_MMA_CODES_SHARED_BYTES_64: u32 = 34048;
pub const ATTEND_MMA_CODES_SHARED_BYTES_128: u32 = 62720;
pub const ATTEND_ROW_HEADS: u32 = 8;
pub const LINEAR_THREADS: u32 = 256;
pub const EMBED_THREADS: u32 = 256;
pub const ATTEND_THREADS: u32 = 128;
pub const ATTEND_WIDE_THREADS: u32 = 384;
pub const APPEND_THREADS: u32 = 128;
pub const SAMPLE_THREADS: u32 = 256;
pub const HEADS_THREADS: u32 = 128;
pub const COMBINE_THREADS: u32 = 256;
pub const STAMP_THREADS: u32 = 32;
pub const ROUTE_THREADS: u32 = 256;
pub const MIX_THREADS: u32 = 256;
pub const EXPERTS_MOST: u32 = 512;
pub const EXPERTS_MOST_USED: u32 = 32;
pub const SAMPLE_MOST: u32 = 256;
pub const CODES_MAX_DIM: u32 = 256;
pub const CODES_MIN_DIM: u32 = 32;
pub const CODES_DIMS: u32 = 4;
pub const CODES_PIECE: u32 = 16;
pub const BLOCKS_HALVES: u32 = 0;
pub const BLOCKS_Q8_0: u32 = 1;
pub const BLOCKS_Q4_0: u32 = 2;
pub const BLOCK_ELEMS: u32 = 32;
pub const APPEND_BLOCKS_SHARED_BYTES: u32 = 1280;
pub const NO_PAGE: u32 = 4294967295;
pub const SAMPLE_SHARED_BYTES: u32 = 17680;
pub const NORM_SHARED_COLS: u32 = 7168;
pub const LINEAR_HEADER_BYTES: u32 = 768;
pub const LINEAR_ROWS: u32 = 8;
pub const MMA_ROWS: u32 = 32;
pub const MMA_INTS_COLS: u32 = 256;
pub const MMA_INTS_PITCH: u32 = 320;
pub const MMA_INTS_STAGES: u32 = 4;
pub const MMA_INTS_SHARED_BYTES: u32 = 44800;
pub const MMA_HALVES_SHARED_BYTES: u32 = 38400;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StepRow {
    pub token: u32,
    pub pos: u32,
    pub seq: u32,
    pub output: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StepRow"][::std::mem::size_of::<StepRow>() - 16usize];
    ["Alignment of StepRow"][::std::mem::align_of::<StepRow>() - 4usize];
    ["Offset of field: StepRow::token"][::std::mem::offset_of!(StepRow, token) - 0usize];
    ["Offset of field: StepRow::pos"][::std::mem::offset_of!(StepRow, pos) - 4usize];
    ["Offset of field: StepRow::seq"][::std::mem::offset_of!(StepRow, seq) - 8usize];
    ["Offset of field: StepRow::output"][::std::mem::offset_of!(StepRow, output) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StepCounts {
    pub rows: u32,
    pub outputs: u32,
    pub sampled: u32,
    pub tiles: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StepCounts"][::std::mem::size_of::<StepCounts>() - 16usize];
    ["Alignment of StepCounts"][::std::mem::align_of::<StepCounts>() - 4usize];
    ["Offset of field: StepCounts::rows"][::std::mem::offset_of!(StepCounts, rows) - 0usize];
    ["Offset of field: StepCounts::outputs"][::std::mem::offset_of!(StepCounts, outputs) - 4usize];
    ["Offset of field: StepCounts::sampled"][::std::mem::offset_of!(StepCounts, sampled) - 8usize];
    ["Offset of field: StepCounts::tiles"][::std::mem::offset_of!(StepCounts, tiles) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StepTile {
    pub first: u32,
    pub rows: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StepTile"][::std::mem::size_of::<StepTile>() - 8usize];
    ["Alignment of StepTile"][::std::mem::align_of::<StepTile>() - 4usize];
    ["Offset of field: StepTile::first"][::std::mem::offset_of!(StepTile, first) - 0usize];
    ["Offset of field: StepTile::rows"][::std::mem::offset_of!(StepTile, rows) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StepSampling {
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub top_k: u32,
    pub seed: u64,
    pub counter: u64,
    pub mailbox: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StepSampling"][::std::mem::size_of::<StepSampling>() - 40usize];
    ["Alignment of StepSampling"][::std::mem::align_of::<StepSampling>() - 8usize];
    ["Offset of field: StepSampling::temperature"]
        [::std::mem::offset_of!(StepSampling, temperature) - 0usize];
    ["Offset of field: StepSampling::top_p"][::std::mem::offset_of!(StepSampling, top_p) - 4usize];
    ["Offset of field: StepSampling::min_p"][::std::mem::offset_of!(StepSampling, min_p) - 8usize];
    ["Offset of field: StepSampling::top_k"][::std::mem::offset_of!(StepSampling, top_k) - 12usize];
    ["Offset of field: StepSampling::seed"][::std::mem::offset_of!(StepSampling, seed) - 16usize];
    ["Offset of field: StepSampling::counter"][::std::mem::offset_of!(StepSampling, counter) - 24usize];
    ["Offset of field: StepSampling::mailbox"][::std::mem::offset_of!(StepSampling, mailbox) - 32usize];
    ["Offset of field: StepSampling::reserved"][::std::mem::offset_of!(StepSampling, reserved) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct NextWeights {
    pub data: u64,
    pub bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of NextWeights"][::std::mem::size_of::<NextWeights>() - 16usize];
    ["Alignment of NextWeights"][::std::mem::align_of::<NextWeights>() - 8usize];
    ["Offset of field: NextWeights::data"][::std::mem::offset_of!(NextWeights, data) - 0usize];
    ["Offset of field: NextWeights::bytes"][::std::mem::offset_of!(NextWeights, bytes) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StepTables {
    pub counts: u64,
    pub rows: u64,
    pub outputs: u64,
    pub pages: u64,
    pub exact: u64,
    pub pages_stride: u32,
    pub reserved: u32,
    pub next: NextWeights,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StepTables"][::std::mem::size_of::<StepTables>() - 64usize];
    ["Alignment of StepTables"][::std::mem::align_of::<StepTables>() - 8usize];
    ["Offset of field: StepTables::counts"][::std::mem::offset_of!(StepTables, counts) - 0usize];
    ["Offset of field: StepTables::rows"][::std::mem::offset_of!(StepTables, rows) - 8usize];
    ["Offset of field: StepTables::outputs"][::std::mem::offset_of!(StepTables, outputs) - 16usize];
    ["Offset of field: StepTables::pages"][::std::mem::offset_of!(StepTables, pages) - 24usize];
    ["Offset of field: StepTables::exact"][::std::mem::offset_of!(StepTables, exact) - 32usize];
    ["Offset of field: StepTables::pages_stride"][::std::mem::offset_of!(StepTables, pages_stride) - 40usize];
    ["Offset of field: StepTables::reserved"][::std::mem::offset_of!(StepTables, reserved) - 44usize];
    ["Offset of field: StepTables::next"][::std::mem::offset_of!(StepTables, next) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct NormParams {
    pub weight: u64,
    pub bias: u64,
    pub eps: f32,
    pub kind: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of NormParams"][::std::mem::size_of::<NormParams>() - 24usize];
    ["Alignment of NormParams"][::std::mem::align_of::<NormParams>() - 8usize];
    ["Offset of field: NormParams::weight"][::std::mem::offset_of!(NormParams, weight) - 0usize];
    ["Offset of field: NormParams::bias"][::std::mem::offset_of!(NormParams, bias) - 8usize];
    ["Offset of field: NormParams::eps"][::std::mem::offset_of!(NormParams, eps) - 16usize];
    ["Offset of field: NormParams::kind"][::std::mem::offset_of!(NormParams, kind) - 20usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct LinearParams {
    pub data: u64,
    pub bias: u64,
    pub tensor_scale: f32,
    pub factor: f32,
    pub rows: u32,
    pub chunks: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of LinearParams"][::std::mem::size_of::<LinearParams>() - 32usize];
    ["Alignment of LinearParams"][::std::mem::align_of::<LinearParams>() - 8usize];
    ["Offset of field: LinearParams::data"][::std::mem::offset_of!(LinearParams, data) - 0usize];
    ["Offset of field: LinearParams::bias"][::std::mem::offset_of!(LinearParams, bias) - 8usize];
    ["Offset of field: LinearParams::tensor_scale"]
        [::std::mem::offset_of!(LinearParams, tensor_scale) - 16usize];
    ["Offset of field: LinearParams::factor"][::std::mem::offset_of!(LinearParams, factor) - 20usize];
    ["Offset of field: LinearParams::rows"][::std::mem::offset_of!(LinearParams, rows) - 24usize];
    ["Offset of field: LinearParams::chunks"][::std::mem::offset_of!(LinearParams, chunks) - 28usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RowQuant {
    pub scale: f32,
    pub sum: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RowQuant"][::std::mem::size_of::<RowQuant>() - 8usize];
    ["Alignment of RowQuant"][::std::mem::align_of::<RowQuant>() - 4usize];
    ["Offset of field: RowQuant::scale"][::std::mem::offset_of!(RowQuant, scale) - 0usize];
    ["Offset of field: RowQuant::sum"][::std::mem::offset_of!(RowQuant, sum) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RoundedParams {
    pub rows: u64,
    pub quants: u64,
    pub sums: u64,
    pub arrived: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RoundedParams"][::std::mem::size_of::<RoundedParams>() - 32usize];
    ["Alignment of RoundedParams"][::std::mem::align_of::<RoundedParams>() - 8usize];
    ["Offset of field: RoundedParams::rows"][::std::mem::offset_of!(RoundedParams, rows) - 0usize];
    ["Offset of field: RoundedParams::quants"][::std::mem::offset_of!(RoundedParams, quants) - 8usize];
    ["Offset of field: RoundedParams::sums"][::std::mem::offset_of!(RoundedParams, sums) - 16usize];
    ["Offset of field: RoundedParams::arrived"][::std::mem::offset_of!(RoundedParams, arrived) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct InputParams {
    pub x: u64,
    pub norm: NormParams,
    pub rounded: RoundedParams,
    pub cols: u32,
    pub int8: u32,
    pub of_outputs: u32,
    pub lanes_log2: u32,
    pub row_bytes: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of InputParams"][::std::mem::size_of::<InputParams>() - 88usize];
    ["Alignment of InputParams"][::std::mem::align_of::<InputParams>() - 8usize];
    ["Offset of field: InputParams::x"][::std::mem::offset_of!(InputParams, x) - 0usize];
    ["Offset of field: InputParams::norm"][::std::mem::offset_of!(InputParams, norm) - 8usize];
    ["Offset of field: InputParams::rounded"][::std::mem::offset_of!(InputParams, rounded) - 32usize];
    ["Offset of field: InputParams::cols"][::std::mem::offset_of!(InputParams, cols) - 64usize];
    ["Offset of field: InputParams::int8"][::std::mem::offset_of!(InputParams, int8) - 68usize];
    ["Offset of field: InputParams::of_outputs"][::std::mem::offset_of!(InputParams, of_outputs) - 72usize];
    ["Offset of field: InputParams::lanes_log2"][::std::mem::offset_of!(InputParams, lanes_log2) - 76usize];
    ["Offset of field: InputParams::row_bytes"][::std::mem::offset_of!(InputParams, row_bytes) - 80usize];
    ["Offset of field: InputParams::reserved"][::std::mem::offset_of!(InputParams, reserved) - 84usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct KvParams {
    pub pages: u64,
    pub page_bytes: u64,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub stride: u32,
    pub elem_bytes: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of KvParams"][::std::mem::size_of::<KvParams>() - 32usize];
    ["Alignment of KvParams"][::std::mem::align_of::<KvParams>() - 8usize];
    ["Offset of field: KvParams::pages"][::std::mem::offset_of!(KvParams, pages) - 0usize];
    ["Offset of field: KvParams::page_bytes"][::std::mem::offset_of!(KvParams, page_bytes) - 8usize];
    ["Offset of field: KvParams::n_kv_heads"][::std::mem::offset_of!(KvParams, n_kv_heads) - 16usize];
    ["Offset of field: KvParams::head_dim"][::std::mem::offset_of!(KvParams, head_dim) - 20usize];
    ["Offset of field: KvParams::stride"][::std::mem::offset_of!(KvParams, stride) - 24usize];
    ["Offset of field: KvParams::elem_bytes"][::std::mem::offset_of!(KvParams, elem_bytes) - 28usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CodesParams {
    pub signs: [u32; 8usize],
    pub shrink: f32,
    pub unit: f32,
    pub borders: [f32; 8usize],
    pub magnitudes: [f32; 8usize],
    pub table: [u32; 2usize],
    pub halves: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CodesParams"][::std::mem::size_of::<CodesParams>() - 128usize];
    ["Alignment of CodesParams"][::std::mem::align_of::<CodesParams>() - 4usize];
    ["Offset of field: CodesParams::signs"][::std::mem::offset_of!(CodesParams, signs) - 0usize];
    ["Offset of field: CodesParams::shrink"][::std::mem::offset_of!(CodesParams, shrink) - 32usize];
    ["Offset of field: CodesParams::unit"][::std::mem::offset_of!(CodesParams, unit) - 36usize];
    ["Offset of field: CodesParams::borders"][::std::mem::offset_of!(CodesParams, borders) - 40usize];
    ["Offset of field: CodesParams::magnitudes"][::std::mem::offset_of!(CodesParams, magnitudes) - 72usize];
    ["Offset of field: CodesParams::table"][::std::mem::offset_of!(CodesParams, table) - 104usize];
    ["Offset of field: CodesParams::halves"][::std::mem::offset_of!(CodesParams, halves) - 112usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct SignsParams {
    pub signs: [u32; 8usize],
    pub factor: f32,
    pub unit: f32,
    pub borders: [f32; 2usize],
    pub magnitudes: [f32; 2usize],
    pub table: [u32; 2usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SignsParams"][::std::mem::size_of::<SignsParams>() - 64usize];
    ["Alignment of SignsParams"][::std::mem::align_of::<SignsParams>() - 4usize];
    ["Offset of field: SignsParams::signs"][::std::mem::offset_of!(SignsParams, signs) - 0usize];
    ["Offset of field: SignsParams::factor"][::std::mem::offset_of!(SignsParams, factor) - 32usize];
    ["Offset of field: SignsParams::unit"][::std::mem::offset_of!(SignsParams, unit) - 36usize];
    ["Offset of field: SignsParams::borders"][::std::mem::offset_of!(SignsParams, borders) - 40usize];
    ["Offset of field: SignsParams::magnitudes"][::std::mem::offset_of!(SignsParams, magnitudes) - 48usize];
    ["Offset of field: SignsParams::table"][::std::mem::offset_of!(SignsParams, table) - 56usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CodedKvParams {
    pub codes: CodesParams,
    pub pages: u64,
    pub exact: u64,
    pub means: u64,
    pub clamped: u64,
    pub page_bytes: u64,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub sink_pages: u32,
    pub newest_pages: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CodedKvParams"][::std::mem::size_of::<CodedKvParams>() - 184usize];
    ["Alignment of CodedKvParams"][::std::mem::align_of::<CodedKvParams>() - 8usize];
    ["Offset of field: CodedKvParams::codes"][::std::mem::offset_of!(CodedKvParams, codes) - 0usize];
    ["Offset of field: CodedKvParams::pages"][::std::mem::offset_of!(CodedKvParams, pages) - 128usize];
    ["Offset of field: CodedKvParams::exact"][::std::mem::offset_of!(CodedKvParams, exact) - 136usize];
    ["Offset of field: CodedKvParams::means"][::std::mem::offset_of!(CodedKvParams, means) - 144usize];
    ["Offset of field: CodedKvParams::clamped"][::std::mem::offset_of!(CodedKvParams, clamped) - 152usize];
    ["Offset of field: CodedKvParams::page_bytes"]
        [::std::mem::offset_of!(CodedKvParams, page_bytes) - 160usize];
    ["Offset of field: CodedKvParams::n_kv_heads"]
        [::std::mem::offset_of!(CodedKvParams, n_kv_heads) - 168usize];
    ["Offset of field: CodedKvParams::head_dim"][::std::mem::offset_of!(CodedKvParams, head_dim) - 172usize];
    ["Offset of field: CodedKvParams::sink_pages"]
        [::std::mem::offset_of!(CodedKvParams, sink_pages) - 176usize];
    ["Offset of field: CodedKvParams::newest_pages"]
        [::std::mem::offset_of!(CodedKvParams, newest_pages) - 180usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct BlockKvParams {
    pub signs: [u32; 8usize],
    pub shrink: f32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub forms: [u32; 2usize],
    pub reserved: u32,
    pub pages: u64,
    pub clamped: u64,
    pub page_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of BlockKvParams"][::std::mem::size_of::<BlockKvParams>() - 80usize];
    ["Alignment of BlockKvParams"][::std::mem::align_of::<BlockKvParams>() - 8usize];
    ["Offset of field: BlockKvParams::signs"][::std::mem::offset_of!(BlockKvParams, signs) - 0usize];
    ["Offset of field: BlockKvParams::shrink"][::std::mem::offset_of!(BlockKvParams, shrink) - 32usize];
    ["Offset of field: BlockKvParams::n_kv_heads"]
        [::std::mem::offset_of!(BlockKvParams, n_kv_heads) - 36usize];
    ["Offset of field: BlockKvParams::head_dim"][::std::mem::offset_of!(BlockKvParams, head_dim) - 40usize];
    ["Offset of field: BlockKvParams::forms"][::std::mem::offset_of!(BlockKvParams, forms) - 44usize];
    ["Offset of field: BlockKvParams::reserved"][::std::mem::offset_of!(BlockKvParams, reserved) - 52usize];
    ["Offset of field: BlockKvParams::pages"][::std::mem::offset_of!(BlockKvParams, pages) - 56usize];
    ["Offset of field: BlockKvParams::clamped"][::std::mem::offset_of!(BlockKvParams, clamped) - 64usize];
    ["Offset of field: BlockKvParams::page_bytes"]
        [::std::mem::offset_of!(BlockKvParams, page_bytes) - 72usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RopeParams {
    pub cos_sin: u64,
    pub pairs: u32,
    pub adjacent: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RopeParams"][::std::mem::size_of::<RopeParams>() - 16usize];
    ["Alignment of RopeParams"][::std::mem::align_of::<RopeParams>() - 8usize];
    ["Offset of field: RopeParams::cos_sin"][::std::mem::offset_of!(RopeParams, cos_sin) - 0usize];
    ["Offset of field: RopeParams::pairs"][::std::mem::offset_of!(RopeParams, pairs) - 8usize];
    ["Offset of field: RopeParams::adjacent"][::std::mem::offset_of!(RopeParams, adjacent) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct EmbedParams {
    pub step: StepTables,
    pub table: LinearParams,
    pub positions: LinearParams,
    pub picked: u64,
    pub x: u64,
    pub cols: u32,
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of EmbedParams"][::std::mem::size_of::<EmbedParams>() - 152usize];
    ["Alignment of EmbedParams"][::std::mem::align_of::<EmbedParams>() - 8usize];
    ["Offset of field: EmbedParams::step"][::std::mem::offset_of!(EmbedParams, step) - 0usize];
    ["Offset of field: EmbedParams::table"][::std::mem::offset_of!(EmbedParams, table) - 64usize];
    ["Offset of field: EmbedParams::positions"][::std::mem::offset_of!(EmbedParams, positions) - 96usize];
    ["Offset of field: EmbedParams::picked"][::std::mem::offset_of!(EmbedParams, picked) - 128usize];
    ["Offset of field: EmbedParams::x"][::std::mem::offset_of!(EmbedParams, x) - 136usize];
    ["Offset of field: EmbedParams::cols"][::std::mem::offset_of!(EmbedParams, cols) - 144usize];
    ["Offset of field: EmbedParams::scale"][::std::mem::offset_of!(EmbedParams, scale) - 148usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttnInParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub wq: LinearParams,
    pub wk: LinearParams,
    pub wv: LinearParams,
    pub rope: RopeParams,
    pub kv: KvParams,
    pub q: u64,
    pub raw: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttnInParams"][::std::mem::size_of::<AttnInParams>() - 312usize];
    ["Alignment of AttnInParams"][::std::mem::align_of::<AttnInParams>() - 8usize];
    ["Offset of field: AttnInParams::step"][::std::mem::offset_of!(AttnInParams, step) - 0usize];
    ["Offset of field: AttnInParams::in_"][::std::mem::offset_of!(AttnInParams, in_) - 64usize];
    ["Offset of field: AttnInParams::wq"][::std::mem::offset_of!(AttnInParams, wq) - 152usize];
    ["Offset of field: AttnInParams::wk"][::std::mem::offset_of!(AttnInParams, wk) - 184usize];
    ["Offset of field: AttnInParams::wv"][::std::mem::offset_of!(AttnInParams, wv) - 216usize];
    ["Offset of field: AttnInParams::rope"][::std::mem::offset_of!(AttnInParams, rope) - 248usize];
    ["Offset of field: AttnInParams::kv"][::std::mem::offset_of!(AttnInParams, kv) - 264usize];
    ["Offset of field: AttnInParams::q"][::std::mem::offset_of!(AttnInParams, q) - 296usize];
    ["Offset of field: AttnInParams::raw"][::std::mem::offset_of!(AttnInParams, raw) - 304usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct HeadsParams {
    pub step: StepTables,
    pub rope: RopeParams,
    pub q_norm: NormParams,
    pub k_norm: NormParams,
    pub kv: KvParams,
    pub q: u64,
    pub keys: u64,
    pub values: u64,
    pub raw: u64,
    pub n_heads: u32,
    pub pitch: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of HeadsParams"][::std::mem::size_of::<HeadsParams>() - 200usize];
    ["Alignment of HeadsParams"][::std::mem::align_of::<HeadsParams>() - 8usize];
    ["Offset of field: HeadsParams::step"][::std::mem::offset_of!(HeadsParams, step) - 0usize];
    ["Offset of field: HeadsParams::rope"][::std::mem::offset_of!(HeadsParams, rope) - 64usize];
    ["Offset of field: HeadsParams::q_norm"][::std::mem::offset_of!(HeadsParams, q_norm) - 80usize];
    ["Offset of field: HeadsParams::k_norm"][::std::mem::offset_of!(HeadsParams, k_norm) - 104usize];
    ["Offset of field: HeadsParams::kv"][::std::mem::offset_of!(HeadsParams, kv) - 128usize];
    ["Offset of field: HeadsParams::q"][::std::mem::offset_of!(HeadsParams, q) - 160usize];
    ["Offset of field: HeadsParams::keys"][::std::mem::offset_of!(HeadsParams, keys) - 168usize];
    ["Offset of field: HeadsParams::values"][::std::mem::offset_of!(HeadsParams, values) - 176usize];
    ["Offset of field: HeadsParams::raw"][::std::mem::offset_of!(HeadsParams, raw) - 184usize];
    ["Offset of field: HeadsParams::n_heads"][::std::mem::offset_of!(HeadsParams, n_heads) - 192usize];
    ["Offset of field: HeadsParams::pitch"][::std::mem::offset_of!(HeadsParams, pitch) - 196usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AppendParams {
    pub step: StepTables,
    pub kv: CodedKvParams,
    pub raw: u64,
    pub q: u64,
    pub group: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AppendParams"][::std::mem::size_of::<AppendParams>() - 272usize];
    ["Alignment of AppendParams"][::std::mem::align_of::<AppendParams>() - 8usize];
    ["Offset of field: AppendParams::step"][::std::mem::offset_of!(AppendParams, step) - 0usize];
    ["Offset of field: AppendParams::kv"][::std::mem::offset_of!(AppendParams, kv) - 64usize];
    ["Offset of field: AppendParams::raw"][::std::mem::offset_of!(AppendParams, raw) - 248usize];
    ["Offset of field: AppendParams::q"][::std::mem::offset_of!(AppendParams, q) - 256usize];
    ["Offset of field: AppendParams::group"][::std::mem::offset_of!(AppendParams, group) - 264usize];
    ["Offset of field: AppendParams::reserved"][::std::mem::offset_of!(AppendParams, reserved) - 268usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AppendBlocksParams {
    pub step: StepTables,
    pub kv: BlockKvParams,
    pub raw: u64,
    pub q: u64,
    pub group: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AppendBlocksParams"][::std::mem::size_of::<AppendBlocksParams>() - 168usize];
    ["Alignment of AppendBlocksParams"][::std::mem::align_of::<AppendBlocksParams>() - 8usize];
    ["Offset of field: AppendBlocksParams::step"][::std::mem::offset_of!(AppendBlocksParams, step) - 0usize];
    ["Offset of field: AppendBlocksParams::kv"][::std::mem::offset_of!(AppendBlocksParams, kv) - 64usize];
    ["Offset of field: AppendBlocksParams::raw"][::std::mem::offset_of!(AppendBlocksParams, raw) - 144usize];
    ["Offset of field: AppendBlocksParams::q"][::std::mem::offset_of!(AppendBlocksParams, q) - 152usize];
    ["Offset of field: AppendBlocksParams::group"]
        [::std::mem::offset_of!(AppendBlocksParams, group) - 160usize];
    ["Offset of field: AppendBlocksParams::reserved"]
        [::std::mem::offset_of!(AppendBlocksParams, reserved) - 164usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttendParams {
    pub step: StepTables,
    pub kv: KvParams,
    pub q: u64,
    pub out: u64,
    pub partial: u64,
    pub arrived: u64,
    pub sinks: u64,
    pub scale: f32,
    pub group: u32,
    pub tiles: u32,
    pub splits: u32,
    pub window: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttendParams"][::std::mem::size_of::<AttendParams>() - 160usize];
    ["Alignment of AttendParams"][::std::mem::align_of::<AttendParams>() - 8usize];
    ["Offset of field: AttendParams::step"][::std::mem::offset_of!(AttendParams, step) - 0usize];
    ["Offset of field: AttendParams::kv"][::std::mem::offset_of!(AttendParams, kv) - 64usize];
    ["Offset of field: AttendParams::q"][::std::mem::offset_of!(AttendParams, q) - 96usize];
    ["Offset of field: AttendParams::out"][::std::mem::offset_of!(AttendParams, out) - 104usize];
    ["Offset of field: AttendParams::partial"][::std::mem::offset_of!(AttendParams, partial) - 112usize];
    ["Offset of field: AttendParams::arrived"][::std::mem::offset_of!(AttendParams, arrived) - 120usize];
    ["Offset of field: AttendParams::sinks"][::std::mem::offset_of!(AttendParams, sinks) - 128usize];
    ["Offset of field: AttendParams::scale"][::std::mem::offset_of!(AttendParams, scale) - 136usize];
    ["Offset of field: AttendParams::group"][::std::mem::offset_of!(AttendParams, group) - 140usize];
    ["Offset of field: AttendParams::tiles"][::std::mem::offset_of!(AttendParams, tiles) - 144usize];
    ["Offset of field: AttendParams::splits"][::std::mem::offset_of!(AttendParams, splits) - 148usize];
    ["Offset of field: AttendParams::window"][::std::mem::offset_of!(AttendParams, window) - 152usize];
    ["Offset of field: AttendParams::reserved"][::std::mem::offset_of!(AttendParams, reserved) - 156usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttendMmaParams {
    pub step: StepTables,
    pub kv: KvParams,
    pub tiles: u64,
    pub q: u64,
    pub out: u64,
    pub partial: u64,
    pub arrived: u64,
    pub sinks: u64,
    pub scale: f32,
    pub group: u32,
    pub heads: u32,
    pub head_tiles: u32,
    pub blocks: u32,
    pub window: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttendMmaParams"][::std::mem::size_of::<AttendMmaParams>() - 168usize];
    ["Alignment of AttendMmaParams"][::std::mem::align_of::<AttendMmaParams>() - 8usize];
    ["Offset of field: AttendMmaParams::step"][::std::mem::offset_of!(AttendMmaParams, step) - 0usize];
    ["Offset of field: AttendMmaParams::kv"][::std::mem::offset_of!(AttendMmaParams, kv) - 64usize];
    ["Offset of field: AttendMmaParams::tiles"][::std::mem::offset_of!(AttendMmaParams, tiles) - 96usize];
    ["Offset of field: AttendMmaParams::q"][::std::mem::offset_of!(AttendMmaParams, q) - 104usize];
    ["Offset of field: AttendMmaParams::out"][::std::mem::offset_of!(AttendMmaParams, out) - 112usize];
    ["Offset of field: AttendMmaParams::partial"]
        [::std::mem::offset_of!(AttendMmaParams, partial) - 120usize];
    ["Offset of field: AttendMmaParams::arrived"]
        [::std::mem::offset_of!(AttendMmaParams, arrived) - 128usize];
    ["Offset of field: AttendMmaParams::sinks"][::std::mem::offset_of!(AttendMmaParams, sinks) - 136usize];
    ["Offset of field: AttendMmaParams::scale"][::std::mem::offset_of!(AttendMmaParams, scale) - 144usize];
    ["Offset of field: AttendMmaParams::group"][::std::mem::offset_of!(AttendMmaParams, group) - 148usize];
    ["Offset of field: AttendMmaParams::heads"][::std::mem::offset_of!(AttendMmaParams, heads) - 152usize];
    ["Offset of field: AttendMmaParams::head_tiles"]
        [::std::mem::offset_of!(AttendMmaParams, head_tiles) - 156usize];
    ["Offset of field: AttendMmaParams::blocks"][::std::mem::offset_of!(AttendMmaParams, blocks) - 160usize];
    ["Offset of field: AttendMmaParams::window"][::std::mem::offset_of!(AttendMmaParams, window) - 164usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttendCodesParams {
    pub step: StepTables,
    pub kv: CodedKvParams,
    pub q: u64,
    pub out: u64,
    pub partial: u64,
    pub arrived: u64,
    pub raw: u64,
    pub sinks: u64,
    pub scale: f32,
    pub group: u32,
    pub tiles: u32,
    pub splits: u32,
    pub window: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttendCodesParams"][::std::mem::size_of::<AttendCodesParams>() - 320usize];
    ["Alignment of AttendCodesParams"][::std::mem::align_of::<AttendCodesParams>() - 8usize];
    ["Offset of field: AttendCodesParams::step"][::std::mem::offset_of!(AttendCodesParams, step) - 0usize];
    ["Offset of field: AttendCodesParams::kv"][::std::mem::offset_of!(AttendCodesParams, kv) - 64usize];
    ["Offset of field: AttendCodesParams::q"][::std::mem::offset_of!(AttendCodesParams, q) - 248usize];
    ["Offset of field: AttendCodesParams::out"][::std::mem::offset_of!(AttendCodesParams, out) - 256usize];
    ["Offset of field: AttendCodesParams::partial"]
        [::std::mem::offset_of!(AttendCodesParams, partial) - 264usize];
    ["Offset of field: AttendCodesParams::arrived"]
        [::std::mem::offset_of!(AttendCodesParams, arrived) - 272usize];
    ["Offset of field: AttendCodesParams::raw"][::std::mem::offset_of!(AttendCodesParams, raw) - 280usize];
    ["Offset of field: AttendCodesParams::sinks"]
        [::std::mem::offset_of!(AttendCodesParams, sinks) - 288usize];
    ["Offset of field: AttendCodesParams::scale"]
        [::std::mem::offset_of!(AttendCodesParams, scale) - 296usize];
    ["Offset of field: AttendCodesParams::group"]
        [::std::mem::offset_of!(AttendCodesParams, group) - 300usize];
    ["Offset of field: AttendCodesParams::tiles"]
        [::std::mem::offset_of!(AttendCodesParams, tiles) - 304usize];
    ["Offset of field: AttendCodesParams::splits"]
        [::std::mem::offset_of!(AttendCodesParams, splits) - 308usize];
    ["Offset of field: AttendCodesParams::window"]
        [::std::mem::offset_of!(AttendCodesParams, window) - 312usize];
    ["Offset of field: AttendCodesParams::reserved"]
        [::std::mem::offset_of!(AttendCodesParams, reserved) - 316usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttendCodesMmaParams {
    pub step: StepTables,
    pub kv: CodedKvParams,
    pub tiles: u64,
    pub q: u64,
    pub out: u64,
    pub partial: u64,
    pub arrived: u64,
    pub sinks: u64,
    pub scale: f32,
    pub group: u32,
    pub heads: u32,
    pub head_tiles: u32,
    pub blocks: u32,
    pub window: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttendCodesMmaParams"][::std::mem::size_of::<AttendCodesMmaParams>() - 320usize];
    ["Alignment of AttendCodesMmaParams"][::std::mem::align_of::<AttendCodesMmaParams>() - 8usize];
    ["Offset of field: AttendCodesMmaParams::step"]
        [::std::mem::offset_of!(AttendCodesMmaParams, step) - 0usize];
    ["Offset of field: AttendCodesMmaParams::kv"][::std::mem::offset_of!(AttendCodesMmaParams, kv) - 64usize];
    ["Offset of field: AttendCodesMmaParams::tiles"]
        [::std::mem::offset_of!(AttendCodesMmaParams, tiles) - 248usize];
    ["Offset of field: AttendCodesMmaParams::q"][::std::mem::offset_of!(AttendCodesMmaParams, q) - 256usize];
    ["Offset of field: AttendCodesMmaParams::out"]
        [::std::mem::offset_of!(AttendCodesMmaParams, out) - 264usize];
    ["Offset of field: AttendCodesMmaParams::partial"]
        [::std::mem::offset_of!(AttendCodesMmaParams, partial) - 272usize];
    ["Offset of field: AttendCodesMmaParams::arrived"]
        [::std::mem::offset_of!(AttendCodesMmaParams, arrived) - 280usize];
    ["Offset of field: AttendCodesMmaParams::sinks"]
        [::std::mem::offset_of!(AttendCodesMmaParams, sinks) - 288usize];
    ["Offset of field: AttendCodesMmaParams::scale"]
        [::std::mem::offset_of!(AttendCodesMmaParams, scale) - 296usize];
    ["Offset of field: AttendCodesMmaParams::group"]
        [::std::mem::offset_of!(AttendCodesMmaParams, group) - 300usize];
    ["Offset of field: AttendCodesMmaParams::heads"]
        [::std::mem::offset_of!(AttendCodesMmaParams, heads) - 304usize];
    ["Offset of field: AttendCodesMmaParams::head_tiles"]
        [::std::mem::offset_of!(AttendCodesMmaParams, head_tiles) - 308usize];
    ["Offset of field: AttendCodesMmaParams::blocks"]
        [::std::mem::offset_of!(AttendCodesMmaParams, blocks) - 312usize];
    ["Offset of field: AttendCodesMmaParams::window"]
        [::std::mem::offset_of!(AttendCodesMmaParams, window) - 316usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct AttendBlocksParams {
    pub step: StepTables,
    pub kv: BlockKvParams,
    pub q: u64,
    pub out: u64,
    pub partial: u64,
    pub arrived: u64,
    pub sinks: u64,
    pub scale: f32,
    pub group: u32,
    pub tiles: u32,
    pub splits: u32,
    pub window: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of AttendBlocksParams"][::std::mem::size_of::<AttendBlocksParams>() - 208usize];
    ["Alignment of AttendBlocksParams"][::std::mem::align_of::<AttendBlocksParams>() - 8usize];
    ["Offset of field: AttendBlocksParams::step"][::std::mem::offset_of!(AttendBlocksParams, step) - 0usize];
    ["Offset of field: AttendBlocksParams::kv"][::std::mem::offset_of!(AttendBlocksParams, kv) - 64usize];
    ["Offset of field: AttendBlocksParams::q"][::std::mem::offset_of!(AttendBlocksParams, q) - 144usize];
    ["Offset of field: AttendBlocksParams::out"][::std::mem::offset_of!(AttendBlocksParams, out) - 152usize];
    ["Offset of field: AttendBlocksParams::partial"]
        [::std::mem::offset_of!(AttendBlocksParams, partial) - 160usize];
    ["Offset of field: AttendBlocksParams::arrived"]
        [::std::mem::offset_of!(AttendBlocksParams, arrived) - 168usize];
    ["Offset of field: AttendBlocksParams::sinks"]
        [::std::mem::offset_of!(AttendBlocksParams, sinks) - 176usize];
    ["Offset of field: AttendBlocksParams::scale"]
        [::std::mem::offset_of!(AttendBlocksParams, scale) - 184usize];
    ["Offset of field: AttendBlocksParams::group"]
        [::std::mem::offset_of!(AttendBlocksParams, group) - 188usize];
    ["Offset of field: AttendBlocksParams::tiles"]
        [::std::mem::offset_of!(AttendBlocksParams, tiles) - 192usize];
    ["Offset of field: AttendBlocksParams::splits"]
        [::std::mem::offset_of!(AttendBlocksParams, splits) - 196usize];
    ["Offset of field: AttendBlocksParams::window"]
        [::std::mem::offset_of!(AttendBlocksParams, window) - 200usize];
    ["Offset of field: AttendBlocksParams::reserved"]
        [::std::mem::offset_of!(AttendBlocksParams, reserved) - 204usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RoundParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub chunks: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RoundParams"][::std::mem::size_of::<RoundParams>() - 160usize];
    ["Alignment of RoundParams"][::std::mem::align_of::<RoundParams>() - 8usize];
    ["Offset of field: RoundParams::step"][::std::mem::offset_of!(RoundParams, step) - 0usize];
    ["Offset of field: RoundParams::in_"][::std::mem::offset_of!(RoundParams, in_) - 64usize];
    ["Offset of field: RoundParams::chunks"][::std::mem::offset_of!(RoundParams, chunks) - 152usize];
    ["Offset of field: RoundParams::reserved"][::std::mem::offset_of!(RoundParams, reserved) - 156usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ProjAddParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub w: LinearParams,
    pub x: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ProjAddParams"][::std::mem::size_of::<ProjAddParams>() - 192usize];
    ["Alignment of ProjAddParams"][::std::mem::align_of::<ProjAddParams>() - 8usize];
    ["Offset of field: ProjAddParams::step"][::std::mem::offset_of!(ProjAddParams, step) - 0usize];
    ["Offset of field: ProjAddParams::in_"][::std::mem::offset_of!(ProjAddParams, in_) - 64usize];
    ["Offset of field: ProjAddParams::w"][::std::mem::offset_of!(ProjAddParams, w) - 152usize];
    ["Offset of field: ProjAddParams::x"][::std::mem::offset_of!(ProjAddParams, x) - 184usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct FfnInParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub gate: LinearParams,
    pub up: LinearParams,
    pub h: u64,
    pub act: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of FfnInParams"][::std::mem::size_of::<FfnInParams>() - 232usize];
    ["Alignment of FfnInParams"][::std::mem::align_of::<FfnInParams>() - 8usize];
    ["Offset of field: FfnInParams::step"][::std::mem::offset_of!(FfnInParams, step) - 0usize];
    ["Offset of field: FfnInParams::in_"][::std::mem::offset_of!(FfnInParams, in_) - 64usize];
    ["Offset of field: FfnInParams::gate"][::std::mem::offset_of!(FfnInParams, gate) - 152usize];
    ["Offset of field: FfnInParams::up"][::std::mem::offset_of!(FfnInParams, up) - 184usize];
    ["Offset of field: FfnInParams::h"][::std::mem::offset_of!(FfnInParams, h) - 216usize];
    ["Offset of field: FfnInParams::act"][::std::mem::offset_of!(FfnInParams, act) - 224usize];
    ["Offset of field: FfnInParams::reserved"][::std::mem::offset_of!(FfnInParams, reserved) - 228usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct StampParams {
    pub at: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of StampParams"][::std::mem::size_of::<StampParams>() - 8usize];
    ["Alignment of StampParams"][::std::mem::align_of::<StampParams>() - 8usize];
    ["Offset of field: StampParams::at"][::std::mem::offset_of!(StampParams, at) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CombineParams {
    pub step: StepTables,
    pub gate: u64,
    pub y: u64,
    pub out: u64,
    pub cols: u32,
    pub act: u32,
    pub add: u32,
    pub each: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CombineParams"][::std::mem::size_of::<CombineParams>() - 104usize];
    ["Alignment of CombineParams"][::std::mem::align_of::<CombineParams>() - 8usize];
    ["Offset of field: CombineParams::step"][::std::mem::offset_of!(CombineParams, step) - 0usize];
    ["Offset of field: CombineParams::gate"][::std::mem::offset_of!(CombineParams, gate) - 64usize];
    ["Offset of field: CombineParams::y"][::std::mem::offset_of!(CombineParams, y) - 72usize];
    ["Offset of field: CombineParams::out"][::std::mem::offset_of!(CombineParams, out) - 80usize];
    ["Offset of field: CombineParams::cols"][::std::mem::offset_of!(CombineParams, cols) - 88usize];
    ["Offset of field: CombineParams::act"][::std::mem::offset_of!(CombineParams, act) - 92usize];
    ["Offset of field: CombineParams::add"][::std::mem::offset_of!(CombineParams, add) - 96usize];
    ["Offset of field: CombineParams::each"][::std::mem::offset_of!(CombineParams, each) - 100usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct PostNormParams {
    pub step: StepTables,
    pub norm: NormParams,
    pub product: u64,
    pub x: u64,
    pub cols: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of PostNormParams"][::std::mem::size_of::<PostNormParams>() - 112usize];
    ["Alignment of PostNormParams"][::std::mem::align_of::<PostNormParams>() - 8usize];
    ["Offset of field: PostNormParams::step"][::std::mem::offset_of!(PostNormParams, step) - 0usize];
    ["Offset of field: PostNormParams::norm"][::std::mem::offset_of!(PostNormParams, norm) - 64usize];
    ["Offset of field: PostNormParams::product"][::std::mem::offset_of!(PostNormParams, product) - 88usize];
    ["Offset of field: PostNormParams::x"][::std::mem::offset_of!(PostNormParams, x) - 96usize];
    ["Offset of field: PostNormParams::cols"][::std::mem::offset_of!(PostNormParams, cols) - 104usize];
    ["Offset of field: PostNormParams::reserved"]
        [::std::mem::offset_of!(PostNormParams, reserved) - 108usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ExpertChoice {
    pub expert: u32,
    pub weight: f32,
    pub place: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ExpertChoice"][::std::mem::size_of::<ExpertChoice>() - 16usize];
    ["Alignment of ExpertChoice"][::std::mem::align_of::<ExpertChoice>() - 4usize];
    ["Offset of field: ExpertChoice::expert"][::std::mem::offset_of!(ExpertChoice, expert) - 0usize];
    ["Offset of field: ExpertChoice::weight"][::std::mem::offset_of!(ExpertChoice, weight) - 4usize];
    ["Offset of field: ExpertChoice::place"][::std::mem::offset_of!(ExpertChoice, place) - 8usize];
    ["Offset of field: ExpertChoice::reserved"][::std::mem::offset_of!(ExpertChoice, reserved) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ExpertTile {
    pub expert: u32,
    pub first: u32,
    pub rows: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ExpertTile"][::std::mem::size_of::<ExpertTile>() - 16usize];
    ["Alignment of ExpertTile"][::std::mem::align_of::<ExpertTile>() - 4usize];
    ["Offset of field: ExpertTile::expert"][::std::mem::offset_of!(ExpertTile, expert) - 0usize];
    ["Offset of field: ExpertTile::first"][::std::mem::offset_of!(ExpertTile, first) - 4usize];
    ["Offset of field: ExpertTile::rows"][::std::mem::offset_of!(ExpertTile, rows) - 8usize];
    ["Offset of field: ExpertTile::reserved"][::std::mem::offset_of!(ExpertTile, reserved) - 12usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RoutesParams {
    pub choices: u64,
    pub tiles: u64,
    pub n_tiles: u64,
    pub rows: u64,
    pub counts: u64,
    pub arrived: u64,
    pub n_experts: u32,
    pub n_used: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RoutesParams"][::std::mem::size_of::<RoutesParams>() - 56usize];
    ["Alignment of RoutesParams"][::std::mem::align_of::<RoutesParams>() - 8usize];
    ["Offset of field: RoutesParams::choices"][::std::mem::offset_of!(RoutesParams, choices) - 0usize];
    ["Offset of field: RoutesParams::tiles"][::std::mem::offset_of!(RoutesParams, tiles) - 8usize];
    ["Offset of field: RoutesParams::n_tiles"][::std::mem::offset_of!(RoutesParams, n_tiles) - 16usize];
    ["Offset of field: RoutesParams::rows"][::std::mem::offset_of!(RoutesParams, rows) - 24usize];
    ["Offset of field: RoutesParams::counts"][::std::mem::offset_of!(RoutesParams, counts) - 32usize];
    ["Offset of field: RoutesParams::arrived"][::std::mem::offset_of!(RoutesParams, arrived) - 40usize];
    ["Offset of field: RoutesParams::n_experts"][::std::mem::offset_of!(RoutesParams, n_experts) - 48usize];
    ["Offset of field: RoutesParams::n_used"][::std::mem::offset_of!(RoutesParams, n_used) - 52usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct RouteParams {
    pub step: StepTables,
    pub routes: RoutesParams,
    pub logits: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of RouteParams"][::std::mem::size_of::<RouteParams>() - 128usize];
    ["Alignment of RouteParams"][::std::mem::align_of::<RouteParams>() - 8usize];
    ["Offset of field: RouteParams::step"][::std::mem::offset_of!(RouteParams, step) - 0usize];
    ["Offset of field: RouteParams::routes"][::std::mem::offset_of!(RouteParams, routes) - 64usize];
    ["Offset of field: RouteParams::logits"][::std::mem::offset_of!(RouteParams, logits) - 120usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ExpertsParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub routes: RoutesParams,
    pub table: u64,
    pub logits: u64,
    pub out: u64,
    pub x: u64,
    pub layer: u32,
    pub act: u32,
    pub outputs: u32,
    pub chunks: u32,
    pub of_step: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ExpertsParams"][::std::mem::size_of::<ExpertsParams>() - 264usize];
    ["Alignment of ExpertsParams"][::std::mem::align_of::<ExpertsParams>() - 8usize];
    ["Offset of field: ExpertsParams::step"][::std::mem::offset_of!(ExpertsParams, step) - 0usize];
    ["Offset of field: ExpertsParams::in_"][::std::mem::offset_of!(ExpertsParams, in_) - 64usize];
    ["Offset of field: ExpertsParams::routes"][::std::mem::offset_of!(ExpertsParams, routes) - 152usize];
    ["Offset of field: ExpertsParams::table"][::std::mem::offset_of!(ExpertsParams, table) - 208usize];
    ["Offset of field: ExpertsParams::logits"][::std::mem::offset_of!(ExpertsParams, logits) - 216usize];
    ["Offset of field: ExpertsParams::out"][::std::mem::offset_of!(ExpertsParams, out) - 224usize];
    ["Offset of field: ExpertsParams::x"][::std::mem::offset_of!(ExpertsParams, x) - 232usize];
    ["Offset of field: ExpertsParams::layer"][::std::mem::offset_of!(ExpertsParams, layer) - 240usize];
    ["Offset of field: ExpertsParams::act"][::std::mem::offset_of!(ExpertsParams, act) - 244usize];
    ["Offset of field: ExpertsParams::outputs"][::std::mem::offset_of!(ExpertsParams, outputs) - 248usize];
    ["Offset of field: ExpertsParams::chunks"][::std::mem::offset_of!(ExpertsParams, chunks) - 252usize];
    ["Offset of field: ExpertsParams::of_step"][::std::mem::offset_of!(ExpertsParams, of_step) - 256usize];
    ["Offset of field: ExpertsParams::reserved"][::std::mem::offset_of!(ExpertsParams, reserved) - 260usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct MixParams {
    pub step: StepTables,
    pub routes: RoutesParams,
    pub products: u64,
    pub x: u64,
    pub cols: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of MixParams"][::std::mem::size_of::<MixParams>() - 144usize];
    ["Alignment of MixParams"][::std::mem::align_of::<MixParams>() - 8usize];
    ["Offset of field: MixParams::step"][::std::mem::offset_of!(MixParams, step) - 0usize];
    ["Offset of field: MixParams::routes"][::std::mem::offset_of!(MixParams, routes) - 64usize];
    ["Offset of field: MixParams::products"][::std::mem::offset_of!(MixParams, products) - 120usize];
    ["Offset of field: MixParams::x"][::std::mem::offset_of!(MixParams, x) - 128usize];
    ["Offset of field: MixParams::cols"][::std::mem::offset_of!(MixParams, cols) - 136usize];
    ["Offset of field: MixParams::reserved"][::std::mem::offset_of!(MixParams, reserved) - 140usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct LogitsParams {
    pub step: StepTables,
    pub in_: InputParams,
    pub w: LinearParams,
    pub logits: u64,
    pub soft_cap: f32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of LogitsParams"][::std::mem::size_of::<LogitsParams>() - 200usize];
    ["Alignment of LogitsParams"][::std::mem::align_of::<LogitsParams>() - 8usize];
    ["Offset of field: LogitsParams::step"][::std::mem::offset_of!(LogitsParams, step) - 0usize];
    ["Offset of field: LogitsParams::in_"][::std::mem::offset_of!(LogitsParams, in_) - 64usize];
    ["Offset of field: LogitsParams::w"][::std::mem::offset_of!(LogitsParams, w) - 152usize];
    ["Offset of field: LogitsParams::logits"][::std::mem::offset_of!(LogitsParams, logits) - 184usize];
    ["Offset of field: LogitsParams::soft_cap"][::std::mem::offset_of!(LogitsParams, soft_cap) - 192usize];
    ["Offset of field: LogitsParams::reserved"][::std::mem::offset_of!(LogitsParams, reserved) - 196usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct SampleParams {
    pub step: StepTables,
    pub sampling: u64,
    pub logits: u64,
    pub tokens: u64,
    pub picked: u64,
    pub mailboxes: u64,
    pub best: u64,
    pub arrived: u64,
    pub n_vocab: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SampleParams"][::std::mem::size_of::<SampleParams>() - 128usize];
    ["Alignment of SampleParams"][::std::mem::align_of::<SampleParams>() - 8usize];
    ["Offset of field: SampleParams::step"][::std::mem::offset_of!(SampleParams, step) - 0usize];
    ["Offset of field: SampleParams::sampling"][::std::mem::offset_of!(SampleParams, sampling) - 64usize];
    ["Offset of field: SampleParams::logits"][::std::mem::offset_of!(SampleParams, logits) - 72usize];
    ["Offset of field: SampleParams::tokens"][::std::mem::offset_of!(SampleParams, tokens) - 80usize];
    ["Offset of field: SampleParams::picked"][::std::mem::offset_of!(SampleParams, picked) - 88usize];
    ["Offset of field: SampleParams::mailboxes"][::std::mem::offset_of!(SampleParams, mailboxes) - 96usize];
    ["Offset of field: SampleParams::best"][::std::mem::offset_of!(SampleParams, best) - 104usize];
    ["Offset of field: SampleParams::arrived"][::std::mem::offset_of!(SampleParams, arrived) - 112usize];
    ["Offset of field: SampleParams::n_vocab"][::std::mem::offset_of!(SampleParams, n_vocab) - 120usize];
    ["Offset of field: SampleParams::reserved"][::std::mem::offset_of!(SampleParams, reserved) - 124usize];
};
