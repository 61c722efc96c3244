//! Embeddings of texts: an encoder's against the f64 oracle, a decoder's against the logits that its head
//! computes from them. Neither depends on the rest of the batch.

use std::collections::BTreeMap;

use sterna::Error;
use sterna::backend::{Backend, cpu::Cpu};
use sterna::engine::{
    self, Batch, BatchOptions, Engine, EngineOptions, FewLayers, Pooled, Request, SeqId, StopReason,
};
use sterna::gguf::{Gguf, GgufWriter, type_id};
use sterna::model::Pooling;
use sterna::program::{PageTable, Row, Step};
use sterna::selftest;
use sterna::synth::{Preset, Spec, Synth};
use support::oracle::Oracle;

use super::batch::{engine, engine_on, greedy, tokens};

/// Two layers, 128 positions.
fn encoder() -> Gguf {
    let spec = Preset::by_name("tiny-bert").unwrap().spec(Some("f32"), Some("f32"), 5).unwrap();
    of_spec(&spec)
}

fn of_spec(spec: &Spec) -> Gguf {
    let mut file = Vec::new();
    Synth::new(spec).unwrap().write(&mut file, |_| std::ops::ControlFlow::Continue(())).unwrap();
    Gguf::from_bytes(file.into()).unwrap()
}

fn options() -> EngineOptions {
    let f32s = ggml_types::kv_by_name("f32").unwrap();
    EngineOptions {
        threads: Some(1),
        n_seqs: 4,
        n_ctx: Some(128),
        batch: 16,
        pooling: Some(Pooling::Mean),
        cache_type_k: f32s,
        cache_type_v: f32s,
        ..EngineOptions::default()
    }
}

fn open(gguf: Gguf, options: &EngineOptions, backend: Box<dyn Backend>) -> Engine {
    Engine::on_backend(gguf, options, backend, |_| ()).unwrap()
}

fn on_cpu(gguf: Gguf, options: &EngineOptions) -> Engine {
    open(gguf, options, Box::new(Cpu::new(2).unwrap()))
}

/// Vectors of the texts, in order.
fn vectors(batch: &mut Batch, texts: &[(Vec<u32>, Pooled)]) -> Vec<Vec<f32>> {
    let add =
        |(text, pooled): &(Vec<u32>, Pooled)| batch.add(&Request::pooled(text.clone(), *pooled)).unwrap()[0];
    let ids: Vec<SeqId> = texts.iter().map(add).collect();
    let mut found = BTreeMap::new();
    while !batch.is_idle() {
        for (id, event) in batch.step().unwrap() {
            if ids.contains(&id) {
                assert_eq!((event.token, event.end), (None, Some(StopReason::Limit)));
                found.insert(id, batch.take_vector(id).expect("it ended with this step"));
            }
        }
    }
    ids.iter().map(|id| found.remove(id).expect("each text ends")).collect()
}

pub(super) fn alone(engine: &Engine, text: &[u32]) -> Vec<f32> {
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    vectors(&mut batch, &[(text.to_vec(), Pooled::default())]).remove(0)
}

fn near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= tolerance * largest, "{i}: got {got}, want {want}");
    }
}

