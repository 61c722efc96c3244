// The entry of a kernel whose threads meet in workgroup memory alone; `stage` is the kernel's.
var<private> thread: u32;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    thread = index;
    stage(workgroup, workgroups);
}

// The slot of LANES neighbouring threads that this one belongs to, and its number there.
fn slot_of() -> u32 {
    return thread / LANES;
}

fn lane_of() -> u32 {
    return thread % LANES;
}
