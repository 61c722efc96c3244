// Figures and texts shared by several views.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** `1,024`. */
export const count = (number) => whole.format(number);

/** `41.2 tokens/s`, or an empty string if it is not known. */
export function speed(timings) {
  const rate = timings?.predicted_per_second;
  return rate > 0 ? `${short.format(rate)} tokens/s` : "";
}

/** Context positions used by a turn and all before it, or null. */
export function contextUsed(timings) {
  const parts = [timings?.cache_n ?? 0, timings?.prompt_n, timings?.predicted_n];
  return parts.every(Number.isFinite) ? parts.reduce((sum, part) => sum + part, 0) : null;
}

/** A turn's figures in a line, for users who want all of them. */
export function figures(timings) {
  if (timings === undefined) return "";
  const prompt = timings.prompt_n > 0 && `prompt ${count(timings.prompt_n)} tokens`;
  const rate = timings.prompt_per_second > 0 && `${short.format(timings.prompt_per_second)} tokens/s`;
  const cached = timings.cache_n > 0 && `${count(timings.cache_n)} from the cache`;
  const written = timings.predicted_n > 0 && `${count(timings.predicted_n)} tokens written`;
  return [written, speed(timings), prompt, rate, cached].filter(Boolean).join(", ");
}

/**
 * The notice below a turn that ended early, or null if it did not: `text` is the reason, `tone` is plain,
 * limit or trouble, and `ways` are the actions: more (of the same answer), again, fresh (another
 * conversation).
 */
export function ending(turn, running) {
  if (running || turn.role === "user") return null;
  const more = turn.text === "" ? [] : ["more"];
  switch (turn.finish) {
    case "stop":
    case "edited":
      return null;
    case "length":
      return { tone: "limit", text: limited(turn), ways: more.length > 0 ? more : ["again"] };
    case "full":
      return { tone: "trouble", text: "The context of the model is full.", ways: ["fresh"] };
    case "stopped":
      return { tone: "plain", text: "Stopped.", ways: more };
    case "problem":
      return { tone: "trouble", text: turn.problem ?? "Something went wrong.", ways: [...more, "again"] };
    case "dropped":
      return {
        tone: "trouble",
        text: "The connection ended before the answer did.",
        ways: [...more, "again"],
      };
    case undefined:
      return { tone: "plain", text: "This answer was interrupted.", ways: [...more, "again"] };
    default:
      return { tone: "plain", text: `Ended: ${turn.finish}.`, ways: more };
  }
}

function limited({ text, timings }) {
  const written = timings?.predicted_n;
  const after = written > 0 ? `, after ${count(written)} token${written === 1 ? "" : "s"}` : "";
  const thinks = "while it was still thinking. A greater length in the settings leaves room for an answer";
  return `Stopped at the length limit${after}${text === "" ? `, ${thinks}` : ""}.`;
}
