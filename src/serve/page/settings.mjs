// Sampling parameters. Defaults come from the server's `/props`; only changed values are stored and sent, so
// that a new default on the server applies to every page that did not change it.

import { keep, recall } from "./preferences.mjs";

const STORED = "settings";

// `name` is the server's. A parameter is offered only if `/props` has it, or if it is marked `always`.
// Parameters marked `first` are shown at once, the others under "More". `min` and `max` limit the input
// field; the server may accept more.
export const PARAMETERS = [
  {
    name: "temperature",
    label: "Temperature",
    first: true,
    min: 0,
    max: 5,
    step: 0.05,
    hint: "How daring the words are. Lower: safer; higher: wilder. 0: always the likeliest word.",
  },
  {
    name: "n_predict",
    label: "Length",
    first: true,
    min: -1,
    max: 1_000_000,
    step: 1,
    always: true,
    hint: "How many tokens an answer has at most. A token is a short word or a part of one. -1: no limit.",
  },
  {
    name: "seed",
    label: "Seed",
    first: true,
    min: 0,
    max: 4_294_967_295,
    step: 1,
    always: true,
    hint: "The same number gives the same answer to the same question. Empty: another answer each time.",
  },
  {
    name: "top_k",
    label: "Top K",
    min: 0,
    max: 1000,
    step: 1,
    hint: "Chooses from this many of the likeliest words. Fewer: safer; more: wilder. 0: from all.",
  },
  {
    name: "top_p",
    label: "Top P",
    min: 0,
    max: 1,
    step: 0.01,
    hint: "Chooses from the likeliest words that have this chance together. Lower: safer; 1: from all.",
  },
  {
    name: "min_p",
    label: "Min P",
    min: 0,
    max: 1,
    step: 0.01,
    hint: "Leaves out words with less than this share of the likeliest word's chance. Higher: safer; 0: off.",
  },
  {
    name: "typical_p",
    label: "Typical P",
    min: 0,
    max: 1,
    step: 0.01,
    hint: "Leaves out words that are too unlikely, or too obvious. Lower: leaves out more; 1: off.",
  },
  {
    name: "repeat_penalty",
    label: "Repeat penalty",
    min: 0.5,
    max: 3,
    step: 0.05,
    hint: "Makes words that were just used less likely. Higher: repeats itself less; 1: off.",
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    min: -2,
    max: 2,
    step: 0.05,
    hint: "Makes words that were used at all less likely. Higher: more new words; 0: off.",
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    min: -2,
    max: 2,
    step: 0.05,
    hint: "Makes words less likely the more often they were used. Higher: less of them; 0: off.",
  },
  {
    name: "repeat_last_n",
    label: "Repeat window",
    min: -1,
    max: 65536,
    step: 1,
    hint: "How many tokens the penalties look back. -1: the whole context; 0: none.",
  },
];

/** A text without turns may never stop, so a passage has a length that fits on a screen. */
const PASSAGE_TOKENS = 200;

/** The changed values: {parameter name: number}, and `stop`, a list of strings. */
export function chosen() {
  try {
    const stored = JSON.parse(recall(STORED) ?? "{}");
    return typeof stored === "object" && stored !== null ? stored : {};
  } catch {
    return {};
  }
}

/** Stores a value; null restores the server's default. */
export function choose(name, value) {
  const { [name]: _, ...rest } = chosen();
  const settings = value === null ? rest : { ...rest, [name]: value };
  keep(STORED, JSON.stringify(settings));
}

/** Restores all defaults. */
export function reset() {
  keep(STORED, null);
}

/** The server's default, or null if it is random or unknown. */
export function defaultOf(parameter, params, mode) {
  const value = params[parameter.name];
  if (parameter.name === "seed") return null;
  if (parameter.name === "n_predict" && !(value > 0)) return mode === "text" ? PASSAGE_TOKENS : -1;
  // Undoes the rounding of an f32: 0.800000011920929 is 0.8.
  return Number.isFinite(value) ? Number(value.toPrecision(6)) : null;
}

/** True if a server with these `params` has the parameter. */
export const offered = (parameter, params) => parameter.always || Number.isFinite(params[parameter.name]);

/** The fields of a request in `mode`. */
export function fields(mode, params) {
  const choice = chosen();
  const known = PARAMETERS.filter((parameter) => offered(parameter, params) && parameter.name in choice);
  const sent = Object.fromEntries(known.map(({ name }) => [name, choice[name]]));
  if (!("n_predict" in sent)) sent.n_predict = defaultOf({ name: "n_predict" }, params, mode);
  if (choice.stop?.length > 0) sent.stop = choice.stop;
  // The chat endpoint has OpenAI's name for the limit, and no limit means no field.
  if (mode === "chat") {
    const { n_predict: limit, ...rest } = sent;
    return limit >= 0 ? { ...rest, max_tokens: limit } : rest;
  }
  return sent;
}
