#include "q6_k.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(Q6K, q6_k)
STERNA_CODES_KERNELS(Q6K, q6_k)
