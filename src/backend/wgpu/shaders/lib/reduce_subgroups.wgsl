// NAME: OP over the values of all threads of a workgroup; every thread has the result.
var<workgroup> NAME_scratch: array<TYPE, THREADS>;

fn NAME(x: TYPE) -> TYPE {
    var all = x;
    for (var apart = subgroup_lanes / 2u; apart > 0u; apart /= 2u) {
        all = OP(all, subgroupShuffleXor(all, apart));
    }
    if (subgroup_lane == 0u) {
        NAME_scratch[subgroup] = all;
    }
    workgroupBarrier();
    all = NAME_scratch[0];
    for (var i = 1u; i < subgroups; i++) {
        all = OP(all, NAME_scratch[i]);
    }
    workgroupBarrier();
    return all;
}
