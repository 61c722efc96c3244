#include "q4_k.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q4K, q4_k)
STERNA_CODES_KERNELS(Q4K, q4_k)
