// Floats: [PAGE_POSITIONS, stride] a head and part of a page.
#include "../stage/attend.cuh"

KERNEL(attend__f32, AttendParams, ATTEND_THREADS) { attend<float>(p); }
