// turboquant-4 KV cache: like turboquant, with 4-bit codes.
#include "../stage/append.cuh"
#include "../stage/attend_mma_codes.cuh"

KERNEL(append__turboquant_4, AppendParams, APPEND_THREADS) { append<Alike<Codes4>>(p); }
RESIDENT_KERNEL(attend__turboquant_4, AttendCodesParams, ATTEND_THREADS, 3) {
    attend_codes<Alike<Codes4>>(p);
}
RESIDENT_KERNEL(attend__turboquant_4__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 2) {
    attend_row<Alike<Codes4>, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant_4__row128, AttendCodesParams, ATTEND_ROW_THREADS_128, 1) {
    attend_row<Alike<Codes4>, 128>(p);
}
RESIDENT_KERNEL(attend__turboquant_4__row256, AttendCodesParams, ATTEND_ROW_THREADS_256, 1) {
    attend_row<Alike<Codes4>, 256>(p);
}
MMA_KERNEL(attend__turboquant_4, 64, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<64, CodesSource<Alike<Codes4>, 64>>(p);
}
MMA_KERNEL(attend__turboquant_4, 128, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<128, CodesSource<Alike<Codes4>, 128>>(p);
}
MMA_KERNEL(attend__turboquant_4, 256, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<256, CodesSource<Alike<Codes4>, 256>>(p);
}
