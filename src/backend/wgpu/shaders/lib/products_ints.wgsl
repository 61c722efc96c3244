fn scaled(sum: Acc, r: u32) -> f32 {
    let quant = quants[r];
    return f32(i32(sum) - bitcast<i32>(quant.y)) / bitcast<f32>(quant.x) * params.w.scale;
}

// Adds the products of a chunk of a row of W with that of rows first .. first + ROWS.
fn add_products(row: u32, chunk: u32, first: u32, sums: ptr<function, array<Acc, ROWS>>) {
    let bits = weights[row * params.w.chunks + chunk];
    var code: array<vec4<u32>, 4>;
    for (var group = 0u; group < 4u; group++) {
        code[group] = codes(bits, group);
    }
    // 16 activations a vector: those of group g lie 2 g behind the chunk's first.
    let at = chunk / 2u * 8u + chunk % 2u;
    for (var m = 0u; m < ROWS; m++) {
        var sum = (*sums)[m];
        for (var group = 0u; group < 4u; group++) {
            let q = acts[(first + m) * params.stride + at + 2u * group];
            sum += four(code[group].x, q.x) + four(code[group].y, q.y);
            sum += four(code[group].z, q.z) + four(code[group].w, q.w);
        }
        (*sums)[m] = sum;
    }
}
