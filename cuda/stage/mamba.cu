// Mamba: the recurrence of a Mamba-2 layer, its gate and its norm, as defined by Stage::Mamba.
//
// mamba_scan: a block owns a head of a run (consecutive rows of one sequence); x = head, y = run. Its threads
// hold the head's state matrix S in registers over all rows: thread t has column t % head_dim of the values
// and elements MAMBA_PART * (t / head_dim) .. of the keys; threads beyond them only load. Rows are loaded
// into shared memory MAMBA_ROWS at a time, so a row itself needs no barrier: the partial sums of its outputs
// are added after all of these rows. Writes y = S C + skip x.
//
// mamba_gate: a block owns a group of heads of a row; x = group, y = row. Multiplies by silu(z), then
// normalises.
//
// Requires: no two runs write the same slot. Reads a row of c, a and z once per head, and S once per step.
#include "../lib/input.cuh"

constexpr uint32_t kMambaParts = MAMBA_MAX_KEYS / MAMBA_PART;

struct MambaShared {
    // Keys and queries, beyond key_dim 0; values.
    float keys[MAMBA_ROWS][MAMBA_MAX_KEYS], queries[MAMBA_ROWS][MAMBA_MAX_KEYS];
    float values[MAMBA_ROWS][MAMBA_MAX_DIM];
    // Partial sums over keys, per part of the threads.
    float sums[MAMBA_ROWS][kMambaParts][MAMBA_MAX_DIM];
    // Step size and decay.
    float gates[MAMBA_ROWS][2];
};

RESIDENT_KERNEL(mamba_scan, MambaParams, MAMBA_THREADS, 1) {
    SHARED(MambaShared, shared, 1);
    let_next_kernel_start();
    wait_for_previous_kernel();
    StepRun run = p.runs[blockIdx.y];
    if (run.rows == 0) return;
    uint32_t head = blockIdx.x, group = head / (p.n_heads / p.n_groups);
    uint32_t col = threadIdx.x % p.head_dim, part = threadIdx.x / p.head_dim;
    uint32_t parts = (p.key_dim + MAMBA_PART - 1) / MAMBA_PART;
    uint32_t n_values = p.n_heads * p.head_dim, channels = n_values + 2 * p.n_groups * p.key_dim;
    bool owns = part < parts;

    float s[MAMBA_PART];
    uint64_t of_head = uint64_t(p.key_dim) * p.head_dim;
    const float* from = p.matrices + (uint64_t(run.from) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < MAMBA_PART; i++) {
        uint32_t key = part * MAMBA_PART + i;
        bool exists = owns && key < p.key_dim && run.from != NO_STATE;
        s[i] = exists ? from[uint64_t(key) * p.head_dim + col] : 0.0f;
    }
    float dt = p.dt[head], decay = p.decay[head], skip = p.skip[head];
    for (uint32_t at = 0; at < run.rows; at += MAMBA_ROWS) {
        uint32_t n = run.rows - at < MAMBA_ROWS ? run.rows - at : MAMBA_ROWS, keys = parts * MAMBA_PART;
        uint64_t first = run.first + uint64_t(at);
        for (uint32_t i = threadIdx.x; i < n * keys; i += blockDim.x) {
            uint32_t row = i / keys, key = i % keys;
            const float* of_group = p.c + (first + row) * channels + n_values + group * p.key_dim + key;
            bool exists = key < p.key_dim;
            shared->keys[row][key] = exists ? of_group[0] : 0.0f;
            shared->queries[row][key] = exists ? of_group[p.n_groups * p.key_dim] : 0.0f;
        }
        for (uint32_t i = threadIdx.x; i < n * p.head_dim; i += blockDim.x) {
            uint32_t row = i / p.head_dim, value = i % p.head_dim;
            shared->values[row][value] = p.c[(first + row) * channels + head * p.head_dim + value];
        }
        if (threadIdx.x < n) {
            float x = p.a[(first + threadIdx.x) * p.n_heads + head] + dt;
            float size = x > 20.0f ? x : log1pf(expf(x));
            shared->gates[threadIdx.x][0] = size;
            shared->gates[threadIdx.x][1] = expf(decay * size);
        }
        __syncthreads();
        for (uint32_t row = 0; owns && row < n; row++) {
            float factor = shared->gates[row][1], write = shared->gates[row][0] * shared->values[row][col];
            float sums[4] = {};
            const float* of_keys = shared->keys[row] + part * MAMBA_PART;
            const float* of_queries = shared->queries[row] + part * MAMBA_PART;
#pragma unroll
            for (uint32_t i = 0; i < MAMBA_PART; i++) {
                s[i] = fmaf(write, of_keys[i], factor * s[i]);
                sums[i % 4] = fmaf(s[i], of_queries[i], sums[i % 4]);
            }
            shared->sums[row][part][col] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            uint32_t kept = state_after(p.runs, run, at + row);
            if (kept == NO_STATE) continue;
            float* to = p.matrices + (uint64_t(kept) * p.n_heads + head) * of_head;
#pragma unroll
            for (uint32_t i = 0; i < MAMBA_PART; i++) {
                uint32_t key = part * MAMBA_PART + i;
                if (key < p.key_dim) to[uint64_t(key) * p.head_dim + col] = s[i];
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * p.head_dim; i += blockDim.x) {
            uint32_t row = i / p.head_dim, value = i % p.head_dim;
            float y = skip * shared->values[row][value];
            for (uint32_t other = 0; other < parts; other++) y += shared->sums[row][other][value];
            p.out[(first + row) * n_values + head * p.head_dim + value] = y;
        }
        // Read before the next rows are loaded.
        __syncthreads();
    }

    float* to = p.matrices + (uint64_t(run.to) * p.n_heads + head) * of_head;
#pragma unroll
    for (uint32_t i = 0; i < MAMBA_PART; i++) {
        uint32_t key = part * MAMBA_PART + i;
        if (owns && key < p.key_dim) to[uint64_t(key) * p.head_dim + col] = s[i];
    }
}

KERNEL(mamba_gate, MambaParams, MAMBA_GATE_THREADS) {
    SHARED(float, scratch, 32);
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t row = blockIdx.y, n_values = p.n_heads * p.head_dim, len = n_values / p.n_groups;
    if (row >= p.step.counts->rows) return;
    uint32_t first = blockIdx.x * len;
    float* out = p.out + uint64_t(row) * n_values + first;
    const float* z = p.z + uint64_t(row) * n_values + first;
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) {
        float gate = z[i], y = out[i] * (gate / (1.0f + expf(-gate)));
        out[i] = y;
        squares = fmaf(y, y, squares);
    }
    if (p.norm.kind == NORM_NONE) return;
    float sum = reduce_block<Sum, MAMBA_GATE_THREADS>(squares, scratch);
    float by = 1.0f / sqrtf(sum / float(len) + p.norm.eps);
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) out[i] *= by * p.norm.weight[first + i];
}
