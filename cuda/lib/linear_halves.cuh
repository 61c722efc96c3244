// Linear layers on tensor cores for many rows of activations, for weights that are multiplied as f16:
// mma.sync m16n8k16 with float sums.
//
// A block has a tile of up to MMA_ROWS batch rows and a share of the units; a warp owns kSets sets of 16
// weight rows. Columns are processed kCols at a time: the block normalises and rounds the activations as in
// lib/input.cuh, and writes each to shared memory as two f16 (high and low), so that products are as precise
// as float products; each row is first scaled so that its largest magnitude is about 2^10. Weights are
// converted exactly to f16 in registers: of 32 columns of a row, a lane has 4 of the first 16 and 4 of the
// last 16, as codes (lib/block_codes.cuh) or, for F16, through T::halves. 16 columns are one product, which
// the group's scale multiplies if the type has scales, and which is added to the row's float sum outside the
// tensor core: its accumulators truncate towards zero, and over thousands of columns that error would add up.
// With kOffsets, one more product, with a matrix of ones, gives the sum of the activations, which the offset
// multiplies.
//
// Grid: x = share of the units, y = tile of batch rows. Reads W once per tile, and the tile's activations
// once per round of units. Tasks are those of lib/linear.cuh, with 16 slots, as in lib/linear_mma.cuh.
#pragma once

#include "block_codes.cuh"
#include "halves.cuh"
#include "linear.cuh"

// Columns in shared memory at a time, and the pitch of a row there in f16: half a warp reads different banks.
constexpr uint32_t kCols = 128;
constexpr uint32_t kColsPitch = kCols + 16;

struct HalvesShared {
    uint16_t high[MMA_ROWS * kColsPitch], low[MMA_ROWS * kColsPitch];
    // Per row: the data needed to compute its activations; an invalid row is all NaN.
    struct Row {
        RowNorm norm;
        float scale;
        PowerOfTwo power;
        uint32_t broken;
    } rows[MMA_ROWS];
};
static_assert(LINEAR_HEADER_BYTES + sizeof(HalvesShared) <= MMA_HALVES_SHARED_BYTES,
    "the host asks for less");

// Activation of a row and column, before the split into two f16. Neighbouring threads have neighbouring
// columns.
DEVICE float activation(const InputParams& in, const HalvesShared::Row& row, float x, uint32_t col) {
    float n = row.norm.of(in.norm, x, col);
    if (in.rounding == QUANT_ROWS) return rintf(n * row.scale) / row.scale;
    return n;
}

// A lane's weights as f16, two words per group.
template <class T, bool = kCodes<T>>
struct OnHalves {
    using Weights = typename T::Codes;
    template <class Kind>
    DEVICE static Weights of(
        const LinearParams& w, uint32_t row, uint32_t col, uint32_t member, const Kind& kind
    ) {
        return codes_of<T>(part_of<T>(T::row(w, row), col / 32, member, kind), col / 32, member, kind);
    }
    DEVICE static void words(const Weights& w, int group, uint32_t (&out)[2]) {
        uint32_t bytes = w.words[group] ^ 0x80808080u;
        float x[4];
        // 2^23 + (byte + 128) has the byte in its lowest bits.
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540u + i)) - 8388736.0f;
        out[0] = half2_bits(x[0], x[1]);
        out[1] = half2_bits(x[2], x[3]);
    }
};
template <class T>
struct OnHalves<T, false> {
    using Weights = typename T::Halves;
    DEVICE static Weights of(
        const LinearParams& w, uint32_t row, uint32_t col, uint32_t member, const NoKind&
    ) {
        return T::halves(w, row, col, member);
    }
    DEVICE static void words(const Weights& w, int group, uint32_t (&out)[2]) {
        out[0] = w.words[2 * group];
        out[1] = w.words[2 * group + 1];
    }
};

// Computes the norm and scales of a row. Called by a whole warp.
DEVICE void prepare_row(const InputParams& in, const float* x, HalvesShared::Row& row) {
    uint32_t lane = threadIdx.x % kWarpSize;
    RowPart<false, false, kMmaQuads> held;
    RowNorm norm = row_norm(in, x, held);
    uint32_t largest = 0;
    for (uint32_t part = 0; part < held.parts(in.cols); part++) {
        if (part > 0) held.load(x, in.cols, part);
        held.apply(norm, in.norm, in.norm.weight, in.cols, part);
        largest = held.largest(largest);
    }
    largest = reduce_warp<Max>(largest);
    if (lane != 0) return;
    bool by_row = in.rounding == QUANT_ROWS;
    uint32_t most = by_row ? __float_as_uint(kMaxAct) : 0x7f7fffffu;
    row.norm = norm;
    row.scale = by_row ? 127.0f / fmaxf(__uint_as_float(largest), 1e-5f) : 1.0f;
    row.power = PowerOfTwo::of(largest);
    row.broken = largest > most;
}

