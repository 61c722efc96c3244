#include "f16.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(F16, f16)
STERNA_MMA_KERNELS(F16, f16)
