// Available devices, and what they lack.

import { SternaError } from "./errors.js";

/**
 * True if the stack of a WebAssembly module can be suspended (JSPI), which the engine uses to wait for a GPU.
 */
export const canSuspend = () => typeof WebAssembly.Suspending === "function";

/**
 * The reason why WebGPU cannot be used, or null if it can.
 *
 * @returns {Promise<string | null>}
 */
async function whyNoGpu(gpu) {
  if (gpu === undefined) return "WebGPU is not available here (navigator.gpu)";
  if (!canSuspend()) {
    return "WebAssembly cannot wait for a GPU here (JSPI: Chrome 137, Firefox 153, Safari 27, Node 24)";
  }
  const adapter = await gpu.requestAdapter().catch(() => null);
  return adapter === null ? "WebGPU found no device" : null;
}

/** The device of `navigator`: {vendor, architecture, software, features, limits}, as far as known. */
async function described(gpu) {
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (adapter === null) return {};
  const { vendor = "", architecture = "", description = "" } = adapter.info ?? {};
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  return {
    vendor,
    architecture,
    description,
    software: (adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter) === true,
    features: [...adapter.features].sort(),
    limits: { maxBufferSize, maxStorageBufferBindingSize },
  };
}

/**
 * Chooses the backend for a model.
 *
 * @param {"webgpu" | "cpu" | undefined} wanted
 * @returns {Promise<{backend: string | undefined, why: string | null}>} the backend to request, and the
 * reason why it is not WebGPU, unless the caller chose the backend
 * @throws {SternaError} if WebGPU was requested and is not available
 */
export async function choose(wanted) {
  if (wanted === "cpu") return { backend: "cpu", why: null };
  const why = await whyNoGpu(globalThis.navigator?.gpu);
  if (why === null) return { backend: wanted, why };
  if (wanted === "webgpu") {
    throw new SternaError(`backend webgpu: ${why}; backend cpu runs everywhere`);
  }
  return { backend: "cpu", why };
}

/** Description of the device, from the engine and the browser. */
export async function deviceOf(about, why) {
  if (about.backend === "cpu") {
    return { backend: "cpu", description: about.device, why, lacks: why === null ? [] : [why] };
  }
  const gpu = await described(globalThis.navigator.gpu);
  const lacks = [];
  if (!gpu.features?.includes("subgroups")) {
    lacks.push("subgroups: sums use workgroup memory, which is slower");
  }
  if (gpu.software) lacks.push("a GPU: this device is software on the CPU");
  const name = [gpu.vendor, gpu.architecture].filter(Boolean).join(" ");
  return {
    backend: "webgpu",
    ...gpu,
    description: gpu.description || name || "a GPU that the browser does not identify",
    why: null,
    lacks,
  };
}
