// Errors of the package.

/**
 * An error whose message contains what was expected, what was found, and a way out. `name` is `SternaError`,
 * or `SternaCrash` if the engine has crashed: that model is lost, and must be loaded again.
 */
export class SternaError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "SternaError";
  }
}

/** A crash of the engine: see `SternaError`. */
export class SternaCrash extends SternaError {
  constructor(message, options) {
    super(message, options);
    this.name = "SternaCrash";
  }
}

/** An error as plain data, which a worker can send. */
export function packed(error) {
  const { name = "Error", message = String(error) } = error ?? {};
  return { name, message };
}

/** The error from such data. */
export function unpacked({ name, message }) {
  if (name === "SternaError") return new SternaError(message);
  if (name === "SternaCrash") return new SternaCrash(message);
  if (name === "AbortError") return new DOMException(message, name);
  const error = new Error(message);
  error.name = name;
  return error;
}

/** Replaces option names by the package's: `EngineOptions::n_ctx` is `nCtx`. */
const inOurWords = (message) =>
  message.replace(/\b[A-Z]\w*Options::(\w+)/g, (_, name) =>
    name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()),
  );

/** Converts an exception of the module: an error of the engine, which is still usable, or a crash. */
export function ofModule(error) {
  if (error instanceof SternaError) return error;
  if (error?.name === "SternaError") return new SternaError(inOurWords(error.message), { cause: error });
  const said = error?.message ?? String(error);
  const memory = /unreachable|memory/i.test(said) ? " It may have run out of memory." : "";
  return new SternaCrash(`the engine has crashed: ${said}.${memory} Load the model again.`, {
    cause: error,
  });
}
