// Quantize by block for products with weights in octets: normalises batch rows and quantises them to int8,
// once for all blocks of the products that follow, in the order of their operands (lib/linear_octets.cuh).
//
// Codes are [spans of OCTET_COLS columns, OCTET_MAX_ROWS / 8 tiles, 8 blocks of columns, 8 rows, QUANT_COLS]:
// of a row's block, member m of 4 has columns 4 m .. 4 m + 3, then 16 + 4 m .. 16 + 4 m + 3. Per span and
// tile follow the scales, [8 blocks, 8 rows], and the scaled sums, [4 pairs of blocks, 8 rows, 2 blocks].
//
// A block of threads owns a row. Rows past the last one are not written; nothing reads their products.
#include "../lib/input.cuh"
#include "../params_octets.h"

KERNEL(quantize__octets, QuantParams, LINEAR_THREADS) {
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
        uint32_t span = col / OCTET_COLS, of_span = col % OCTET_COLS / QUANT_COLS;
        uint32_t tile = span * (OCTET_MAX_ROWS / 8) + r / 8;
        uint32_t at = (tile * (OCTET_COLS / QUANT_COLS) + of_span) * 8 + r % 8;
        uint32_t place = col % 16 / 4 * 8 + col % QUANT_COLS / 16 * 4;
        *reinterpret_cast<uint32_t*>(in.rounded.rows + at * QUANT_COLS + place) = codes;
        if (col % QUANT_COLS != 0) return;
        float* of_tile = reinterpret_cast<float*>(in.rounded.blocks) + tile * (OCTET_SCALES_BYTES / 4);
        // Rounded to 22 bits, which add_bytes relies on.
        float scale = __uint_as_float((__float_as_uint(block.scale) + 2) & ~3u);
        of_tile[of_span * 8 + r % 8] = scale;
        of_tile[(8 + of_span / 2 * 2) * 8 + r % 8 * 2 + of_span % 2] = scale * static_cast<float>(sum);
    };
    quantize_by_block<kQuads>(in, in.x + row * in.cols, in.row_bytes, put);
}
