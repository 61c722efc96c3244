//! Text continued by another engine, which gets the prompt and the generated tokens, and generates the rest.

use sterna::engine::{BatchOptions, Engine, Event, GenerateOptions, Request, SamplerOptions};
use sterna::tokenizer::Tokenizer;

use super::batch::{engine, finish, greedy, seeded, tokens};

/// Generated tokens, each with its piece of text.
fn generate(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> Vec<(u32, String)> {
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    batch.add(&Request::new(prompt.to_vec(), options.clone())).unwrap();
    let mut all = Vec::new();
    let take = |_, event: Event| {
        let token = event.token.expect("only the limit ends the text");
        all.push((token.id, event.text));
        Ok::<(), sterna::Error>(())
    };
    batch.run(take).unwrap();
    all
}

/// Options that support a move.
fn ways(n: usize) -> Vec<GenerateOptions> {
    let penalised = |options: GenerateOptions| GenerateOptions {
        sampler: SamplerOptions {
            repeat_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            // Fewer than all tokens, and at first also some of the prompt.
            repeat_last_n: 17,
            ..options.sampler
        },
        ..options
    };
    let seeded = GenerateOptions { ignore_eos: true, ..seeded(11, n) };
    let hot = GenerateOptions {
        sampler: SamplerOptions {
            temperature: 3.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..seeded.sampler.clone()
        },
        ..seeded.clone()
    };
    vec![greedy(n), seeded.clone(), penalised(greedy(n)), penalised(seeded), penalised(hot.clone()), hot]
}

#[test]
fn texts_continue_in_another_engine_from_any_token() {
    const N: usize = 40;
    let engine = engine(|_| ());
    let prompt = tokens(3, 70);
    let mut cut_characters = 0;
    for (at, options) in ways(N).into_iter().enumerate() {
        let whole = generate(&engine, &prompt, &options);
        let text: String = whole.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(whole.len(), N, "way {at}");
        for cut in 1..N {
            let replayed: Vec<u32> =
                prompt.iter().copied().chain(whole[..cut].iter().map(|(id, _)| *id)).collect();
            let tokenizer = engine.tokenizer().unwrap();
            cut_characters += usize::from(tokenizer.utf8_after(&replayed, false).is_pending());
            let rest = generate(
                &engine,
                &replayed,
                &GenerateOptions { max_tokens: Some(N - cut), ..options.clone() },
            );
            let ids = |all: &[(u32, String)]| all.iter().map(|(id, _)| *id).collect::<Vec<u32>>();
            assert_eq!(ids(&rest), ids(&whole[cut..]), "way {at}, cut at {cut}");
            let before: String = whole[..cut].iter().map(|(_, text)| text.as_str()).collect();
            let after: String = rest.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(before + &after, text, "way {at}, cut at {cut}");
        }
    }
    assert!(cut_characters > 10, "only {cut_characters} cuts were inside a character");
}

/// Token for one byte.
fn byte(tokenizer: &Tokenizer, byte: u8) -> u32 {
    let ids = 0..tokenizer.n_vocab() as u32;
    ids.into_iter().find(|id| tokenizer.token_bytes(*id) == [byte]).expect("every byte is a token")
}

#[test]
fn prompts_can_end_inside_a_character() {
    let engine = engine(|_| ());
    let tokenizer = engine.tokenizer().unwrap();
    for text in ["é", "漢", "🦜"] {
        let bytes: Vec<u32> = text.bytes().map(|value| byte(tokenizer, value)).collect();
        for cut in 1..bytes.len() {
            let mut prompt = tokens(5, 20);
            prompt.extend(&bytes[..cut]);
            // A bias forces the rest of the character.
            let sampler =
                |at: usize| SamplerOptions { logit_bias: vec![(bytes[at], 1e5)], ..SamplerOptions::greedy() };
            let mut batch = engine.batch(BatchOptions::default()).unwrap();
            let mut got = String::new();
            let mut tokens = prompt.clone();
            for (at, id) in bytes.iter().enumerate().skip(cut) {
                let options = GenerateOptions { sampler: sampler(at), ..greedy(1) };
                // The limit ends each text, so an incomplete character is replaced.
                batch.add(&Request::new(tokens.clone(), options)).unwrap();
                let output = finish(&mut batch).into_values().next().unwrap();
                assert_eq!(output.tokens, [*id]);
                tokens.push(*id);
                got = output.text;
            }
            assert_eq!(got, text, "cut after {cut} bytes");
        }
    }
}
