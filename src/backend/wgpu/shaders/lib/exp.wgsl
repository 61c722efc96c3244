// exp(x) within 1.5 units in the last place; WGSL's own may be off by 3 + 2 |x|. exp(n ln 2 + r) = 2^n exp(r), |r| below
// 0.35; ln 2 is taken off in two parts, the first of which has few bits, so that its product is exact.
fn exp_near(x: f32) -> f32 {
    if (x != x) {
        return x;
    }
    // Beyond it the result is 0 or infinite.
    let within = clamp(x, -110.0, 110.0);
    let n = round(within * 1.44269504);
    let r = (within - n * 0.693359375) + n * 2.12194440e-4;
    let series = 0.5 + r * (0.166666667 + r * (0.0416666667 + r * (8.33333333e-3 + r * (1.38888889e-3 + r * 1.98412698e-4))));
    let near = 1.0 + (r + r * r * series);
    // Two powers, because one alone may be beyond what a float has.
    let half = i32(n) / 2;
    return near * power_of_2(half) * power_of_2(i32(n) - half);
}

fn power_of_2(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
