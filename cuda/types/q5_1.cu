#include "q5_1.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q5_1, q5_1)
STERNA_CODES_KERNELS(Q5_1, q5_1)
