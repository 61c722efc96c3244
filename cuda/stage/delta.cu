// Delta: convolution, recurrence and gated norm of a gated delta net, as defined by Stage::Delta.
//
// Requires: no two runs write the same slot; `arrived` = 0.
//
// delta__N, for a few rows per sequence: a block owns a head of a run (consecutive rows of one sequence); x =
// head, y = run. Its threads hold the head's state matrix S in registers over all rows: thread t has column t
// % N of the values and quarter t / N of the key elements. Three quarters of the threads also compute the
// convolution: each has one channel of the head's query, key or value, and the input rows that the
// convolution sees. Heads that share a key share its channels; the last of their blocks to arrive, when all
// have read the old state, writes the channels' last rows.
//
// Prefill uses three kernels, so that only the recurrence goes row by row. delta_convolve__N: a warp owns
// DELTA_ROWS rows of N neighbouring channels, x = channels / N, y = share of the rows. delta_scan__N: a warp
// owns DELTA_COLS columns of a head's S, four lanes per column, and synchronises only when rows are loaded
// into shared memory; x = (head, share of its columns), y = run. delta_gate__N: a warp owns a head of a row,
// x = share of the heads, y = row.
//
// The chunked form, with matrix products over C rows, needs 4 C N^2 + 4 C^2 N multiplications per head
// instead of the 4 C N^2 of C rows here. With C = 64 and N = 128 that is 50% more. According to NVIDIA,
// tensor cores of GeForce GPUs multiply tf32 no faster than the other cores multiply floats; f16 is twice as
// fast, but loses bits of S. The two forms have not been timed against each other.
#include "../lib/input.cuh"
#include "../lib/last_block.cuh"

constexpr uint32_t kTaps = DELTA_TAPS;

DEVICE float delta_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Calls each(i, element) for the kPart elements from `from` on, in shared memory.
template <uint32_t kPart, class Each>
DEVICE void each_quad(const float* from, Each each) {
#pragma unroll
    for (uint32_t i = 0; i < kPart; i += 4) {
        uint4 four = load16(from + i);
        each(i, __uint_as_float(four.x));
        each(i + 1, __uint_as_float(four.y));
        each(i + 2, __uint_as_float(four.z));
        each(i + 3, __uint_as_float(four.w));
    }
}

template <uint32_t N>
struct DeltaShared {
    // Not yet normalised.
    float q[N], k[N], v[N];
    // Partial sums over key elements, per quarter of the threads.
    float seen[4][N], out[4][N];
    // Sums of squares per warp: of queries and keys, and of the output.
    float squares[2][N / kWarpSize], of_out[N / kWarpSize];
    float decay, strength;
    uint32_t word;
};

