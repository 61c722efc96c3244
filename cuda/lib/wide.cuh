// Sums as unevaluated pairs of floats, which keep 48 bits: what the CPU's f64 sums round to, at the price of
// a few float operations, while consumer cards run f64 at 1/64 of the speed. An int8 rounding follows most
// norms, and one unit in the last place can flip it.
#pragma once

#include "../simt.h"

struct Wide {
    float hi, lo;
};

// a + b, exactly (Knuth).
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

// a + b where both have one sign: what the larger parts lose goes to the smaller ones, which stay small.
DEVICE Wide add_alike(Wide a, Wide b) {
    Wide sum = two_sum(a.hi, b.hi);
    return {sum.hi, sum.lo + (a.lo + b.lo)};
}

// a / by, with 1 / by known: a quotient next to the right one, and what it leaves over.
DEVICE Wide divide(Wide a, float by, float one_over) {
    float quotient = a.hi * one_over;
    return two_sum(quotient, (fmaf(-quotient, by, a.hi) + a.lo) * one_over);
}

// 1 / sqrt(a), rounded once: a float next to it, and one Newton step on what it lacks.
DEVICE float reciprocal_root(Wide a) {
    float near = rsqrt_near(a.hi);
    float square = near * near;
    float rest = fmaf(-a.hi, square, 1.0f);
    rest = fmaf(-a.hi, fmaf(near, near, -square), rest);
    rest = fmaf(-a.lo, square, rest);
    return fmaf(0.5f * near, rest, near);
}
