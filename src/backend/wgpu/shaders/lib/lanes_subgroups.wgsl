// NAME: OP over the values of the LANES threads of a slot; every one of them has it. A subgroup has at least LANES threads.
fn NAME(x: TYPE) -> TYPE {
    var all = x;
    for (var apart = LANES / 2u; apart > 0u; apart /= 2u) {
        all = OP(all, subgroupShuffleXor(all, apart));
    }
    return all;
}
