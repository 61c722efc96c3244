// What there is to compute on, and what it lacks.

import { SternaError } from "./errors.js";

/** Whether the stack of a WebAssembly module can be suspended (JSPI): the engine waits for a GPU that way. */
export const canSuspend = () => typeof WebAssembly.Suspending === "function";

/**
 * Why there is no WebGPU to run on, or null if there is.
 *
 * @returns {Promise<string | null>}
 */
async function whyNoGpu(gpu) {
  if (gpu === undefined) return "there is no WebGPU here (navigator.gpu)";
  if (!canSuspend()) {
    return "WebAssembly cannot wait for a GPU here (JSPI: Chrome 137, Firefox 153, Safari 27, Node 24)";
  }
  const adapter = await gpu.requestAdapter().catch(() => null);
  return adapter === null ? "WebGPU finds no device here" : null;
}

/** The device of `navigator`: {vendor, architecture, software, features, limits}, as far as it says so. */
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
 * Chooses what a model runs on.
 *
 * @param {"webgpu" | "cpu" | undefined} wanted
 * @returns {Promise<{backend: string | undefined, why: string | null}>} what the engine is asked for, and
 * why it is not WebGPU, if nobody asked for something else
 * @throws {SternaError} if WebGPU is wanted and is not there
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

/** What is told of the device: what the engine says of it, and what the browser does. */
export async function deviceOf(about, why) {
  if (about.backend === "cpu") {
    return { backend: "cpu", description: about.device, why, lacks: why === null ? [] : [why] };
  }
  const gpu = await described(globalThis.navigator.gpu);
  const lacks = [];
  if (!gpu.features?.includes("subgroups")) {
    lacks.push("subgroups: sums are made through workgroup memory, which is slower");
  }
  if (gpu.software) lacks.push("a GPU: this device is a program on the processor");
  const name = [gpu.vendor, gpu.architecture].filter(Boolean).join(" ");
  return {
    backend: "webgpu",
    ...gpu,
    description: gpu.description || name || "a GPU that the browser does not name",
    why: null,
    lacks,
  };
}
