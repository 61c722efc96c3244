//! Steps that are queued before the host knows their input token, which the device takes from the previous
//! step's pick: they give the same tokens as steps fed by the host, and a queued step that is discarded
//! leaves no trace.

use sterna::backend::Backend;
use sterna::engine::{Engine, EngineOptions, GenerateOptions, SamplerOptions, Session, StopReason};
use sterna::gguf::Gguf;
use sterna::program::sampling::argmax;
use sterna::program::{Buf, PageTable, Row, Sampling, Step};
use sterna::tokenizer::Special;
use support::case::model::{MIXTURE, Model, SMALL};
use support::case::{Running, cpus, limits, shuffled_pages, simt, wgpus, windowed_limits, windowed_pages};

const WARM: Sampling = Sampling { temperature: 1e3, top_k: 20, top_p: 1.0, seed: 3, ..Sampling::GREEDY };
const N_SEQS: usize = 3;
const N_STEPS: u32 = 12;

fn all_backends() -> Vec<Box<dyn Backend>> {
    cpus(&[2]).into_iter().chain(simt(5)).chain(wgpus()).collect()
}

/// Queues one step: one row per slot in `seqs` at `pos`, with the token `token(seq)`.
fn queue(running: &mut Running<'_>, pages: &PageTable, seqs: &[u32], pos: u32, token: impl Fn(u32) -> u32) {
    let rows: Vec<Row> = seqs.iter().map(|&seq| Row { token: token(seq), pos, seq, logits: true }).collect();
    let how: Vec<_> =
        seqs.iter().map(|&seq| Some(Sampling { counter: u64::from(1000 * seq + pos), ..WARM })).collect();
    let step = Step { rows: &rows, pages, sampling: &how, changes: &[] };
    running.backend.run(running.exec, &step).expect("a run");
}

