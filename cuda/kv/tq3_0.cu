// tq3_0 KV cache: keys minus their mean as 2-bit codes plus one sign per element of the residual; values as
// 3-bit codes, as in turboquant.
#include "../stage/append.cuh"
#include "../stage/attend_codes.cuh"
#include "../lib/signs.cuh"

KERNEL(append__tq3_0, AppendParams, APPEND_THREADS) { append<KeysWithSigns>(p); }
// Signs need registers: two resident blocks per multiprocessor.
KERNEL(attend__tq3_0, AttendCodesParams, ATTEND_THREADS) { attend_codes<KeysWithSigns>(p); }
