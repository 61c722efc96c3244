// Bulk copies and their barriers on the host (simt_bulk.h).
//
// A copy lands when a thread waits for its barrier, so that reading too early shows, or, with shuffled
// orders, sometimes at once, so that overwriting data that others still read shows. A block whose barrier
// expects more bytes than are copied waits forever, which ends the launch, as does a copy for which no thread
// waits. For the race detector a copy is a store of the thread that issues it; what a thread did before it
// arrives at a barrier comes before what others do after they have waited.
#pragma once

#include "runtime.h"

namespace simt {

// In shared memory, like the hardware's.
struct alignas(8) CopyBarrier {
    // Number of phases that have ended.
    uint32_t generation;
    // Arrivals of a phase, those that are missing, and the units of 16 bytes that are, which may be copied
    // before they are expected.
    uint32_t n : 6, missing : 6;
    int32_t units : 20;
};
static_assert(sizeof(CopyBarrier) == 8, "the hardware's size");

bool has_bulk_copies();
void barrier_init(CopyBarrier* at, uint32_t n);
void barrier_expect(CopyBarrier* at, uint32_t bytes);
void bulk_copy(CopyBarrier* at, void* to, const void* from, uint32_t bytes);
void barrier_wait(CopyBarrier* at, uint32_t parity);

}  // namespace simt
