// f16 KV cache: [PAGE_POSITIONS, stride] per head for keys, and for values.
#include "../stage/attend_mma.cuh"

RESIDENT_KERNEL(attend__f16, AttendParams, ATTEND_WIDE_THREADS, 2) { attend<uint16_t, 1>(p); }
RESIDENT_KERNEL(attend__f16__of512, AttendParams, ATTEND_THREADS_512, 2) { attend<uint16_t, 2>(p); }
MMA_KERNEL(attend__f16, 64, AttendMmaParams, ATTEND_MMA_RESIDENT) { attend_tiles<64, HalvesSource<64>>(p); }
MMA_KERNEL(attend__f16, 128, AttendMmaParams, ATTEND_MMA_RESIDENT) {
    attend_tiles<128, HalvesSource<128>>(p);
}
MMA_KERNEL(attend__f16, 256, AttendMmaParams, ATTEND_MMA_RESIDENT) {
    attend_tiles<256, HalvesSource<256>>(p);
}
