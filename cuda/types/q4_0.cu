#include "q4_0.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q4_0, q4_0)
STERNA_CODES_KERNELS(Q4_0, q4_0)
