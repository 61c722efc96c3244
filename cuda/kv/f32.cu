// Floats: [PAGE_POSITIONS, stride] a head and part of a page.
#include "../stage/attend.cuh"

RESIDENT_KERNEL(attend__f32, AttendParams, ATTEND_WIDE_THREADS, 1) { attend<float>(p); }
