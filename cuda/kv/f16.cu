// Halves: [PAGE_POSITIONS, stride] a head and part of a page.
#include "../stage/attend.cuh"

KERNEL(attend__f16, AttendParams, ATTEND_THREADS) { attend<uint16_t>(p); }
