// Products of real numbers.
alias Acc = f32;

fn scaled(sum: Acc, r: u32) -> f32 {
    return sum;
}

// Adds the products of a chunk of a row of W with that of rows first .. first + ROWS.
fn add_products(row: u32, chunk: u32, first: u32, sums: ptr<function, array<Acc, ROWS>>) {
    let values = decode(row, chunk);
    for (var m = 0u; m < ROWS; m++) {
        var sum = 0.0;
        for (var i = 0u; i < CHUNK_QUADS; i++) {
            sum += dot(values[i], bitcast<vec4<f32>>(acts[(first + m) * params.stride + place(chunk, i)]));
        }
        (*sums)[m] += sum;
    }
}
