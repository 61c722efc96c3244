#include "f32.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(F32, f32)
