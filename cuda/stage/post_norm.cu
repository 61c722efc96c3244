// PostNorm: x[r] = scale (x[r] + norm(product[r])), after the layer of a ProjAdd with a norm on its product;
// or x[r] = scale (residual(x[r]) + norm(product[r])), if the residual is normalised too. A third kernel only
// normalises rows in place: x[r] = norm(x[r]).
//
// A block owns a row: x = row. Weights of the product's norm are prefetched into shared memory before the
// product is ready, and x is loaded while the product is normalised. So only one round trip to memory comes
// after the previous kernel, if a row has at most NORM_SHARED_COLS columns and the residual is not
// normalised. Reads and writes a row of x.
#include "../lib/input.cuh"

constexpr uint32_t kPostQuads = 7;
static_assert(RowPart<true, false, kPostQuads>::kCols == NORM_SHARED_COLS, "the host asks for less");

template <bool Residual>
DEVICE void add_normed(const PostNormParams& p) {
    InputParams in = {};
    in.cols = p.cols;
    in.norm = p.norm;
    uint32_t r = blockIdx.x;
    bool exists = r < p.step.counts->rows;
    if (exists) prefetch_norm<kPostQuads>(in);
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (!exists) return;
    const float* product = p.product + uint64_t(r) * p.cols;
    float* x = p.x + uint64_t(r) * p.cols;
    RowPart<true, false, kPostQuads> stream, held;
    stream.load(x, p.cols, 0);
    RowNorm norm = row_norm(in, product, held), residual = {0.0f, 1.0f};
    if constexpr (Residual) {
        InputParams of_stream = in;
        of_stream.norm = p.residual;
        // All reads of the product's sums come before the next sums overwrite them.
        __syncthreads();
        residual = row_norm(of_stream, x, stream);
    }
    const float* weight = in.norm.weight;
    if (shares_norm<kPostQuads>(in)) {
        cp_async_wait<0>();
        weight = reinterpret_cast<const float*>(shared_memory() + LINEAR_HEADER_BYTES);
    }
    for (uint32_t part = 0; part < held.parts(p.cols); part++) {
        if (part > 0) {
            stream.load(x, p.cols, part);
            held.load(product, p.cols, part);
        }
        if constexpr (Residual) stream.apply(residual, p.residual, p.residual.weight, p.cols, part);
        held.apply(norm, in.norm, weight, p.cols, part);
        held.each(part, p.cols, [&](uint32_t quad, uint32_t col) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (col + i < p.cols) x[col + i] = p.scale * (stream.x[quad][i] + held.x[quad][i]);
            }
        });
    }
}

KERNEL(post_norm__rows, PostNormParams, LINEAR_THREADS) {
    InputParams in = {};
    in.cols = p.cols;
    in.norm = p.norm;
    uint32_t r = blockIdx.x;
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (r >= p.step.counts->rows) return;
    float* x = p.x + uint64_t(r) * p.cols;
    RowPart<true, false, kPostQuads> held;
    RowNorm norm = row_norm(in, x, held);
    for (uint32_t part = 0; part < held.parts(p.cols); part++) {
        if (part > 0) held.load(x, p.cols, part);
        held.apply(norm, in.norm, in.norm.weight, p.cols, part);
        held.each(part, p.cols, [&](uint32_t quad, uint32_t col) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (col + i < p.cols) x[col + i] = held.x[quad][i];
            }
        });
    }
}
KERNEL(post_norm, PostNormParams, LINEAR_THREADS) { add_normed<false>(p); }
KERNEL(post_norm__residual, PostNormParams, LINEAR_THREADS) { add_normed<true>(p); }
