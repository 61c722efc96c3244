// The norm of `len` values returned by the kernel's `source(i)`: n = (x - mean) * factor * weight + bias.
const NORM_NONE: u32 = 0u;
const NORM_LAYER: u32 = 2u;
const ABSENT: u32 = 0xffffffffu;

// `weight` and `bias` are indices into `constants`.
struct Norm {
    kind: u32,
    weight: u32,
    bias: u32,
    eps: f32,
}

// x = mean, y = factor.
fn norm_of(norm: Norm, len: u32) -> vec2<f32> {
    if (norm.kind == NORM_NONE) {
        return vec2(0.0, 1.0);
    }
    var mean = vec2(0.0, 0.0);
    if (norm.kind == NORM_LAYER) {
        var sum = vec2(0.0, 0.0);
        for (var i = thread; i < len; i += THREADS) {
            sum = add_wide(sum, vec2(source(i), 0.0));
        }
        mean = divide_wide(reduce_wide(sum), f32(len));
    }
    var squares = vec2(0.0, 0.0);
    for (var i = thread; i < len; i += THREADS) {
        let centred = two_sum(source(i), -mean.x);
        squares = add_square(squares, centred.x);
        // Twice the product with the error of the difference; its square is below the last place.
        squares.y += 2.0 * centred.x * (centred.y - mean.y);
    }
    let mean_square = divide_wide(reduce_wide(squares), f32(len));
    return vec2(mean.x, reciprocal_root(add_wide(mean_square, vec2(norm.eps, 0.0))));
}

fn normed(norm: Norm, of_row: vec2<f32>, x: f32, i: u32) -> f32 {
    if (norm.kind == NORM_NONE) {
        return x;
    }
    let n = (x - of_row.x) * of_row.y * constants[norm.weight + i];
    if (norm.bias == ABSENT) {
        return n;
    }
    return n + constants[norm.bias + i];
}