template <uint32_t N>
DEVICE void delta(const DeltaParams& p, DeltaShared<N>& shared) {
    constexpr uint32_t kPart = N / 4, kWarps = N / kWarpSize;
    let_next_kernel_start();
    wait_for_previous_kernel();
    StepRun run = p.runs[blockIdx.y];
    uint32_t head = blockIdx.x, key_head = head % p.n_key_heads, per_key = p.n_heads / p.n_key_heads;
    uint32_t of_out = p.grouped ? key_head * per_key + head / p.n_key_heads : head;
    uint32_t col = threadIdx.x % N, part = threadIdx.x / N, warp = col / kWarpSize;
    uint32_t values = 2 * p.n_key_heads * N, channels = values + p.n_heads * N;
    bool convolves = part < 3;
    uint32_t channel = part == 0 ? key_head * N + col
        : part == 1              ? (p.n_key_heads + key_head) * N + col
                                 : values + head * N + col;
    if (run.rows == 0) return;

    // [slots, n_heads, key elements, value elements]
    uint64_t of_head = uint64_t(N) * N;
    float s[kPart];
    const float* from = p.matrices + (uint64_t(run.from) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < kPart; i++)
        s[i] = run.from == NO_STATE ? 0.0f : from[(part * kPart + i) * N + col];
    float taps[kTaps] = {}, seen[kTaps] = {};
    if (convolves) {
#pragma unroll
        for (uint32_t j = 0; j < kTaps; j++) taps[j] = p.conv[uint64_t(channel) * kTaps + j];
        const float* tail = p.tails + uint64_t(run.from) * (kTaps - 1) * channels + channel;
#pragma unroll
        for (uint32_t j = 1; j < kTaps; j++)
            seen[j] = run.from == NO_STATE ? 0.0f : tail[(j - 1) * channels];
    }
    float next = convolves ? p.u[uint64_t(run.first) * channels + channel] : 0.0f;
    float norm = part == 0 ? p.norm.weight[col] : 0.0f;

    for (uint32_t i = 0; i < run.rows; i++) {
        uint64_t row = run.first + i;
        if (convolves) {
#pragma unroll
            for (uint32_t j = 0; j + 1 < kTaps; j++) seen[j] = seen[j + 1];
            seen[kTaps - 1] = next;
            if (i + 1 < run.rows) next = p.u[(row + 1) * channels + channel];
            float sum = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kTaps; j++) sum = fmaf(taps[j], seen[j], sum);
            float c = sum * delta_sigmoid(sum);
            float* to = part == 0 ? shared.q : part == 1 ? shared.k : shared.v;
            to[col] = c;
            if (part < 2) {
                float squares = reduce_warp<Sum>(c * c);
                if (threadIdx.x % kWarpSize == 0) shared.squares[part][warp] = squares;
            }
        } else if (col == 0) {
            float x = p.a[row * p.n_heads + head] + p.dt[head];
            float soft = x > 20.0f ? x : log1pf(expf(x));
            shared.decay = expf(p.decay[head] * soft);
            shared.strength = delta_sigmoid(p.b[row * p.n_heads + head]);
        }
        __syncthreads();
        float of_query = p.eps, of_key = p.eps;
#pragma unroll
        for (uint32_t w = 0; w < kWarps; w++) {
            of_query += shared.squares[0][w];
            of_key += shared.squares[1][w];
        }
        float by_query = 1.0f / (sqrtf(of_query) * sqrtf(float(N))), by_key = 1.0f / sqrtf(of_key);
        float decay = shared.decay, sum = 0.0f;
        each_quad<kPart>(shared.k + part * kPart, [&](uint32_t i, float k) { sum = fmaf(s[i], k, sum); });
        shared.seen[part][col] = sum;
        __syncthreads();
        sum = shared.seen[0][col] + shared.seen[1][col] + (shared.seen[2][col] + shared.seen[3][col]);
        float write = shared.strength * (shared.v[col] - decay * (sum * by_key)) * by_key;
        each_quad<kPart>(shared.k + part * kPart, [&](uint32_t i, float k) {
            s[i] = fmaf(k, write, decay * s[i]);
        });
        sum = 0.0f;
        each_quad<kPart>(shared.q + part * kPart, [&](uint32_t i, float q) { sum = fmaf(s[i], q, sum); });
        shared.out[part][col] = sum;
        uint32_t kept = state_after(p.runs, run, i);
        if (kept != NO_STATE) {
            float* to = p.matrices + (uint64_t(kept) * p.n_heads + head) * of_head;
#pragma unroll
            for (uint32_t i = 0; i < kPart; i++) to[(part * kPart + i) * N + col] = s[i];
            if (convolves && (part == 2 || head < p.n_key_heads)) {
                float* tail = p.tails + uint64_t(kept) * (kTaps - 1) * channels + channel;
#pragma unroll
                for (uint32_t j = 1; j < kTaps; j++) tail[(j - 1) * channels] = seen[j];
            }
        }
        __syncthreads();
        if (part > 0) continue;
        float o = shared.out[0][col] + shared.out[1][col] + (shared.out[2][col] + shared.out[3][col]);
        o *= by_query;
        float squares = reduce_warp<Sum>(o * o);
        if (threadIdx.x % kWarpSize == 0) shared.of_out[warp] = squares;
        named_barrier(1, N);
        float mean = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < kWarps; w++) mean += shared.of_out[w];
        float y = o * (1.0f / sqrtf(mean / float(N) + p.norm.eps)) * norm;
        float z = p.z[(row * p.n_heads + head) * N + col];
        p.out[(row * p.n_heads + of_out) * N + col] = y * (z * delta_sigmoid(z));
        // Read before the next row's sums of squares are written.
        named_barrier(1, N);
    }

    float* to = p.matrices + (uint64_t(run.to) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < kPart; i++) to[(part * kPart + i) * N + col] = s[i];
    uint32_t* arrived = p.arrived + blockIdx.y * p.n_key_heads + key_head;
    bool last = comes_last(arrived, per_key, &shared.word);
    if (convolves && (part == 2 || last)) {
        float* tail = p.tails + uint64_t(run.to) * (kTaps - 1) * channels + channel;
#pragma unroll
        for (uint32_t j = 1; j < kTaps; j++) tail[(j - 1) * channels] = seen[j];
    }
    prefetch_next(p.step);
}

