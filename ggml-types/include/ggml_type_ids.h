/* Ids of tensor types, as GGUF files carry them. The one source: scripts/bindgen.sh makes src/ids.rs of
 * it, and a test holds the two in step.
 *
 * GGML_TYPE_*: upstream llama.cpp (ggml 0.25). Ids 4, 5, 31 to 33 and 36 to 38 were removed there.
 * BITNET_TYPE_*: the llama.cpp forks that microsoft/BitNet ships; below 36 they agree with upstream. TL2
 * has 39 in the old fork and 42 in the new one.
 * IK_TYPE_*: ik_llama.cpp's own, which nobody else numbers; below 36 it agrees with upstream as well. */
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

#define IK_TYPE_Q6_0 133
#define IK_TYPE_IQ1_BN 134
#define IK_TYPE_IQ2_BN 135
#define IK_TYPE_Q8_K64 136
#define IK_TYPE_IQ2_K 137
#define IK_TYPE_IQ3_K 138
#define IK_TYPE_IQ4_K 139
#define IK_TYPE_IQ5_K 140
#define IK_TYPE_IQ6_K 141
#define IK_TYPE_IQ4_KS 144
#define IK_TYPE_IQ2_KS 145
#define IK_TYPE_IQ4_KSS 146
#define IK_TYPE_Q8_K16 147
#define IK_TYPE_Q8_K32 148
#define IK_TYPE_Q8_KR8 149
#define IK_TYPE_Q8_K128 150
#define IK_TYPE_Q8_KV 151
#define IK_TYPE_IQ5_KS 152
#define IK_TYPE_IQ2_KT 153
#define IK_TYPE_IQ3_KT 154
#define IK_TYPE_IQ4_KT 155
#define IK_TYPE_IQ3_KS 156
#define IK_TYPE_IQ2_KL 157
#define IK_TYPE_IQ1_KT 158
#define IK_TYPE_Q4_0_R8 202
#define IK_TYPE_Q5_0_R4 206
#define IK_TYPE_Q8_0_R8 208
#define IK_TYPE_Q2_K_R4 210
#define IK_TYPE_Q3_K_R4 211
#define IK_TYPE_Q4_K_R4 212
#define IK_TYPE_Q5_K_R4 213
#define IK_TYPE_Q6_K_R4 214
#define IK_TYPE_IQ2_XXS_R4 216
#define IK_TYPE_IQ2_XS_R4 217
#define IK_TYPE_IQ3_XXS_R4 218
#define IK_TYPE_IQ1_S_R4 219
#define IK_TYPE_IQ4_NL_R4 220
#define IK_TYPE_IQ3_S_R4 221
#define IK_TYPE_IQ2_S_R4 222
#define IK_TYPE_IQ4_XS_R8 223
#define IK_TYPE_IQ1_M_R4 229
#define IK_TYPE_BF16_R16 230
#define IK_TYPE_Q6_0_R4 233
#define IK_TYPE_IQ2_BN_R4 335
#define IK_TYPE_IQ2_K_R4 337
#define IK_TYPE_IQ3_K_R4 338
#define IK_TYPE_IQ4_K_R4 339
#define IK_TYPE_IQ5_K_R4 340
#define IK_TYPE_IQ4_KS_R4 344
#define IK_TYPE_IQ5_KS_R4 352
#define IK_TYPE_MXFP4_R8 353
#define IK_TYPE_Q8_K_R16 397
#define IK_TYPE_Q8_KV_R8 398
#define IK_TYPE_Q8_K_R8 399

#endif
