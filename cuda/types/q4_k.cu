#include "q4_k.cuh"

#include "../lib/kernels_octets.cuh"

STERNA_KERNELS(Q4K, q4_k)
STERNA_CODES_KERNELS(Q4K, q4_k)
STERNA_OCTET_KERNELS(Q4K, q4_k)
STERNA_OCTET64_KERNELS(Q4K, q4_k)
