#include "q1_0.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q1_0, q1_0)
STERNA_CODES_KERNELS(Q1_0, q1_0)
