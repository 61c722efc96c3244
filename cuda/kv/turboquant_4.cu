// turboquant-4: as turboquant, with 4 bits an element.
#include "../stage/append.cuh"
#include "../stage/attend_mma_codes.cuh"

KERNEL(append__turboquant_4, AppendParams, APPEND_THREADS) { append<Alike<Codes4>>(p); }
RESIDENT_KERNEL(attend__turboquant_4, AttendCodesParams, ATTEND_THREADS, 3) {
    attend_codes<Alike<Codes4>>(p);
}
RESIDENT_KERNEL(attend__turboquant_4__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 1) {
    attend_row<Alike<Codes4>, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant_4__row128, AttendCodesParams, ATTEND_WIDE_THREADS, 1) {
    attend_row<Alike<Codes4>, 128>(p);
}
KERNEL(attend__turboquant_4__mma64, AttendCodesMmaParams, ATTEND_THREADS) {
    attend_tiles<64, CodesSource<Alike<Codes4>, 64>>(p);
}
KERNEL(attend__turboquant_4__mma128, AttendCodesMmaParams, ATTEND_THREADS) {
    attend_tiles<128, CodesSource<Alike<Codes4>, 128>>(p);
}
