// Blocks that share one piece of work: the last one to arrive finishes it.
#pragma once

#include "../simt.h"

// True if this block is the last of `blocks` to arrive. Writes of all blocks before their call are then
// visible to it, and `arrived` is 0 again. `word` is in shared memory.
DEVICE bool comes_last(uint32_t* arrived, uint32_t blocks, uint32_t* word) {
    __syncthreads();
    if (threadIdx.x == 0) {
        *word = arrive(arrived) == blocks - 1;
        if (*word) *arrived = 0;
    }
    __syncthreads();
    return *word;
}
