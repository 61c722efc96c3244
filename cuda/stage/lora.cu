// LoRA adapters: out[r] += sum over the adapters k of the row's sequence of B_k (s_k f_k A_k x[r]), after the
// product of a layer, or the embedding of a token t with row t of A_k in place of A_k x[r].
//
// A block owns a tile of up to LORA_ROWS rows whose sequences use the same adapters, so that it reads each
// matrix once for all of them; in a mixture of experts it owns one slot of a row. x = tile or slot, y = share
// of the ranks or outputs, z = layer. A launch has a block per tile that the step might have; those past the
// last one do nothing. The adapters of a row are added in ascending order, each with sums in an order that
// only depends on the matrix: a row has the same bits in any tile.
//
// `lora_norm` normalises a row of a tile (y). `lora_first` writes s_k f_k A_k x[r] for LORA_RANKS ranks: all
// threads share the columns. `lora_second` and `lora_embed` add the products with B_k: a thread owns an
// output.
#include "../lib/input.cuh"
#include "../params_adapters.h"
#include "../types/bf16.cuh"
#include "../types/f16.cuh"
#include "../types/f32.cuh"
#include "../types/q8_0.cuh"

// Elements col to col + 3 of a row, for a col that is a multiple of 4. Elements past the end are 0.
struct LoraF32 {
    DEVICE static void quad(const LinearParams& w, uint32_t row, uint32_t col, float (&out)[4]) {
        uint4 bits = load16(F32::row(w, row) + 4 * col);
        out[0] = __uint_as_float(bits.x);
        out[1] = __uint_as_float(bits.y);
        out[2] = __uint_as_float(bits.z);
        out[3] = __uint_as_float(bits.w);
    }
};
struct LoraF16 {
    DEVICE static void quad(const LinearParams& w, uint32_t row, uint32_t col, float (&out)[4]) {
        uint2 bits = load8(F16::row(w, row) + 2 * col);
        float2 first = floats_of_half2(bits.x), last = floats_of_half2(bits.y);
        out[0] = first.x;
        out[1] = first.y;
        out[2] = last.x;
        out[3] = last.y;
    }
};
struct LoraBF16 {
    DEVICE static void quad(const LinearParams& w, uint32_t row, uint32_t col, float (&out)[4]) {
        uint2 bits = load8(BF16::row(w, row) + 2 * col);
        float2 first = floats_of_bfloat2(bits.x), last = floats_of_bfloat2(bits.y);
        out[0] = first.x;
        out[1] = first.y;
        out[2] = last.x;
        out[3] = last.y;
    }
};

// Calls run(type) for the type of a matrix.
template <class Run>
DEVICE void of_type(const LinearParams& w, const Run& run) {
    if (w.kind == LORA_F32) {
        run(LoraF32{});
    } else if (w.kind == LORA_F16) {
        run(LoraF16{});
    } else if (w.kind == LORA_BF16) {
        run(LoraBF16{});
    } else {
        run(Q8_0{});
    }
}

KERNEL(lora_norm, LoraNormParams, LORA_THREADS) {
    static_assert(LORA_THREADS == LINEAR_THREADS, "a block normalises a row");
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (blockIdx.x >= *p.n_tiles) return;
    const uint32_t* tile = p.tiles + blockIdx.x * (1 + LORA_ROWS);
    if (blockIdx.y >= tile[0]) return;
    uint32_t row = tile[1 + blockIdx.y];
    uint64_t at = uint64_t(p.of_outputs ? p.step.outputs[row] : row) * p.cols;
    InputParams in = {};
    in.cols = p.cols;
    in.norm = p.norm;
    RowPart<true, false, 4> held;
    RowNorm norm = row_norm(in, p.x + at, held);
    for (uint32_t part = 0; part < held.parts(p.cols); part++) {
        if (part > 0) held.load(p.x + at, p.cols, part);
        held.apply(norm, in.norm, in.norm.weight, p.cols, part);
        held.each(part, p.cols, [&](uint32_t quad, uint32_t col) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (col + i < p.cols) p.to[at + col + i] = held.x[quad][i];
            }
        });
    }
}

