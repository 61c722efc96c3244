// Delta: the convolution, the recurrence and the gated norm of a delta net, as Stage::Delta says.
//
// A block owns a head of a run of rows, which are of one sequence: x = head, y = run. Its threads hold the
// head's matrix S in registers, from the first row to the last: thread t has column t % N of the values, and
// of the keys' elements a quarter, t / N. The first three quarters of the threads are the convolution's, too:
// each has one channel of the head's query, key or value, and the rows of it that the convolution sees.
//
// Heads that share a key share its channels, whose last rows the last of their blocks to come writes, when
// all have read what was there. What must be true: slots that a run writes are no other run's; `arrived` is
// 0.
#include "../lib/input.cuh"
#include "../lib/last_block.cuh"

constexpr uint32_t kTaps = DELTA_TAPS;

DEVICE float delta_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Products of this thread's part of a vector in shared memory, of kPart elements from `from` on.
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
    // Not yet scaled.
    float q[N], k[N], v[N];
    // What each part of the threads has of a sum over keys' elements.
    float seen[4][N], out[4][N];
    // Sums of squares that warps leave: of queries and keys, and of the output.
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

    // [slots, n_heads, keys' elements, values' elements]
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
        // Before the next row's sums of squares come.
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

#define DELTA_KERNEL(N)                                        \
    RESIDENT_KERNEL(delta__##N, DeltaParams, 4 * N, 1) {       \
        SHARED(DeltaShared<N>, shared, 1);                     \
        delta<N>(p, *shared);                                  \
    }
DELTA_KERNEL(64)
DELTA_KERNEL(128)