// u at row `row` of a run; a negative row is one of the sequence's earlier rows (from the tail).
DEVICE float before_or_in(
    const DeltaParams& p, const StepRun& run, int32_t row, uint32_t channels, uint32_t channel
) {
    if (row >= 0) return p.u[(run.first + uint64_t(row)) * channels + channel];
    if (run.from == NO_STATE) return 0.0f;
    return p.tails[(uint64_t(run.from) * (kTaps - 1) + kTaps - 1 + row) * channels + channel];
}

template <uint32_t N>
DEVICE void delta_convolve(const DeltaParams& p) {
    constexpr uint32_t kOfLane = N / kWarpSize, kSeen = DELTA_ROWS + kTaps - 1;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, rows = p.step.counts->rows;
    uint32_t first = (blockIdx.y * (blockDim.x / kWarpSize) + warp) * DELTA_ROWS, group = blockIdx.x;
    uint32_t channels = (2 * p.n_key_heads + p.n_heads) * N, in_group = group * N + lane;
    if (first >= rows) return;
    float taps[kOfLane][kTaps], seen[kOfLane][kSeen];
#pragma unroll
    for (uint32_t c = 0; c < kOfLane; c++) {
        uint32_t channel = in_group + c * kWarpSize;
#pragma unroll
        for (uint32_t j = 0; j < kTaps; j++) taps[c][j] = p.conv[uint64_t(channel) * kTaps + j];
        // Assumes that all rows belong to one sequence; u has at least one row.
#pragma unroll
        for (uint32_t j = 0; j < kSeen; j++) {
            uint32_t row = first + j < kTaps - 1 ? 0 : first + j - (kTaps - 1);
            seen[c][j] = p.u[uint64_t(row < rows ? row : rows - 1) * channels + channel];
        }
    }
    if (group >= 2 * p.n_key_heads && lane < DELTA_ROWS && first + lane < rows) {
        uint32_t head = group - 2 * p.n_key_heads;
        uint64_t at = uint64_t(first + lane) * p.n_heads + head;
        float x = p.a[at] + p.dt[head];
        p.gates[2 * at] = expf(p.decay[head] * (x > 20.0f ? x : log1pf(expf(x))));
        p.gates[2 * at + 1] = delta_sigmoid(p.b[at]);
    }
    float scale = group < p.n_key_heads ? 1.0f / sqrtf(float(N)) : 1.0f;
    uint32_t at_run = 0;
    StepRun run = p.runs[0];
#pragma unroll
    for (uint32_t i = 0; i < DELTA_ROWS; i++) {
        uint32_t row = first + i;
        if (row >= rows) break;
        while (row >= run.first + run.rows) run = p.runs[++at_run];
        float out[kOfLane], squares = 0.0f;
#pragma unroll
        for (uint32_t c = 0; c < kOfLane; c++) {
            float sum = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kTaps; j++) {
                float x = seen[c][i + j];
                if (row - run.first + j < kTaps - 1) {
                    int32_t before = int32_t(row - run.first + j) - int32_t(kTaps - 1);
                    x = before_or_in(p, run, before, channels, in_group + c * kWarpSize);
                }
                sum = fmaf(taps[c][j], x, sum);
            }
            out[c] = sum * delta_sigmoid(sum);
            squares = fmaf(out[c], out[c], squares);
        }
        float by = 1.0f;
        if (group < 2 * p.n_key_heads) by = scale / sqrtf(reduce_warp<Sum>(squares) + p.eps);
#pragma unroll
        for (uint32_t c = 0; c < kOfLane; c++)
            p.convolved[uint64_t(row) * channels + in_group + c * kWarpSize] = out[c] * by;
    }
}

// Lanes per column of delta_scan, and columns per block.
constexpr uint32_t kScanLanes = kWarpSize / DELTA_COLS;
constexpr uint32_t kScanCols = DELTA_SCAN_THREADS / kScanLanes;

template <uint32_t N>
struct ScanShared {
    // Queries, keys, and the block's columns of values, for DELTA_ROWS rows.
    float q[DELTA_ROWS][N], k[DELTA_ROWS][N], v[DELTA_ROWS][kScanCols];
    // Decay and strength per row.
    float gates[DELTA_ROWS][2];
};

