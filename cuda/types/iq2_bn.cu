#include "iq2_bn.cuh"

#include "../lib/floats.cuh"

STERNA_ROW_KERNELS(IQ2_BN, iq2_bn)
STERNA_MMA_KERNELS(IQ2_BN, iq2_bn)
STERNA_QUANTIZE_KERNEL(IQ2_BN, iq2_bn)
STERNA_FLOATS_KERNELS(IQ2_BN, iq2_bn)
