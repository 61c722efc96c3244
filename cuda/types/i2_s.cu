#include "i2_s.cuh"

#include "../lib/floats.cuh"

STERNA_ROW_KERNELS(I2S, i2_s)
STERNA_MMA_KERNELS(I2S, i2_s)
STERNA_QUANTIZE_KERNEL(I2S, i2_s)
STERNA_FLOATS_KERNELS(I2S, i2_s)
