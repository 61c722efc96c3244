//! Models with recurrent states: results do not depend, to the bit, on how prompts are divided into steps, on
//! other sequences, or on whether a state was kept, copied or recomputed.

use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

use sterna::Error;
use sterna::backend::{Backend, cpu::Cpu};
use sterna::engine::{
    Batch, BatchOptions, BatchStats, Engine, EngineOptions, FewLayers, GenerateOptions, Request, SeqId,
    Session, Speculation,
};
use sterna::gguf::Gguf;
use sterna::program::PAGE;
use sterna::selftest;
use sterna::synth::{Family, MambaForm, Preset, Spec, Synth};
use support::logits::{all_logits, sequences};
use support::{golden, npy};

use super::batch::{Output, alone, check_random_schedules, codec, count, finish, greedy, seeded, tokens};
use super::speculation::Hints;

fn model() -> Gguf {
    Gguf::from_bytes(file().into()).unwrap()
}

/// Five layers: three delta nets, one attention, and one more delta net.
pub(super) fn file() -> Vec<u8> {
    let spec = Preset::by_name("tiny-hybrid").unwrap().spec(Some("f32"), Some("f32"), 3).unwrap();
    let family = Family::Qwen35 { n_key_heads: 2, n_value_heads: 4, state_dim: 64, experts: None };
    let spec = Spec { family, n_layers: 5, dim: 64, ffn_dim: 64, head_dim: 32, ..spec };
    written(&spec)
}

fn written(spec: &Spec) -> Vec<u8> {
    let mut file = Vec::new();
    Synth::new(spec).unwrap().write(&mut file, |_| ControlFlow::Continue(())).unwrap();
    file
}

/// Models with other recurrent states: short convolutions, and Mamba-2 in each form of layers.
fn others() -> Vec<(&'static str, Vec<u8>)> {
    let mamba = |form| Family::Mamba { form, n_heads: 4, n_groups: 2, head_dim: 24, state_dim: 16 };
    let families = [
        ("lfm2", Family::Lfm2, 3),
        ("lfm2moe", Family::Lfm2Moe { n_experts: 4, n_used: 2, n_dense: 1, dense_dim: 96 }, 3),
        ("granitehybrid", mamba(MambaForm::Granite), 6),
        ("falcon-h1", mamba(MambaForm::Falcon), 2),
        ("nemotron_h", mamba(MambaForm::Nemotron), 4),
        ("nemotron_h_moe", mamba(MambaForm::NemotronMoe { n_experts: 4, n_used: 2, shared_dim: 96 }), 6),
    ];
    let spec = Preset::by_name("tiny-hybrid").unwrap().spec(Some("f32"), Some("f32"), 3).unwrap();
    let of = |(name, family, n_layers)| {
        let spec = Spec { family, n_layers, dim: 64, ffn_dim: 64, head_dim: 32, ..spec.clone() };
        (name, written(&spec))
    };
    families.map(of).into()
}

fn options() -> EngineOptions {
    EngineOptions { threads: Some(1), n_ctx: Some(1024), batch: 80, outputs: 80, ..EngineOptions::default() }
}

fn open(options: &EngineOptions) -> Engine {
    open_file(&file(), options)
}

fn open_file(file: &[u8], options: &EngineOptions) -> Engine {
    let gguf = Gguf::from_bytes(file.to_vec().into()).unwrap();
    Engine::on_backend(gguf, options, Box::new(Cpu::new(2).unwrap()), |_| ()).unwrap()
}

/// Bits of the logits after `tokens`.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<u32> {
    let logits = session.logits(tokens).unwrap();
    assert!(logits.iter().all(|x| x.is_finite()));
    logits.iter().map(|x| x.to_bits()).collect()
}

fn bits_alone(engine: &Engine, tokens: &[u32]) -> Vec<u32> {
    feed(&mut engine.session().unwrap(), tokens)
}

#[test]
fn prompts_can_be_divided_anywhere() {
    let text = tokens(1, 400);
    let engine = open(&EngineOptions { batch: 512, ..options() });
    let want = bits_alone(&engine, &text);
    for batch in [1, 2, 3, 7, 63, 64, 65, 100, 399] {
        let engine = open(&EngineOptions { batch, outputs: 1, ..options() });
        assert!(bits_alone(&engine, &text) == want, "in steps of {batch}");
    }
    let mut session = engine.session().unwrap();
    for part in text[..399].chunks(30) {
        session.prefill(part).unwrap();
    }
    assert!(feed(&mut session, &text[399..]) == want);
}

