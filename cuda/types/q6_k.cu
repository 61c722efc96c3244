#include "q6_k.cuh"

#include "../lib/kernels_octets.cuh"

STERNA_KERNELS(Q6K, q6_k)
STERNA_CODES_KERNELS(Q6K, q6_k)
STERNA_OCTET_KERNELS(Q6K, q6_k)
STERNA_OCTETS_MANY_KERNELS(Q6K, q6_k)
