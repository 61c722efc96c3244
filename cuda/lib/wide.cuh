// Double-float arithmetic: a number is the unevaluated sum of two floats, with 48 bits of precision. The
// results round to those of the CPU's f64 sums at the cost of a few float operations; consumer GPUs run f64
// at 1/64 of the f32 rate. Most norms are followed by int8 quantisation, which one unit in the last place can
// change.
#pragma once

#include "../simt.h"

struct Wide {
    float hi, lo;
};

// a + b, exact (Knuth's two-sum).
DEVICE Wide two_sum(float a, float b) {
    float sum = a + b;
    float of_b = sum - a;
    return {sum, (a - (sum - of_b)) + (b - of_b)};
}

DEVICE Wide add(Wide a, Wide b) {
    Wide sum = two_sum(a.hi, b.hi);
    return two_sum(sum.hi, sum.lo + (a.lo + b.lo));
}

DEVICE Wide add_square(Wide sum, float x) {
    float square = x * x;
    Wide high = two_sum(sum.hi, square);
    return {high.hi, sum.lo + (high.lo + fmaf(x, x, -square))};
}

// a + b for operands of the same sign: the rounding error of the high parts is added to the low parts, which
// stay small.
DEVICE Wide add_alike(Wide a, Wide b) {
    Wide sum = two_sum(a.hi, b.hi);
    return {sum.hi, sum.lo + (a.lo + b.lo)};
}

// a / by, given 1 / by: an approximate quotient, and the remainder.
DEVICE Wide divide(Wide a, float by, float one_over) {
    float quotient = a.hi * one_over;
    return two_sum(quotient, (fmaf(-quotient, by, a.hi) + a.lo) * one_over);
}

// 1 / sqrt(a), rounded once: the GPU's approximation, then one Newton step on its error.
DEVICE float reciprocal_root(Wide a) {
    float near = rsqrt_near(a.hi);
    float square = near * near;
    float rest = fmaf(-a.hi, square, 1.0f);
    rest = fmaf(-a.hi, fmaf(near, near, -square), rest);
    rest = fmaf(-a.lo, square, rest);
    return fmaf(0.5f * near, rest, near);
}