/// The other states resume as those of delta nets: after steps of any size, cuts and branches, in restored
/// sessions, and from the prefix cache.
#[test]
fn other_states_resume() {
    for (name, file) in others() {
        let text = tokens(1, 300);
        let whole = open_file(&file, &EngineOptions { batch: 512, ..options() });
        let want = bits_alone(&whole, &text);
        for batch in [1, 3, 65] {
            let engine = open_file(&file, &EngineOptions { batch, outputs: 1, ..options() });
            assert!(bits_alone(&engine, &text) == want, "{name} in steps of {batch}");
        }

        let engine = open_file(&file, &EngineOptions { n_seqs: 3, checkpoints: Some(4), ..options() });
        let mut session = engine.session().unwrap();
        session.prefill(&text).unwrap();
        let mut bytes = Vec::new();
        session.save(&mut bytes).unwrap();
        let mut other = session.branch(260).unwrap();
        session.cut_back(280);
        let mut restored = engine.restore(&mut Cursor::new(&bytes)).unwrap();
        let after = tokens(3, 40);
        for (session, at) in [(&mut session, 280), (&mut other, 260), (&mut restored, 300)] {
            let want = bits_alone(&whole, &[&text[..at], &after[..]].concat());
            assert!(feed(session, &after) == want, "{name} at {at}");
        }
        drop((session, other, restored));

        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let prompts = [text.clone(), tokens(2, 90), text];
        let want: Vec<Output> = prompts.iter().map(|prompt| alone(&whole, prompt, &greedy(6))).collect();
        for (ids, hits) in [([0, 1].as_slice(), 0), (&[2], 4 * PAGE as u64)] {
            let mut add = |at: &usize| batch.add(&Request::new(prompts[*at].clone(), greedy(6))).unwrap()[0];
            let added: Vec<SeqId> = ids.iter().map(&mut add).collect();
            let outputs = finish(&mut batch);
            for (id, at) in added.iter().zip(ids) {
                assert_eq!(outputs[id], want[*at], "{name}, prompt {at}");
            }
            assert_eq!(batch.stats().prefix.hit_tokens, hits, "{name}");
        }
    }
}

/// A cut goes back to a kept state: near the end of the last prompt, or at the last full page.
#[test]
fn cuts_and_branches_leave_no_trace() {
    let engine = open(&EngineOptions { n_seqs: 3, ..options() });
    let trunk = tokens(2, 500);
    for (cut, branch) in [(500, 500), (499, 448), (440, 499), (300, 300), (130, 64), (3, 0), (0, 3)] {
        let mut session = engine.session().unwrap();
        session.prefill(&trunk).unwrap();
        let mut other = session.branch(branch).unwrap();
        assert_eq!(other.n_cached(), if branch >= 448 { 448 } else { 0 });
        session.cut_back(cut);
        assert_eq!(
            session.n_cached(),
            if cut == 500 {
                500
            } else if cut >= 448 {
                448
            } else {
                0
            }
        );
        let after = tokens(3, 90);
        for (session, at) in [(&mut session, cut), (&mut other, branch)] {
            let want = bits_alone(&engine, &[&trunk[..at], &after[..]].concat());
            session.prefill(&after[..45]).unwrap();
            assert!(feed(session, &after[45..]) == want, "at {at}");
        }
    }
}

/// Generation keeps a state at each full page, and that of the prompt.
#[test]
fn cuts_return_to_the_prompt_or_the_last_full_page() {
    let engine = open(&EngineOptions { n_seqs: 2, ..options() });
    for (cut, kept) in [(210, 210), (200, 192), (180, 64), (101, 64), (60, 0)] {
        let mut session = engine.session().unwrap();
        let mut token = session.decode(&tokens(4, 100)).unwrap();
        for _ in 0..110 {
            token = session.decode(&[token]).unwrap();
        }
        assert_eq!(session.position(), 210);
        let text = session.tokens().to_vec();
        session.cut_back(cut);
        assert_eq!(session.n_cached(), kept);
        let want = bits_alone(&engine, &[&text[..cut], &[7][..]].concat());
        assert!(feed(&mut session, &[7]) == want, "cut to {cut}");
    }
}

