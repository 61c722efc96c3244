#include "q8_0.cuh"

#include "../lib/kernels_octets.cuh"

STERNA_KERNELS(Q8_0, q8_0)
STERNA_CODES_KERNELS(Q8_0, q8_0)
STERNA_OCTET_KERNELS(Q8_0, q8_0)
STERNA_OCTETS_MANY_KERNELS(Q8_0, q8_0)
