// turboquant: 3 bits an element and one scale, of transformed vectors; keys less their mean.
#include "../stage/append.cuh"
#include "../stage/attend_mma_codes.cuh"

KERNEL(append__turboquant, AppendParams, APPEND_THREADS) { append<Alike<Codes3>>(p); }
RESIDENT_KERNEL(attend__turboquant, AttendCodesParams, ATTEND_THREADS, 3) { attend_codes<Alike<Codes3>>(p); }
RESIDENT_KERNEL(attend__turboquant__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 1) {
    attend_row<Alike<Codes3>, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant__row128, AttendCodesParams, ATTEND_WIDE_THREADS, 1) {
    attend_row<Alike<Codes3>, 128>(p);
}
KERNEL(attend__turboquant__mma64, AttendCodesMmaParams, ATTEND_THREADS) {
    attend_tiles<64, CodesSource<Alike<Codes3>, 64>>(p);
}
KERNEL(attend__turboquant__mma128, AttendCodesMmaParams, ATTEND_THREADS) {
    attend_tiles<128, CodesSource<Alike<Codes3>, 128>>(p);
}
