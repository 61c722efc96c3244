// Heads: finishes AttnIn after its products: q[r] = t(pos) rope(norm(q[r])); kv[seq, pos] =
// (rope(norm(k[r])), norm(v[r])); copies the gate part of each query to `gate`.
//
// For models with per-head norms, since many blocks of `attn_in` share a head; and for Q, K and V without a
// common fused kernel. A warp owns one head of queries, keys or values of one batch row: x = share of the
// heads, z = row. Shared memory: one head per warp. Requires: earlier launches have written the products,
// without RoPE. If positions have several axes, each pair is rotated by the row's place on its axis. Writes
// keys and values as attn_in.cuh does.
#include "../lib/input.cuh"

// A lane has elements lane, lane + 32, and so on of a head of up to 128 kHeadQuads elements.
template <uint32_t kHeadQuads>
DEVICE void finish_heads(const HeadsParams& p) {
    constexpr uint32_t kElems = 4 * kHeadQuads;
    uint32_t r = blockIdx.z, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    uint32_t at = blockIdx.x * (blockDim.x / kWarpSize) + warp,
        n_kv_heads = p.kv.n_kv_heads, head_dim = p.kv.head_dim;
    bool of_queries = at < p.n_heads;
    bool exists = r < p.step.counts->rows && at < p.n_heads + 2 * n_kv_heads && (of_queries || p.keys);
    // 0 for keys, 1 for values.
    uint32_t part = !of_queries && at >= p.n_heads + n_kv_heads;
    uint32_t head = of_queries ? at : at - p.n_heads - part * n_kv_heads;
    InputParams in = {};
    in.cols = head_dim;
    in.norm = of_queries ? p.q_norm : part == 0 ? p.k_norm : p.v_norm;
    NormParams after = {};
    if (p.norm_after && part == 0) {
        after = in.norm;
        in.norm = {};
    }

    // Independent of the products: the row's position, norm weights, cosines and sines.
    StepRow row = exists ? p.step.rows[r] : StepRow{};
    uint32_t page = exists && !of_queries && !p.raw ? page_of(p.step, row.seq, row.pos) : 0;
    RowPart<false, false, kHeadQuads> held, weight;
    if (exists && in.norm.kind != NORM_NONE) weight.load(in.norm.weight, head_dim, 0);
    float cos[kElems] = {}, sin[kElems] = {};
    uint32_t n_rotated = part == 1 ? 0 : 2 * p.rope.pairs;
#pragma unroll
    for (uint32_t j = 0; j < kElems; j++) {
        uint32_t elem = lane + kWarpSize * j;
        if (!exists || elem >= n_rotated) continue;
        uint32_t pair = p.rope.adjacent ? elem / 2 : elem % p.rope.pairs;
        uint32_t pos = p.axes ? p.texts[r].place[uint32_t(p.axes[pair])] : row.pos;
        const float* cos_sin = p.rope.cos_sin + uint64_t(pos) * 2 * p.rope.pairs;
        cos[j] = cos_sin[pair];
        sin[j] = cos_sin[p.rope.pairs + pair];
    }
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (!exists) return;

    float* query = p.q + (uint64_t(r) * p.n_heads + head) * head_dim;
    const float* from = of_queries
        ? p.queries + (uint64_t(r) * p.n_heads + head) * (p.gate ? 2 : 1) * head_dim
        : (part == 0 ? p.keys : p.values) + uint64_t(r) * p.pitch + head * head_dim;
    RowNorm norm = row_norm(in, from, held);
    held.apply(norm, in.norm, weight, head_dim);
    if (of_queries && p.gate) {
        float* gate = p.gate + (uint64_t(r) * p.n_heads + head) * head_dim;
        for (uint32_t elem = lane; elem < head_dim; elem += kWarpSize) gate[elem] = from[head_dim + elem];
    }
    float* normed = reinterpret_cast<float*>(shared_memory()) + warp * head_dim;
    held.each(0, head_dim, [&](uint32_t quad, uint32_t elem) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (elem + i < head_dim) normed[elem + i] = held.x[quad][i];
        }
    });
    __syncwarp();

    float rotated[kElems] = {}, squares = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < kElems; j++) {
        uint32_t elem = lane + kWarpSize * j;
        if (elem >= head_dim) continue;
        float y = normed[elem];
        if (elem < n_rotated) {
            bool second = p.rope.adjacent ? elem % 2 == 1 : elem >= p.rope.pairs;
            uint32_t away = second ? elem - p.rope.pairs : elem + p.rope.pairs;
            float other = normed[p.rope.adjacent ? elem ^ 1u : away];
            y = second ? other * sin[j] + y * cos[j] : y * cos[j] - other * sin[j];
        }
        rotated[j] = y;
        squares = fmaf(y, y, squares);
    }
    // 1 for keys and values.
    float factor = of_queries && p.q_period > 0
        ? 1.0f + p.q_factor * logf(1.0f + float(row.pos / p.q_period)) : 1.0f;
    if (after.kind != NORM_NONE)
        factor *= 1.0f / sqrtf(reduce_lanes<Sum>(squares, kWarpSize) / float(head_dim) + after.eps);
    uint8_t* to = kv_head(p.kv, page, part, head);
    uint32_t place = row.pos % PAGE_POSITIONS * p.kv.stride;
#pragma unroll
    for (uint32_t j = 0; j < kElems; j++) {
        uint32_t elem = lane + kWarpSize * j;
        if (elem >= head_dim) continue;
        float y = rotated[j] * factor;
        if (after.kind != NORM_NONE) y *= after.weight[elem];
        if (of_queries) {
            query[elem] = y;
        } else if (p.raw) {
            p.raw[((uint64_t(r) * 2 + part) * n_kv_heads + head) * head_dim + elem] = y;
        } else if (p.kv.elem_bytes == 2) {
            reinterpret_cast<uint16_t*>(to)[place + elem] = half_bits(y);
        } else {
            reinterpret_cast<float*>(to)[place + elem] = y;
        }
    }
}

KERNEL(heads, HeadsParams, HEADS_THREADS) { finish_heads<2>(p); }
KERNEL(heads__of512, HeadsParams, HEADS_THREADS) { finish_heads<4>(p); }
