// turboquant KV cache: keys, less their mean, in the basis of their head and in two groups of 4-bit and
// 2-bit codes; values as in turboquant-mse.
#include "../stage/append.cuh"
#include "../stage/attend_groups.cuh"

KERNEL(append__turboquant, AppendParams, APPEND_THREADS) { append<KeysInGroups>(p); }
RESIDENT_KERNEL(attend__turboquant, AttendCodesParams, ATTEND_THREADS, 3) { attend_codes<KeysInGroups>(p); }
RESIDENT_KERNEL(attend__turboquant__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 2) {
    attend_row<KeysInGroups, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant__row128, AttendCodesParams, ATTEND_ROW_THREADS_128, 1) {
    attend_row<KeysInGroups, 128>(p);
}
RESIDENT_KERNEL(attend__turboquant__row256, AttendCodesParams, ATTEND_ROW_THREADS_256, 1) {
    attend_row<KeysInGroups, 256>(p);
}
MMA_KERNEL(attend__turboquant, 64, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<64, CodesSource<KeysInGroups, 64>>(p);
}
MMA_KERNEL(attend__turboquant, 128, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<128, CodesSource<KeysInGroups, 128>>(p);
}
MMA_KERNEL(attend__turboquant, 256, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<256, CodesSource<KeysInGroups, 256>>(p);
}
