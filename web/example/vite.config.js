// The engine runs in a module worker, and the model's file is an asset as any other.
export default {
  worker: { format: "es" },
  assetsInclude: ["**/*.gguf"],
  optimizeDeps: { exclude: ["sterna"] },
};
