// at[0] = nanoseconds of the card's clock, when everything ahead of it has been done.
//
// For profiles: in a recording that is timed, one stands before each stage and one behind the last. A stage's
// own kernels follow each other as in other recordings, but none starts before its stage does.
#include "../params.h"
#include "../simt.h"

KERNEL(stamp, StampParams, STAMP_THREADS) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) *p.at = clock_ns();
    let_next_kernel_start();
}
