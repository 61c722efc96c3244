#include "q4_0.cuh"

#include "../lib/kernels_octets.cuh"

STERNA_KERNELS(Q4_0, q4_0)
STERNA_CODES_KERNELS(Q4_0, q4_0)
STERNA_OCTET_KERNELS(Q4_0, q4_0)
STERNA_OCTET64_KERNELS(Q4_0, q4_0)