#[test]
fn saved_sessions_continue() {
    let engine = open(&EngineOptions { n_seqs: 2, ..options() });
    let mut session = engine.session().unwrap();
    for n in [0, 30, 64, 65, 500] {
        session.cut_back(0);
        session.prefill(&tokens(4, n)).unwrap();
        let mut bytes = Vec::new();
        session.save(&mut bytes).unwrap();
        let other = open(&EngineOptions { n_ctx: Some(800), n_seqs: 2, ..options() });
        let mut restored = other.restore(&mut Cursor::new(&bytes)).unwrap();
        assert_eq!((restored.position(), restored.n_cached()), (n, n / PAGE * PAGE));
        let after = tokens(5, 100);
        assert!(feed(&mut session, &after) == feed(&mut restored, &after), "{n}");
        drop(restored);
        let mut batch = other.batch(BatchOptions::default()).unwrap();
        batch.restore(&mut Cursor::new(&bytes), &"".into()).unwrap();
        let prompt = [tokens(4, n), vec![7, 8]].concat();
        let id = batch.add(&Request::new(prompt, greedy(1))).unwrap()[0];
        finish(&mut batch);
        assert_eq!(batch.stats_of(id).map(|stats| stats.cached_tokens), Some(n / PAGE * PAGE));
    }
    let mut bytes = Vec::new();
    session.save(&mut bytes).unwrap();
    // A state after a page that is not full.
    let head = bytes.windows(2).position(|two| two == b"\n\n").unwrap() + 2;
    let last = head + 8 + 4 * session.position() + session.position().div_ceil(PAGE) - 1;
    bytes[last] |= 4;
    drop(session);
    assert!(matches!(engine.restore(&mut Cursor::new(&bytes)), Err(Error::State(_))));
}

/// Any schedule gives the same bits as a sequence alone, with so few pages that sequences wait, are preempted
/// and share prefixes; and no state slot leaks, which a batch checks at its end.
#[test]
fn batched_sequences_match_single_ones() {
    let mut all = BatchStats::default();
    for checkpoints in [0, 1, 8] {
        let mut options = EngineOptions {
            n_ctx: Some(320),
            n_seqs: 3,
            batch: 64,
            kv_positions: Some(8 * PAGE),
            checkpoints: Some(checkpoints),
            drafts: 10,
            ..options()
        };
        codec(&mut options, "f16");
        let engine = open(&options);
        count(&mut all, &check_random_schedules(&engine, &format!("{checkpoints} checkpoints"), 8, 200));
    }
    assert!(all.prefix.hit_tokens > 0 && all.preemptions > 0 && all.swapped_in > 0, "{all:?}");
    assert!(all.accepted_tokens > 100 && all.drafted_tokens > all.accepted_tokens + 20, "{all:?}");
}