template <class T, class Task>
DEVICE void run_linear_halves(const StepTables& step, const InputParams& in, uint32_t, const Task& task) {
    constexpr int kSets = kMmaSets<T>, kTiles = MMA_ROWS / 8;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows, first = blockIdx.y * MMA_ROWS;
    if (first >= n_rows) return;
    uint32_t n = n_rows - first < MMA_ROWS ? n_rows - first : MMA_ROWS;
    HalvesShared& shared = *reinterpret_cast<HalvesShared*>(shared_memory() + LINEAR_HEADER_BYTES);
    auto input = [&](uint32_t m) {
        uint64_t row = in.of_outputs ? step.outputs[first + m] : first + m;
        return in.x + row * in.cols;
    };
    uint32_t warps = blockDim.x / kWarpSize, warp = threadIdx.x / kWarpSize;
    for (uint32_t m = warp; m < n; m += warps) prepare_row(in, input(m), shared.rows[m]);

    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t units = task.units(), stride = gridDim.x * warps * kSets;
    const auto kind = kind_of<T>(task.weight(0));
    // All warps run the same number of rounds, because they share the activations.
    for (uint32_t round = blockIdx.x * warps * kSets; round < units; round += stride) {
        uint32_t unit = round + warp * kSets;
        float sums[kSets][kTiles][4] = {};
        // Rows `quartet` and `quartet + 8` of each set.
        WeightRow rows[kSets][2];
#pragma unroll
        for (int set = 0; set < kSets; set++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                rows[set][half] =
                    unit + set < units ? task.row(unit + set, quartet + 8 * half) : WeightRow{};
            }
        }
        for (uint32_t base = 0; base < in.cols; base += kCols) {
            __syncthreads();
            for (uint32_t at = threadIdx.x; at < MMA_ROWS * kCols; at += blockDim.x) {
                uint32_t m = at / kCols, col = base + at % kCols;
                const HalvesShared::Row& row = shared.rows[m];
                float x = m < n && col < in.cols ? activation(in, row, input(m)[col], col) : 0.0f;
                // A warp has one block of columns.
                if (in.rounding == QUANT_BLOCKS)
                    x = BlockRounding::of_threads<QUANT_COLS>(__float_as_uint(x) & 0x7fffffffu).rounded(x);
                TwoHalves two = {0, 0};
                if (m < n && col < in.cols) {
                    two = TwoHalves::of(x * row.power.by);
                    if (row.broken) two = {0x7e00u, 0};
                }
                shared.high[m * kColsPitch + at % kCols] = two.high;
                shared.low[m * kColsPitch + at % kCols] = two.low;
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t col = base; col < base + kCols && col < in.cols; col += 32) {
                using Weights = typename OnHalves<T>::Weights;
                Weights w[kSets][2];
#pragma unroll
                for (int set = 0; set < kSets; set++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const WeightRow& at = rows[set][half];
                        w[set][half] = Weights{};
                        if (!at.exists()) continue;
                        w[set][half] = OnHalves<T>::of(task.weight(at.weight), at.row, col, member, kind);
                    }
                }
#pragma unroll
                for (int group = 0; group < 2; group++) {
                    uint32_t place = col - base + 16 * group + 4 * member;
                    uint32_t words[kSets][2][2];
#pragma unroll
                    for (int set = 0; set < kSets; set++) {
                        OnHalves<T>::words(w[set][0], group, words[set][0]);
                        OnHalves<T>::words(w[set][1], group, words[set][1]);
                    }
#pragma unroll
                    for (int tile = 0; tile < kTiles; tile++) {
                        if (8 * tile >= static_cast<int>(n)) break;
                        uint32_t from = (8 * tile + quartet) * kColsPitch + place;
                        uint2 high = load8(shared.high + from), low = load8(shared.low + from);
                        uint32_t b_high[2] = {high.x, high.y}, b_low[2] = {low.x, low.y};
                        float of_acts[4] = {};
                        if constexpr (kOffsets<T>) {
                            uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
                            mma_f16_16x8x16(of_acts, ones, b_low);
                            mma_f16_16x8x16(of_acts, ones, b_high);
                        }
#pragma unroll
                        for (int set = 0; set < kSets; set++) {
                            const Weights& upper = w[set][0];
                            const Weights& lower = w[set][1];
                            uint32_t a[4] = {
                                words[set][0][0], words[set][1][0], words[set][0][1], words[set][1][1]
                            };
                            float part[4] = {};
                            mma_f16_16x8x16(part, a, b_low);
                            mma_f16_16x8x16(part, a, b_high);
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                float& sum = sums[set][tile][i];
                                if constexpr (kCodes<T>) {
                                    float scale = i < 2 ? upper.scale(group) : lower.scale(group);
                                    sum = fmaf(scale, part[i], sum);
                                } else {
                                    sum += part[i];
                                }
                                if constexpr (kOffsets<T>) {
                                    float offset = i < 2 ? upper.offset(group) : lower.offset(group);
                                    // The same for every weight row.
                                    sum = fmaf(offset, of_acts[i % 2], sum);
                                }
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int set = 0; set < kSets; set++) {
#pragma unroll
            for (int tile = 0; tile < kTiles; tile++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t m = 8 * tile + 2 * member + i;
                    if (m >= n) continue;
                    float back = shared.rows[m].power.back;
                    float upper = finished<T>(task, rows[set][0], sums[set][tile][i] * back, {}, 1.0f);
                    float lower = finished<T>(task, rows[set][1], sums[set][tile][2 + i] * back, {}, 1.0f);
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if (!rows[set][half].exists()) continue;
                        uint32_t slot = quartet + 8 * half;
                        task.finish(unit + set, slot, first + m, half ? lower : upper, half ? upper : lower,
                            task.around(unit + set, slot, first + m, step.rows[first + m]));
                    }
                }
            }
        }
    }
}