/// Slots decode in the same steps, each queued after the one that picks its token; sometimes one slot pauses.
#[test]
fn device_picks_match_tokens_fed_by_the_host() {
    compare_picks(&[SMALL]);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn device_picks_match_the_host_in_other_models() {
    compare_picks(&[Model { weights: "q8_0", ..SMALL }, Model { kv: "turboquant", ..SMALL }, MIXTURE]);
}

fn compare_picks(models: &[Model]) {
    for model in models {
        let windowed = model.kv == "turboquant";
        let (limits, pages) = match windowed {
            true => (windowed_limits(4, N_SEQS, 2), windowed_pages(N_SEQS, 2)),
            false => (limits(4, N_SEQS, 2), shuffled_pages(N_SEQS, 2)),
        };
        let (case, _) = model.case("a small model", limits);
        let first = |seq: u32| 7 + 31 * seq;
        for mut backend in all_backends() {
            if !case.has_kernels(&*backend) {
                continue;
            }
            let device = backend.device();
            let mut running = case.on(&mut *backend);
            let mut want: Vec<Vec<u32>> = vec![Vec::new(); N_SEQS];
            for seq in 0..N_SEQS as u32 {
                let mut token = first(seq);
                for pos in 0..N_STEPS {
                    queue(&mut running, &pages, &[seq], pos, |_| token);
                    let mut picked = [0];
                    running.backend.tokens(running.exec, 0, &mut picked).expect("a token");
                    token = picked[0];
                    want[seq as usize].push(token);
                }
            }
            assert!(
                want.iter().all(|tokens| tokens.windows(2).filter(|pair| pair[0] != pair[1]).count() > 8)
            );

            // Together, one step ahead of what is read.
            let all: Vec<u32> = (0..N_SEQS as u32).rev().collect();
            queue(&mut running, &pages, &all, 0, first);
            for pos in 1..N_STEPS {
                queue(&mut running, &pages, &all, pos, |_| Row::PICKED);
                for &seq in &all {
                    let got = running.backend.picked(running.exec, seq, 1).expect("a token");
                    assert_eq!(got, want[seq as usize][pos as usize - 1], "{device}: slot {seq} at {pos}");
                }
            }
            // Steps of another slot in between make no difference.
            queue(&mut running, &pages, &[0], 0, first);
            queue(&mut running, &pages, &[2], 0, first);
            for pos in 1..5 {
                queue(&mut running, &pages, &[2], pos, |_| Row::PICKED);
            }
            queue(&mut running, &pages, &[0], 1, |_| Row::PICKED);
            for (seq, newest) in [(0, 1), (2, 4)] {
                for back in 0..2 {
                    let got = running.backend.picked(running.exec, seq, back).expect("a token");
                    assert_eq!(got, want[seq as usize][newest - back], "{device}: slot {seq}, {back} back");
                }
            }
        }
    }
}

/// Sampling of a slot of [`mixed_steps_match_single_sequences`].
#[derive(Clone, Copy, PartialEq)]
enum PickedBy {
    Device(Sampling),
    /// The backend picks, but on the host.
    Host(Sampling),
    /// The caller reads the logits and feeds the best token.
    Logits,
}

impl PickedBy {
    fn sampling(self, pos: u32) -> Option<Sampling> {
        match self {
            Self::Device(how) | Self::Host(how) => Some(Sampling { counter: pos.into(), ..how }),
            Self::Logits => None,
        }
    }
}

/// Reads the token that a slot picked last.
fn next_token(running: &mut Running<'_>, picked_by: PickedBy, seq: u32, output: usize, logits: Buf) -> u32 {
    match picked_by {
        PickedBy::Device(_) => running.backend.picked(running.exec, seq, 0).expect("a token"),
        PickedBy::Host(_) => {
            let mut token = [0];
            running.backend.tokens(running.exec, output, &mut token).expect("a token");
            token[0]
        }
        PickedBy::Logits => {
            let mut row = vec![0.0; running.p.buf_decl(logits).cols];
            running.backend.read(running.exec, logits, output, &mut row).expect("logits");
            argmax(&row)
        }
    }
}

/// Steps that mix sequences sampled on the device (fed with their picks or by the host), sequences sampled by
/// the host, sequences whose logits the caller reads, and prompt rows without output: each sequence has the
/// same tokens as alone.
#[test]
fn mixed_steps_match_single_sequences() {
    let picked_by = [
        PickedBy::Device(Sampling { seed: 1, ..WARM }),
        PickedBy::Logits,
        PickedBy::Device(Sampling::GREEDY),
        PickedBy::Host(Sampling { top_k: 0, seed: 2, ..WARM }),
        PickedBy::Device(Sampling { seed: 3, ..WARM }),
        PickedBy::Host(Sampling { typical_p: 0.9, seed: 4, ..WARM }),
    ];
    let n_seqs = picked_by.len();
    let (case, _) = SMALL.case("a small model", limits(10, n_seqs + 1, 1));
    let pages = shuffled_pages(n_seqs + 1, 1);
    let logits = case.p.buf_named("logits").expect("logits");
    let row = |token, pos, seq| Row { token, pos, seq, logits: true };
    let first = |seq: usize| 7 + 31 * seq as u32;
    for mut backend in all_backends() {
        let device = backend.device();
        let mut running = case.on(&mut *backend);
        let mut alone = vec![Vec::new(); n_seqs];
        for (seq, picked_by) in picked_by.iter().enumerate() {
            let mut token = first(seq);
            for pos in 0..N_STEPS {
                let rows = [row(token, pos, seq as u32)];
                let step =
                    Step { rows: &rows, pages: &pages, sampling: &[picked_by.sampling(pos)], changes: &[] };
                running.backend.run(running.exec, &step).expect("a run");
                token = next_token(&mut running, *picked_by, seq as u32, 0, logits);
                alone[seq].push(token);
            }
        }
        let mut together = vec![Vec::new(); n_seqs];
        let mut tokens: Vec<u32> = (0..n_seqs).map(first).collect();
        for pos in 0..N_STEPS {
            // Another sequence's prompt comes before the other rows, among them, or after them.
            let prompt = (0..3).map(|i| Row { logits: false, ..row(9, 3 * (pos % 8) + i, n_seqs as u32) });
            let decode = (0..n_seqs).map(|i| (i + pos as usize) % n_seqs);
            let decode: Vec<Row> = decode.map(|seq| row(tokens[seq], pos, seq as u32)).collect();
            let (before, after) = decode.split_at(pos as usize % (n_seqs + 1));
            let rows: Vec<Row> = before.iter().copied().chain(prompt).chain(after.iter().copied()).collect();
            let how: Vec<_> = decode.iter().map(|row| picked_by[row.seq as usize].sampling(pos)).collect();
            let step = Step { rows: &rows, pages: &pages, sampling: &how, changes: &[] };
            running.backend.run(running.exec, &step).expect("a run");
            for (output, row) in decode.iter().enumerate() {
                let (seq, picked_by) = (row.seq as usize, picked_by[row.seq as usize]);
                let token = next_token(&mut running, picked_by, row.seq, output, logits);
                together[seq].push(token);
                let on_device = matches!(picked_by, PickedBy::Device(_));
                // Sometimes the host feeds the token that the device has picked.
                let fed_back = on_device && !(pos as usize + seq).is_multiple_of(5);
                tokens[seq] = if fed_back { Row::PICKED } else { token };
            }
        }
        assert_eq!(together, alone, "{device}");
    }
}

/// If a sequence has several output rows in a step, its pick is the token of the last.
#[test]
fn pick_is_the_last_output_of_a_sequence() {
    let (case, _) = SMALL.case("a small model", limits(4, 2, 1));
    let pages = shuffled_pages(2, 1);
    for mut backend in all_backends() {
        let running = case.on(&mut *backend);
        let row = |token, pos, seq| Row { token, pos, seq, logits: true };
        let rows = [row(3, 0, 1), row(4, 0, 0), row(5, 1, 1), row(6, 1, 0)];
        let step = Step { rows: &rows, pages: &pages, sampling: &[Some(Sampling::GREEDY); 4], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        let mut tokens = [0; 4];
        running.backend.tokens(running.exec, 0, &mut tokens).expect("tokens");
        assert!(
            tokens[0] != tokens[2] && tokens[1] != tokens[3],
            "{tokens:?}: the rows cannot be distinguished"
        );
        for (seq, output) in [(1, 2), (0, 3)] {
            assert_eq!(running.backend.picked(running.exec, seq, 0).expect("a token"), tokens[output]);
        }
    }
}

/// A row can only be fed with a pick that the device has made.
#[test]
fn feeding_a_missing_pick_panics() {
    let (case, _) = SMALL.case("a small model", limits(4, 2, 1));
    let pages = shuffled_pages(2, 1);
    let row = |token, pos, seq| Row { token, pos, seq, logits: true };
    for mut backend in all_backends() {
        let mut running = case.on(&mut *backend);
        queue(&mut running, &pages, &[0], 0, |_| 1);
        let step =
            Step { rows: &[row(Row::PICKED, 0, 1)], pages: &pages, sampling: &[Some(WARM)], changes: &[] };
        let run = std::panic::AssertUnwindSafe(|| running.backend.run(running.exec, &step));
        assert!(std::panic::catch_unwind(run).is_err(), "slot 1 has no pick");
    }
    if let Some(mut backend) = simt(0) {
        let running = case.on(&mut *backend);
        let host = Sampling { top_k: 0, ..WARM };
        assert!(!running.backend.runs_ahead(running.exec, &host));
        assert!(running.backend.runs_ahead(running.exec, &WARM));
        let step = Step { rows: &[row(1, 0, 0)], pages: &pages, sampling: &[Some(host)], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        let exec = running.exec;
        let picked = std::panic::AssertUnwindSafe(|| running.backend.picked(exec, 0, 0));
        assert!(std::panic::catch_unwind(picked).is_err(), "the host made that pick");
    }
}

const PROMPT: &str = "You may copy and distribute";

fn engine(backend: Box<dyn Backend>, n_ctx: usize) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options =
        EngineOptions { n_ctx: Some(n_ctx), threads: Some(1), n_seqs: 2, ..EngineOptions::default() };
    Engine::on_backend(Gguf::open(&path).unwrap(), &options, backend, |_| ()).unwrap()
}

/// The same options, but the host picks from logits that it reads, because the bias has more tokens than a
/// device supports.
fn by_the_host(options: &GenerateOptions) -> GenerateOptions {
    let mut options = options.clone();
    options.sampler.logit_bias.extend((0..257).map(|token| (token, 0.0)));
    options
}

#[derive(Debug, PartialEq)]
struct Output {
    text: String,
    tokens: Vec<u32>,
    reason: Option<StopReason>,
    /// Tokens of the session at the end.
    seen: Vec<u32>,
}

/// Generates up to `pieces` pieces of text.
fn generate_text(session: &mut Session, prompt: &[u32], options: &GenerateOptions, pieces: usize) -> Output {
    let mut generation = session.generate(prompt, options).unwrap();
    let text = generation.by_ref().take(pieces).collect::<Result<String, _>>().unwrap();
    let (tokens, reason) = (generation.tokens().to_vec(), generation.stop_reason());
    Output { text, tokens, reason, seen: session.tokens().to_vec() }
}

/// Asserts that a text, and the same session's answer to another prompt afterwards, do not depend on whether
/// the host or the device picks. Returns the first text.
fn assert_no_trace(engine: &Engine, options: &GenerateOptions, pieces: usize) -> Output {
    let prompt = engine.tokenizer().unwrap().encode(PROMPT, Special::Parse, true);
    let output = |options: &GenerateOptions| {
        let mut session = engine.session().unwrap();
        let first = generate_text(&mut session, &prompt, options, pieces);
        let room = session.remaining();
        let mut more = options.clone();
        more.max_tokens = Some(6);
        let second = (room > 8).then(|| {
            let last = *first.tokens.last().unwrap_or(&1);
            let branched = session
                .branch(session.position())
                .map(|mut branch| generate_text(&mut branch, &[last], &more, 9));
            (branched.unwrap(), generate_text(&mut session, &[last, 9], &more, 9))
        });
        session.cut_back(session.position() / 2);
        (first, second, generate_text(&mut session, &[5], &more, 9))
    };
    let (want, got) = (output(&by_the_host(options)), output(options));
    assert_eq!(got, want, "{} with {options:?}", engine.backend_name());
    got.0
}

fn engines(n_ctx: usize) -> impl Iterator<Item = Engine> {
    let on = move |name| Some(engine(support::case::backend(name, 1)?, n_ctx));
    ["cpu", "cuda-simt", "wgpu"].into_iter().filter_map(on)
}

fn warm(seed: u64) -> GenerateOptions {
    let sampler = SamplerOptions { seed: Some(seed), ..SamplerOptions::default() };
    GenerateOptions { sampler, max_tokens: Some(12), ..GenerateOptions::default() }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn discarded_steps_leave_no_trace() {
    for engine in engines(256) {
        let whole = assert_no_trace(&engine, &warm(3), usize::MAX);
        assert_eq!(whole.reason, Some(StopReason::Limit));
        let greedy = GenerateOptions { sampler: SamplerOptions::greedy(), ..warm(0) };
        assert_no_trace(&engine, &greedy, usize::MAX);
        // Abandoned in the middle, with a step queued.
        for pieces in [1, 3] {
            assert_eq!(assert_no_trace(&engine, &warm(3), pieces).reason, None);
        }
        for max_tokens in [0, 1, 2] {
            let few = GenerateOptions { max_tokens: Some(max_tokens), ..warm(3) };
            assert_eq!(assert_no_trace(&engine, &few, usize::MAX).tokens.len(), max_tokens);
        }
        let chars: Vec<char> = whole.text.chars().collect();
        let stop: String = chars[chars.len() / 2..chars.len() / 2 + 3].iter().collect();
        let stopped = GenerateOptions { stop: vec![stop], ..warm(3) };
        assert_eq!(assert_no_trace(&engine, &stopped, usize::MAX).reason, Some(StopReason::StopString));
        // Sampling that the device does not support.
        let mut all = warm(4);
        all.sampler.top_k = 0;
        assert_no_trace(&engine, &all, usize::MAX);
    }
}

#[test]
fn end_of_text_does_not_depend_on_queued_steps() {
    let hot = |seed| {
        let sampler =
            SamplerOptions { temperature: 9.0, top_k: 256, top_p: 1.0, min_p: 0.0, ..warm(seed).sampler };
        GenerateOptions { sampler, ..warm(seed) }
    };
    let cpu = engines(256).next().expect("the CPU");
    let ends = |seed: &u64| {
        let output = generate_text(&mut cpu.session().unwrap(), &[636, 5, 6], &hot(*seed), usize::MAX);
        output.reason == Some(StopReason::EndOfText) && output.tokens.len() > 3
    };
    let seed = (0..200).find(ends).expect("a text that ends by itself");
    for engine in engines(256) {
        let output = |options: &GenerateOptions| {
            generate_text(&mut engine.session().unwrap(), &[636, 5, 6], options, usize::MAX)
        };
        let want = output(&by_the_host(&hot(seed)));
        assert_eq!(want.reason, Some(StopReason::EndOfText));
        assert_eq!(output(&hot(seed)), want, "{}", engine.backend_name());
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn context_limit_does_not_depend_on_queued_steps() {
    for n_ctx in [30, 64] {
        for engine in engines(n_ctx) {
            let endless = GenerateOptions { max_tokens: None, ..warm(1) };
            let output = assert_no_trace(&engine, &endless, usize::MAX);
            assert_eq!(output.reason, Some(StopReason::ContextFull));
            assert_eq!(output.seen.len(), n_ctx);
        }
    }
}

/// Penalties over a full window, a bias, a minimum length: queued steps count the token that they are fed
/// with.
#[test]
fn penalties_and_bias_match_the_host() {
    let penalised = |temperature, repeat_last_n| SamplerOptions {
        temperature,
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        repeat_last_n,
        ..warm(4).sampler
    };
    let biased = SamplerOptions { logit_bias: vec![(5, 4.0), (300, f32::NEG_INFINITY)], ..warm(5).sampler };
    for engine in engines(256) {
        let prompt = engine.tokenizer().unwrap().encode(PROMPT, Special::Parse, true);
        let samplers = [penalised(0.0, 64), penalised(0.0, 3), penalised(1.5, 1), biased.clone()];
        for (sampler, min_tokens) in samplers.into_iter().zip([0, 9, 0, 9]) {
            let options =
                GenerateOptions { sampler, max_tokens: Some(12), min_tokens, ..GenerateOptions::default() };
            let output = |options: &GenerateOptions| {
                generate_text(&mut engine.session().unwrap(), &prompt, options, usize::MAX)
            };
            let want = output(&by_the_host(&options));
            assert_eq!(output(&options), want, "{} with {options:?}", engine.backend_name());
        }
    }
}

/// Two sessions alternate, each with a queued step while the other's runs.
#[test]
fn alternating_sessions_are_independent() {
    for engine in engines(256) {
        let prompts = [[636, 5, 6], [636, 7, 8]];
        let alone: Vec<Output> = (0..2)
            .map(|i| generate_text(&mut engine.session().unwrap(), &prompts[i], &warm(i as u64), usize::MAX))
            .collect();
        let mut sessions = [engine.session().unwrap(), engine.session().unwrap()];
        let mut texts = [String::new(), String::new()];
        let [a, b] = &mut sessions;
        let options = [warm(0), warm(1)];
        let mut both =
            [a.generate(&prompts[0], &options[0]).unwrap(), b.generate(&prompts[1], &options[1]).unwrap()];
        let mut open = 2;
        while open > 0 {
            open = 0;
            for (generation, text) in both.iter_mut().zip(&mut texts) {
                if let Some(piece) = generation.next() {
                    *text += &piece.unwrap();
                    open += 1;
                }
            }
        }
        for (output, text) in alone.iter().zip(&texts) {
            assert_eq!(&output.text, text, "{}", engine.backend_name());
        }
    }
}
