// The sum over the LANES threads of a slot; every one of them has it. A subgroup has at least LANES threads.
fn sum_of_lanes(x: Acc) -> Acc {
    var sum = x;
    for (var apart = LANES / 2u; apart > 0u; apart /= 2u) {
        sum += subgroupShuffleXor(sum, apart);
    }
    return sum;
}