/// Sequences whose drafts are rejected in part continue from the state after the last accepted row: the text
/// is the same as without drafts, and the model runs each accepted token once.
#[test]
fn rejected_drafts_need_no_second_pass() {
    let families = others().into_iter().filter(|(name, _)| ["lfm2", "granitehybrid"].contains(name));
    for (name, file) in [("qwen35", file())].into_iter().chain(families) {
        draft_on(&["cpu"], name, &file);
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn rejected_drafts_need_no_second_pass_on_devices() {
    for (name, file) in [("qwen35", file())].into_iter().chain(others()) {
        draft_on(&["cuda-simt", "wgpu"], name, &file);
    }
}

/// Generates two texts with drafts that are rejected in part, and checks the texts and the number of rows.
fn draft_on(backends: &[&'static str], name: &str, file: &[u8]) {
    let n_tokens = 40;
    let plain = open_file(file, &EngineOptions { n_seqs: 2, ..options() });
    let texts = [1, 2].map(|seed| {
        let prompt = tokens(seed, 20 + seed as usize);
        let want = alone(&plain, &prompt, &greedy(n_tokens));
        (prompt, want)
    });
    for backend in backends {
        let Some(on) = support::case::backend(backend, 2) else { continue };
        let gguf = Gguf::from_bytes(file.to_vec().into()).unwrap();
        let options = EngineOptions { n_seqs: 2, drafts: 8, ..options() };
        let engine = Engine::on_backend(gguf, &options, on, |_| ()).unwrap();
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let add = |(prompt, want): &(Vec<u32>, Output)| {
            let text = [&prompt[..], &want.tokens[..]].concat();
            let speculation = Some(Arc::new(Hints { text, wrong: 4 }) as Arc<dyn Speculation>);
            let options = GenerateOptions { speculation, ..greedy(n_tokens) };
            batch.add(&Request::new(prompt.clone(), options)).unwrap()[0]
        };
        let ids: Vec<SeqId> = texts.iter().map(add).collect();
        let all = finish(&mut batch);
        for (id, (_, want)) in ids.iter().zip(&texts) {
            assert_eq!(all[id], *want, "{name} on {backend}");
        }
        let stats = batch.stats();
        assert_eq!(stats.free_states, stats.states, "{name} on {backend}: a state leaked");
        let n_rejected = stats.drafted_tokens - stats.accepted_tokens;
        assert!(stats.accepted_tokens > 20 && n_rejected > 15, "{stats:?}");
        // The first token of each text follows from its prompt; each step gives one more than it accepts.
        let n_picked = ids.len() * (n_tokens - 1) - stats.accepted_tokens as usize;
        assert_eq!(stats.decode_rows, n_picked as u64, "{name} on {backend}: rows ran again");
    }
}

/// Sequences draft also after the prefix cache has taken all slots that were free.
#[test]
fn a_full_prefix_cache_leaves_a_slot_for_drafts() {
    let engine = open(&EngineOptions { drafts: 4, checkpoints: Some(1), ..options() });
    let prompt = tokens(9, 70);
    let want = alone(&engine, &prompt, &greedy(20));
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    for seed in 0..8 {
        batch.add(&Request::new(tokens(seed, 70), greedy(2))).unwrap();
        finish(&mut batch);
    }
    // The sequence itself takes the last one.
    assert!(batch.stats().free_states <= 1, "{:?}", batch.stats());
    let text = [&prompt[..], &want.tokens[..]].concat();
    let speculation = Some(Arc::new(Hints { text, wrong: 4 }) as Arc<dyn Speculation>);
    let options = GenerateOptions { speculation, ..greedy(20) };
    let id = batch.add(&Request::new(prompt, options)).unwrap()[0];
    assert_eq!(finish(&mut batch)[&id], want);
    assert!(batch.stats().accepted_tokens > 5, "{:?}", batch.stats());
}

/// The plan counts a slot per drafted token, up to 8, and one more per sequence.
#[test]
fn plans_count_the_states_after_rows() {
    let bytes = |drafts| {
        let engine = open(&EngineOptions { n_seqs: 2, drafts, ..options() });
        (engine.plan().kv_bytes, engine.program().state_bytes())
    };
    let (without, of_slot) = bytes(0);
    for (drafts, n_slots) in [(1, 3), (3, 5), (8, 10), (48, 10)] {
        assert_eq!(bytes(drafts), (without + n_slots * of_slot, of_slot), "{drafts} drafts");
    }
}

/// A draft may be longer than the states kept after rows: some rows run again; the text is the same.
#[test]
fn long_drafts_run_some_rows_again() {
    let plain = open(&options());
    let prompt = tokens(3, 70);
    let want = alone(&plain, &prompt, &greedy(56));
    let engine = open(&EngineOptions { drafts: 30, ..options() });
    let mut text = [&prompt[..], &want.tokens[..]].concat();
    // The draft that has it begins more than 8 tokens before.
    text[118] = (text[118] + 1) % 500;
    let hints = Hints { text, wrong: usize::MAX };
    let options = GenerateOptions { speculation: Some(Arc::new(hints)), ..greedy(56) };
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let id = batch.add(&Request::new(prompt, options)).unwrap()[0];
    assert_eq!(finish(&mut batch)[&id], want);
    let stats = batch.stats();
    assert!(stats.decode_rows > 55 - stats.accepted_tokens, "nothing ran again: {stats:?}");
    assert!(stats.accepted_tokens > 30, "{stats:?}");
}

/// A prompt continues from the nearest kept state.
#[test]
fn prefixes_are_found_at_checkpoints() {
    let engine = open(&EngineOptions { n_seqs: 2, checkpoints: Some(8), ..options() });
    let first = tokens(1, 400);
    let next = [&first[..], &tokens(2, 30)].concat();
    let early = [&first[..200], &tokens(3, 30)].concat();
    let want: Vec<Output> =
        [&first, &next, &early].iter().map(|prompt| alone(&engine, prompt, &greedy(4))).collect();
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let n_used = |batch: &Batch| batch.stats().states - batch.stats().free_states;
    assert_eq!((batch.stats().states, n_used(&batch)), (2 * 3 + 8, 0));
    let mut run = |prompt: &Vec<u32>| {
        let before = batch.stats().prefix.hit_tokens;
        let id = batch.add(&Request::new(prompt.clone(), greedy(4))).unwrap()[0];
        let output = finish(&mut batch).remove(&id).unwrap();
        (output, batch.stats().prefix.hit_tokens - before)
    };
    assert_eq!(run(&first), (want[0].clone(), 0));
    assert_eq!(run(&first), (want[0].clone(), 6 * PAGE as u64), "all full pages");
    assert_eq!(run(&next), (want[1].clone(), 6 * PAGE as u64), "after the prompt");
    assert_eq!(run(&early), (want[2].clone(), 0), "no state is kept there");
    assert_eq!(run(&early), (want[2].clone(), 3 * PAGE as u64), "now it is kept");
    assert_eq!(n_used(&batch), 2, "one state per prompt");
}

/// Several continuations of a prompt start from one state.
#[test]
fn continuations_share_the_state_of_a_prompt() {
    let engine = open(&EngineOptions { n_seqs: 4, ..options() });
    let prompt = tokens(6, 150);
    let mut batch = engine.batch(BatchOptions { prefix_cache: false, ..BatchOptions::default() }).unwrap();
    let request = Request { n: 4, ..Request::new(prompt.clone(), seeded(3, 80)) };
    let ids: Vec<SeqId> = batch.add(&request).unwrap();
    let all = finish(&mut batch);
    assert!(batch.stats().prompt_rows < 150 + 3 * 64, "{:?}", batch.stats());
    drop(batch);
    for (i, id) in (0..).zip(ids) {
        assert_eq!(all[&id], alone(&engine, &prompt, &seeded(3 + i, 80)));
    }
}

#[cfg(feature = "simt")]
fn two_cards() -> Option<Box<dyn Backend>> {
    use sterna::backend::cuda::{driver::Driver, driver::simt::Simt, split::Split};
    let cards = (0..2).map(|seed| Box::new(Simt::new(1, seed)) as Box<dyn Driver>).collect();
    Some(Box::new(Split::on(cards, Some(vec![0.5, 0.5])).unwrap()))
}

/// A card with some of the layers; the CPU computes as much of the others as it can.
#[cfg(feature = "simt")]
fn offloaded_to_the_cpu(layers: usize) -> Option<Box<dyn Backend>> {
    use sterna::backend::cuda::{Cuda, Streaming, driver::simt::Simt};
    use sterna::backend::{GpuLayers, MinBatch};
    let streaming = Streaming::new(GpuLayers::Count(layers), 2);
    let streaming = Streaming { min_batch: MinBatch::Never, ..streaming };
    let cuda = Cuda::on(Box::new(Simt::new(1, 0))).streamed(Some(streaming));
    Some(Box::new(cuda.with_cpu(|| Ok(Box::new(Cpu::new(2)?)))))
}

#[cfg(not(feature = "simt"))]
fn two_cards() -> Option<Box<dyn Backend>> {
    None
}

#[cfg(not(feature = "simt"))]
fn offloaded_to_the_cpu(_: usize) -> Option<Box<dyn Backend>> {
    None
}

/// Prompts in steps of several sizes, single rows, queued steps that are discarded at the end of a text;
/// cuts, several sequences, saved states.
#[test]
fn devices_match_the_cpu() {
    let cpu = open(&EngineOptions { n_seqs: 3, ..options() });
    let text = tokens(8, 90);
    let near = |got: &[f32], want: &[f32], what: &str| {
        let far = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-4, "{what}: {far:e}");
    };
    let logits = |engine: &Engine, text: &[u32]| engine.session().unwrap().logits(text).unwrap().to_vec();
    let (want, picked) = (logits(&cpu, &text), alone(&cpu, &text, &greedy(20)).tokens);
    let one_of = |name: &'static str| Some((name, support::case::backend(name, 1)?));
    let devices = ["cuda-simt", "wgpu"].into_iter().filter_map(one_of);
    let offloaded =
        [1].into_iter().filter_map(|n| Some(("a card with few layers", offloaded_to_the_cpu(n)?)));
    for (name, backend) in devices.chain(two_cards().map(|two| ("two cards", two))).chain(offloaded) {
        let options = EngineOptions { n_seqs: 3, batch: 50, outputs: 3, ..options() };
        let engine = Engine::on_backend(model(), &options, backend, |_| ()).unwrap();
        let mut session = engine.session().unwrap();
        let mut generation = session.generate(&text, &greedy(20)).unwrap();
        let mut got = Vec::new();
        while let Some(event) = generation.next_event() {
            got.extend(event.unwrap().token.map(|token| token.id));
        }
        drop(generation);
        assert_eq!(got, picked, "{name}");
        let all = [&text[..], &picked[..]].concat();
        for (cut, more) in [(109, 2), (70, 20), (0, 5)] {
            session.cut_back(cut);
            let more = tokens(9, more);
            let want = logits(&cpu, &[&all[..cut], &more[..]].concat());
            near(session.logits(&more).unwrap(), &want, &format!("{name}, cut to {cut}"));
        }
        session.cut_back(0);
        session.prefill(&text[..70]).unwrap();
        let mut bytes = Vec::new();
        session.save(&mut bytes).unwrap();
        let mut restored = engine.restore(&mut Cursor::new(&bytes)).unwrap();
        near(restored.logits(&text[70..]).unwrap(), &want, &format!("{name}, restored"));
        drop((session, restored));

        let prompts = [tokens(1, 70), tokens(2, 30)];
        let want: Vec<Output> = prompts.iter().map(|prompt| alone(&cpu, prompt, &greedy(10))).collect();
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let add = |prompt: &Vec<u32>| Request::new(prompt.clone(), greedy(10));
        let ids: Vec<SeqId> = prompts.iter().map(|prompt| batch.add(&add(prompt)).unwrap()[0]).collect();
        let got = finish(&mut batch);
        assert!(ids.iter().zip(&want).all(|(id, want)| got[id] == *want), "{name}, together");
    }
}

/// Some of 2048 positions, against transformers, which computes delta nets in chunks.
#[test]
fn long_texts_match_transformers() {
    for name in ["qwen35", "qwen35moe"] {
        let [model, text] =
            ["tiny-f16.gguf", "long-prompt.txt"].map(|file| golden(&format!("{name}/{file}")));
        let (Some(model), Some(text)) = (model, text) else { return };
        let rows = npy(&golden(&format!("{name}/long.rows.npy")).expect("a file next to the model"));
        let rows: Vec<usize> =
            rows.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()) as usize).collect();
        let want =
            npy(&golden(&format!("{name}/long.f16.hf-fp32.logits.npy")).expect("a file next to the model"))
                .f32s();
        let options = |options: &mut EngineOptions| options.n_ctx = Some(2048);
        let kernels = sterna::backend::cpu::simd::best();
        let engine = support::logits::engine(Gguf::open(&model).unwrap(), "f32", kernels, options);
        let text = sequences(&text);
        let got = all_logits(&engine, &text);
        let n_vocab = got.len() / text[0].len();
        let of_row = |row: usize| &got[row * n_vocab..(row + 1) * n_vocab];
        let far = rows
            .iter()
            .zip(want.chunks_exact(n_vocab))
            .flat_map(|(row, want)| of_row(*row).iter().zip(want).map(|(got, want)| (got - want).abs()));
        let most = far.fold(0.0, f32::max);
        eprintln!("{name}: {most:e}");
        assert!(most <= 6e-5, "{name}: {most:e}");
    }
}

