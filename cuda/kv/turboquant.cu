// turboquant: 3 bits an element and one scale, of turned vectors; keys less their mean.
#include "../stage/append.cuh"
#include "../stage/attend_codes.cuh"

KERNEL(append__turboquant, AppendParams, APPEND_THREADS) { append<Alike<Codes3>>(p); }
RESIDENT_KERNEL(attend__turboquant, AttendCodesParams, ATTEND_THREADS, 3) { attend_codes<Alike<Codes3>>(p); }
