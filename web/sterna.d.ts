/** Source of a model file. A split model is a list of sources, in order. */
export type Source =
  | string
  | URL
  | Blob
  | ArrayBuffer
  | ArrayBufferView
  | {
      /** Bytes of the file. */
      size: number;
      /** `n` bytes from `at` on. A promise requires JSPI; without it the whole file is read first. */
      read(at: number, n: number): Uint8Array | Promise<Uint8Array>;
    };

/** Progress of loading. */
export interface Progress {
  /** `download`: from the network. `load`: to the memory it runs from. */
  phase: "download" | "load";
  /** Loaded bytes. */
  loaded: number;
  /** Total bytes, if known. */
  total: number | null;
  /** 0 to 1, if known. */
  fraction: number | null;
}

/** Types of the KV cache. */
export type CacheType =
  "f16" | "f32" | "q8_0" | "q4_0" | "turboquant" | "turboquant-t" | "turboquant-4" | "turboquant-mse" |
  "tq3_0" | "bf16" | "q5_1" | "q5_0" | "q4_1" | "iq4_nl" | (string & {});

/** Options for loading a model. */
export interface LoadOptions {
  onProgress?(progress: Progress): void;
  /** Cancels loading: `load` rejects with its reason. A partial download is kept and can be resumed. */
  signal?: AbortSignal;
  /** `false` keeps a downloaded model only in memory. Default: it is stored, and downloaded once. */
  store?: boolean;
  /** Backend. Default: WebGPU if there is a GPU, otherwise the CPU; `device.why` is the reason. */
  backend?: "webgpu" | "cpu";
  /** Node: a GPU, from `create([])` of the package `webgpu`. */
  gpu?: unknown;
  /** Enables `json`, `regex`, `grammar` and `choices`, with a larger module. */
  structured?: boolean;
  /** Maximum positions of the context. Default: the model's training context, at most 4096. */
  nCtx?: number;
  /** Maximum texts generated at a time; others wait. Default: 1. */
  nSeqs?: number;
  /** Maximum tokens per step. Default: 128. */
  batch?: number;
  /** Types of keys and values in the KV cache. Default: f16. */
  cacheTypeK?: CacheType;
  cacheTypeV?: CacheType;
  /** Numbers of first and newest positions that `turboquant` keeps as f16. */
  kvSinks?: number;
  kvWindow?: number;
  /** Type of the output head: unchanged (`keep`), or quantised while loading. */
  headType?: "keep" | "q8_0" | "q6_k";
  /** Quantisation of activations; `auto` and `trained` use the model's own. */
  actType?: "auto" | "trained" | "f32" | "i8" | "i8-block";
  /** Overrides the file's template: `bitnet`, `chatml`, `llama3`, or Jinja. */
  chatTemplate?: string;
  /** Pre-tokenizer, if the file does not specify one. */
  tokenizerPre?: string;
}

/** Options for generating text. Defaults are the file's recommendations, or llama.cpp's. */
export interface GenerateOptions {
  /** Cancels it: the iteration and `result` throw its reason. `Generation.stop` ends it without an error. */
  signal?: AbortSignal;
  /** Called with the prompt progress, before the first token. */
  onPrompt?(progress: { done: number; total: number }): void;
  /** Default: the rest of the context. */
  maxTokens?: number;
  minTokens?: number;
  /** 0 always picks the most likely token. */
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
  /** The text ends before any of these strings. */
  stop?: string | string[];
  ignoreEos?: boolean;
  /** Shows control tokens as text. */
  showSpecial?: boolean;
  /** `true`: a JSON object; or a JSON schema. At most one of this and the next three may be set. */
  json?: boolean | object;
  /** A regular expression that must match the whole text. */
  regex?: string;
  /** A grammar in llama.cpp's GBNF, or in Lark after `%llguidance`. */
  grammar?: string;
  /** The text must be one of these. */
  choices?: string[];
  /** For messages: tools for the template, and its variables, such as `enable_thinking`. */
  tools?: object[];
  templateVariables?: Record<string, unknown>;
}

/** A message of a conversation. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool" | (string & {});
  /** A text: images are not supported. */
  content: string;
}

/** Token counts and times of a text. */
export interface Stats {
  promptTokens: number;
  /** Prompt tokens found in the cache. */
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
  /** Token ids, including an end-of-text token. */
  tokens: number[];
  /**
   * `end`: the model ended it. `stop`: one of `stop` was found. `limit`: `maxTokens` was reached. `context`:
   * the context is full. `cancelled`: by `stop()`.
   */
  stopReason: "end" | "stop" | "limit" | "context" | "cancelled";
  stats: Stats;
  seed: number;
  /** Number of oldest messages that were dropped to fit the context. */
  forgotten: number;
}

/** Streamed text. Leaving the loop stops it. */
export interface Generation extends AsyncIterable<string> {
  readonly result: Promise<Result>;
  /** Ends the text now. */
  stop(): void;
}

/** The device a model runs on. */
export interface Device {
  backend: "webgpu" | "cpu";
  description: string;
  /** The reason why it is not WebGPU, unless the caller chose the backend. */
  why: string | null;
  /** Missing features, one sentence each. */
  lacks: string[];
  vendor?: string;
  architecture?: string;
  /** True for a software device on the CPU. */
  software?: boolean;
  features?: string[];
  limits?: { maxBufferSize: number; maxStorageBufferBindingSize: number };
}

/** A loaded model. Texts are generated one at a time, or `nSeqs` at a time; further calls wait. */
export interface Model extends AsyncDisposable {
  /** The model's name in the file. */
  readonly name: string | null;
  readonly architecture: string;
  readonly nCtx: number;
  readonly nCtxTrain: number;
  /** True if it has a chat template. */
  readonly chats: boolean;
  readonly device: Device;
  /** Bytes used on the device. */
  readonly plan: { weightsBytes: number; kvBytes: number; buffersBytes: number };
  readonly sampling: {
    temperature: number;
    topK: number;
    topP: number;
    minP: number;
    repeatPenalty: number;
    repeatLastN: number;
  };
  /** Notices about the file and the options. */
  readonly notices: string[];
  /** Continues a text or tokens, or answers messages. */
  generate(input: string | number[] | Uint32Array | Message[], options?: GenerateOptions): Generation;
  chat(options?: { system?: string; messages?: Message[] }): Chat;
  tokenize(text: string): Promise<number[]>;
  /** Frees the model and its memory. */
  dispose(): Promise<void>;
}

/** A conversation with the model's template. If the context is full, the oldest turns are dropped. */
export interface Chat {
  /** May be changed between turns. */
  messages: Message[];
  /** Context positions used by the last turn. */
  readonly used: number;
  send(text: string, options?: GenerateOptions): Generation;
  /** Drops all messages except the system message. */
  clear(): void;
}

/** Loads a model. */
export function load(source: Source | Source[], options?: LoadOptions): Promise<Model>;

/** The small model that is part of the package: sterna-world, 3.7 MB. */
export const demoModel: URL;

/** Downloaded models. */
export const models: {
  list(): Promise<{ url: string; bytes: number; complete: boolean; used: Date }[]>;
  /** Returns true if there was one. */
  remove(url: string | URL): Promise<boolean>;
  /** Asks the browser not to evict them; returns true if it agrees. */
  persist(): Promise<boolean>;
};

/** The message contains what was expected, what was found, and a way out. */
export class SternaError extends Error {}

/** The engine has crashed: load the model again. */
export class SternaCrash extends SternaError {}