/// The cached prefix of a text can be saved and restored in another engine, with its state.
#[test]
fn saved_prefixes_work_in_another_engine() {
    let options = EngineOptions { n_seqs: 2, checkpoints: Some(4), ..options() };
    let (first, second) = (open(&options), open(&options));
    let (prompt, salt) = (tokens(1, 400), Arc::from(""));
    let want = alone(&first, &prompt, &greedy(4));
    let mut batch = first.batch(BatchOptions::default()).unwrap();
    batch.add(&Request::new(prompt.clone(), greedy(4))).unwrap();
    finish(&mut batch);
    let mut saved = Vec::new();
    assert_eq!(batch.save_end(&prompt, &salt, &mut saved).unwrap(), 6 * PAGE);
    assert!(saved.len() <= batch.saved_size().most(6 * PAGE));
    drop(batch);

    let mut batch = second.batch(BatchOptions::default()).unwrap();
    assert_eq!(batch.restore(&mut Cursor::new(&saved), &salt).unwrap(), prompt[..6 * PAGE]);
    let id = batch.add(&Request::new(prompt.clone(), greedy(4))).unwrap()[0];
    assert_eq!(finish(&mut batch).remove(&id), Some(want));
    assert_eq!(batch.stats().prefix.hit_tokens, 6 * PAGE as u64);
    drop(batch);
    // Truncated or changed, it is refused.
    let mut broken = saved.clone();
    broken[saved.len() - 40] ^= 1;
    for bytes in [&saved[..saved.len() - 1], &broken] {
        let mut batch = second.batch(BatchOptions::default()).unwrap();
        batch.restore(&mut Cursor::new(bytes), &salt).unwrap_err();
        let stats = batch.stats();
        assert_eq!(stats.states, stats.free_states, "a state leaked");
    }
}