template <uint32_t N>
DEVICE void delta_scan(const DeltaParams& p, ScanShared<N>* stages) {
    constexpr uint32_t kPart = N / kScanLanes, kQuads = kPart / 4, kShares = N / kScanCols;
    let_next_kernel_start();
    wait_for_previous_kernel();
    StepRun run = p.runs[blockIdx.y];
    if (run.rows == 0) return;
    uint32_t head = blockIdx.x / kShares, share = blockIdx.x % kShares;
    uint32_t key_head = head % p.n_key_heads, per_key = p.n_heads / p.n_key_heads;
    uint32_t of_out = p.grouped ? key_head * per_key + head / p.n_key_heads : head;
    uint32_t lane = threadIdx.x % kWarpSize, part = lane % kScanLanes;
    uint32_t in_block = threadIdx.x / kScanLanes, col = share * kScanCols + in_block;
    uint32_t values = 2 * p.n_key_heads * N, channels = values + p.n_heads * N;

    // Loads rows of the run from `at` on into a stage.
    auto bring = [&](uint32_t at, ScanShared<N>& to) {
        uint32_t n = run.rows - at < DELTA_ROWS ? run.rows - at : DELTA_ROWS;
        for (uint32_t i = threadIdx.x; i < n * (N / 4); i += blockDim.x) {
            uint32_t row = i / (N / 4), elem = i % (N / 4) * 4;
            const float* from = p.convolved + (run.first + at + uint64_t(row)) * channels + elem;
            cp_async16(to.q[row] + elem, from + key_head * N);
            cp_async16(to.k[row] + elem, from + (p.n_key_heads + key_head) * N);
        }
        for (uint32_t i = threadIdx.x; i < n * (kScanCols / 4); i += blockDim.x) {
            uint32_t row = i / (kScanCols / 4), elem = i % (kScanCols / 4) * 4;
            uint64_t of_row = (run.first + at + uint64_t(row)) * channels + values + head * N;
            cp_async16(to.v[row] + elem, p.convolved + of_row + share * kScanCols + elem);
        }
        cp_async_commit();
        if (threadIdx.x < 2 * n) {
            uint64_t of_row = (run.first + at + uint64_t(threadIdx.x / 2)) * p.n_heads + head;
            to.gates[threadIdx.x / 2][threadIdx.x % 2] = p.gates[2 * of_row + threadIdx.x % 2];
        }
    };
    bring(0, stages[0]);

    // [slots, n_heads, key elements, value elements]; a lane has quads part, part + kScanLanes, ... of the
    // key elements.
    uint64_t of_head = uint64_t(N) * N;
    auto elem = [&](uint32_t i) { return (i / 4 * kScanLanes + part) * 4 + i % 4; };
    float s[kPart];
    const float* from = p.matrices + (uint64_t(run.from) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < kPart; i++) s[i] = run.from == NO_STATE ? 0.0f : from[elem(i) * N + col];
    auto over_lanes = [&](const float(&sums)[4]) {
        float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
        for (uint32_t other = 1; other < kScanLanes; other *= 2) sum += __shfl_xor_sync(kWarp, sum, other);
        return sum;
    };

    for (uint32_t at = 0; at < run.rows; at += DELTA_ROWS) {
        const ScanShared<N>& rows = stages[at / DELTA_ROWS % 2];
        cp_async_wait<0>();
        __syncthreads();
        if (at + DELTA_ROWS < run.rows) bring(at + DELTA_ROWS, stages[(at / DELTA_ROWS + 1) % 2]);
        uint32_t n = run.rows - at < DELTA_ROWS ? run.rows - at : DELTA_ROWS;
        // A row's keys are loaded before the previous row is finished, to hide the latency.
        float k[kPart], q[kPart];
        auto load = [&](float(&to)[kPart], const float* of_row) {
#pragma unroll
            for (uint32_t quad = 0; quad < kQuads; quad++) {
                uint4 four = load16(of_row + elem(4 * quad));
                to[4 * quad] = __uint_as_float(four.x);
                to[4 * quad + 1] = __uint_as_float(four.y);
                to[4 * quad + 2] = __uint_as_float(four.z);
                to[4 * quad + 3] = __uint_as_float(four.w);
            }
        };
        load(k, rows.k[0]);
#pragma unroll 1
        for (uint32_t row = 0; row < n; row++) {
            float decay = rows.gates[row][0], strength = rows.gates[row][1], v = rows.v[row][in_block];
            load(q, rows.q[row]);
            float sums[4] = {}, outs[4] = {};
#pragma unroll
            for (uint32_t i = 0; i < kPart; i++) sums[i % 4] = fmaf(s[i], k[i], sums[i % 4]);
            float write = strength * (v - decay * over_lanes(sums));
#pragma unroll
            for (uint32_t i = 0; i < kPart; i++) {
                s[i] = fmaf(k[i], write, decay * s[i]);
                outs[i % 4] = fmaf(s[i], q[i], outs[i % 4]);
            }
            if (row + 1 < n) load(k, rows.k[row + 1]);
            float out = over_lanes(outs);
            uint32_t kept = state_after(p.runs, run, at + row);
            if (kept != NO_STATE) {
                float* to = p.matrices + (uint64_t(kept) * p.n_heads + head) * of_head;
#pragma unroll
                for (uint32_t i = 0; i < kPart; i++) to[elem(i) * N + col] = s[i];
            }
            uint64_t of_row = run.first + at + uint64_t(row);
            if (part == 0) p.out[(of_row * p.n_heads + of_out) * N + col] = out;
        }
    }

    float* to = p.matrices + (uint64_t(run.to) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < kPart; i++) to[elem(i) * N + col] = s[i];
    // Stores the rows that the next convolution needs: the block's own value channels, and the query and key
    // channels of the key head with the head's index.
    static_assert(3 * kScanCols <= DELTA_SCAN_THREADS, "a thread has one channel of three kinds");
    uint32_t kind = threadIdx.x / kScanCols;
    if (kind > 2 || (kind > 0 && head >= p.n_key_heads)) return;
    uint32_t of_kind = kind == 0 ? values : kind == 1 ? 0 : p.n_key_heads * N;
    uint32_t channel = of_kind + head * N + share * kScanCols + threadIdx.x % kScanCols;
    for (uint32_t i = run.first_kept; i < run.first_kept + run.n_kept; i++) {
        float* to = p.tails + uint64_t(state_after(p.runs, run, i)) * (kTaps - 1) * channels + channel;
#pragma unroll
        for (uint32_t j = 0; j + 1 < kTaps; j++)
            to[j * channels] =
                before_or_in(p, run, int32_t(i + 1 + j) - int32_t(kTaps - 1), channels, channel);
    }
    float tail[kTaps - 1];
#pragma unroll
    for (uint32_t j = 0; j + 1 < kTaps; j++)
        tail[j] = before_or_in(p, run, int32_t(run.rows + j) - int32_t(kTaps - 1), channels, channel);
#pragma unroll
    for (uint32_t j = 0; j + 1 < kTaps; j++)
        p.tails[(uint64_t(run.to) * (kTaps - 1) + j) * channels + channel] = tail[j];
}

