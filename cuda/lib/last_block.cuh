// Blocks that share a piece of work, of which the last one to come finishes it.
#pragma once

#include "../simt.h"

// Whether this block is the last of `blocks` to come here, each with what it has written. The last one finds
// what all have written, and `arrived` at 0 again. `word` is in shared memory.
DEVICE bool comes_last(uint32_t* arrived, uint32_t blocks, uint32_t* word) {
    __syncthreads();
    if (threadIdx.x == 0) {
        *word = arrive(arrived) == blocks - 1;
        if (*word) *arrived = 0;
    }
    __syncthreads();
    return *word;
}
