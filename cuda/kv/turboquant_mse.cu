// turboquant-mse KV cache: rotated vectors as 3-bit codes with one scale; the mean of the keys is subtracted
// first.
#include "../stage/append.cuh"
#include "../stage/attend_mma_codes.cuh"

KERNEL(append__turboquant_mse, AppendParams, APPEND_THREADS) { append<Alike<Codes3>>(p); }
RESIDENT_KERNEL(attend__turboquant_mse, AttendCodesParams, ATTEND_THREADS, 3) {
    attend_codes<Alike<Codes3>>(p);
}
RESIDENT_KERNEL(attend__turboquant_mse__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 2) {
    attend_row<Alike<Codes3>, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant_mse__row128, AttendCodesParams, ATTEND_ROW_THREADS_128, 1) {
    attend_row<Alike<Codes3>, 128>(p);
}
RESIDENT_KERNEL(attend__turboquant_mse__row256, AttendCodesParams, ATTEND_ROW_THREADS_256, 1) {
    attend_row<Alike<Codes3>, 256>(p);
}
MMA_KERNEL(attend__turboquant_mse, 64, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<64, CodesSource<Alike<Codes3>, 64>>(p);
}
MMA_KERNEL(attend__turboquant_mse, 128, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<128, CodesSource<Alike<Codes3>, 128>>(p);
}
MMA_KERNEL(attend__turboquant_mse, 256, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<256, CodesSource<Alike<Codes3>, 256>>(p);
}
