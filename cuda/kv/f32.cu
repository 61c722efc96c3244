// f32 KV cache: [PAGE_POSITIONS, stride] per head for keys, and for values.
#include "../stage/attend.cuh"

RESIDENT_KERNEL(attend__f32, AttendParams, ATTEND_WIDE_THREADS, 2) { attend<float, 1>(p); }
