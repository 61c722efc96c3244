// tq3_0: keys of 2 bits, and one bit an element for what these leave over, less their mean; values of 3 bits
// as turboquant's.
#include "../stage/append.cuh"
#include "../stage/attend_codes.cuh"
#include "../lib/signs.cuh"

KERNEL(append__tq3_0, AppendParams, APPEND_THREADS) { append<KeysWithSigns>(p); }
// Signs take registers: two blocks a multiprocessor.
KERNEL(attend__tq3_0, AttendCodesParams, ATTEND_THREADS) { attend_codes<KeysWithSigns>(p); }
