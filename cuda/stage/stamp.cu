// Stamp: at[0] = GPU clock in nanoseconds, once all earlier work is done.
//
// For profiling: a timed graph has a stamp before each stage and after the last one. The kernels within a
// stage overlap as usual, but none starts before its stage does.
#include "../params.h"
#include "../simt.h"

KERNEL(stamp, StampParams, STAMP_THREADS) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) *p.at = clock_ns();
    let_next_kernel_start();
}
