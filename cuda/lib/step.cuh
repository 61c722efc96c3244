// Access to the tables of the step.
#pragma once

#include "../params.h"
#include "../simt.h"

// Address of one head's vectors in a page: keys (part 0) or values (part 1), [PAGE_POSITIONS, stride].
DEVICE uint8_t* kv_head(const KvParams& kv, uint32_t page, uint32_t part, uint32_t head) {
    uint64_t head_bytes = uint64_t(PAGE_POSITIONS) * kv.stride * kv.elem_bytes;
    return kv.pages + page * kv.page_bytes + (uint64_t(part) * kv.n_kv_heads + head) * head_bytes;
}

// Prefetches the beginning of the next stage's weights into the L2 cache; the lines are divided among all
// threads of the grid. Called at the end of a kernel, when its own loads are issued and memory would become
// idle.
DEVICE void prefetch_next(const StepTables& step) {
    constexpr uint64_t kLineBytes = 128;
    uint64_t block = (uint64_t(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    uint64_t threads = uint64_t(gridDim.x) * gridDim.y * gridDim.z * blockDim.x;
    for (uint64_t at = (block * blockDim.x + threadIdx.x) * kLineBytes; at < step.next.bytes;
         at += threads * kLineBytes) {
        prefetch_l2(step.next.data + at);
    }
}

// First position that a row at `pos` attends to, for a window of the last `window` positions.
DEVICE uint32_t first_seen(uint32_t pos, uint32_t window) {
    return pos < window ? 0 : pos + 1 - window;
}

// Last position that a row at `pos` attends to: up to `ahead` later ones, for a sequence whose last row in
// the batch is at `end`.
DEVICE uint32_t last_seen(uint32_t pos, uint32_t ahead, uint32_t end) {
    return end - pos > ahead ? pos + ahead : end;
}

// The same for batch row r.
DEVICE uint32_t last_seen(const AttendCommon& common, uint32_t r, uint32_t pos) {
    if (common.whole_images) {
        uint32_t image_end = common.texts[r].image_end;
        if (image_end > 0) return image_end - 1;
    }
    return common.ahead == 0 ? pos : last_seen(pos, common.ahead, common.texts[r].end);
}

DEVICE uint32_t page_of(const StepTables& step, uint32_t seq, uint32_t pos) {
    return step.pages[seq * step.pages_stride + pos / PAGE_POSITIONS];
}

// Slot for the state after a row of a run before its last one; NO_STATE if it is not kept.
DEVICE uint32_t state_after(const StepRun* runs, const StepRun& run, uint32_t row) {
    if (row - run.first_kept >= run.n_kept) return NO_STATE;
    return reinterpret_cast<const uint32_t*>(runs)[run.kept + run.first + row];
}
