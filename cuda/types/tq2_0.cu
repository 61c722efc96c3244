#include "tq2_0.cuh"

#include "../lib/floats.cuh"

STERNA_KERNELS(TQ2_0, tq2_0)
STERNA_MMA_KERNELS(TQ2_0, tq2_0)
STERNA_ROUND_KERNEL(TQ2_0, tq2_0)
STERNA_FLOATS_KERNELS(TQ2_0, tq2_0)
