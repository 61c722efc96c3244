// AttnIn: n = norm(x[r]); q[r] = rope(Wq n); kv[seq, pos] = (rope(Wk n), Wv n).
//
// The rows of Wq, Wk and Wv are processed in pairs that RoPE rotates together (or neighbours, where it
// rotates nothing). The first half of a warp's slots own the first rows of some pairs and the second half the
// second rows, so that a pair meets in a warp. Requires an even head_dim and at least two slots per warp.
// Writes f16 or f32 to the page of the row's position, or f32 for `append`; reads the cosines and sines of
// that position.
#pragma once

#include "../lib/linear_codes.cuh"
#include "../lib/linear_mma.cuh"

struct AttnInTask {
    const AttnInParams& p;

    DEVICE uint32_t half_slots() const { return kWarpSize / 2 >> p.in.lanes_log2; }
    DEVICE uint32_t pairs() const { return (p.wq.rows + p.wk.rows + p.wv.rows) / 2; }
    DEVICE uint32_t units() const { return (pairs() + half_slots() - 1) / half_slots(); }

    // A pair of rows of one weight: weight index (0 to 2), head, and index of the pair in the head.
    struct Pair {
        uint32_t weight, head, number;
        bool exists, rotates;
    };

    DEVICE Pair pair(uint32_t unit, uint32_t slot) const {
        uint32_t at = unit * half_slots() + slot % half_slots(), in_head = p.kv.head_dim / 2;
        bool exists = at < pairs();
        uint32_t weight = at < p.wq.rows / 2 ? 0 : at < (p.wq.rows + p.wk.rows) / 2 ? 1 : 2;
        if (weight > 0) at -= p.wq.rows / 2;
        if (weight > 1) at -= p.wk.rows / 2;
        uint32_t number = at % in_head;
        return {weight, at / in_head, number, exists, weight < 2 && number < p.rope.pairs};
    }

    // Element of the head that corresponds to the first (second = 0) or second row of a pair.
    DEVICE uint32_t elem(const Pair& pair, uint32_t second) const {
        if (pair.rotates && !p.rope.adjacent) return pair.number + second * p.rope.pairs;
        // Elements after the rotated ones, or adjacent pairs.
        uint32_t n_rotated = pair.weight < 2 && !p.rope.adjacent ? p.rope.pairs : 0;
        return 2 * n_rotated + 2 * (pair.number - n_rotated) + second;
    }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        Pair at = pair(unit, slot);
        uint32_t row = at.head * p.kv.head_dim + elem(at, slot >= half_slots());
        return {at.weight, at.exists ? row : WeightRow::kNone};
    }
    DEVICE LinearParams weight(uint32_t i) const { return select(i == 0, p.wq, select(i == 1, p.wk, p.wv)); }

    struct Around {
        uint32_t pos, page;
        float cos, sin;
    };
    DEVICE Around around(uint32_t unit, uint32_t slot, uint32_t, const StepRow& row) const {
        Pair at = pair(unit, slot);
        Around out = {row.pos, 0, 1.0f, 0.0f};
        if (at.rotates) {
            const float* cos_sin = p.rope.cos_sin + uint64_t(row.pos) * 2 * p.rope.pairs;
            out.cos = cos_sin[at.number];
            out.sin = cos_sin[p.rope.pairs + at.number];
        }
        if (at.weight > 0 && !p.raw) out.page = page_of(p.step, row.seq, row.pos);
        return out;
    }

    // The same, loaded only when used: kernels with few spare registers would spill.
    struct Late {
        StepRow row;
    };
    DEVICE Late late(uint32_t, uint32_t, uint32_t, const StepRow& row) const { return {row}; }

    DEVICE float2 angle(const Pair&, const Around& around) const { return {around.cos, around.sin}; }
    DEVICE float2 angle(const Pair& at, const Late& late) const {
        const float* cos_sin = p.rope.cos_sin + uint64_t(late.row.pos) * 2 * p.rope.pairs;
        return {cos_sin[at.number], cos_sin[p.rope.pairs + at.number]};
    }
    DEVICE uint32_t pos(const Around& around) const { return around.pos; }
    DEVICE uint32_t pos(const Late& late) const { return late.row.pos; }
    DEVICE uint32_t page(const Around& around) const { return around.page; }
    DEVICE uint32_t page(const Late& late) const { return page_of(p.step, late.row.seq, late.row.pos); }

    template <class Around>
    DEVICE void finish(
        uint32_t unit, uint32_t slot, uint32_t m, float y, float other, const Around& around
    ) const {
        Pair at = pair(unit, slot);
        uint32_t second = slot >= half_slots();
        if (at.rotates) {
            float2 by = angle(at, around);
            y = second ? other * by.y + y * by.x : y * by.x - other * by.y;
        }
        uint32_t to = elem(at, second);
        if (at.weight == 0) {
            p.q[uint64_t(m) * p.wq.rows + at.head * p.kv.head_dim + to] = y;
            return;
        }
        if (p.raw) {
            uint64_t vector = (uint64_t(m) * 2 + at.weight - 1) * p.kv.n_kv_heads + at.head;
            p.raw[vector * p.kv.head_dim + to] = y;
            return;
        }
        uint8_t* head = kv_head(p.kv, page(around), at.weight - 1, at.head);
        uint32_t place = pos(around) % PAGE_POSITIONS * p.kv.stride + to;
        if (p.kv.elem_bytes == 2) {
            reinterpret_cast<uint16_t*>(head)[place] = half_bits(y);
        } else {
            reinterpret_cast<float*>(head)[place] = y;
        }
    }
};

template <class T, int M>
DEVICE void attn_in(const AttnInParams& p) {
    run_linear<T, M>(p.step, p.in, p.wq.chunks, AttnInTask{p});
}

template <class T>
DEVICE void attn_in_mma(const AttnInParams& p) {
    run_linear_mma<T>(p.step, p.in, p.wq.chunks, AttnInTask{p});
}

template <class T>
DEVICE void attn_in_codes(const AttnInParams& p) {
    run_linear_codes<T>(p.step, p.in, AttnInTask{p});
}

template <class T>
DEVICE void attn_in_few(const AttnInParams& p) {
    run_linear_few<T>(p.step, p.in, AttnInTask{p});
}
