// Entry point of every kernel, and reductions over its threads: with subgroup operations if the device has
// them, else through workgroup memory. The kernel itself is `stage`.
//
// A kernel sets `reduce`, its reductions over a workgroup, each (name, type, function of two values), and
// `reduce_lanes`, those over the LANES threads of a slot, each (name, function), all over values of
// `lanes_type`.
#if subgroups
#if browser
enable subgroups;
#endif
// The bounds of loops over a subgroup's lanes are variables, but the same for all of them.
diagnostic(off, subgroup_uniformity);
#endif

const THREADS: u32 = #{threads}u;
const LANES: u32 = #{lanes}u;

#include "lib/step.wgsl"

var<private> thread: u32;

#if subgroups
// Subgroups are full, because THREADS is a multiple of every possible size. WGSL does not specify which
// threads form a subgroup, so slots are numbered by the subgroup's own ids.
var<private> subgroup: u32;
var<private> subgroups: u32;
var<private> subgroup_lane: u32;
var<private> subgroup_lanes: u32;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup_at: u32,
    @builtin(num_subgroups) subgroup_count: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    thread = index;
    subgroup = subgroup_at;
    subgroups = subgroup_count;
    subgroup_lane = lane;
    subgroup_lanes = size;
    stage(workgroup, workgroups);
}

// Slot of LANES neighbouring threads that contains this thread; `lane_of` is its index in the slot.
fn slot_of() -> u32 {
    return subgroup * (subgroup_lanes / LANES) + subgroup_lane / LANES;
}

fn lane_of() -> u32 {
    return subgroup_lane % LANES;
}
#else
@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    thread = index;
    stage(workgroup, workgroups);
}

// Slot of LANES neighbouring threads that contains this thread; `lane_of` is its index in the slot.
fn slot_of() -> u32 {
    return thread / LANES;
}

fn lane_of() -> u32 {
    return thread % LANES;
}
#endif

#for name, type, op in reduce|default([])
// `#{op}` over the values of all threads of a workgroup; every thread gets the result.
var<workgroup> #{name}_scratch: array<#{type}, THREADS>;

fn #{name}(x: #{type}) -> #{type} {
#if subgroups
    var all = x;
    for (var apart = subgroup_lanes / 2u; apart > 0u; apart /= 2u) {
        all = #{op}(all, subgroupShuffleXor(all, apart));
    }
    if (subgroup_lane == 0u) {
        #{name}_scratch[subgroup] = all;
    }
    workgroupBarrier();
    all = #{name}_scratch[0];
    for (var i = 1u; i < subgroups; i++) {
        all = #{op}(all, #{name}_scratch[i]);
    }
#else
    #{name}_scratch[thread] = x;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n /= 2u) {
        if (thread < n) {
            #{name}_scratch[thread] = #{op}(#{name}_scratch[thread], #{name}_scratch[thread + n]);
        }
        workgroupBarrier();
    }
    let all = #{name}_scratch[0];
#endif
    workgroupBarrier();
    return all;
}

#endfor
#if reduce_lanes is defined and not subgroups
var<workgroup> lanes_scratch: array<#{lanes_type}, THREADS>;

#endif
#for name, op in reduce_lanes|default([])
// `#{op}` over the values of the LANES threads of a slot; each thread gets the result.
fn #{name}(x: #{lanes_type}) -> #{lanes_type} {
#if subgroups
    var all = x;
    // A subgroup has at least LANES threads. With constant masks, shuffles become single instructions.
#for apart in halvings
    all = #{op}(all, subgroupShuffleXor(all, #{apart}u));
#endfor
    return all;
#else
    lanes_scratch[thread] = x;
    workgroupBarrier();
    for (var n = LANES / 2u; n > 0u; n /= 2u) {
        if (thread % LANES < n) {
            lanes_scratch[thread] = #{op}(lanes_scratch[thread], lanes_scratch[thread + n]);
        }
        workgroupBarrier();
    }
    let all = lanes_scratch[thread / LANES * LANES];
    workgroupBarrier();
    return all;
#endif
}

#endfor
