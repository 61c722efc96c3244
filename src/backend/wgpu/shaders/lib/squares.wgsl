// The factor of an RMS norm that is applied to products: 1 / sqrt(mean square + epsilon). A kernel defines
// `row_quad(i)`, the i-th vector of four elements of its row. Each thread adds the squares of some of them;
// after a barrier, each slot adds the sums of all threads, in the same order in every kernel.
var<workgroup> squares: array<f32, THREADS>;

// Eight vectors are loaded at a time.
fn add_squares(quads: u32) {
    var sum = vec4(0.0);
    for (var at = thread; at < quads; at += 8u * THREADS) {
#for i in [0, 1, 2, 3, 4, 5, 6, 7]
        let x_#{i} = row_quad(min(at + #{i}u * THREADS, quads - 1u));
#endfor
#for i in [0, 1, 2, 3, 4, 5, 6, 7]
        sum += select(vec4(0.0), x_#{i} * x_#{i}, at + #{i}u * THREADS < quads);
#endfor
    }
    squares[thread] = (sum.x + sum.y) + (sum.z + sum.w);
}

fn norm_factor(quads: u32, eps: f32) -> f32 {
    var of_lane = 0.0;
    for (var i = lane_of(); i < THREADS; i += LANES) {
        of_lane += squares[i];
    }
    return 1.0 / sqrt(sum_of_lanes(of_lane) / f32(4u * quads) + eps);
}
