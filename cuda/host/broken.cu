// Kernels with errors that the host runtime must detect, and some correct ones with patterns that no stage
// kernel has; launched by the driver's tests. Not compiled for GPUs.
#include "../simt_bulk.h"

struct BrokenParams {
    uint32_t* out;
};

// Reads 16 bytes from an address that is not a multiple of 16.
KERNEL(broken_alignment, BrokenParams, 32) {
    if (threadIdx.x == 7) p.out[0] = load16(reinterpret_cast<const uint8_t*>(p.out) + 4).x;
}

// Reads the 16 bytes after an allocation of 64.
KERNEL(broken_bounds, BrokenParams, 32) {
    if (threadIdx.x == 3) p.out[0] = load16(p.out + 16).x;
}

// One thread never reaches the barrier.
KERNEL(broken_barrier, BrokenParams, 64) {
    if (threadIdx.x == 5) return;
    p.out[threadIdx.x % 16] = 0;
    __syncthreads();
}

// One lane ends before its warp's exchange.
KERNEL(broken_exchange, BrokenParams, 32) {
    if (threadIdx.x == 31) return;
    p.out[0] = __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
}

// Reads the last thread's value without a barrier after the write.
KERNEL(broken_race, BrokenParams, 64) {
    uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
    shared[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) p.out[0] = shared[blockDim.x - 1];
}

// Exchanging a value does not order the lanes' stores and loads.
KERNEL(broken_exchange_race, BrokenParams, 32) {
    uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
    shared[threadIdx.x] = threadIdx.x;
    uint32_t other = __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
    if (threadIdx.x < 16) p.out[threadIdx.x] = shared[other];
}

// The second round overwrites values that another warp may not have read yet.
KERNEL(broken_overwrite_race, BrokenParams, 64) {
    uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
    for (uint32_t round = 0; round < 2; round++) {
        shared[threadIdx.x] = threadIdx.x + round;
        __syncthreads();
        if (threadIdx.x < 16) p.out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
    }
}

// An asynchronous copy writes where another thread reads, without a barrier.
KERNEL(broken_copy_race, BrokenParams, 64) {
    const uint32_t* shared = reinterpret_cast<const uint32_t*>(shared_memory());
    if (threadIdx.x == 0) cp_async16(shared_memory(), p.out);
    cp_async_commit();
    cp_async_wait<0>();
    if (threadIdx.x == 33) p.out[4] = shared[1];
}

// An asynchronous copy may overwrite data that another thread still reads.
KERNEL(broken_copy_overwrite, BrokenParams, 64) {
    uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) cp_async16(shared, p.out + 4);
    cp_async_commit();
    if (threadIdx.x == 33) p.out[0] = shared[1];
    __syncthreads();
    cp_async_wait<0>();
}

// Blocks add to one word without atomics.
KERNEL(broken_blocks_race, BrokenParams, 32) {
    if (threadIdx.x == 0) p.out[0] += 1;
}

// The last block to arrive reads what all blocks have written. Without `kBarriers` it does not wait for all
// warps to write.
template <bool kBarriers>
DEVICE void sum_of_blocks(const BrokenParams& p) {
    SHARED(uint32_t, last, 1);
    if (threadIdx.x == 63) p.out[1 + blockIdx.x] = blockIdx.x;
    if (kBarriers) __syncthreads();
    if (threadIdx.x == 0) last[0] = arrive(p.out) == gridDim.x - 1;
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < gridDim.x && last[0]; i++) sum += p.out[1 + i];
    if (last[0] && threadIdx.x == 32) p.out[15] = sum;
}
KERNEL(broken_arrival_race, BrokenParams, 64) { sum_of_blocks<false>(p); }

// Correct.
KERNEL(arrivals_without_races, BrokenParams, 64) { sum_of_blocks<true>(p); }

