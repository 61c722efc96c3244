// NAME: OP over the values of the LANES threads of a slot; every one of them has it.
fn NAME(x: TYPE) -> TYPE {
    lanes_scratch[thread] = x;
    workgroupBarrier();
    for (var n = LANES / 2u; n > 0u; n /= 2u) {
        if (thread % LANES < n) {
            lanes_scratch[thread] = OP(lanes_scratch[thread], lanes_scratch[thread + n]);
        }
        workgroupBarrier();
    }
    let all = lanes_scratch[thread / LANES * LANES];
    workgroupBarrier();
    return all;
}
