//! Counters and histograms, and their Prometheus text format, under llama.cpp's names and vLLM's.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::status::Snapshot;

/// Upper bounds of the time buckets, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Upper bounds of the buckets of batch rows per step.
const ROWS: [f64; 16] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
    65536.0,
];

/// A histogram that any thread can add to.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64; 16],
    counts: [AtomicU64; 17],
    /// Sum in millionths.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64; 16]) -> Self {
        Self { bounds, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Adds a value.
    pub fn add(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    /// Adds a time.
    pub fn add_time(&self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    /// The mean of all values; 0 before the first one.
    pub fn mean(&self) -> f64 {
        let n: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        self.sum.load(Ordering::Relaxed) as f64 / 1e6 / n.max(1) as f64
    }

    /// Appends it under `name`. `label` is on all its lines; if not empty, it ends with a comma.
    fn write(&self, out: &mut String, name: &str, label: &str, help: &str) {
        let own = braces(label);
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{label}le=\"{bound}\"}} {below}");
        }
        below += self.counts[16].load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{{label}le=\"+Inf\"}} {below}");
        let _ = writeln!(out, "{name}_sum{own} {sum}\n{name}_count{own} {below}");
    }
}

/// A label in braces, for lines that have no other label.
fn braces(label: &str) -> String {
    match label.strip_suffix(',') {
        Some(label) => format!("{{{label}}}"),
        None => String::new(),
    }
}

/// Finish reasons, as vLLM counts them.
const REASONS: [&str; 3] = ["stop", "length", "abort"];

