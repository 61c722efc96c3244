//! Tests that the stand-in is as strict as NVIDIA's documentation: forbidden calls return the documented
//! error, and undocumented behaviour is not provided. [`super`] runs these in processes with that driver.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::*;
use sterna::backend::cuda::driver::real::FATBINS;

// All handles and pointers come from the driver or from this file, except for deliberately invalid ones.

const OK: CUresult = CUresult::CUDA_SUCCESS;

/// A context, and a stream in it.
struct Context {
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
}

impl Context {
    fn of(ordinal: i32) -> Self {
        let (mut device, mut context, mut stream) = (0, null_mut(), null_mut());
        unsafe {
            assert_eq!(cuInit(0), OK);
            assert_eq!(cuDeviceGet(&raw mut device, ordinal), OK);
            assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, device), OK);
            assert_eq!(cuCtxSetCurrent(context), OK);
            assert_eq!(cuStreamCreate(&raw mut stream, 1), OK);
        }
        Self { device, context, stream }
    }

    fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let mut at = 0;
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut at, bytes) }, OK);
        at
    }

    /// Loads a kernel of the build from its file.
    fn kernel(&self, file: &str, name: &str) -> Result<CUfunction, CUresult> {
        let image = FATBINS.iter().find(|(unit, _)| *unit == file).expect("a file of kernels").1;
        let (mut module, mut function) = (null_mut(), null_mut());
        let name = CString::new(name).expect("a name");
        unsafe {
            assert_eq!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()), OK);
            match cuModuleGetFunction(&raw mut function, module, name.as_ptr()) {
                OK => Ok(function),
                refused => Err(refused),
            }
        }
    }

    /// Launches with parameters of zeros.
    fn launch(&self, function: CUfunction, grid: u32, threads: u32, shared_bytes: u32) -> CUresult {
        let config = CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            hStream: self.stream,
            attrs: null_mut(),
            numAttrs: 0,
        };
        let zeros = [0_u64; 512];
        let mut params = [zeros.as_ptr().cast_mut().cast::<c_void>()];
        unsafe { cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), null_mut()) }
    }

    fn copy_to(&self, to: CUdeviceptr, from: &[u8]) -> CUresult {
        unsafe { cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream) }
    }

    fn read<const N: usize>(&self, from: CUdeviceptr) -> [u8; N] {
        let mut out = [0; N];
        unsafe {
            assert_eq!(cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, N, self.stream), OK);
            assert_eq!(cuStreamSynchronize(self.stream), OK);
        }
        out
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        assert_eq!(unsafe { cuDevicePrimaryCtxRelease_v2(self.device) }, OK);
    }
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn pageable_memory_is_read_late() {
    let context = Context::of(0);
    let at = context.alloc(4);
    let mut bytes = [1_u8, 2, 3, 4];
    assert_eq!(context.copy_to(at, &bytes), OK);
    std::hint::black_box(&mut bytes).fill(9);
    assert_eq!(context.read(at), [9; 4], "the copy must happen at the wait");
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn new_memory_is_undefined_and_freed_memory_is_invalid() {
    // Only this test uses this card, because a fault is permanent.
    let context = Context::of(2);
    let at = context.alloc(8);
    assert_eq!(context.read(at), [0xff; 8]);
    assert_eq!(context.copy_to(at + 4, &[0; 8]), CUresult::CUDA_ERROR_INVALID_VALUE, "beyond its end");
    assert_eq!(context.copy_to(at, &[0; 8]), OK);
    unsafe {
        assert_eq!(cuMemsetD8Async(at, 0, 0, context.stream), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(cuMemFree_v2(at), OK);
        assert_eq!(cuMemFree_v2(at), CUresult::CUDA_ERROR_INVALID_VALUE, "freed before");
    }
    assert_eq!(context.copy_to(at, &[0; 8]), CUresult::CUDA_ERROR_INVALID_VALUE);
    // The queued copy accesses freed memory, and the fault is permanent.
    for _ in 0..2 {
        let after = unsafe { cuStreamSynchronize(context.stream) };
        assert_eq!(after, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let mut other = 0;
    assert_eq!(unsafe { cuMemAlloc_v2(&raw mut other, 4) }, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn launches_beyond_the_limits_of_the_card_are_refused() {
    use CUfunction_attribute_enum::{
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
    };
    let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
    for (ordinal, most) in [(0, 227 << 10), (1, 99 << 10)] {
        let context = Context::of(ordinal);
        assert_eq!(context.kernel("types_i2_s", "no_such_kernel"), Err(CUresult::CUDA_ERROR_NOT_FOUND));
        assert_eq!(context.kernel("types_f16", "logits__i2_s"), Err(CUresult::CUDA_ERROR_NOT_FOUND));
        let kernel = context.kernel("types_i2_s", "logits__i2_s").expect("a kernel");
        assert_eq!(context.launch(kernel, 1, 256, (48 << 10) + 16), refused, "no opt-in for more");
        unsafe {
            assert_eq!(cuFuncSetAttribute(kernel, SHARED, most + 16), refused);
            assert_eq!(cuFuncSetAttribute(kernel, SHARED, most), OK);
            assert_eq!(cuFuncSetAttribute(kernel, CARVEOUT, 101), refused, "percent");
            assert_eq!(cuFuncSetAttribute(kernel, CARVEOUT, 100), OK);
        }
        assert_eq!(context.launch(kernel, 1, 256, (48 << 10) + 16), OK);
        assert_eq!(context.launch(kernel, 0, 256, 0), refused, "no blocks");
        assert_eq!(context.launch(kernel, 1, 1056, 0), refused, "more threads than a block can have");
        assert_eq!(context.launch(kernel, 1, 1024, 0), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        let (mut offset, mut bytes) = (1, 0);
        assert_eq!(unsafe { cuFuncGetParamInfo(kernel, 0, &raw mut offset, &raw mut bytes) }, OK);
        assert!(offset == 0 && bytes > 0 && bytes % 8 == 0, "{bytes}");
    }
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn unsafe_calls_invalidate_a_capture() {
    use CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
    let context = Context::of(0);
    let at = context.alloc(4);
    let forbidden: [&dyn Fn() -> CUresult; 3] = [
        &|| unsafe { cuMemAlloc_v2(&mut 0, 4) },
        &|| unsafe { cuStreamSynchronize(context.stream) },
        &|| unsafe { cuMemFree_v2(at) },
    ];
    for call in forbidden {
        let mut graph = null_mut();
        unsafe {
            assert_eq!(cuStreamBeginCapture_v2(context.stream, MODE), OK);
            assert_eq!(call(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let queued = cuMemsetD8Async(at, 1, 4, context.stream);
            assert_eq!(queued, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            let ended = cuStreamEndCapture(context.stream, &raw mut graph);
            assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        assert!(graph.is_null());
    }
}

/// A capture must not depend on outside work, so it cannot wait for an event of another stream.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn captures_cannot_wait_for_outside_events() {
    use CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
    let context = Context::of(0);
    let (mut other, mut event, mut graph) = (null_mut(), null_mut(), null_mut());
    unsafe {
        assert_eq!(cuStreamCreate(&raw mut other, 1), OK);
        assert_eq!(cuEventCreate(&raw mut event, 2), OK);
        assert_eq!(cuEventRecord(event, other), OK);
        assert_eq!(cuStreamBeginCapture_v2(context.stream, MODE), OK);
        let waited = cuStreamWaitEvent(context.stream, event, 0);
        assert_eq!(waited, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        let ended = cuStreamEndCapture(context.stream, &raw mut graph);
        assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        // After the capture a wait is allowed.
        assert_eq!(cuStreamWaitEvent(context.stream, event, 0), OK);
        assert_eq!(cuStreamSynchronize(context.stream), OK);
    }
}

/// Like `ulimit -l`; freeing memory makes it available again.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn page_locked_memory_is_limited() {
    let _context = Context::of(0);
    let (mut all, mut more) = (null_mut(), null_mut());
    unsafe {
        assert_eq!(cuMemHostAlloc(&raw mut all, 64 << 20, CU_MEMHOSTALLOC_PORTABLE), OK);
        let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        assert_eq!(cuMemHostAlloc(&raw mut more, 1, CU_MEMHOSTALLOC_PORTABLE), refused);
        assert_eq!(cuMemFreeHost(all), OK);
        assert_eq!(cuMemHostAlloc(&raw mut more, 1, CU_MEMHOSTALLOC_PORTABLE), OK);
    }
}

/// A graph does nothing before it is launched, and all of its work at each launch.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn graphs_run_the_captured_work() {
    use CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
    let context = Context::of(0);
    let at = context.alloc(4);
    assert_eq!(context.copy_to(at, &[7; 4]), OK);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    unsafe {
        assert_eq!(cuStreamBeginCapture_v2(context.stream, MODE), OK);
        assert_eq!(cuMemsetD8Async(at, 5, 2, context.stream), OK);
        assert_eq!(cuStreamEndCapture(context.stream, &raw mut graph), OK);
        assert_eq!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0), OK);
        assert_eq!(cuGraphDestroy(graph), OK);
        assert_eq!(cuGraphDestroy(graph), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    assert_eq!(context.read(at), [7; 4]);
    for _ in 0..2 {
        assert_eq!(unsafe { cuGraphLaunch(exec, context.stream) }, OK);
        assert_eq!(context.read(at), [5, 5, 7, 7]);
        assert_eq!(context.copy_to(at, &[7; 4]), OK);
    }
}

/// An event completes after the work queued before it, and does not wait for later work.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn events_wait_for_earlier_work() {
    let context = Context::of(0);
    let (mut pinned, mut device, mut event) = (null_mut(), 0, null_mut());
    unsafe {
        assert_eq!(cuMemHostAlloc(&raw mut pinned, 2, CU_MEMHOSTALLOC_DEVICEMAP), OK);
        assert_eq!(cuMemHostGetDevicePointer_v2(&raw mut device, pinned, 0), OK);
        assert_eq!(cuEventCreate(&raw mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32), OK);
        assert_eq!(cuEventSynchronize(event), OK, "never recorded");
        let seen = || pinned.cast::<[u8; 2]>().read_volatile();
        assert_eq!(cuMemsetD8Async(device, 1, 1, context.stream), OK);
        assert_eq!(cuEventRecord(event, context.stream), OK);
        assert_eq!(cuMemsetD8Async(device + 1, 2, 1, context.stream), OK);
        assert_eq!(seen(), [0xff, 0xff]);
        assert_eq!(cuEventSynchronize(event), OK);
        assert_eq!(seen(), [1, 0xff]);
        assert_eq!(cuStreamSynchronize(context.stream), OK);
        assert_eq!(seen(), [1, 2]);
    }
}

/// A stream can wait for another card's event, and a copy between two cards runs in stream order.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn cards_can_wait_for_each_other_and_copy() {
    let (first, second) = (Context::of(0), Context::of(1));
    let (there, mut event, mut can) = (second.alloc(4), null_mut(), 0);
    unsafe {
        assert_eq!(cuCtxSetCurrent(first.context), OK);
        let here = first.alloc(4);
        assert_eq!(cuDeviceCanAccessPeer(&raw mut can, first.device, second.device), OK);
        assert_eq!(can, 1);
        assert_eq!(cuCtxEnablePeerAccess(second.context, 0), OK);
        let again = cuCtxEnablePeerAccess(second.context, 0);
        assert_eq!(again, CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(cuEventCreate(&raw mut event, 2), OK);
        assert_eq!(cuMemsetD8Async(here, 3, 4, first.stream), OK);
        assert_eq!(cuEventRecord(event, first.stream), OK);
        assert_eq!(cuCtxSetCurrent(second.context), OK);
        assert_eq!(cuStreamWaitEvent(second.stream, event, 0), OK);
        let copy =
            |bytes| cuMemcpyPeerAsync(there, second.context, here, first.context, bytes, second.stream);
        assert_eq!(copy(8), CUresult::CUDA_ERROR_INVALID_VALUE, "beyond the end of both");
        assert_eq!(copy(4), OK);
        assert_eq!(second.read(there), [3; 4]);
    }
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn handles_are_valid_only_in_their_context() {
    let (first, second) = (Context::of(0), Context::of(1));
    let mut event = null_mut();
    unsafe {
        assert_eq!(cuEventCreate(&raw mut event, 0), OK);
        assert_eq!(cuEventRecord(event, second.stream), OK);
        assert_eq!(cuCtxSetCurrent(first.context), OK);
        assert_eq!(cuEventRecord(event, first.stream), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cuStreamSynchronize(second.stream), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(cuCtxSetCurrent(null_mut()), OK);
        assert_eq!(cuMemAlloc_v2(&mut 0, 4), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
}
