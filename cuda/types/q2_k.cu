#include "q2_k.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q2K, q2_k)
STERNA_CODES_KERNELS(Q2K, q2_k)
