// The entry of a kernel whose threads meet in subgroups; `stage` is the kernel's. Subgroups are full, because THREADS
// is a multiple of every size there is; which threads a subgroup has, nobody promises, so slots go by its own numbers.
var<private> thread: u32;
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

// The slot of LANES neighbouring threads that this one belongs to, and its number there.
fn slot_of() -> u32 {
    return subgroup * (subgroup_lanes / LANES) + subgroup_lane / LANES;
}

fn lane_of() -> u32 {
    return subgroup_lane % LANES;
}
