// LatentIn, after its products: q[r][h] = (.. | rope(t)); kv[seq, pos] = (norm(c) | rope(t)). The other
// elements of queries are written by `head_proj`.
//
// A warp owns one query head of a batch row, or the row's key: x = share of the heads, the last of which is
// the key; z = row. Requires: earlier launches have written the products; rank <= LATENT_MAX_RANK; rows of
// keys begin at multiples of 16 bytes.
#include "../lib/input.cuh"
#include "../params_latent.h"

constexpr uint32_t kLatentQuads = LATENT_MAX_RANK / (4 * kWarpSize);

// Element e of a vector after RoPE with the cosines and sines of a position.
DEVICE float rotated(const float* x, uint32_t e, const RopeParams& rope, const float* cos_sin) {
    if (e >= 2 * rope.pairs) return x[e];
    uint32_t pair = rope.adjacent ? e / 2 : e % rope.pairs;
    bool second = rope.adjacent ? e % 2 == 1 : e >= rope.pairs;
    uint32_t away = second ? e - rope.pairs : e + rope.pairs;
    float y = x[e], other = x[rope.adjacent ? e ^ 1u : away];
    float cos = cos_sin[pair], sin = cos_sin[rope.pairs + pair];
    return second ? other * sin + y * cos : y * cos - other * sin;
}

KERNEL(latent_in, LatentInParams, LATENT_IN_THREADS) {
    uint32_t r = blockIdx.z, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    uint32_t at = blockIdx.x * (blockDim.x / kWarpSize) + warp, head_dim = p.kv.head_dim;
    bool of_key = at == p.n_heads, exists = r < p.step.counts->rows && at <= p.n_heads;
    StepRow row = exists ? p.step.rows[r] : StepRow{};
    uint32_t page = exists && of_key ? page_of(p.step, row.seq, row.pos) : 0;
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (!exists) return;

    const float* cos_sin = p.rope.cos_sin + uint64_t(row.pos) * 2 * p.rope.pairs;
    uint32_t n_tail = head_dim - p.rank;
    if (!of_key) {
        uint64_t head = uint64_t(r) * p.n_heads + at;
        const float* tail = p.parts + head * p.part + p.plain;
        float* to = p.q + head * head_dim + p.rank;
        for (uint32_t e = lane; e < n_tail; e += kWarpSize) to[e] = rotated(tail, e, p.rope, cos_sin);
        return;
    }
    const float* key = p.keys + uint64_t(r) * head_dim;
    uint8_t* to = kv_head(p.kv, page, 0, 0);
    uint32_t place = row.pos % PAGE_POSITIONS * p.kv.stride;
    auto store = [&](uint32_t e, float y) {
        if (p.kv.elem_bytes == 2) {
            reinterpret_cast<uint16_t*>(to)[place + e] = half_bits(y);
        } else {
            reinterpret_cast<float*>(to)[place + e] = y;
        }
    };
    InputParams in = {};
    in.cols = p.rank;
    in.norm = p.norm;
    RowPart<false, false, kLatentQuads> held;
    RowNorm norm = row_norm(in, key, held);
    held.apply(norm, in.norm, in.norm.weight, in.cols, 0);
    held.each(0, p.rank, [&](uint32_t quad, uint32_t e) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (e + i < p.rank) store(e + i, held.x[quad][i]);
        }
    });
    for (uint32_t e = lane; e < n_tail; e += kWarpSize)
        store(p.rank + e, rotated(key + p.rank, e, p.rope, cos_sin));
}