// The rows of a block, in shared memory.
struct LoraTile {
    // 0 if the block has nothing to do.
    uint32_t n;
    uint32_t n_adapters;
    // Index of the expert's first pair, after that of the layer.
    uint32_t of_expert;
    // Per row: its batch row, and its rows of x and of the output.
    uint32_t of_step[LORA_ROWS];
    uint32_t of_x[LORA_ROWS];
    uint32_t of_out[LORA_ROWS];
    // Entry of its sequence in the table of adapters.
    uint32_t seq_at[LORA_ROWS];
};

// Finds the rows of the block. All threads call it; ends with a barrier.
DEVICE void find_rows(const LoraParams& p, LoraTile& tile) {
    if (threadIdx.x == 0) {
        tile.n = 0;
        tile.of_expert = 0;
        if (p.choices) {
            uint32_t r = blockIdx.x / p.n_used;
            if (r < p.step.counts->rows) {
                ExpertChoice choice = p.choices[blockIdx.x];
                tile.n = 1;
                tile.of_expert = choice.expert * p.of_expert;
                tile.of_step[0] = r;
                tile.of_x[0] = p.of_step ? r : choice.place;
                tile.of_out[0] = choice.place;
            }
        } else if (blockIdx.x < *p.n_tiles) {
            const uint32_t* rows = p.tiles + blockIdx.x * (1 + LORA_ROWS);
            tile.n = rows[0];
            for (uint32_t m = 0; m < tile.n; m++) {
                uint32_t row = rows[1 + m], of_step = p.of_outputs ? p.step.outputs[row] : row;
                tile.of_step[m] = of_step;
                tile.of_x[m] = of_step;
                tile.of_out[m] = row;
            }
        }
        for (uint32_t m = 0; m < tile.n; m++)
            tile.seq_at[m] = p.step.rows[tile.of_step[m]].seq * (1 + 2 * p.n_adapters);
        tile.n_adapters = tile.n > 0 ? p.seqs[tile.seq_at[0]] : 0;
    }
    __syncthreads();
}

// The j-th adapter of a tile's rows, and its pair for the block's layer.
DEVICE uint32_t adapter_of(const LoraParams& p, const LoraTile& tile, uint32_t j) {
    return p.seqs[tile.seq_at[0] + 1 + 2 * j];
}
DEVICE const LoraPair& pair_of(const LoraParams& p, const LoraTile& tile, uint32_t adapter) {
    return p.pairs[p.pairs_at[blockIdx.z] + tile.of_expert + adapter];
}
// Its scale for row m.
DEVICE float scale_of(const LoraParams& p, const LoraTile& tile, uint32_t j, uint32_t m) {
    return __uint_as_float(p.seqs[tile.seq_at[m] + 2 + 2 * j]);
}
// Where row m's product with an adapter's first matrix is.
DEVICE uint64_t first_at(const LoraParams& p, const LoraTile& tile, uint32_t adapter, uint32_t m) {
    return ((uint64_t(tile.of_out[m]) * p.n_layers + blockIdx.z) * p.n_adapters + adapter) * p.rank;
}

KERNEL(lora_first, LoraParams, LORA_THREADS) {
    constexpr uint32_t kSums = LORA_RANKS * LORA_ROWS, kWarps = LORA_THREADS / kWarpSize;
    SHARED(LoraTile, tile, 1);
    SHARED(float, partial, kWarps * kSums);
    let_next_kernel_start();
    wait_for_previous_kernel();
    find_rows(p, *tile);
    uint32_t n = tile->n, rank = blockIdx.y * LORA_RANKS;
    for (uint32_t j = 0; j < tile->n_adapters; j++) {
        uint32_t adapter = adapter_of(p, *tile, j);
        const LoraPair& pair = pair_of(p, *tile, adapter);
        if (!pair.a.data || rank >= pair.rank) continue;
        LinearParams a = pair.a;
        uint32_t left = pair.rank - rank;
        float sums[LORA_RANKS][LORA_ROWS] = {};
        of_type(a, [&](auto type) {
            for (uint32_t col = 4 * threadIdx.x; col < p.cols; col += 4 * LORA_THREADS) {
                float w[LORA_RANKS][4] = {};
#pragma unroll
                for (uint32_t i = 0; i < LORA_RANKS; i++) {
                    if (i < left) type.quad(a, rank + i, col, w[i]);
                }
#pragma unroll
                for (uint32_t m = 0; m < LORA_ROWS; m++) {
                    if (m >= n) continue;
                    float x[4];
                    load_quad<false>(p.x + uint64_t(tile->of_x[m]) * p.cols, col, p.cols, x);
#pragma unroll
                    for (uint32_t i = 0; i < LORA_RANKS; i++) {
#pragma unroll
                        for (uint32_t e = 0; e < 4; e++)
                            sums[i][m] = fmaf(w[i][e], x[e], sums[i][m]);
                    }
                }
            }
        });
        constexpr uint32_t kShare = kWarpSize / LORA_ROWS;
        uint32_t lane = threadIdx.x % kWarpSize;
        float* of_warp = partial + threadIdx.x / kWarpSize * kSums;
#pragma unroll
        for (uint32_t i = 0; i < LORA_RANKS; i++) {
            float sum = reduce_each<Sum>(sums[i], kWarpSize);
            if (lane % kShare == 0) of_warp[i * LORA_ROWS + lane / kShare] = sum;
        }
        __syncthreads();
        uint32_t i = threadIdx.x / LORA_ROWS, m = threadIdx.x % LORA_ROWS;
        if (threadIdx.x < kSums && m < n) {
            float sum = partial[threadIdx.x];
#pragma unroll
            for (uint32_t warp = 1; warp < kWarps; warp++) sum += partial[warp * kSums + threadIdx.x];
            // Ranks past the last one are 0.
            p.first[first_at(p, *tile, adapter, m) + rank + i] = a.factor * scale_of(p, *tile, j, m) * sum;
        }
        __syncthreads();
    }
}