/// Counters since the server was started.
#[derive(Debug)]
pub struct Metrics {
    /// Prompt tokens that were computed.
    pub prompt_tokens: AtomicU64,
    /// Time spent computing them, in microseconds.
    pub prompt_us: AtomicU64,
    /// Texts that were embedded or scored.
    pub pooled_texts: AtomicU64,
    /// Generated tokens.
    pub generated_tokens: AtomicU64,
    /// Time from first to last token, summed over answers, in microseconds.
    pub generate_us: AtomicU64,
    /// Maximum number of tokens of a sequence so far.
    pub most_tokens: AtomicU64,
    ended: [AtomicU64; 3],
    /// From a request's arrival to its first token.
    pub first_token: Histogram,
    /// Between two tokens of a sequence.
    pub between_tokens: Histogram,
    /// From a request's arrival to its last token.
    pub whole: Histogram,
    /// From a request's arrival to its first step.
    pub queued: Histogram,
    /// From the first step to the first token.
    pub prefill: Histogram,
    /// From the first to the last token.
    pub decode: Histogram,
    /// Batch rows per step.
    pub rows: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(&SECONDS);
        Self {
            prompt_tokens: AtomicU64::new(0),
            prompt_us: AtomicU64::new(0),
            pooled_texts: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            generate_us: AtomicU64::new(0),
            most_tokens: AtomicU64::new(0),
            ended: Default::default(),
            first_token: seconds(),
            between_tokens: seconds(),
            whole: seconds(),
            queued: seconds(),
            prefill: seconds(),
            decode: seconds(),
            rows: Histogram::new(&ROWS),
        }
    }
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Metrics {
    /// Counts an answer that ended for `reason`: `stop`, `length` or `abort`.
    pub fn count_end(&self, reason: &str) {
        let at = REASONS.iter().position(|known| *known == reason);
        at.into_iter().for_each(|at| count(&self.ended[at], 1));
    }

    /// All metrics as text; `now` is the state of the engine. With a `model`, vLLM's metrics are labelled
    /// with its name.
    pub fn text(&self, now: &Snapshot, waiting: usize, model: Option<&str>) -> String {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = |counter: &AtomicU64| get(counter) as f64 / 1e6;
        let rate = |tokens: &AtomicU64, time: &AtomicU64| match get(time) {
            0 => 0.0,
            _ => get(tokens) as f64 / seconds(time),
        };
        let stats = &now.stats;
        let running = (stats.running - stats.resting) as f64;
        let waiting = (waiting + stats.waiting) as f64;
        let used = stats.pages.saturating_sub(stats.free_pages) as f64 / stats.pages.max(1) as f64;
        let busy = stats.decode_rows as f64 / stats.steps.max(1) as f64;
        let prompt_rate = rate(&self.prompt_tokens, &self.prompt_us);
        let generate_rate = rate(&self.generated_tokens, &self.generate_us);
        let escaped = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let label = model.map_or(String::new(), |name| format!("model_name=\"{}\",", escaped(name)));
        let own = braces(&label);
        let mut out = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: f64| {
            let own = if name.starts_with("vllm:") { own.as_str() } else { "" };
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{own} {value}");
        };
        let llama = |name: &str| format!("llamacpp:{name}");
        let mut both = |names: &[String], kind: &str, help: &str, value: f64| {
            names.iter().for_each(|name| one(name, kind, help, value));
        };
        let vllm = |name: &str| format!("vllm:{name}");
        let counter = "counter";
        let gauge = "gauge";
        let prompt_tokens = get(&self.prompt_tokens) as f64;
        let generated = get(&self.generated_tokens) as f64;
        both(
            &[llama("prompt_tokens_total"), vllm("prompt_tokens_total")],
            counter,
            "Prompt tokens computed.",
            prompt_tokens,
        );
        both(
            &[llama("tokens_predicted_total"), vllm("generation_tokens_total")],
            counter,
            "Generated tokens.",
            generated,
        );
        let help = "Texts embedded or scored.";
        both(&[llama("pooled_texts_total")], counter, help, get(&self.pooled_texts) as f64);
        let help = "Time spent computing prompts.";
        both(&[llama("prompt_seconds_total")], counter, help, seconds(&self.prompt_us));
        let help = "Time spent generating tokens.";
        both(&[llama("tokens_predicted_seconds_total")], counter, help, seconds(&self.generate_us));
        let help = "Steps of the model.";
        both(&[llama("n_decode_total")], counter, help, stats.steps as f64);
        let help = "Maximum tokens of a sequence so far.";
        both(&[llama("n_tokens_max")], counter, help, get(&self.most_tokens) as f64);
        let help = "Average number of decoding sequences per step.";
        both(&[llama("n_busy_slots_per_decode")], gauge, help, busy);
        let help = "Average prompt tokens per second.";
        both(&[llama("prompt_tokens_seconds")], gauge, help, prompt_rate);
        let help = "Average tokens per second of one answer.";
        both(&[llama("predicted_tokens_seconds")], gauge, help, generate_rate);
        let help = "Running sequences.";
        both(&[llama("requests_processing"), vllm("num_requests_running")], gauge, help, running);
        let help = "Waiting requests and sequences.";
        both(&[llama("requests_deferred"), vllm("num_requests_waiting")], gauge, help, waiting);
        let help = "Fraction of the KV cache in use, including the prefix cache.";
        both(&[llama("kv_cache_usage_ratio"), vllm("kv_cache_usage_perc")], gauge, help, used);
        if stats.states > 0 {
            let held = stats.states.saturating_sub(stats.free_states);
            let help = "Slots of recurrent states in use, including the prefix cache.";
            both(&[llama("recurrent_states_held")], gauge, help, held as f64);
            let help = "Slots of recurrent states.";
            both(&[llama("recurrent_states")], gauge, help, stats.states as f64);
        }
        let help = "Prompt tokens looked up in the prefix cache.";
        let (queried, hit) = (stats.prefix.queried_tokens as f64, stats.prefix.hit_tokens as f64);
        both(&[vllm("prefix_cache_queries_total")], counter, help, queried);
        let help = "Prompt tokens found in the prefix cache.";
        both(&[llama("prompt_tokens_cached_total"), vllm("prefix_cache_hits_total")], counter, help, hit);
        let help = "Sequences preempted to free their pages.";
        both(&[vllm("num_preemptions_total")], counter, help, stats.preemptions as f64);
        let help = "Preempted sequences whose pages were copied to host memory.";
        both(&[vllm("num_parked_total")], counter, help, stats.swapped_out as f64);
        let help = "Preempted sequences whose pages were copied back.";
        both(&[vllm("num_unparked_total")], counter, help, stats.swapped_in as f64);
        let of_drafts = [
            ("spec_decode_num_drafts_total", "Drafts verified.", stats.drafts),
            ("spec_decode_num_draft_tokens_total", "Drafted tokens.", stats.drafted_tokens),
            ("spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", stats.accepted_tokens),
        ];
        for (name, help, value) in of_drafts {
            both(&[llama(name), vllm(name)], counter, help, value as f64);
        }
        let name = vllm("request_success_total");
        let _ = writeln!(out, "# HELP {name} Answers by finish reason.\n# TYPE {name} counter");
        for (reason, ended) in REASONS.iter().zip(&self.ended) {
            let _ = writeln!(out, "{name}{{{label}finished_reason=\"{reason}\"}} {}", get(ended));
        }
        let name = vllm("cache_config_info");
        let (size, pages) = (sterna_engine::PAGE, stats.pages);
        let config = format!("{label}block_size=\"{size}\",num_gpu_blocks=\"{pages}\"");
        let _ =
            writeln!(out, "# HELP {name} Pages of the KV cache.\n# TYPE {name} gauge\n{name}{{{config}}} 1");
        let histograms = [
            ("time_to_first_token_seconds", "Time from arrival to the first token.", &self.first_token),
            ("inter_token_latency_seconds", "Time between two tokens of an answer.", &self.between_tokens),
            ("e2e_request_latency_seconds", "Time from arrival to the last token.", &self.whole),
            ("request_queue_time_seconds", "Time from arrival to the first step.", &self.queued),
            ("request_prefill_time_seconds", "Time from the first step to the first token.", &self.prefill),
            ("request_decode_time_seconds", "Time from the first token to the last.", &self.decode),
            ("iteration_tokens_total", "Batch rows per step.", &self.rows),
        ];
        histograms
            .iter()
            .for_each(|(name, help, histogram)| histogram.write(&mut out, &vllm(name), &label, help));
        out
    }
}
