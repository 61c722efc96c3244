// The 16 unevenly spaced values of IQ4_NL and IQ4_XS.
const TABLE: vec4<u32> = vec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#include "lib/table.wgsl"
