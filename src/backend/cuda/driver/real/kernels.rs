//! The kernels of this build on one GPU.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::about::About;
use super::call::{Called, fail};
use super::code::FATBINS;
use crate::BackendError;
use crate::cuda::driver::Launch;
use crate::cuda::kernels::all;

/// Loaded modules, and their kernels.
#[derive(Default)]
pub struct Kernels {
    modules: Vec<sys::CUmodule>,
    /// One per name of [`all`], if the kernel exists.
    found: Vec<Option<LoadedKernel>>,
}

struct LoadedKernel {
    function: sys::CUfunction,
    /// Bytes of its parameters, if the driver can tell.
    params_bytes: Option<usize>,
}

impl Kernels {
    /// Loads everything, so that nothing is loaded in the middle of a step or of a recording.
    ///
    /// Modules loaded before an error stay in `self`.
    pub fn load(&mut self, about: &About) -> Result<(), BackendError> {
        let code = about.code().map_err(|lacking| fail("open", lacking))?;
        for (file, image) in FATBINS {
            // SAFETY: nvcc built the image.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
            let module = module.map_err(|err| fail("cuModuleLoadData", format!("{file}: {err} ({code})")))?;
            self.modules.push(module);
        }
        for name in all() {
            let found = self
                .find(&name.to_string())?
                .map(|function| LoadedKernel::new(function, about))
                .transpose()?;
            self.found.push(found);
        }
        Ok(())
    }

    /// Finds a kernel in any module.
    fn find(&self, name: &str) -> Result<Option<sys::CUfunction>, BackendError> {
        const CALL: &str = "cuModuleGetFunction";
        let c_name = CString::new(name).map_err(|err| fail(CALL, err))?;
        for (module, (file, _)) in self.modules.iter().zip(FATBINS) {
            // SAFETY: the module is loaded.
            match unsafe { result::module::get_function(*module, c_name.clone()) } {
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => {}
                Err(err) => return Err(fail(CALL, format!("{name} of {file}: {err}"))),
                Ok(function) => return Ok(Some(function)),
            }
        }
        Ok(None)
    }

    /// True if the kernel at this index of [`all`] exists.
    pub fn has(&self, at: usize) -> bool {
        self.found[at].is_some()
    }

    /// The kernel of a launch, after checking the size of its parameters.
    pub fn function(&self, launch: &Launch) -> Result<sys::CUfunction, BackendError> {
        let at = launch.kernel.0 as usize;
        let found = self.found[at].as_ref().expect("a kernel that this card has");
        let bytes = size_of_val(launch.params.as_slice());
        match found.params_bytes {
            Some(want) if want != bytes => {
                let name = all().nth(at).map(|name| name.to_string()).unwrap_or_default();
                Err(fail("launch", format!("{bytes} bytes of parameters for {name}, which takes {want}")))
            }
            _ => Ok(found.function),
        }
    }

    /// All constants of that name.
    pub fn globals(&self, name: &str) -> Result<Vec<(sys::CUdeviceptr, usize)>, BackendError> {
        const CALL: &str = "cuModuleGetGlobal";
        let c_name = CString::new(name).map_err(|err| fail(CALL, err))?;
        let mut found = Vec::new();
        for module in &self.modules {
            // SAFETY: the module is loaded.
            match unsafe { result::module::get_global(*module, c_name.clone()) } {
                Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => {}
                global => found.push(global.called(CALL)?),
            }
        }
        if found.is_empty() { Err(fail(CALL, format!("no constants `{name}`"))) } else { Ok(found) }
    }

    /// Unloads all modules, ignoring errors.
    pub fn unload(&mut self) {
        for module in self.modules.drain(..) {
            // SAFETY: loaded, and no kernel of it runs.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

impl LoadedKernel {
    /// A kernel that may use all the shared memory that a block can have, including its static part.
    fn new(function: sys::CUfunction, about: &About) -> Result<Self, BackendError> {
        use sys::CUfunction_attribute_enum::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MAX_SHARED,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as OWN,
        };
        // SAFETY: the kernel belongs to a loaded module.
        let own = unsafe { result::function::get_function_attribute(function, OWN) };
        let bytes = about.limits.shared_bytes as i32 - own.called("cuFuncGetAttribute")?;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, MAX_SHARED, bytes) }
            .called("cuFuncSetAttribute")?;
        // The same carveout for all kernels, with as much shared memory as possible: two kernels can be on a
        // multiprocessor at the same time only if they have the same carveout.
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, CARVEOUT, 100) }
            .called("cuFuncSetAttribute")?;
        // The driver has had this call since CUDA 12.4.
        if about.driver < (12, 4) {
            return Ok(Self { function, params_bytes: None });
        }
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the kernel belongs to a loaded module, and the results can be written.
        unsafe { sys::cuFuncGetParamInfo(function, 0, &raw mut offset, &raw mut bytes) }
            .result()
            .called("cuFuncGetParamInfo")?;
        Ok(Self { function, params_bytes: Some(bytes) })
    }
}

/// Queues a launch of a kernel, or adds it to the stream's recording.
pub fn launch(
    stream: sys::CUstream,
    function: sys::CUfunction,
    launch: &Launch,
    starts_early: bool,
) -> Result<(), BackendError> {
    // SAFETY: all bytes of the attribute are plain data.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid[0],
        gridDimY: launch.grid[1],
        gridDimZ: launch.grid[2],
        blockDimX: launch.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: launch.shared_bytes,
        hStream: stream,
        attrs: &raw mut attribute,
        // Before sm_90 kernels do not wait by themselves, so they must not start early.
        numAttrs: u32::from(starts_early),
    };
    let mut params = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
    // SAFETY: the kernel takes one struct, and these are its bytes; its addresses are the backend's.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), null_mut()) }
        .result()
        .called("cuLaunchKernelEx")
}
