// The rotation of TurboQuant over VECTORS vectors in VECTOR, which is workgroup memory, one behind the other: y = H D x / sqrt(n), signs and then Hadamard's matrix
// in its natural order. The sums are those of ggml-types/src/turboquant/rotate.rs, in its order.
fn hadamard() {
    let n = params.cache.head_dim;
    for (var half = 1u; half < n; half *= 2u) {
        workgroupBarrier();
        for (var i = thread; i < VECTORS * n / 2u; i += THREADS) {
            let low = i / half * 2u * half + i % half;
            let a = VECTOR[low];
            let b = VECTOR[low + half];
            VECTOR[low] = a + b;
            VECTOR[low + half] = a - b;
        }
    }
    workgroupBarrier();
}

// 1 or -1.
fn sign_of(e: u32) -> f32 {
    return sign_in(params.cache.signs[e / 128u][e / 32u % 4u], e);
}

// The same of the projection of what codes leave over.
fn projected_sign_of(e: u32) -> f32 {
    return sign_in(params.cache.projection[e / 128u][e / 32u % 4u], e);
}

fn sign_in(word: u32, e: u32) -> f32 {
    return 1.0 - 2.0 * f32(word >> (e % 32u) & 1u);
}
