// NAME: OP over the values of all threads of a workgroup; every thread has the result.
var<workgroup> NAME_scratch: array<TYPE, THREADS>;

fn NAME(x: TYPE) -> TYPE {
    NAME_scratch[thread] = x;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        if (thread < n) {
            NAME_scratch[thread] = OP(NAME_scratch[thread], NAME_scratch[thread + n]);
        }
        workgroupBarrier();
    }
    let all = NAME_scratch[0];
    workgroupBarrier();
    return all;
}
