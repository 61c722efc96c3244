#include "bf16.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(BF16, bf16)
