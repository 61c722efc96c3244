// The engine runs in a module worker, and the model file is an ordinary asset.
export default {
  worker: { format: "es" },
  assetsInclude: ["**/*.gguf"],
  optimizeDeps: { exclude: ["sterna"] },
};
