// Figures and words that several views show.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** `1,024`. */
export const count = (number) => whole.format(number);

/** `41.2 tokens/s`, or an empty string if it is not known. */
export function speed(timings) {
  const rate = timings?.predicted_per_second;
  return rate > 0 ? `${short.format(rate)} tokens/s` : "";
}

/** Positions of the context that a turn and all before it take, or null. */
export function contextUsed(timings) {
  const parts = [timings?.cache_n ?? 0, timings?.prompt_n, timings?.predicted_n];
  return parts.every(Number.isFinite) ? parts.reduce((sum, part) => sum + part, 0) : null;
}

/** A turn's figures in a line for those who want all of them. */
export function figures(timings) {
  if (timings === undefined) return "";
  const prompt = timings.prompt_n > 0 && `prompt ${count(timings.prompt_n)} tokens`;
  const rate = timings.prompt_per_second > 0 && `${short.format(timings.prompt_per_second)} tokens/s`;
  const cached = timings.cache_n > 0 && `${count(timings.cache_n)} from the cache`;
  const written = timings.predicted_n > 0 && `${count(timings.predicted_n)} tokens written`;
  return [written, speed(timings), prompt, rate, cached].filter(Boolean).join(", ");
}

/** What stands below a turn that did not come to its end; an empty string if it did. */
export function ending(turn, running) {
  if (running || turn.role === "user") return "";
  switch (turn.finish) {
    case "stop":
    case "edited":
      return "";
    case "length":
      return "The limit of tokens was reached.";
    case "full":
      return "The context of the model is full.";
    case "stopped":
      return "Stopped.";
    case "problem":
      return turn.problem ?? "Something went wrong.";
    case "dropped":
      return "The connection ended before the answer did.";
    case undefined:
      return "This answer was interrupted.";
    default:
      return `Ended: ${turn.finish}.`;
  }
}
