// The heads of AttnIn, behind its products: q[r] = rope(norm(q[r])); kv[seq, pos] = (rope(norm(k[r])), v[r]).
//
// For heads with norms of their own, whose elements many blocks of `attn_in` own; and for Q, K and V that
// have no kernel in common. A warp owns one head of queries, keys or values of one row of the step: x = share
// of the heads, z = row. Shared memory: a head a warp. What must be true: earlier launches have written the
// products, without RoPE. Writes queries where they lie; keys and values as attn_in.cuh says.
#include "../lib/input.cuh"

// Element `elem` of a head, rotated.
DEVICE float rotated(const RopeParams& rope, uint32_t pos, const float* head, uint32_t elem) {
    if (elem >= 2 * rope.pairs) return head[elem];
    uint32_t pair = rope.adjacent ? elem / 2 : elem % rope.pairs;
    bool second = rope.adjacent ? elem % 2 == 1 : elem >= rope.pairs;
    const float* cos_sin = rope.cos_sin + uint64_t(pos) * 2 * rope.pairs;
    float cos = cos_sin[pair], sin = cos_sin[rope.pairs + pair];
    float other = head[rope.adjacent ? elem ^ 1u : second ? pair : pair + rope.pairs];
    return second ? other * sin + head[elem] * cos : head[elem] * cos - other * sin;
}

KERNEL(heads, HeadsParams, HEADS_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.z, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    uint32_t at = blockIdx.x * (blockDim.x / kWarpSize) + warp,
        n_kv_heads = p.kv.n_kv_heads, head_dim = p.kv.head_dim;
    if (r >= p.step.counts->rows || at >= p.n_heads + 2 * n_kv_heads) return;
    bool of_queries = at < p.n_heads;
    // Of keys (0) or values (1).
    uint32_t part = !of_queries && at >= p.n_heads + n_kv_heads;
    uint32_t head = of_queries ? at : at - p.n_heads - part * n_kv_heads;
    float* query = p.q + (uint64_t(r) * p.n_heads + head) * head_dim;
    const float* from =
        of_queries ? query : (part == 0 ? p.keys : p.values) + uint64_t(r) * p.pitch + head * head_dim;

    InputParams in = {};
    in.cols = head_dim;
    in.norm = of_queries ? p.q_norm : p.k_norm;
    if (part == 1) in.norm.kind = NORM_NONE;
    RowPart<false, false, kHeadQuads> held;
    RowNorm norm = row_norm(in, from, held);
    held.apply(norm, in.norm, in.norm.weight, head_dim, 0);
    float* normed = reinterpret_cast<float*>(shared_memory()) + warp * head_dim;
    held.each(0, head_dim, [&](uint32_t quad, uint32_t elem) {
        for (uint32_t i = 0; i < 4 && elem + i < head_dim; i++) normed[elem + i] = held.x[quad][i];
    });
    __syncwarp();

    StepRow row = p.step.rows[r];
    for (uint32_t elem = lane; elem < head_dim; elem += kWarpSize) {
        float y = part == 1 ? normed[elem] : rotated(p.rope, row.pos, normed, elem);
        if (of_queries) {
            query[elem] = y;
            continue;
        }
        if (p.raw) {
            p.raw[((uint64_t(r) * 2 + part) * n_kv_heads + head) * head_dim + elem] = y;
            continue;
        }
        uint8_t* page = kv_head(p.kv, page_of(p.step, row.seq, row.pos), part, head);
        uint32_t place = row.pos % PAGE_POSITIONS * p.kv.stride + elem;
        if (p.kv.elem_bytes == 2) {
            reinterpret_cast<uint16_t*>(page)[place] = half_bits(y);
        } else {
            reinterpret_cast<float*>(page)[place] = y;
        }
    }
}
