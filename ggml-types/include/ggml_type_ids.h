/* Ids of tensor types, as GGUF files carry them. The one source: scripts/bindgen.sh makes src/ids.rs of
 * it, and a test holds the two in step.
 *
 * GGML_TYPE_*: upstream llama.cpp (ggml 0.25). Ids 4, 5, 31 to 33 and 36 to 38 were removed there.
 * BITNET_TYPE_*: the llama.cpp forks that microsoft/BitNet ships; below 36 they agree with upstream. TL2
 * has 39 in the old fork and 42 in the new one. */
#ifndef STERNA_GGML_TYPE_IDS_H
#define STERNA_GGML_TYPE_IDS_H

#define GGML_TYPE_F32 0
#define GGML_TYPE_F16 1
#define GGML_TYPE_Q4_0 2
#define GGML_TYPE_Q4_1 3
#define GGML_TYPE_Q5_0 6
#define GGML_TYPE_Q5_1 7
#define GGML_TYPE_Q8_0 8
#define GGML_TYPE_Q8_1 9
#define GGML_TYPE_Q2_K 10
#define GGML_TYPE_Q3_K 11
#define GGML_TYPE_Q4_K 12
#define GGML_TYPE_Q5_K 13
#define GGML_TYPE_Q6_K 14
#define GGML_TYPE_Q8_K 15
#define GGML_TYPE_IQ2_XXS 16
#define GGML_TYPE_IQ2_XS 17
#define GGML_TYPE_IQ3_XXS 18
#define GGML_TYPE_IQ1_S 19
#define GGML_TYPE_IQ4_NL 20
#define GGML_TYPE_IQ3_S 21
#define GGML_TYPE_IQ2_S 22
#define GGML_TYPE_IQ4_XS 23
#define GGML_TYPE_I8 24
#define GGML_TYPE_I16 25
#define GGML_TYPE_I32 26
#define GGML_TYPE_I64 27
#define GGML_TYPE_F64 28
#define GGML_TYPE_IQ1_M 29
#define GGML_TYPE_BF16 30
#define GGML_TYPE_TQ1_0 34
#define GGML_TYPE_TQ2_0 35
#define GGML_TYPE_MXFP4 39
#define GGML_TYPE_NVFP4 40
#define GGML_TYPE_Q1_0 41
#define GGML_TYPE_Q2_0 42
#define GGML_TYPE_PQ2_0 142
#define GGML_TYPE_PTQ1_0 143

#define BITNET_TYPE_I2_S 36
#define BITNET_TYPE_TL1 38
#define BITNET_TYPE_TL2_OLD 39
#define BITNET_TYPE_TL2 42

#endif
