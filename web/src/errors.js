// What the package throws.

/**
 * An error that says what was expected, what was found, and the way out. `name` is `SternaError`, or
 * `SternaCrash` if the engine ended: that model is gone, and another `load` begins afresh.
 */
export class SternaError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "SternaError";
  }
}

/** The engine's own fault: see `SternaError`. */
export class SternaCrash extends SternaError {
  constructor(message, options) {
    super(message, options);
    this.name = "SternaCrash";
  }
}

/** As plain data, which a worker can send. */
export function packed(error) {
  const { name = "Error", message = String(error) } = error ?? {};
  return { name, message };
}

/** The error of such data. */
export function unpacked({ name, message }) {
  if (name === "SternaError") return new SternaError(message);
  if (name === "SternaCrash") return new SternaCrash(message);
  if (name === "AbortError") return new DOMException(message, name);
  const error = new Error(message);
  error.name = name;
  return error;
}

/** Options as the package names them: `EngineOptions::n_ctx` is `nCtx`. */
const inOurWords = (message) =>
  message.replace(/\b[A-Z]\w*Options::(\w+)/g, (_, name) =>
    name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()),
  );

/** What the module threw: an error of the engine, which goes on, or of one that ended. */
export function ofModule(error) {
  if (error instanceof SternaError) return error;
  if (error?.name === "SternaError") return new SternaError(inOurWords(error.message), { cause: error });
  const said = error?.message ?? String(error);
  const memory = /unreachable|memory/i.test(said) ? " It may have run out of memory." : "";
  return new SternaCrash(`the engine has ended: ${said}.${memory} Load the model again to go on.`, {
    cause: error,
  });
}