/// Output of the final norm for each row of a text, by the oracle.
fn oracle_rows(gguf: &Gguf, options: &EngineOptions, text: &[u32], second: Option<u32>) -> Vec<Vec<f64>> {
    let model = engine::model(gguf, options).unwrap();
    let weights: Vec<_> = model.weights.iter().map(|weight| weight.read().unwrap()).collect();
    let p = &model.program;
    let mut pages = PageTable::new(1, 2);
    pages.seq_mut(0).extend([1, 0]);
    pages.set_second(0, second);
    let row = |(pos, token): (usize, &u32)| Row { token: *token, pos: pos as u32, seq: 0, logits: false };
    let rows: Vec<Row> = text.iter().enumerate().map(row).collect();
    let mut oracle = Oracle::new(p, &weights);
    oracle.run(0..p.stages.len(), &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
    let x = p.buf_named("x").unwrap();
    let dim = p.buf_decl(x).cols;
    let floats = |w: sterna::program::Weight| -> Vec<f64> {
        let (tensor, mut values) = (&weights[w.0 as usize], vec![0.0; dim]);
        tensor.ty.decode_row(&tensor.bytes, 1, 0, &mut values).unwrap();
        values.into_iter().map(f64::from).collect()
    };
    let norm = &model.pooling.norm;
    let (weight, bias) = (floats(norm.weight), floats(norm.bias.expect("a LayerNorm")));
    let normed = |row: &[support::oracle::Near]| -> Vec<f64> {
        let mean = row.iter().map(|x| x.v).sum::<f64>() / dim as f64;
        let variance = row.iter().map(|x| (x.v - mean).powi(2)).sum::<f64>() / dim as f64;
        let factor = (variance + f64::from(norm.eps)).sqrt().recip();
        row.iter().enumerate().map(|(i, x)| (x.v - mean) * factor * weight[i] + bias[i]).collect()
    };
    oracle.read(x, rows.len()).chunks_exact(dim).map(normed).collect()
}

#[test]
fn encoder_vectors_match_the_oracle() {
    let (gguf, options) = (encoder(), options());
    let engine = on_cpu(encoder(), &options);
    assert!(!engine.generates());
    assert_eq!((engine.pooling(), engine.vector_len()), (Pooling::Mean, 128));
    let texts: Vec<_> = [(1, None), (2, Some(1)), (65, None), (128, Some(100)), (33, Some(0)), (64, None)]
        .into_iter()
        .map(|(n, second)| (tokens(n as u32, n), Pooled { second }))
        .collect();
    let got = vectors(&mut engine.batch(BatchOptions::default()).unwrap(), &texts);
    for ((text, Pooled { second }), got) in texts.iter().zip(got) {
        let rows = oracle_rows(&gguf, &options, text, second.map(|at| at as u32));
        let mean = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64;
        // Two layers in f32: some dozens of roundings of values near 1.
        near(&got, &(0..128).map(mean).collect::<Vec<_>>(), 1e-5);
    }
}

/// Other poolings of the same rows, and a classifier on the first row.
#[test]
fn poolings_match_the_oracle() {
    let text = tokens(3, 20);
    let rows = oracle_rows(&encoder(), &options(), &text, None);
    for (pooling, want) in
        [(Pooling::None, rows.concat()), (Pooling::Cls, rows[0].clone()), (Pooling::Last, rows[19].clone())]
    {
        let engine = on_cpu(encoder(), &EngineOptions { pooling: Some(pooling), ..options() });
        near(&alone(&engine, &text), &want, 1e-5);
    }
    // The classifier: a layer with tanh, and a layer with a single output.
    let gguf = encoder();
    let weights = |name: &str| {
        let tensor = gguf.file_tensor(gguf.find(name).unwrap()).unwrap().read().unwrap();
        let mut rows = vec![0.0; tensor.rows * tensor.cols];
        for (i, row) in rows.chunks_exact_mut(tensor.cols).enumerate() {
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, i, row).unwrap();
        }
        rows
    };
    let layer = |stem: &str, x: &[f64]| -> Vec<f64> {
        let (rows, bias) = (weights(&format!("{stem}.weight")), weights(&format!("{stem}.bias")));
        let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
        rows.chunks_exact(x.len()).zip(bias).map(|(row, bias)| dot(row) + f64::from(bias)).collect()
    };
    let hidden: Vec<f64> = layer("cls", &rows[0]).into_iter().map(f64::tanh).collect();
    let engine = on_cpu(encoder(), &EngineOptions { pooling: Some(Pooling::Rank), ..options() });
    assert_eq!(engine.vector_len(), 1);
    near(&alone(&engine, &text), &layer("cls.output", &hidden), 1e-5);
}

