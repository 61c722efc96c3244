/** Where a model's file is: a split model is a list of them, in order. */
export type Source =
  | string
  | URL
  | Blob
  | ArrayBuffer
  | ArrayBufferView
  | {
      /** Bytes of the file. */
      size: number;
      /** `n` bytes from `at` on. A promise wants JSPI; elsewhere the whole file is read first. */
      read(at: number, n: number): Uint8Array | Promise<Uint8Array>;
    };

/** How far loading has come. */
export interface Progress {
  /** `download`: over the network. `load`: to where the model is computed. */
  phase: "download" | "load";
  /** Bytes. */
  loaded: number;
  /** Bytes of all, if that is known. */
  total: number | null;
  /** 0 to 1, if that is known. */
  fraction: number | null;
}

/** Types of the KV cache. */
export type CacheType =
  "f16" | "f32" | "q8_0" | "q4_0" | "turboquant" | "turboquant-4" | "tq3_0" |
  "bf16" | "q5_1" | "q5_0" | "q4_1" | "iq4_nl" | (string & {});

/** How a model is loaded. */
export interface LoadOptions {
  onProgress?(progress: Progress): void;
  /** Gives loading up: `load` rejects with its reason. What was downloaded stays, to be gone on from. */
  signal?: AbortSignal;
  /** `false`: a model over the network is kept in memory alone. Otherwise it is downloaded once. */
  store?: boolean;
  /** What it runs on. Otherwise WebGPU if there is a GPU, and the processor if not; `device.why` says why. */
  backend?: "webgpu" | "cpu";
  /** Node: a GPU, as `create([])` of the package `webgpu` gives one. */
  gpu?: unknown;
  /** Whether `json`, `regex`, `grammar` and `choices` can be asked for: the module is larger then. */
  structured?: boolean;
  /** Positions of the context: those that the model was trained with, at most 4096. */
  nCtx?: number;
  /** Texts that are generated at a time; others wait. 1. */
  nSeqs?: number;
  /** Most tokens of a step. 128. */
  batch?: number;
  /** Types of the keys and of the values in the cache. f16. */
  cacheTypeK?: CacheType;
  cacheTypeV?: CacheType;
  /** First and newest positions that `turboquant` keeps as f16. */
  kvSinks?: number;
  kvWindow?: number;
  /** The output head as it is (`keep`), or encoded while it is loaded. */
  headType?: "keep" | "q8_0" | "q6_k";
  /** How inputs of products are rounded; `auto` and `trained` are the model's way. */
  actType?: "auto" | "trained" | "f32" | "i8" | "i8-block";
  /** In place of the file's: `bitnet`, `chatml`, `llama3`, or Jinja. */
  chatTemplate?: string;
  /** Pre-tokenizer, if the file names none. */
  tokenizerPre?: string;
}

/** How text is generated. What is left out is what the file recommends, or llama.cpp's default. */
export interface GenerateOptions {
  /** Gives it up: the iteration and `result` throw its reason. `Generation.stop` ends it quietly. */
  signal?: AbortSignal;
  /** Told how much of the prompt was read, before the first token. */
  onPrompt?(progress: { done: number; total: number }): void;
  /** As many as the context holds. */
  maxTokens?: number;
  minTokens?: number;
  /** 0 takes the likeliest token. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  typicalP?: number;
  repeatPenalty?: number;
  /** -1 is the whole context. */
  repeatLastN?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** The same seed gives the same text, on the same device. */
  seed?: number;
  /** The text ends before any of these. */
  stop?: string | string[];
  ignoreEos?: boolean;
  /** Control tokens are text too. */
  showSpecial?: boolean;
  /** `true`: a JSON object; or a JSON schema. One at most of this and the next three. */
  json?: boolean | object;
  /** A regular expression that the whole text matches. */
  regex?: string;
  /** A grammar in llama.cpp's GBNF, or in Lark after `%llguidance`. */
  grammar?: string;
  /** One of these texts. */
  choices?: string[];
  /** For messages: tools as the template is told of them, and its variables, such as `enable_thinking`. */
  tools?: object[];
  templateVariables?: Record<string, unknown>;
}