// Correct: rounds separated by barriers of the block, of a warp, and of half a block.
KERNEL(rounds_without_races, BrokenParams, 128) {
    uint32_t* shared = reinterpret_cast<uint32_t*>(shared_memory());
    uint32_t half = threadIdx.x / 64, neighbour = half * 64 + (threadIdx.x + 1) % 64;
    uint32_t of_warp = threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32, sum = 0;
    for (uint32_t round = 0; round < 3; round++) {
        shared[threadIdx.x] = threadIdx.x + sum;
        __syncwarp();
        sum += shared[of_warp];
        named_barrier(1 + half, 64);
        sum += shared[neighbour];
        __syncthreads();
        sum += shared[127 - threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.x < 16) p.out[threadIdx.x] = sum;
}

// Reads the target of an asynchronous copy before waiting for it.
KERNEL(broken_copy_read, BrokenParams, 32) {
    if (threadIdx.x != 0) return;
    cp_async16(shared_memory(), p.out + 4);
    cp_async_commit();
    uint32_t seen = *reinterpret_cast<const uint32_t*>(shared_memory());
    cp_async_wait<0>();
    p.out[0] = seen;
}

// Never waits for an asynchronous copy.
KERNEL(broken_copy_end, BrokenParams, 32) {
    cp_async16(shared_memory() + 16 * threadIdx.x, p.out);
    cp_async_commit();
}

// A block with barriers for bulk copies of 16 bytes, which thread 0 initialises and issues.
struct BulkShared {
    CopyBarrier full[2];
    uint32_t words[4];

    DEVICE static BulkShared& begin() {
        BulkShared& shared = *reinterpret_cast<BulkShared*>(shared_memory());
        for (uint32_t i = 0; i < 2 && threadIdx.x == 0; i++) barrier_init(shared.full + i, 1);
        barriers_are_there();
        __syncthreads();
        return shared;
    }
    DEVICE void copy(const BrokenParams& p, uint32_t i, uint32_t bytes) {
        if (threadIdx.x != 0) return;
        barrier_expect(full + i, bytes);
        bulk_copy(full + i, words, p.out + 4, 16);
    }
};

// Reads the target of a bulk copy before waiting for it.
KERNEL(broken_bulk_read, BrokenParams, 32) {
    BulkShared& shared = BulkShared::begin();
    if (threadIdx.x != 0) return;
    shared.copy(p, 0, 16);
    uint32_t seen = shared.words[0];
    barrier_wait(shared.full, 0);
    p.out[0] = seen;
}

// Never waits for a bulk copy.
KERNEL(broken_bulk_end, BrokenParams, 32) { BulkShared::begin().copy(p, 0, 16); }

// Expects more bytes than are copied.
KERNEL(broken_bulk_bytes, BrokenParams, 32) {
    BulkShared& shared = BulkShared::begin();
    shared.copy(p, 0, 32);
    barrier_wait(shared.full, 0);
}

// Without `kBarriers`, the second copy may overwrite what other threads still read.
template <bool kBarriers>
DEVICE void bulk_rounds(const BrokenParams& p) {
    BulkShared& shared = BulkShared::begin();
    uint32_t sum = 0;
    for (uint32_t round = 0; round < 2; round++) {
        shared.copy(p, round, 16);
        barrier_wait(shared.full + round, 0);
        sum += shared.words[threadIdx.x % 4];
        if (kBarriers) __syncthreads();
    }
    if (threadIdx.x == 33) p.out[0] = sum;
}
KERNEL(broken_bulk_race, BrokenParams, 64) { bulk_rounds<false>(p); }

// Correct.
KERNEL(bulk_rounds_without_races, BrokenParams, 64) { bulk_rounds<true>(p); }

// Correct: the two halves of a block use separate barriers, one half more often. In a round, each value adds
// its neighbour's, in static shared memory.
KERNEL(halves_of_a_block, BrokenParams, 128) {
    SHARED(uint32_t, values, 128);
    uint32_t half = threadIdx.x / 64, neighbour = half * 64 + (threadIdx.x + 1) % 64;
    values[threadIdx.x] = 1;
    for (uint32_t round = 0; round < 3 + 2 * half; round++) {
        named_barrier(1 + half, 64);
        uint32_t sum = values[threadIdx.x] + values[neighbour];
        named_barrier(1 + half, 64);
        values[threadIdx.x] = sum;
    }
    if (threadIdx.x % 64 == 63) p.out[half] = values[threadIdx.x];
}

// Reads a word before waiting for the previous kernel, and again after the wait.
KERNEL(broken_wait, BrokenParams, 32) {
    uint32_t early = p.out[0];
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
        p.out[1] = early;
        p.out[2] = p.out[0];
    }
}

// More static shared memory than a block has.
KERNEL(broken_static_shared, BrokenParams, 32) {
    SHARED(uint32_t, first, 8 << 10);
    SHARED(uint32_t, second, 8 << 10);
    p.out[0] = first[0] + second[0];
}

// Writes past an allocation of 64 bytes, in a way that only the address sanitizer sees.
KERNEL(broken_plain_bounds, BrokenParams, 32) {
    if (threadIdx.x == 3) p.out[16] = 1;
}

// Writes to an address that is not a multiple of 4, in a way that only the undefined behaviour sanitizer
// sees.
KERNEL(broken_plain_alignment, BrokenParams, 32) {
    if (threadIdx.x == 3) *reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(p.out) + 2) = 1;
}