/// In a model with a single token type, the second text has that type, too.
#[test]
fn pairs_with_a_single_token_type_match_one_text() {
    let (whole, mut file) = (encoder(), Vec::new());
    let tensors: Vec<_> =
        whole.tensors().iter().map(|t| whole.file_tensor(t).unwrap().read().unwrap()).collect();
    let n_rows = |name: &str, rows: usize| if name == "token_types.weight" { 1 } else { rows };
    let mut writer = GgufWriter::new(whole.metadata().clone()).unwrap();
    for (info, t) in whole.tensors().iter().zip(&tensors) {
        let rows = n_rows(&t.name, t.rows);
        let dims = if info.dims.len() == 1 { vec![t.cols] } else { vec![rows, t.cols] };
        writer
            .tensor(&t.name, &dims, type_id(t.ty).unwrap(), (rows * t.bytes.len() / t.rows) as u64)
            .unwrap();
    }
    let mut data = writer.begin(&mut file).unwrap();
    for t in &tensors {
        let n_bytes = n_rows(&t.name, t.rows) * t.bytes.len() / t.rows;
        data.tensor([t.bytes[..n_bytes].to_vec()]).unwrap();
    }
    data.finish().unwrap();
    let engine = on_cpu(Gguf::from_bytes(file.into()).unwrap(), &options());
    let (text, pooled) = (tokens(4, 30), Pooled { second: Some(10) });
    let pair = vectors(&mut engine.batch(BatchOptions::default()).unwrap(), &[(text.clone(), pooled)]);
    assert_eq!(pair, [alone(&engine, &text)]);
}

#[test]
fn vectors_do_not_depend_on_the_batch() {
    let engine = on_cpu(encoder(), &options());
    let texts: Vec<_> =
        (0..20).map(|i| (tokens(i, 1 + (i as usize * 37) % 128), Pooled::default())).collect();
    let together = vectors(&mut engine.batch(BatchOptions::default()).unwrap(), &texts);
    for ((text, _), together) in texts.iter().zip(together) {
        assert_eq!(alone(&engine, text), together, "{} tokens", text.len());
    }
}

/// The head times the vector gives the logits, with the weights from the file.
#[test]
fn decoder_vectors_give_the_logits() {
    let engine = engine(|options| options.pooling = None);
    assert_eq!(engine.pooling(), Pooling::Last);
    let text = tokens(7, 100);
    let vector = alone(&engine, &text);
    let head =
        engine.gguf().find("output.weight").or_else(|| engine.gguf().find("token_embd.weight")).unwrap();
    let head = engine.gguf().file_tensor(head).unwrap().read().unwrap();
    let mut row = vec![0.0; head.cols];
    let want: Vec<f64> = (0..head.rows)
        .map(|i| {
            head.ty.decode_row(&head.bytes, head.rows, i, &mut row).unwrap();
            row.iter().zip(&vector).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
        })
        .collect();
    let mut session = engine.session().unwrap();
    near(session.logits(&text).unwrap(), &want, 1e-5);
}

/// Vectors do not depend, to the bit, on chunks, on texts that are generated in the same steps, or on few
/// pages; and generated texts do not depend on vectors.
#[test]
fn vectors_and_generated_texts_share_steps() {
    let texts: Vec<_> = (0..7).map(|i| (tokens(i, 10 + 40 * i as usize), Pooled::default())).collect();
    for pooling in [Pooling::Last, Pooling::Mean] {
        let engine = engine(|options| options.pooling = Some(pooling));
        let want: Vec<Vec<f32>> = texts.iter().map(|(text, _)| alone(&engine, text)).collect();
        let written = |batch: &mut Batch, with: &[(Vec<u32>, Pooled)]| {
            let id = batch.add(&Request::new(tokens(50, 30), greedy(60))).unwrap()[0];
            let ids: Vec<_> = with
                .iter()
                .map(|(text, pooled)| batch.add(&Request::pooled(text.clone(), *pooled)).unwrap()[0])
                .collect();
            let (mut picked, mut found) = (Vec::new(), BTreeMap::new());
            while !batch.is_idle() {
                for (of, event) in batch.step().unwrap() {
                    picked.extend(event.token.filter(|_| of == id).map(|token| token.id));
                    if ids.contains(&of) {
                        found.insert(of, batch.take_vector(of).unwrap());
                    }
                }
            }
            (picked, found.into_values().collect::<Vec<_>>(), batch.stats().free_pages)
        };
        // The full page of the text is cached; vectors cache none.
        let (picked, _, free) = written(&mut engine.batch(BatchOptions::default()).unwrap(), &[]);
        for chunk in [None, Some(5)] {
            let mut batch = engine.batch(BatchOptions { chunk, ..BatchOptions::default() }).unwrap();
            let want = (picked.clone(), want.clone(), free);
            assert_eq!(written(&mut batch, &texts), want, "chunks of {chunk:?}");
        }
    }
}

