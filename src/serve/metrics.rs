//! Counters and histograms, and their Prometheus text format, under llama.cpp's names and vLLM's. Metrics
//! that neither program has begin with `sterna:`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::status::Snapshot;
use sterna_engine::{Stats, StopReason};

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
    fn add(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    /// Adds a time.
    fn add_time(&self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    /// The mean of all values; 0 before the first one.
    pub fn mean(&self) -> f64 {
        let n: u64 = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        self.sum.load(Ordering::Relaxed) as f64 / 1e6 / n.max(1) as f64
    }

    /// Appends the lines of its values under `name`. `label` is on all of them; if not empty, it ends with a
    /// comma.
    fn write(&self, out: &mut String, name: &str, label: &str) {
        let own = braces(label);
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

/// Appends the help and the type of a metric.
fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label in braces, for lines that have no other label.
fn braces(label: &str) -> String {
    match label.strip_suffix(',') {
        Some(label) => format!("{{{label}}}"),
        None => String::new(),
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// Finish reasons, as vLLM counts them.
const REASONS: [&str; 3] = ["stop", "length", "abort"];

/// Counters since the server was started.
#[derive(Debug)]
pub struct Metrics {
    /// Prompt tokens that were computed.
    prompt_tokens: AtomicU64,
    /// Time spent computing them, in microseconds.
    prompt_us: AtomicU64,
    /// Texts that were embedded or scored.
    pooled_texts: AtomicU64,
    /// Generated tokens.
    generated_tokens: AtomicU64,
    /// Time from first to last token, summed over answers, in microseconds.
    generate_us: AtomicU64,
    /// Maximum number of tokens of a sequence so far.
    most_tokens: AtomicU64,
    /// Answers by finish reason, in the order of [`REASONS`].
    ended: [AtomicU64; 3],
    /// Answers that ended because their grammar could not be followed.
    unfollowed: AtomicU64,
    /// HTTP answers by status, from 100.
    responses: Box<[AtomicU64]>,
    /// From a request's arrival to its first token.
    first_token: Histogram,
    /// Between two tokens of a sequence.
    between_tokens: Histogram,
    /// From a request's arrival to its last token.
    pub whole: Histogram,
    /// From a request's arrival to its first step.
    queued: Histogram,
    /// From the first step to the first token.
    prefill: Histogram,
    /// From the first to the last token.
    decode: Histogram,
    /// Batch rows per step.
    rows: Histogram,
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
            unfollowed: AtomicU64::new(0),
            responses: (100..600).map(|_| AtomicU64::new(0)).collect(),
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
fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Metrics {
    /// A request over HTTP has been answered with this status.
    pub fn on_response(&self, status: u16) {
        if let Some(counter) = self.responses.get(usize::from(status) - 100) {
            count(counter, 1);
        }
    }

    /// A job has left the queue, `since_arrival` after it arrived.
    pub fn on_start(&self, since_arrival: Duration) {
        self.queued.add_time(since_arrival);
    }

    /// A step of the model has computed `rows`.
    pub fn on_step(&self, rows: u64) {
        if rows > 0 {
            self.rows.add(rows as f64);
        }
    }

    /// A sequence has picked its first token.
    pub fn on_first_token(&self, stats: &Stats, since_arrival: Duration, since_start: Duration) {
        count(&self.generated_tokens, 1);
        self.first_token.add_time(since_arrival);
        self.count_prompt(stats.prompt_tokens - stats.cached_tokens, stats.prompt_time, since_start);
    }

    /// A sequence has picked another token.
    pub fn on_next_token(&self, since_last: Duration) {
        count(&self.generated_tokens, 1);
        self.between_tokens.add_time(since_last);
    }

    /// A text has been embedded or scored.
    pub fn on_vector(&self, stats: &Stats, since_start: Duration) {
        count(&self.pooled_texts, 1);
        self.count_prompt(stats.prompt_tokens, stats.prompt_time, since_start);
    }

    /// A sequence has ended.
    pub fn on_end(&self, end: StopReason, has_vector: bool, stats: &Stats, since_arrival: Duration) {
        let reason = match end {
            _ if has_vector => "stop",
            StopReason::EndOfText | StopReason::StopString => "stop",
            StopReason::Limit | StopReason::ContextFull => "length",
            StopReason::Cancelled | StopReason::Constraint | StopReason::BrokenLogits => "abort",
        };
        let at = REASONS.iter().position(|known| *known == reason).expect("one of the reasons");
        count(&self.ended[at], 1);
        count(&self.unfollowed, u64::from(end == StopReason::Constraint));
        self.whole.add_time(since_arrival);
        self.decode.add_time(stats.generate_time);
        count(&self.generate_us, stats.generate_time.as_micros() as u64);
        let n_tokens = (stats.prompt_tokens + stats.generated_tokens) as u64;
        self.most_tokens.fetch_max(n_tokens, Ordering::Relaxed);
    }

    fn count_prompt(&self, n_computed: usize, time: Duration, since_start: Duration) {
        count(&self.prompt_tokens, n_computed as u64);
        count(&self.prompt_us, time.as_micros() as u64);
        self.prefill.add_time(since_start);
    }

    /// All metrics as text; `now` is the state of the engine. With a `model`, all but llama.cpp's metrics are
    /// labelled with its name.
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
        let used_pages = stats.pages.saturating_sub(stats.free_pages) as f64 / stats.pages.max(1) as f64;
        let used_states = stats.states.saturating_sub(stats.free_states) as f64;
        let busy = stats.decode_rows as f64 / stats.steps.max(1) as f64;
        let prompt_rate = rate(&self.prompt_tokens, &self.prompt_us);
        let generate_rate = rate(&self.generated_tokens, &self.generate_us);
        // Names, type, help, value.
        #[rustfmt::skip]
        let numbers: &[(&[&str], &str, &str, f64)] = &[
            (&["llamacpp:prompt_tokens_total", "vllm:prompt_tokens_total"], COUNTER,
                "Prompt tokens computed.", get(&self.prompt_tokens) as f64),
            (&["llamacpp:tokens_predicted_total", "vllm:generation_tokens_total"], COUNTER,
                "Generated tokens.", get(&self.generated_tokens) as f64),
            (&["llamacpp:pooled_texts_total"], COUNTER,
                "Texts embedded or scored.", get(&self.pooled_texts) as f64),
            (&["llamacpp:prompt_seconds_total"], COUNTER,
                "Time spent computing prompts.", seconds(&self.prompt_us)),
            (&["llamacpp:tokens_predicted_seconds_total"], COUNTER,
                "Time spent generating tokens.", seconds(&self.generate_us)),
            (&["llamacpp:n_decode_total"], COUNTER,
                "Steps of the model.", stats.steps as f64),
            (&["llamacpp:n_tokens_max"], COUNTER,
                "Maximum tokens of a sequence so far.", get(&self.most_tokens) as f64),
            (&["llamacpp:n_busy_slots_per_decode"], GAUGE,
                "Average number of decoding sequences per step.", busy),
            (&["llamacpp:prompt_tokens_seconds"], GAUGE,
                "Average prompt tokens per second.", prompt_rate),
            (&["llamacpp:predicted_tokens_seconds"], GAUGE,
                "Average tokens per second of one answer.", generate_rate),
            (&["llamacpp:requests_processing", "vllm:num_requests_running"], GAUGE,
                "Running sequences.", running),
            (&["llamacpp:requests_deferred", "vllm:num_requests_waiting"], GAUGE,
                "Waiting requests and sequences.", waiting),
            (&["llamacpp:kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"], GAUGE,
                "Fraction of the KV cache in use, including the prefix cache.", used_pages),
            (&["vllm:prefix_cache_queries_total"], COUNTER,
                "Prompt tokens looked up in the prefix cache.", stats.prefix.queried_tokens as f64),
            (&["llamacpp:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"], COUNTER,
                "Prompt tokens found in the prefix cache.", stats.prefix.hit_tokens as f64),
            (&["vllm:num_preemptions_total"], COUNTER,
                "Sequences preempted to free their pages.", stats.preemptions as f64),
            (&["sterna:grammar_failures_total"], COUNTER,
                "Answers ended because their grammar could not be followed.", get(&self.unfollowed) as f64),
            // The second names of these are older, and go with the next release.
            (&["sterna:num_swapped_out_total", "vllm:num_parked_total"], COUNTER,
                "Preempted sequences whose pages were copied to host memory.", stats.swapped_out as f64),
            (&["sterna:num_swapped_in_total", "vllm:num_unparked_total"], COUNTER,
                "Preempted sequences whose pages were copied back.", stats.swapped_in as f64),
            (&["llamacpp:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"], COUNTER,
                "Drafts verified.", stats.drafts as f64),
            (&["llamacpp:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"],
                COUNTER, "Drafted tokens.", stats.drafted_tokens as f64),
            (&["llamacpp:spec_decode_num_accepted_tokens_total",
                "vllm:spec_decode_num_accepted_tokens_total"],
                COUNTER, "Drafted tokens accepted.", stats.accepted_tokens as f64),
        ];
        // Of models that have such states. The second names go with the next release.
        #[rustfmt::skip]
        let of_states: &[(&[&str], &str, &str, f64)] = &[
            (&["sterna:recurrent_states_held", "llamacpp:recurrent_states_held"], GAUGE,
                "Slots of recurrent states in use, including the prefix cache.", used_states),
            (&["sterna:recurrent_states", "llamacpp:recurrent_states"], GAUGE,
                "Slots of recurrent states.", stats.states as f64),
        ];
        let of_states = if stats.states > 0 { of_states } else { &[] };
        #[rustfmt::skip]
        let histograms = [
            ("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", &self.first_token),
            ("vllm:inter_token_latency_seconds", "Time between two tokens of an answer.",
                &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", &self.whole),
            ("vllm:request_queue_time_seconds", "Time from arrival to the first step.", &self.queued),
            ("vllm:request_prefill_time_seconds", "Time from the first step to the first token.",
                &self.prefill),
            ("vllm:request_decode_time_seconds", "Time from the first token to the last.", &self.decode),
            ("vllm:iteration_tokens_total", "Batch rows per step.", &self.rows),
        ];

        let escaped = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let label = model.map_or(String::new(), |name| format!("model_name=\"{}\",", escaped(name)));
        let own = braces(&label);
        let mut out = String::new();
        for &(names, kind, help, value) in numbers.iter().chain(of_states) {
            for name in names {
                let own = if name.starts_with("llamacpp:") { "" } else { &own };
                head(&mut out, name, kind, help);
                let _ = writeln!(out, "{name}{own} {value}");
            }
        }
        let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
        head(&mut out, name, COUNTER, "Drafted tokens accepted, by position in the draft.");
        for (at, n) in stats.accepted_at.0.iter().enumerate().take_while(|(at, n)| *at == 0 || **n > 0) {
            let _ = writeln!(out, "{name}{{{label}position=\"{at}\"}} {n}");
        }
        let name = "vllm:request_success_total";
        head(&mut out, name, COUNTER, "Answers by finish reason.");
        for (reason, ended) in REASONS.iter().zip(&self.ended) {
            let _ = writeln!(out, "{name}{{{label}finished_reason=\"{reason}\"}} {}", get(ended));
        }
        let name = "sterna:http_responses_total";
        head(&mut out, name, COUNTER, "HTTP answers by status.");
        for (status, answered) in (100..).zip(&self.responses).filter(|(_, answered)| get(answered) > 0) {
            let _ = writeln!(out, "{name}{{{label}status=\"{status}\"}} {}", get(answered));
        }
        let name = "vllm:cache_config_info";
        let (size, pages) = (sterna_engine::PAGE, stats.pages);
        head(&mut out, name, GAUGE, "Pages of the KV cache.");
        let _ = writeln!(out, "{name}{{{label}block_size=\"{size}\",num_gpu_blocks=\"{pages}\"}} 1");
        for (name, help, histogram) in histograms {
            head(&mut out, name, "histogram", help);
            histogram.write(&mut out, name, &label);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_metric_has_one_type_and_renamed_ones_keep_their_values() {
        let mut now = Snapshot::default();
        (now.stats.states, now.stats.free_states) = (7, 2);
        (now.stats.swapped_out, now.stats.swapped_in) = (3, 2);
        let text = Metrics::default().text(&now, 0, Some("tiny"));
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let names: Vec<&str> = names.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{names:?}");
        let value = |line: &str| text.lines().find_map(|own| own.strip_prefix(line)?.strip_prefix(' '));
        for (name, old, want) in [
            ("sterna:num_swapped_out_total{model_name=\"tiny\"}", "vllm:num_parked_total", "3"),
            ("sterna:num_swapped_in_total{model_name=\"tiny\"}", "vllm:num_unparked_total", "2"),
            ("sterna:recurrent_states{model_name=\"tiny\"}", "llamacpp:recurrent_states", "7"),
            ("sterna:recurrent_states_held{model_name=\"tiny\"}", "llamacpp:recurrent_states_held", "5"),
        ] {
            let label = if old.starts_with("vllm:") { "{model_name=\"tiny\"}" } else { "" };
            let values = (value(name), value(&format!("{old}{label}")));
            assert_eq!(values, (Some(want), Some(want)), "{name}");
        }
    }
}