// Adds the products with second matrices to the outputs. operand(j, m, adapter, pair, col, to) writes four
// elements of row m's product with the first one.
template <class Operand>
DEVICE void add_second(const LoraParams& p, const LoraTile& tile, const Operand& operand) {
    uint32_t n = tile.n, output = blockIdx.y * LORA_THREADS + threadIdx.x, outputs = p.outputs[blockIdx.z];
    if (n == 0 || output >= outputs) return;
    float sums[LORA_ROWS] = {};
    bool has_any = false;
    for (uint32_t j = 0; j < tile.n_adapters; j++) {
        uint32_t adapter = adapter_of(p, tile, j);
        const LoraPair& pair = pair_of(p, tile, adapter);
        if (!pair.b.data) continue;
        has_any = true;
        LinearParams b = pair.b;
        uint32_t rank = pair.rank;
        of_type(b, [&](auto type) {
            for (uint32_t col = 0; col < rank; col += 4) {
                float w[4];
                type.quad(b, output, col, w);
#pragma unroll
                for (uint32_t m = 0; m < LORA_ROWS; m++) {
                    if (m >= n) continue;
                    float first[4];
                    operand(j, m, adapter, pair, col, first);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) sums[m] = fmaf(w[e], first[e], sums[m]);
                }
            }
        });
    }
    if (!has_any) return;
    float* out = p.out[blockIdx.z];
#pragma unroll
    for (uint32_t m = 0; m < LORA_ROWS; m++) {
        if (m >= n) continue;
        out[uint64_t(tile.of_out[m]) * outputs + output] += sums[m];
    }
}

KERNEL(lora_second, LoraParams, LORA_THREADS) {
    SHARED(LoraTile, tile, 1);
    let_next_kernel_start();
    wait_for_previous_kernel();
    find_rows(p, *tile);
    auto operand = [&](uint32_t, uint32_t m, uint32_t adapter, const LoraPair&, uint32_t col,
                       float(&to)[4]) {
        load_quad<true>(p.first + first_at(p, *tile, adapter, m), col, p.rank, to);
    };
    add_second(p, *tile, operand);
}

KERNEL(lora_embed, LoraParams, LORA_THREADS) {
    SHARED(LoraTile, tile, 1);
    let_next_kernel_start();
    wait_for_previous_kernel();
    find_rows(p, *tile);
    auto operand = [&](uint32_t j, uint32_t m, uint32_t, const LoraPair& pair, uint32_t col,
                       float(&to)[4]) {
        StepRow row = p.step.rows[tile->of_step[m]];
        uint32_t token = row.token == TOKEN_PICKED ? p.picked[row.seq] : row.token;
        LinearParams a = pair.a;
        of_type(a, [&](auto type) { type.quad(a, token, col, to); });
        float factor = a.factor * scale_of(p, *tile, j, m);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) to[e] *= factor;
    };
    add_second(p, *tile, operand);
}
