//! Speculative decoding: the text is the same as without drafts.

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna::Error;
use sterna::engine::{
    BatchOptions, DraftModel, Drafter, Engine, EngineOptions, GenerateOptions, LogProbs, NgramLookup,
    Request, SamplerOptions, Speculation, Stats, StopReason,
};

use super::batch::{Output, codec, engine, engine_on, finish, greedy, seeded, tokens};

/// Drafts the tokens of `text`, except for about every `wrong`-th position, which gets a wrong token.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    pub text: Vec<u32>,
    pub wrong: usize,
}

impl Speculation for Hints {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        Ok(Box::new(self.clone()))
    }

    fn row_cost(&self) -> Option<f64> {
        Some(0.05)
    }
}

impl Drafter for Hints {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) -> Result<(), Error> {
        let known = self.text.iter().enumerate().skip(tokens.len()).take(most);
        let is_wrong = |at: usize| ((at * 40503) >> 7).is_multiple_of(self.wrong);
        draft.extend(known.map(|(at, token)| if is_wrong(at) { (token + 1) % 500 } else { *token }));
        Ok(())
    }

    fn is_ready(&mut self, tokens: &[u32]) -> bool {
        tokens.len() < self.text.len()
    }
}

/// Drafts with a low fixed cost, independent of the clock: measured costs of a small model, or of a draft
/// model of the same size, are not always worth a draft.
#[derive(Debug)]
pub(super) struct Free<S>(pub S);

impl<S: Speculation> Speculation for Free<S> {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        self.0.start()
    }

    fn row_cost(&self) -> Option<f64> {
        Some(0.05)
    }
}

