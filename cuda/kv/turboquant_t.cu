// turboquant-t KV cache: keys, less their mean, in the basis of their head and in two groups of 4-bit and
// 2-bit trellis codes; values as 3-bit trellis codes.
#include "../stage/append.cuh"
#include "../stage/attend_trellis.cuh"

KERNEL(append__turboquant_t, AppendParams, APPEND_TRELLIS_THREADS) { append<TrellisCodes>(p); }
// Addresses of look-ups need registers: two resident blocks per multiprocessor.
KERNEL(attend__turboquant_t, AttendCodesParams, ATTEND_THREADS) {
    load_tables(p.kv);
    attend_codes<TrellisCodes>(p);
}
RESIDENT_KERNEL(attend__turboquant_t__row64, AttendCodesParams, ATTEND_WIDE_THREADS, 2) {
    load_tables(p.kv);
    attend_row<TrellisCodes, 64>(p);
}
RESIDENT_KERNEL(attend__turboquant_t__row128, AttendCodesParams, ATTEND_ROW_THREADS_128, 1) {
    load_tables(p.kv);
    attend_row<TrellisCodes, 128>(p);
}
RESIDENT_KERNEL(attend__turboquant_t__row256, AttendCodesParams, ATTEND_ROW_THREADS_256, 1) {
    load_tables(p.kv);
    attend_row<TrellisCodes, 256>(p);
}
MMA_KERNEL(attend__turboquant_t, 64, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    load_tables(p.kv);
    attend_tiles<64, CodesSource<TrellisCodes, 64>>(p);
}
MMA_KERNEL(attend__turboquant_t, 128, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    load_tables(p.kv);
    attend_tiles<128, CodesSource<TrellisCodes, 128>>(p);
}
MMA_KERNEL(attend__turboquant_t, 256, AttendCodesMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    load_tables(p.kv);
    attend_tiles<256, CodesSource<TrellisCodes, 256>>(p);
}
