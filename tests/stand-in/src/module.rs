//! Calls for modules, their kernels and launches.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUdeviceptr, CUfunction, CUfunction_attribute, CUlaunchAttributeID, CUlaunchConfig, CUmodule, CUresult,
};
use sterna::backend::cuda::driver::cards::{RESERVED_SHARED_BYTES, Spec};
use sterna::backend::cuda::driver::real::FATBINS;
use sterna::backend::cuda::driver::simt::host::{self, KernelInfo};

use crate::driver::{Driver, Result, calls, keep, put, say};
use crate::stream::Op;

/// Limit of shared memory per block without opt-in.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Largest size of kernel parameters: from CUDA 12.1 on, and before.
const PARAMS_BYTES: [usize; 2] = [32764, 4096];

/// A loaded image, by the name of its file.
pub struct Module(&'static str);

pub struct Function {
    name: CString,
    kernel: KernelInfo,
    /// Resources of the machine code, if known.
    code: Option<Code>,
    /// Limit of dynamic shared memory of a launch.
    shared_bytes: u32,
}

/// Resources of a kernel as reported by ptxas.
#[derive(Clone, Copy)]
struct Code {
    registers: u32,
    shared_bytes: u32,
}

pub struct Launch {
    pub name: CString,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared_bytes: u32,
    pub params: Vec<u8>,
}

/// Resources of a kernel on a card from `benches/kernel-budgets.json`, for the machine code that the card
/// would run.
fn code(kernel: &str, (major, minor): (i32, i32)) -> Option<Code> {
    static BUDGETS: OnceLock<serde_json::Value> = OnceLock::new();
    let read = || serde_json::from_str(include_str!("../../../benches/kernel-budgets.json")).expect("JSON");
    let budgets = BUDGETS.get_or_init(read);
    let archs = (0..=minor).rev().map(|minor| format!("sm_{major}{minor}"));
    let kernel =
        archs.map(|arch| &budgets["kernels"][arch]).find(|kernels| kernels.is_object())?.get(kernel)?;
    let figure = |name: &str| kernel[name].as_u64().map(|figure| figure as u32);
    Some(Code {
        registers: figure("registers")?,
        shared_bytes: figure("shared")?.saturating_sub(RESERVED_SHARED_BYTES),
    })
}

impl Function {
    fn static_shared_bytes(&self) -> u32 {
        self.code.map_or(0, |code| code.shared_bytes)
    }

    /// Registers of a block: a warp's are rounded up to a multiple of 256.
    fn registers(&self, threads: u32) -> u32 {
        let of_warp = self.code.map_or(0, |code| (32 * code.registers).next_multiple_of(256));
        threads.div_ceil(32) * of_warp
    }

    /// Checks a launch against the limits of a card.
    fn check(&self, card: &Spec, launch: &Launch, driver: (i32, i32)) -> Result {
        let Launch { grid: [x, y, z], threads, shared_bytes, .. } = *launch;
        let blocks = u64::from(x) * u64::from(y) * u64::from(z);
        if blocks == 0 || x > i32::MAX as u32 || y.max(z) > 65535 || threads == 0 || threads > 1024 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if shared_bytes > self.shared_bytes
            || shared_bytes + self.static_shared_bytes() > card.block_shared_bytes
            || launch.params.len() > PARAMS_BYTES[usize::from(driver < (12, 1))]
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if threads > self.kernel.max_threads || self.registers(threads) > card.registers {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }
}

/// Reads the launch in a configuration, and whether it may start early.
///
/// # Safety
/// The configuration and the parameters are valid.
unsafe fn read(
    config: &CUlaunchConfig,
    function: &Function,
    params: *mut *mut c_void,
    card: &Spec,
) -> Result<(Launch, bool)> {
    if config.blockDimY != 1 || config.blockDimZ != 1 {
        say(format_args!("{:?}: the CPU build supports only blocks of one dimension", function.name));
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let mut early = false;
    for i in 0..config.numAttrs as usize {
        // SAFETY: there are `numAttrs` attributes, each with the value of its kind.
        unsafe {
            let attribute = &*config.attrs.add(i);
            match attribute.id {
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                    if card.compute >= (9, 0) =>
                {
                    early = attribute.value.programmaticStreamSerializationAllowed != 0;
                }
                _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            }
        }
    }
    if params.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the kernel takes one struct of this size.
    let params = unsafe { std::slice::from_raw_parts((*params).cast::<u8>(), function.kernel.params_bytes) };
    let launch = Launch {
        name: function.name.clone(),
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        threads: config.blockDimX,
        shared_bytes: config.sharedMemBytes,
        params: params.to_vec(),
    };
    Ok((launch, early))
}

impl Driver {
    /// Finds a kernel in a module by name.
    fn find(&mut self, card: usize, module: CUmodule, name: &CStr) -> Result<Function> {
        let Module(file) = self.modules.get(module, card)?;
        let kernel = host::kernel(name).filter(|kernel| kernel.unit == *file);
        let kernel = kernel.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let code = code(&name.to_string_lossy(), self.cards[card].spec.compute);
        let room = code.map_or(0, |code| code.shared_bytes);
        Ok(Function { name: name.into(), kernel, code, shared_bytes: DEFAULT_SHARED_BYTES - room })
    }
}

calls! {
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) = |driver| {
        let card = driver.current_unless_recording()?;
        let image = image.cast::<u8>();
        // The first bytes of an image contain its length, so two images differ before either ends.
        let is_it = |bytes: &[u8]| bytes.iter().enumerate().all(|(i, byte)| *image.add(i) == *byte);
        match FATBINS.iter().find(|(_, bytes)| is_it(bytes)) {
            Some((file, _)) => keep(driver, module, |driver| &mut driver.modules, card, Module(file)),
            None => {
                say(format_args!("an image of another build: build the driver and the program together"));
                Err(CUresult::CUDA_ERROR_INVALID_IMAGE)
            }
        }
    }

    fn cuModuleUnload(module: CUmodule) = |driver| {
        let card = driver.current_unless_recording()?;
        driver.modules.remove(module, card).map(drop)
    }

    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) = |driver| {
        let card = driver.current()?;
        let found = driver.find(card, module, CStr::from_ptr(name))?;
        keep(driver, function, |driver| &mut driver.functions, card, found)
    }

    fn cuModuleGetGlobal_v2(
        at: *mut CUdeviceptr,
        bytes: *mut usize,
        module: CUmodule,
        name: *const c_char,
    ) = |driver| {
        let card = driver.current()?;
        let Module(file) = driver.modules.get(module, card)?;
        let found = host::constant(CStr::from_ptr(name), Some(file));
        let (found, len) = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        driver.cards[card].add_global(found, len as u64);
        put(at, found)?;
        put(bytes, len)
    }

    fn cuFuncSetAttribute(function: CUfunction, which: CUfunction_attribute, value: c_int) = |driver| {
        let card = driver.current()?;
        let most = driver.cards[card].spec.block_shared_bytes;
        let function = driver.functions.get(function, card)?;
        let dynamic = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // In percent, or -1 for the driver's choice. Only a hint, which changes no result.
        if which == CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT {
            let percent = (-1..=100).contains(&value);
            return if percent { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        }
        let value = u32::try_from(value).ok().filter(|value| value + function.static_shared_bytes() <= most);
        match value.filter(|_| which == dynamic) {
            Some(value) => function.shared_bytes = value,
            None => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuFuncGetAttribute(value: *mut c_int, which: CUfunction_attribute, function: CUfunction) = |driver| {
        use CUfunction_attribute as A;
        let card = driver.current()?;
        let function = driver.functions.get(function, card)?;
        let it = match which {
            A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => function.kernel.max_threads,
            A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => function.static_shared_bytes(),
            A::CU_FUNC_ATTRIBUTE_NUM_REGS => function.code.map_or(0, |code| code.registers),
            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.shared_bytes,
            other => panic!("the stand-in driver has no {other:?}"),
        };
        put(value, it as c_int)
    }

    /// Kernels have one parameter.
    fn cuFuncGetParamInfo(
        function: CUfunction,
        index: usize,
        offset: *mut usize,
        bytes: *mut usize,
    ) = |driver| {
        let card = driver.current()?;
        let params_bytes = driver.functions.get(function, card)?.kernel.params_bytes;
        if index > 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(offset, 0)?;
        put(bytes, params_bytes)
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) = |driver| {
        let card = driver.current()?;
        let spec = driver.cards[card].spec;
        let function = driver.functions.get(function, card)?;
        if config.is_null() || !extra.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (launch, early) = read(&*config, function, params, &spec)?;
        if let Err(refused) = function.check(&spec, &launch, driver.settings.driver) {
            let Launch { name, grid, threads, shared_bytes, .. } = &launch;
            say(format_args!(
                "{name:?}: cannot launch {grid:?} blocks of {threads} threads and {shared_bytes} bytes of \
                 shared memory on {}: {refused:?}",
                spec.name
            ));
            return Err(refused);
        }
        driver.queue(card, (*config).hStream, Op::Launch { launch: Arc::new(launch), early, in_graph: false })
    }
}
