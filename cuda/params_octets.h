/* Constants of weights in octets. Kernels that need them include this file instead of params.h. */
#ifndef STERNA_PARAMS_OCTETS_H
#define STERNA_PARAMS_OCTETS_H

#include "params.h"

/* An octet: rows and columns of weights that are stored together. */
#define OCTET_ROWS 8
#define OCTET_COLS 256

/* Kernels that stream octets through shared memory: most batch rows; sets of 16 weight rows per block; most
 * slots of the ring; bytes of shared memory for all slots (99 KiB with those before them: all that a block
 * can have on most GPUs); bytes before the slots; and bytes of OCTET_COLS columns of 8 batch rows in a slot,
 * codes and scales. */
#define OCTET_MAX_ROWS 64
#define OCTET_UNITS 8
#define OCTET_MAX_SLOTS 4
#define OCTET_SLOTS_BYTES 90368
#define OCTET_FIXED_BYTES 11008
#define OCTET_CODES_BYTES 2048
#define OCTET_SCALES_BYTES 512

/* Kernels of octets for more batch rows, whose quantised rows take the memory of `rows` and `blocks` of
 * RoundedParams, one after the other (stage/quantize_octets.cu): batch rows of a tile; bytes of a row's scale
 * and scaled sum in a block of columns; and bytes of shared memory of a block of threads, of which most GPUs
 * have room for two. */
#define MANY_ROWS 64
#define MANY_QUANT_BYTES 12
#define MANY_SHARED_BYTES 50176

#endif