/// Prompts find as much of a restored text as of the saved one, in an engine with few states only its end.
#[test]
fn saved_checkpoints_are_found_again() {
    let of =
        |n_seqs, checkpoints| open(&EngineOptions { n_seqs, checkpoints: Some(checkpoints), ..options() });
    let (text, salt) = (tokens(1, 500), Arc::from(""));
    let cached = |batch: &mut Batch, n: usize| {
        let id = batch.add(&Request::new(text[..n].to_vec(), greedy(1))).unwrap()[0];
        finish(batch);
        batch.stats_of(id).unwrap().cached_tokens
    };
    let found = |batch: &mut Batch| [100, 200, 300, 500].map(|n| cached(batch, n));
    let mut saved = Vec::new();
    let first = of(1, 8);
    let mut batch = first.batch(BatchOptions::default()).unwrap();
    found(&mut batch);
    assert_eq!(found(&mut batch), [64, 192, 256, 448]);
    assert_eq!(batch.save(&text, &salt, &mut saved).unwrap(), 448);
    for checkpoints in [8, 0] {
        let other = of(1, checkpoints);
        let mut batch = other.batch(BatchOptions::default()).unwrap();
        assert_eq!(batch.restore(&mut Cursor::new(&saved), &salt).unwrap(), text[..448]);
        match checkpoints {
            0 => assert_eq!(cached(&mut batch, 500), 448),
            _ => assert_eq!(found(&mut batch), [64, 192, 256, 448]),
        }
        let stats = batch.stats();
        batch.clear_prefix_cache();
        assert_eq!(batch.stats().free_states, stats.states, "a state leaked");
    }
    // A session resumes at the end.
    let session = of(1, 0).restore(&mut Cursor::new(&saved)).unwrap();
    assert_eq!((session.position(), session.n_cached()), (448, 448));
}

