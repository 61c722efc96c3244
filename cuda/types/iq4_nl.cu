#include "iq4_nl.cuh"

#include "../lib/kernels.cuh"

STERNA_KERNELS(IQ4NL, iq4_nl)
STERNA_CODES_KERNELS(IQ4NL, iq4_nl)
