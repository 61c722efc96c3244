// HeadProj: out[r][h] = W[h] x[r][h], each head with a matrix of its own. Also computes the parts of latent
// attention's queries that are not rotated.
//
// A block processes one head of one batch row as a step of one row (lib/linear.cuh): x = share of the
// outputs, y = head, z = row. A slot of a warp owns an output. Reads the matrix of a head once per batch row.
#include "../lib/by_block.cuh"
#include "../lib/linear.cuh"
#include "../params_latent.h"
#include "../types/bf16.cuh"
#include "../types/f16.cuh"
#include "../types/f32.cuh"
#include "../types/iq4_nl.cuh"
#include "../types/q1_0.cuh"
#include "../types/q2_0.cuh"
#include "../types/q2_k.cuh"
#include "../types/q4_0.cuh"
#include "../types/q4_k.cuh"
#include "../types/q5_1.cuh"
#include "../types/q6_k.cuh"
#include "../types/q8_0.cuh"

struct HeadProjTask {
    const HeadProjParams& p;
    const LinearParams& w;
    // The head's outputs.
    float* out;

    DEVICE uint32_t slots() const { return kWarpSize >> p.in.lanes_log2; }
    DEVICE uint32_t units() const { return (p.outputs + slots() - 1) / slots(); }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        uint32_t row = unit * slots() + slot;
        return {0, row < p.outputs ? row : WeightRow::kNone};
    }
    DEVICE LinearParams weight(uint32_t) const { return w; }

    struct Around {};
    DEVICE Around around(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE Around late(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE void finish(uint32_t unit, uint32_t slot, uint32_t, float y, float, const Around&) const {
        out[unit * slots() + slot] = y;
    }
};

template <class T>
DEVICE void head_proj(const HeadProjParams& p) {
    uint32_t r = blockIdx.z, head = blockIdx.y;
    if (r >= p.step.counts->rows) {
        let_next_kernel_start();
        wait_for_previous_kernel();
        return;
    }
    LinearParams w = p.table[head];
    uint64_t at = uint64_t(r) * p.n_heads + head;
    // A step of one row.
    StepCounts counts = {1, 1, 0, 0};
    StepTables step = p.step;
    step.counts = &counts;
    InputParams in = p.in;
    in.x += at * p.x_pitch;
    HeadProjTask task{p, w, p.out + at * p.out_pitch};
    run_linear<T, 1, false>(step, in, p.chunks, task);
}

#define HEAD_PROJ_KERNEL(Type, type) \
    KERNEL(head_proj__##type, HeadProjParams, LINEAR_THREADS) { head_proj<Type>(p); }
#define HEAD_PROJ_KERNELS(Type, type) \
    HEAD_PROJ_KERNEL(Type, type)      \
    HEAD_PROJ_KERNEL(ByBlock<Type>, type##__dp4a)

HEAD_PROJ_KERNEL(BF16, bf16)
HEAD_PROJ_KERNEL(F16, f16)
HEAD_PROJ_KERNEL(F32, f32)
HEAD_PROJ_KERNELS(IQ4NL, iq4_nl)
HEAD_PROJ_KERNELS(Q1_0, q1_0)
HEAD_PROJ_KERNELS(Q2_0, q2_0)
HEAD_PROJ_KERNELS(Q2K, q2_k)
HEAD_PROJ_KERNELS(Q4_0, q4_0)
HEAD_PROJ_KERNELS(Q4K, q4_k)
HEAD_PROJ_KERNELS(Q5_1, q5_1)
HEAD_PROJ_KERNELS(Q6K, q6_k)
HEAD_PROJ_KERNELS(Q8_0, q8_0)
