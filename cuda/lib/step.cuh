// What kernels read of the step.
#pragma once

#include "../params.h"
#include "../simt.h"

// Address of the vectors of one head in a page: keys (part 0) or values (part 1), [PAGE_POSITIONS, stride].
DEVICE uint8_t* kv_head(const KvParams& kv, uint32_t page, uint32_t part, uint32_t head) {
    uint64_t head_bytes = uint64_t(PAGE_POSITIONS) * kv.stride * kv.elem_bytes;
    return kv.pages + page * kv.page_bytes + (uint64_t(part) * kv.n_kv_heads + head) * head_bytes;
}

// The page of a position.
DEVICE uint32_t page_of(const StepTables& step, uint32_t seq, uint32_t pos) {
    return step.pages[seq * step.pages_stride + pos / PAGE_POSITIONS];
}