/// Generates with a new session; also returns the statistics, and the tokens of the session at the end.
fn generate(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> (Output, Stats, Vec<u32>) {
    let mut session = engine.session().unwrap();
    let mut generation = session.generate(prompt, options).unwrap();
    let mut output = Output::default();
    while let Some(event) = generation.next_event() {
        output.take(event.unwrap());
    }
    let stats = generation.stats();
    drop(generation);
    (output, stats, session.tokens().to_vec())
}

fn lookup(options: GenerateOptions) -> GenerateOptions {
    GenerateOptions { speculation: Some(Arc::new(Free(NgramLookup { size: 1, max: 8 }))), ..options }
}

/// Samplers of all kinds: on the backend, on the host, with penalties, bias, a minimum length.
fn samplers() -> Vec<(&'static str, GenerateOptions)> {
    let with = |change: fn(&mut GenerateOptions)| {
        let mut options = seeded(5, 60);
        change(&mut options);
        options
    };
    vec![
        ("greedy", greedy(60)),
        ("drawn", with(|_| ())),
        ("drawn by the host", with(|options| options.sampler.top_k = 0)),
        ("penalties", with(|options| options.sampler.repeat_penalty = 1.3)),
        ("greedy penalties", {
            let mut options = greedy(60);
            (options.sampler.repeat_penalty, options.sampler.frequency_penalty) = (1.1, 0.2);
            options
        }),
        ("a bias", with(|options| options.sampler.logit_bias = vec![(5, 3.0), (7, f32::NEG_INFINITY)])),
        (
            "minimum length",
            with(|options| (options.min_tokens, options.stop_tokens) = (30, (0..250).collect())),
        ),
        ("log-probabilities", with(|options| options.logprobs = Some(2))),
    ]
}

/// The session ends with the same tokens as without drafts.
#[test]
fn drafts_do_not_change_the_text() {
    for kv in ["f16", "turboquant"] {
        let engine = engine(|options| {
            codec(options, kv);
            options.drafts = 7;
        });
        for (name, options) in samplers() {
            for n_prompt in [1, 60, 150] {
                let prompt = tokens(3, n_prompt);
                let (want, _, seen) = generate(&engine, &prompt, &options);
                let text = [prompt.as_slice(), &want.tokens].concat();
                let hints = Some(Arc::new(Hints { text, wrong: 4 }) as Arc<dyn Speculation>);
                let hinted = GenerateOptions { speculation: hints, ..options.clone() };
                for options in [hinted, lookup(options.clone())] {
                    let (got, stats, got_seen) = generate(&engine, &prompt, &options);
                    assert_eq!(got, want, "{kv}, {name}, {n_prompt} tokens");
                    assert_eq!(got_seen, seen, "{kv}, {name}, {n_prompt} tokens");
                    assert!(stats.accepted_tokens <= stats.drafted_tokens);
                    assert_eq!(stats.generated_tokens, want.tokens.len());
                }
            }
        }
    }
}

/// A model with random weights soon repeats itself, so most of its text is drafted.
#[test]
fn repetitive_texts_take_fewer_steps() {
    let engine = engine(|options| options.drafts = 8);
    let mut options = lookup(greedy(200));
    let prompt = tokens(1, 20);
    let (_, stats, _) = generate(&engine, &prompt, &options);
    assert!(stats.accepted_tokens > 20 && stats.drafts < stats.drafted_tokens, "{stats:?}");
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    batch.add(&Request::new(prompt.clone(), options.clone())).unwrap();
    finish(&mut batch);
    let stats = batch.stats();
    assert!(stats.accepted_tokens > 20, "{stats:?}");
    assert_eq!(stats.decode_rows + stats.accepted_tokens + 1, 200, "{stats:?}");
    drop(batch);
    // An engine without room for drafts makes none.
    options.max_tokens = Some(20);
    let (_, stats, _) = generate(&super::batch::engine(|_| ()), &prompt, &options);
    assert_eq!((stats.drafts, stats.drafted_tokens), (0, 0));
}

/// Texts of all kinds end at the same token as without drafts, though the step verified more tokens.
#[test]
fn drafts_do_not_change_the_end() {
    let engine = engine(|options| (options.drafts, options.n_ctx) = (16, Some(100)));
    let prompt = tokens(2, 30);
    let (whole, _, _) = generate(&engine, &prompt, &greedy(1000));
    assert_eq!(whole.end, Some(StopReason::ContextFull));
    let text = [prompt.as_slice(), &whole.tokens].concat();
    let hints: Arc<dyn Speculation> = Arc::new(Hints { text, wrong: usize::MAX });
    let ends: Vec<(GenerateOptions, StopReason)> = vec![
        (greedy(1000), StopReason::ContextFull),
        (greedy(10), StopReason::Limit),
        (greedy(1), StopReason::Limit),
        (GenerateOptions { stop_tokens: vec![whole.tokens[12]], ..greedy(50) }, StopReason::EndOfText),
        (GenerateOptions { stop: vec![whole.text[20..23].to_owned()], ..greedy(50) }, StopReason::StopString),
    ];
    for (options, end) in ends {
        let (want, _, seen) = generate(&engine, &prompt, &options);
        assert_eq!(want.end, Some(end));
        let options = GenerateOptions { speculation: Some(Arc::clone(&hints)), ..options };
        let (got, _, got_seen) = generate(&engine, &prompt, &options);
        assert_eq!((got, got_seen), (want.clone(), seen));
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let id = batch.add(&Request::new(prompt.clone(), options)).unwrap()[0];
        assert_eq!(finish(&mut batch)[&id], want);
    }
}

/// Samples with drafts have the model's distribution, after correct and wrong drafts: the distribution of the
/// first token, and of the second after the drafted one, over many seeds.
#[test]
fn samples_with_drafts_have_the_models_distribution() {
    const SEEDS: u64 = 3000;
    let engine = engine(|options| (options.drafts, options.n_seqs) = (3, 1));
    let prompt = tokens(4, 12);
    let mut sampler = SamplerOptions { temperature: 1.5, top_k: 3, top_p: 1.0, ..SamplerOptions::default() };
    sampler.min_p = 0.0;
    let most_likely = |session: &mut sterna::engine::Session, tokens: &[u32]| {
        let logits: Vec<f32> = session.logits(tokens).unwrap().iter().map(|x| x / 1.5).collect();
        let all = LogProbs::of(&logits, 0, 3).top;
        let sum: f32 = all.iter().map(|(_, log)| log.exp()).sum();
        all.into_iter().map(|(token, log)| (token, log.exp() / sum)).collect::<Vec<(u32, f32)>>()
    };
    let mut session = engine.session().unwrap();
    let first = most_likely(&mut session, &prompt);
    let drafted = first[0].0;
    let second = most_likely(&mut session, &[drafted]);
    let text = [prompt.as_slice(), &[drafted, second[1].0, 9]].concat();
    let hints: Arc<dyn Speculation> = Arc::new(Hints { text, wrong: usize::MAX });
    let mut counts: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    let mut accepted = 0;
    for seed in 0..SEEDS {
        session.cut_back(prompt.len() - 1);
        let options = GenerateOptions {
            sampler: SamplerOptions { seed: Some(seed), ..sampler.clone() },
            max_tokens: Some(3),
            speculation: Some(Arc::clone(&hints)),
            past_eos: true,
            ..GenerateOptions::default()
        };
        let mut generation = session.generate(&prompt[prompt.len() - 1..], &options).unwrap();
        while let Some(event) = generation.next_event() {
            event.unwrap();
        }
        let picked = generation.tokens();
        *counts.entry((picked[0], picked[1])).or_default() += 1.0;
        accepted += generation.stats().accepted_tokens;
    }
    assert!(accepted > SEEDS as usize / 4, "{accepted}");
    // Counts of the first token, and of the second after the drafted one: chi-squared with two degrees of
    // freedom exceeds 13.8 once in a thousand.
    let of_first =
        |token: u32| counts.iter().filter(|((own, _), _)| *own == token).map(|(_, n)| n).sum::<f64>();
    let of_second = |token: u32| counts.get(&(drafted, token)).copied().unwrap_or_default();
    let chi_squared = |want: &[(u32, f32)], got: &dyn Fn(u32) -> f64, n: f64| -> f64 {
        let far = |(token, p): &(u32, f32)| (got(*token) - n * f64::from(*p)).powi(2) / (n * f64::from(*p));
        want.iter().map(far).sum()
    };
    let far = chi_squared(&first, &of_first, SEEDS as f64);
    assert!(far < 13.8, "{far}: {counts:?}, want {first:?}");
    let far = chi_squared(&second, &of_second, of_first(drafted));
    assert!(far < 13.8, "{far}: {counts:?}, want {second:?}");
}

/// Devices accept drafts, and queue steps ahead if they have no draft.
#[test]
fn devices_verify_drafts() {
    for name in ["cuda-simt", "wgpu"] {
        let Some(engine) = engine_on(name, |options| options.drafts = 6) else { continue };
        let prompt = tokens(6, 20);
        for options in [greedy(24), seeded(8, 24)] {
            let (want, _, _) = generate(&engine, &prompt, &options);
            let text = [prompt.as_slice(), &want.tokens].concat();
            let hints: Arc<dyn Speculation> = Arc::new(Hints { text, wrong: 5 });
            let options = GenerateOptions { speculation: Some(hints), ..options };
            let (got, stats, _) = generate(&engine, &prompt, &options);
            assert!(stats.accepted_tokens > 2 && got.tokens.len() == want.tokens.len(), "{name}: {stats:?}");
            let same = got.tokens.iter().zip(&want.tokens).take_while(|(a, b)| a == b).count();
            assert!(same > 4, "{name}: {got:?}, want {want:?}");
        }
    }
}

/// A model that drafts for itself generates the same text, and its greedy drafts are accepted.
#[test]
fn draft_models_do_not_change_the_text() {
    let target = engine(|options| options.drafts = 6);
    let twin = engine(|_| ());
    let prompt = tokens(9, 40);
    let with = |draft: DraftModel, options: GenerateOptions| GenerateOptions {
        speculation: Some(Arc::new(Free(draft))),
        ..options
    };
    let draft = |change: fn(&mut DraftModel)| {
        let mut draft = DraftModel::new(&target, twin.clone()).unwrap();
        change(&mut draft);
        draft
    };
    let (want, _, _) = generate(&target, &prompt, &greedy(50));
    let (got, stats, _) = generate(&target, &prompt, &with(draft(|_| ()), greedy(50)));
    assert_eq!(got, want);
    // All drafts of the same model are correct.
    assert_eq!(stats.drafted_tokens, stats.accepted_tokens, "{stats:?}");
    assert!(stats.accepted_tokens > 20, "{stats:?}");
    // No token is that likely, and no draft is that long.
    for never in [draft(|draft| draft.p_min = 1.1), draft(|draft| draft.min = 4)] {
        let (got, stats, _) = generate(&target, &prompt, &with(never, greedy(50)));
        assert_eq!((got, stats.drafted_tokens), (want.clone(), 0));
    }
    let (want, _, _) = generate(&target, &prompt, &seeded(3, 50));
    let unlikely = draft(|draft| (draft.max, draft.p_min) = (6, 0.02));
    assert_eq!(generate(&target, &prompt, &with(unlikely, seeded(3, 50))).0, want);
    // Another model of the same vocabulary.
    let path = support::golden("qwen3/tiny-f16.gguf").expect("it is in tests/data");
    let options = EngineOptions { n_ctx: Some(70), threads: Some(1), ..EngineOptions::default() };
    let other = DraftModel::new(&target, Engine::open(path, &options).unwrap()).unwrap();
    assert_eq!(generate(&target, &prompt, &with(other, seeded(3, 50))).0, want);
    // In a batch each sequence gets a session of the draft model while there are any.
    let options = with(draft(|_| ()), greedy(30));
    let mut batch = target.batch(BatchOptions::default()).unwrap();
    let ids: Vec<_> =
        (0..5).map(|i| batch.add(&Request::new(tokens(i, 30), options.clone())).unwrap()[0]).collect();
    let all = finish(&mut batch);
    assert!(batch.stats().accepted_tokens > 0);
    drop(batch);
    for (i, id) in (0..).zip(&ids) {
        assert_eq!(all[id], generate(&target, &tokens(i, 30), &greedy(30)).0);
    }
}

#[test]
fn draft_models_of_another_vocabulary_are_refused() {
    let target = engine(|_| ());
    let options = EngineOptions { n_ctx: Some(64), threads: Some(1), ..EngineOptions::default() };
    let other = Engine::from_bytes(super::recurrent::file().into(), &options).unwrap();
    let err = DraftModel::new(&target, other).unwrap_err();
    assert!(matches!(err, Error::DraftVocabulary { .. }), "{err}");
}
