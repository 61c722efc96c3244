// Halves: [PAGE_POSITIONS, stride] a head and part of a page.
#include "../stage/attend_mma.cuh"

RESIDENT_KERNEL(attend__f16, AttendParams, ATTEND_WIDE_THREADS, 1) { attend<uint16_t>(p); }
KERNEL(attend__f16__mma64, AttendMmaParams, ATTEND_THREADS) { attend_tiles<64, HalvesSource<64>>(p); }
KERNEL(attend__f16__mma128, AttendMmaParams, ATTEND_THREADS) { attend_tiles<128, HalvesSource<128>>(p); }
