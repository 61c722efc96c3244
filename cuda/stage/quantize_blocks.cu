// Quantize by block: normalises batch rows and quantises them to int8, once for all blocks of the tensor
// core products that follow, in the layout of lib/linear_codes.cuh.
//
// A block owns a row. Columns past its end are 0, up to a multiple of MMA_CODES_COLS.
#include "../lib/input.cuh"

KERNEL(quantize__blocks, QuantParams, LINEAR_THREADS) {
    constexpr uint32_t kQuads = QUANT_BLOCKS_COLS / (4 * LINEAR_THREADS);
    static_assert(RowPart<true, true, kQuads>::kCols == QUANT_BLOCKS_COLS, "the host asks for as much");
    uint32_t r = blockIdx.x, n_rows = p.in.of_outputs ? p.step.counts->outputs : p.step.counts->rows;
    const InputParams& in = p.in;
    if (r < n_rows) prefetch_norm<kQuads>(in);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (r >= n_rows) return;
    uint64_t row = in.of_outputs ? p.step.outputs[r] : r;
    const float* x = in.x + row * in.cols;
    uint8_t* to = in.rounded.rows + uint64_t(r) * in.row_bytes;
    uint32_t all_rows = (n_rows + MMA_CODES_ROWS - 1) / MMA_CODES_ROWS * MMA_CODES_ROWS;
    auto put = [&](uint32_t col, uint32_t codes, int32_t sum, auto block) {
        sum += __shfl_xor_sync(kWarp, sum, 4);
        if (col >= in.row_bytes) return;
        uint32_t place = col % 16 / 4 * 8 + col % QUANT_COLS / 16 * 4;
        *reinterpret_cast<uint32_t*>(to + col / QUANT_COLS * QUANT_COLS + place) = codes;
        if (col % QUANT_COLS == 0)
            in.rounded.blocks[uint64_t(col / QUANT_COLS) * all_rows + r] = {
                block.scale, block.scale * static_cast<float>(sum)
            };
    };
    quantize_by_block<kQuads>(in, x, in.row_bytes, put);
}
