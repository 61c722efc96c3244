#include "q2_0.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q2_0, q2_0)
STERNA_CODES_KERNELS(Q2_0, q2_0)