#[test]
fn invalid_embedding_requests_are_refused() {
    let of = |texts: &[u32]| Request::pooled(texts.to_vec(), Pooled::default());
    let engine = on_cpu(encoder(), &options());
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let mut refused = |request: &Request| batch.add(request).unwrap_err();
    assert!(matches!(refused(&of(&[])), Error::EmptyPrompt));
    assert!(matches!(refused(&of(&[640])), Error::Token { token: 640, n_vocab: 640 }));
    assert!(matches!(refused(&of(&[1; 129])), Error::ContextFull { n_ctx: 128, .. }));
    assert!(matches!(refused(&Request { n: 2, ..of(&[1]) }), Error::Option { option: "Request::n", .. }));
    let message = refused(&Request::new(vec![1], greedy(1))).to_string();
    assert!(
        message.contains("`bert` only makes embeddings") && message.contains("sterna embed"),
        "{message}"
    );
    drop(batch);
    assert!(matches!(engine.session(), Err(Error::NoHead { .. })));
    let options_of_rank = EngineOptions { pooling: Some(Pooling::Rank), ..EngineOptions::default() };
    let decoder = of_spec(&Preset::by_name("tiny").unwrap().spec(None, None, 1).unwrap());
    let refused = Engine::on_backend(decoder, &options_of_rank, Box::new(Cpu::new(1).unwrap()), |_| ());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("EngineOptions::pooling: want none, mean, cls or last"), "{message}");
    let turboquant = ggml_types::kv_by_name("turboquant").unwrap();
    let options = EngineOptions { cache_type_k: turboquant, ..options() };
    let refused = Engine::on_backend(encoder(), &options, Box::new(Cpu::new(1).unwrap()), |_| ());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("cache_type_k: want a KV cache type that keeps no window"), "{message}");
}

/// Each step is a whole text.
#[test]
fn encoders_pass_the_self_test() {
    for name in ["cpu", "cuda-simt", "wgpu"] {
        let Some(mut backend) = support::case::backend(name, 1) else { continue };
        let layers = FewLayers::of(&encoder(), &options(), &*backend, &selftest::LAYER_STEPS).unwrap();
        let layers = layers.read().unwrap();
        let found = selftest::check_for(&layers, &mut *backend).unwrap();
        assert_eq!(found, None, "{name}");
    }
}

#[test]
fn device_vectors_match_the_cpu() {
    for name in ["cuda-simt", "wgpu"] {
        let Some(backend) = support::case::backend(name, 1) else { continue };
        let text = tokens(9, 90);
        let want: Vec<f64> =
            alone(&on_cpu(encoder(), &options()), &text).into_iter().map(f64::from).collect();
        near(&alone(&open(encoder(), &options(), backend), &text), &want, 1e-4);
        let of_decoder = |name| Some(alone(&engine_on(name, |options| options.n_seqs = 1)?, &text));
        let want: Vec<f64> = of_decoder("cpu").unwrap().into_iter().map(f64::from).collect();
        // A few int8 roundings flip.
        near(&of_decoder(name).unwrap(), &want, 2e-2);
    }
}