template <uint32_t N>
DEVICE void delta_gate(const DeltaParams& p) {
    constexpr uint32_t kOfLane = N / kWarpSize;
    let_next_kernel_start();
    uint32_t lane = threadIdx.x % kWarpSize, row = blockIdx.y;
    uint32_t place = blockIdx.x * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
    uint32_t per_key = p.n_heads / p.n_key_heads;
    uint32_t head = p.grouped ? place % per_key * p.n_key_heads + place / per_key : place;
    float weight[kOfLane];
#pragma unroll
    for (uint32_t c = 0; c < kOfLane; c++) weight[c] = p.norm.weight[c * kWarpSize + lane];
    wait_for_previous_kernel();
    if (row >= p.step.counts->rows || place >= p.n_heads) return;
    float* out = p.out + (uint64_t(row) * p.n_heads + place) * N;
    const float* z = p.z + (uint64_t(row) * p.n_heads + head) * N;
    float x[kOfLane], squares = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < kOfLane; c++) {
        x[c] = out[c * kWarpSize + lane];
        squares = fmaf(x[c], x[c], squares);
    }
    float by = 1.0f / sqrtf(reduce_warp<Sum>(squares) / float(N) + p.norm.eps);
#pragma unroll
    for (uint32_t c = 0; c < kOfLane; c++) {
        float of_gate = z[c * kWarpSize + lane];
        out[c * kWarpSize + lane] = x[c] * by * weight[c] * (of_gate * delta_sigmoid(of_gate));
    }
    prefetch_next(p.step);
}

#define DELTA_KERNELS(N)                                                                      \
    RESIDENT_KERNEL(delta__##N, DeltaParams, 4 * N, 1) {                                      \
        SHARED(DeltaShared<N>, shared, 1);                                                    \
        delta<N>(p, *shared);                                                                 \
    }                                                                                         \
    KERNEL(delta_convolve__##N, DeltaParams, DELTA_THREADS) { delta_convolve<N>(p); }         \
    RESIDENT_KERNEL(delta_scan__##N, DeltaParams, DELTA_SCAN_THREADS, 4) {                    \
        SHARED(ScanShared<N>, stages, 2);                                                     \
        delta_scan<N>(p, stages);                                                             \
    }                                                                                         \
    KERNEL(delta_gate__##N, DeltaParams, DELTA_THREADS) { delta_gate<N>(p); }
DELTA_KERNELS(64)
DELTA_KERNELS(128)
