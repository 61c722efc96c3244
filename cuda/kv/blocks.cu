// KV cache in blocks of 32 elements of rotated vectors: q8_0 and q4_0 for keys and values in any combination,
// also with f16 for one of them.
#include "../stage/append_blocks.cuh"
#include "../stage/attend_blocks.cuh"
#include "../stage/attend_mma_blocks.cuh"

KERNEL(append__blocks, AppendBlocksParams, APPEND_THREADS) { append_blocks(p); }
RESIDENT_KERNEL(attend__blocks, AttendBlocksParams, ATTEND_THREADS, 3) { attend_blocks(p); }
MMA_KERNEL(attend__blocks, 64, AttendBlocksMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<64, BlocksSource<64>>(p);
}
MMA_KERNEL(attend__blocks, 128, AttendBlocksMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<128, BlocksSource<128>>(p);
}
MMA_KERNEL(attend__blocks, 256, AttendBlocksMmaParams, ATTEND_MMA_CODES_RESIDENT) {
    attend_tiles<256, BlocksSource<256>>(p);
}
