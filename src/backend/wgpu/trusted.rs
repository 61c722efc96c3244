//! Shader modules without counters in their loops. By default wgpu adds a counter to each, because compilers
//! may remove code around a loop that never ends. The counters keep drivers from unrolling loops. Checks of
//! indices and of divisions remain.
#![allow(unsafe_code)] // Every loop of the kernels ends: shader/tests.rs checks their form.

use wgpu::{Device, ShaderModule, ShaderModuleDescriptor, ShaderRuntimeChecks};

/// Compiles one of the kernels.
pub fn module(device: &Device, desc: ShaderModuleDescriptor<'_>) -> ShaderModule {
    let checks = ShaderRuntimeChecks { force_loop_bounding: false, ..ShaderRuntimeChecks::checked() };
    // SAFETY: only loops are without a check, and those of the kernels end.
    unsafe { device.create_shader_module_trusted(desc, checks) }
}
