// The sum over the LANES threads of a slot; the first of them has it.
var<workgroup> lanes_scratch: array<Acc, THREADS>;

fn sum_of_lanes(x: Acc) -> Acc {
    lanes_scratch[thread] = x;
    workgroupBarrier();
    for (var n = LANES / 2u; n > 0u; n /= 2u) {
        if (thread % LANES < n) {
            lanes_scratch[thread] += lanes_scratch[thread + n];
        }
        workgroupBarrier();
    }
    let sum = lanes_scratch[thread];
    workgroupBarrier();
    return sum;
}