/** A turn of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool" | (string & {});
  content: string;
}

/** Counts and times of a text. */
export interface Stats {
  promptTokens: number;
  /** Those of them that were in the cache. */
  cachedTokens: number;
  promptSeconds: number;
  tokens: number;
  /** From the first token to the last. */
  seconds: number;
  promptTokensPerSecond: number;
  tokensPerSecond: number;
}

/** A text that has ended. */
export interface Result {
  text: string;
  /** Their ids, an end-of-text token included. */
  tokens: number[];
  /**
   * `end`: the model ended it. `stop`: one of `stop` was met. `limit`: `maxTokens`. `context`: no room is
   * left. `cancelled`: by `stop()`.
   */
  stopReason: "end" | "stop" | "limit" | "context" | "cancelled";
  stats: Stats;
  seed: number;
  /** Oldest messages that had to be left out of the context. */
  forgotten: number;
}

/** Text as it comes. Leaving the loop ends it. */
export interface Generation extends AsyncIterable<string> {
  readonly result: Promise<Result>;
  /** Ends the text where it is. */
  stop(): void;
}

/** What a model runs on. */
export interface Device {
  backend: "webgpu" | "cpu";
  description: string;
  /** Why it is not WebGPU, if nobody chose so. */
  why: string | null;
  /** What it lacks, a sentence each. */
  lacks: string[];
  vendor?: string;
  architecture?: string;
  /** Whether it is a program on the processor. */
  software?: boolean;
  features?: string[];
  limits?: { maxBufferSize: number; maxStorageBufferBindingSize: number };
}

/** A loaded model. Texts are generated one after the other, or `nSeqs` at a time; more calls wait. */
export interface Model extends AsyncDisposable {
  /** The file's name for it. */
  readonly name: string | null;
  readonly architecture: string;
  readonly nCtx: number;
  readonly nCtxTrain: number;
  /** Whether it has a chat template. */
  readonly chats: boolean;
  readonly device: Device;
  /** Bytes that it takes of the device. */
  readonly plan: { weightsBytes: number; kvBytes: number; buffersBytes: number };
  readonly sampling: {
    temperature: number;
    topK: number;
    topP: number;
    minP: number;
    repeatPenalty: number;
    repeatLastN: number;
  };
  /** What a user should know of the file and the options. */
  readonly notices: string[];
  /** Goes on behind a text or tokens, or answers messages. */
  generate(input: string | number[] | Uint32Array | Message[], options?: GenerateOptions): Generation;
  chat(options?: { system?: string; messages?: Message[] }): Chat;
  tokenize(text: string): Promise<number[]>;
  /** Frees the model and its memory. */
  dispose(): Promise<void>;
}

/** A conversation by the model's template. If the context is full, the oldest turns are forgotten. */
export interface Chat {
  /** May be changed between two turns. */
  messages: Message[];
  /** Positions of the context that the last turn took. */
  readonly used: number;
  send(text: string, options?: GenerateOptions): Generation;
  /** Forgets all but the system message. */
  clear(): void;
}

/** Loads a model. */
export function load(source: Source | Source[], options?: LoadOptions): Promise<Model>;

/** The small model that comes with the package: sterna-world, 3.7 MB. */
export const demoModel: URL;

/** Models that were downloaded. */
export const models: {
  list(): Promise<{ url: string; bytes: number; complete: boolean; used: Date }[]>;
  /** Says whether there was something. */
  remove(url: string | URL): Promise<boolean>;
  /** Asks the browser to keep them until they are removed; says whether it does. */
  persist(): Promise<boolean>;
};

/** Says what was expected, what was found, and the way out. */
export class SternaError extends Error {}

/** The engine has ended, by its own fault: load the model again. */
export class SternaCrash extends SternaError {}
