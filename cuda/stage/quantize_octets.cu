// Quantize by block for products with weights in octets: normalises batch rows and quantises them to int8,
// once for all blocks of the products that follow, in the order of their operands. Of a row's block of
// QUANT_COLS columns, member m of 4 has columns 4 m .. 4 m + 3, then 16 + 4 m .. 16 + 4 m + 3.
//
// For up to OCTET_MAX_ROWS rows (lib/linear_octets.cuh), codes are [spans of OCTET_COLS columns,
// OCTET_MAX_ROWS / 8 tiles, 8 blocks of columns, 8 rows, QUANT_COLS]. Per span and tile follow the scales,
// [8 blocks, 8 rows], and the scaled sums, [4 pairs of blocks, 8 rows, 2 blocks].
//
// For more rows (lib/linear_octets_many.cuh), there is a part per tile of MANY_ROWS rows and 4 blocks of
// columns, the columns of a tile one after the other. A part has codes, [4 blocks, MANY_ROWS rows,
// QUANT_COLS], scales, [4 blocks, MANY_ROWS rows], and scaled sums, [MANY_ROWS rows, 4 blocks, 2], of which
// the first has the upper 11 bits of the mantissa and the second the rest.
//
// A block of threads owns a row. Rows past the last one are not written; nothing reads their products.
#include "../lib/input.cuh"
#include "../params_octets.h"

// The codes of a row's block, its scale and its scaled sum.
struct PlaceOfFew {
    uint8_t* codes;
    float *scale, *sum;

    DEVICE PlaceOfFew(const InputParams& in, uint32_t r, uint32_t block) {
        constexpr uint32_t kBlocks = OCTET_COLS / QUANT_COLS;
        uint32_t tile = block / kBlocks * (OCTET_MAX_ROWS / 8) + r / 8, of_span = block % kBlocks;
        float* of_tile = reinterpret_cast<float*>(in.rounded.blocks) + tile * (OCTET_SCALES_BYTES / 4);
        codes = in.rounded.rows + ((tile * kBlocks + of_span) * 8 + r % 8) * QUANT_COLS;
        scale = of_tile + of_span * 8 + r % 8;
        sum = of_tile + (8 + of_span / 2 * 2) * 8 + r % 8 * 2 + of_span % 2;
    }
    DEVICE void put_sum(float x) const { *sum = x; }
};
struct PlaceOfMany {
    uint8_t* codes;
    float *scale, *sum;

    DEVICE PlaceOfMany(const InputParams& in, uint32_t r, uint32_t block) {
        constexpr uint32_t kCodes = 4 * MANY_ROWS * QUANT_COLS, kScales = 4 * MANY_ROWS;
        uint32_t parts = in.row_bytes / (4 * QUANT_COLS), row = r % MANY_ROWS, of_part = block % 4;
        uint64_t part = uint64_t(r / MANY_ROWS) * parts + block / 4;
        uint8_t* at = in.rounded.rows + part * (kCodes + kScales * MANY_QUANT_BYTES);
        float* scales = reinterpret_cast<float*>(at + kCodes);
        codes = at + (of_part * MANY_ROWS + row) * QUANT_COLS;
        scale = scales + of_part * MANY_ROWS + row;
        sum = scales + kScales + (row * 4 + of_part) * 2;
    }
    DEVICE void put_sum(float x) const {
        float high = __uint_as_float(__float_as_uint(x) & 0xffffe000u);
        sum[0] = high;
        sum[1] = x - high;
    }
};

template <class Place>
DEVICE void quantize_octets(const QuantParams& p) {
    constexpr uint32_t kQuads = QUANT_BLOCKS_COLS / (4 * LINEAR_THREADS);
    uint32_t r = blockIdx.x, n_rows = p.in.of_outputs ? p.step.counts->outputs : p.step.counts->rows;
    const InputParams& in = p.in;
    if (r < n_rows) prefetch_norm<kQuads>(in);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (r >= n_rows) return;
    uint64_t row = in.of_outputs ? p.step.outputs[r] : r;
    auto put = [&](uint32_t col, uint32_t codes, int32_t sum, auto block) {
        sum += __shfl_xor_sync(kWarp, sum, 4);
        if (col >= in.row_bytes) return;
        Place at(in, r, col / QUANT_COLS);
        *reinterpret_cast<uint32_t*>(at.codes + col % 16 / 4 * 8 + col % QUANT_COLS / 16 * 4) = codes;
        if (col % QUANT_COLS != 0) return;
        // Rounded to 22 bits, which add_scaled relies on.
        float scale = __uint_as_float((__float_as_uint(block.scale) + 2) & ~3u);
        *at.scale = scale;
        at.put_sum(scale * static_cast<float>(sum));
    };
    quantize_by_block<kQuads>(in, in.x + row * in.cols, in.row_bytes, put);
}

KERNEL(quantize__octets, QuantParams, LINEAR_THREADS) { quantize_octets<PlaceOfFew>(p); }
KERNEL(quantize__octets_many, QuantParams, LINEAR_THREADS) { quantize_octets<PlaceOfMany>(p); }
