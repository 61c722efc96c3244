//! Compiles what is not Rust: nothing yet. The kernels of `cuda/` will be built here.

fn main() {}