/// The self-test of devices with these layers, and of the CPU with its plain kernels.
#[test]
fn devices_pass_the_self_test() {
    let one_of = |name: &str| support::case::backend(name, 1);
    let devices = || ["cuda-simt", "wgpu"].into_iter().filter_map(one_of).chain(two_cards());
    let golden = ["qwen35moe/tiny-f16.gguf", "qwen35/tiny-rot-pq2_0.gguf"].into_iter().filter_map(golden);
    let files = golden.map(|path| (Gguf::open(&path).unwrap(), "f16"));
    let plain = Cpu::with_kernels(1, sterna::backend::cpu::simd::all()[0]).unwrap();
    let mut cpu: Option<Box<dyn Backend>> = Some(Box::new(plain));
    for (at, (file, kv)) in [(model(), "turboquant")].into_iter().chain(files).enumerate() {
        let (cache_type_k, cache_type_v) = (kv.parse().unwrap(), kv.parse().unwrap());
        let options = EngineOptions { cache_type_k, cache_type_v, ..options() };
        // Each file on one device, the last on two cards.
        for mut backend in cpu.take().into_iter().chain(devices().skip(at).take(1)) {
            let layers = FewLayers::of(&file, &options, &*backend, &selftest::LAYER_STEPS).unwrap();
            let layers = layers.read().unwrap();
            let found = selftest::check_for(&layers, &mut *backend).unwrap();
            assert_eq!(found, None, "{} on {}", layers.program.name, backend.device());
        }
    }
}
