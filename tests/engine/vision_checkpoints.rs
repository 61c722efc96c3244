//! Checkpoints of models for images as transformers saves them, converted to a text model and an mmproj file:
//! pixels, rows and logits are those that transformers computes from the checkpoint
//! (`scripts/golden/vision`).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna::backend;
use sterna::convert::{ConvertOptions, Converter, Outtype};
use sterna::engine::vision::Pixels;
use sterna::engine::{Engine, EngineOptions, ImageRows, Mmproj};
use sterna::gguf::Gguf;
use sterna::model::vision::{Sizing, Vision};
use sterna::program::{PAGE, Stage};
use support::case::wgpus;
use support::{golden, npy, root};

use super::every_architecture::rewritten;
use super::hostile_model::renamed;

/// The checkpoints.
const CASES: [&str; 11] = [
    "gemma3",
    "gemma4",
    "qwen3vl",
    "qwen35",
    "mistral3",
    "llava-pixtral",
    "qwen25vl",
    "idefics3",
    "lfm2",
    "qwen2vl",
    // Experts of one layer are stored as in published checkpoints, of the other as transformers 5 does.
    "qwen3vlmoe",
];

/// f32 sums in another order: the largest distance of rows and of logits, in units of their standard
/// deviation. The smallest mistake that the golden data of towers knows is 4e-4 of logits in the mean.
const BOUNDS: [f32; 2] = [1e-5, 4e-5];

fn file(name: &str) -> PathBuf {
    root().join("tests/data/golden/vision").join(name)
}

fn written(folder: &Path, options: &ConvertOptions) -> Vec<u8> {
    let converter =
        Converter::open(folder, options).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    let mut out = Vec::new();
    converter.quantizer().unwrap().write(&mut out, |_| ControlFlow::Continue(())).unwrap();
    out
}

fn to(outtype: &str) -> ConvertOptions {
    ConvertOptions { outtype: Outtype::named(outtype).unwrap(), threads: 1, ..ConvertOptions::default() }
}

/// An engine over both files of a checkpoint.
fn engine(name: &str, outtype: &str, dir: &Path, (device, on_cpu): (&str, bool)) -> Engine {
    let [text, mmproj] = ["text", "mmproj"].map(|part| dir.join(format!("{name}-{part}.gguf")));
    std::fs::write(&text, written(&file(name), &ConvertOptions { text_only: true, ..to("f32") })).unwrap();
    std::fs::write(&mmproj, written(&file(name), &ConvertOptions { mmproj: true, ..to(outtype) })).unwrap();
    let options = EngineOptions {
        device: device.parse().unwrap(),
        threads: Some(1),
        n_ctx: Some(256),
        outputs: PAGE,
        cache_type_k: "f32".parse().unwrap(),
        cache_type_v: "f32".parse().unwrap(),
        mmproj: Some(Mmproj { file: mmproj, tokens: limits(name), on_cpu }),
        ..EngineOptions::default()
    };
    Engine::open(text, &options).unwrap_or_else(|err| panic!("{name}: {err}"))
}

fn most(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn deviation(values: &[f32]) -> f32 {
    (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt()
}

/// Each row followed by the further rows of its token.
fn whole(rows: &ImageRows) -> Vec<f32> {
    let dim = rows.values().len() / rows.len();
    let lists = || [rows.values()].into_iter().chain(rows.deepstack().iter().map(Vec::as_slice));
    (0..rows.len()).flat_map(|at| lists().flat_map(move |list| list[at * dim..][..dim].to_vec())).collect()
}

/// The limits on tokens that the checkpoint's image processor has, where files have none.
fn limits(name: &str) -> sterna::engine::vision::TokenLimits {
    let of = |min, max| sterna::engine::vision::TokenLimits { min, max };
    match name {
        "gemma4" => of(None, Some(70)),
        "qwen3vl" | "qwen3vlmoe" | "qwen35" | "qwen25vl" | "qwen2vl" => of(Some(4), Some(40)),
        _ => of(None, None),
    }
}

#[test]
fn converted_checkpoints_compute_what_transformers_computes() {
    check(&CASES, ("cpu", false));
}

/// Texts and towers on one device.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn images_on_wgpu() {
    if !wgpus().is_empty() {
        check(&CASES, ("wgpu", false));
    }
}

/// The same on CUDA, and once with the tower on the CPU.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn images_on_cuda() {
    if backend::open("cuda-simt", 1).is_ok() {
        check(&["gemma3", "gemma4", "qwen3vl", "mistral3", "qwen25vl", "qwen2vl"], ("cuda-simt", false));
        check(&["gemma3"], ("cuda-simt", true));
    }
}

/// Compares what the files of these checkpoints compute on a device, with the tower there or on the CPU.
fn check(names: &[&str], device: (&str, bool)) {
    let dir = tempfile::tempdir().unwrap();
    let prompts: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file("prompts.json")).unwrap()).unwrap();
    let mut faults = Vec::new();
    for &name in names {
        let engine = engine(name, "f32", dir.path(), device);
        let picture = sterna::image::decode(&std::fs::read(file(&format!("{name}.png"))).unwrap()).unwrap();
        let vision = engine.vision().unwrap();
        let mut cut = vision.pixels(&picture).unwrap();
        let values: Vec<f32> = cut.pixels.iter().flat_map(|part| &part.values).copied().collect();
        let want = npy(&file(&format!("{name}.pixels.npy"))).f32s();
        let of_pixels = most(&values, &want);
        let mut want = want.as_slice();
        for part in &mut cut.pixels {
            let (own, more) = want.split_at(part.values.len());
            (part.values, want) = (own.to_vec(), more);
        }
        let rows = vision.encode_cut(&cut, |text| engine.marks(text)).unwrap();
        assert_eq!(rows.len(), engine.image_tokens(&picture).unwrap(), "{name}");
        let ids: Vec<i64> = serde_json::from_value(prompts[name]["ids"].clone()).unwrap();
        // The image may begin with a mark.
        let n_marks = (0..).zip(rows.texts()).take_while(|(at, (row, _))| at == row).count();
        let start = ids.iter().position(|id| *id < 0).unwrap() - n_marks;
        let end = start + rows.len();
        for (row, id) in rows.texts() {
            assert_eq!(ids[start + row], i64::from(*id), "{name}: row {row}");
        }
        let want = npy(&file(&format!("{name}.embd.npy"))).f32s();
        let dim = want.len() / ids.iter().filter(|id| **id < 0).count();
        // Rows that end a row of tokens are ids in the prompt.
        let got = whole(&rows);
        let of_image = got.chunks_exact(dim).zip(&ids[start..]).filter(|(_, id)| **id < 0);
        let of_image: Vec<f32> = of_image.flat_map(|(row, _)| row).copied().collect();
        let of_rows = most(&of_image, &want) / deviation(&want);
        let text = |ids: &[i64]| ids.iter().map(|id| *id as u32).collect::<Vec<u32>>();
        let mut session = engine.session().unwrap();
        session.push(&text(&ids[..start])).unwrap();
        session.push_image(&Arc::new(rows)).unwrap();
        session.push(&text(&ids[end..])).unwrap();
        let mut got = Vec::new();
        let each = |_, logits: &[f32]| {
            got.extend_from_slice(logits);
            Ok::<_, sterna::engine::Error>(())
        };
        session.pushed_logits(each).unwrap();
        let want = npy(&file(&format!("{name}.logits.npy"))).f32s();
        let of_logits = most(&got, &want) / deviation(&want);
        eprintln!("{name}: pixels {of_pixels:e}, rows {of_rows:e}, logits {of_logits:e}");
        // The processor of LFM2-VL does not resize by Pillow: some values differ by one of 255.
        let of_resize = if name == "lfm2" { 1.01 / 255.0 / 0.25 } else { 0.0 };
        if of_pixels > of_resize || of_rows > BOUNDS[0] || of_logits > BOUNDS[1] {
            faults.push(format!("{name}: pixels {of_pixels:e}, rows {of_rows:e}, logits {of_logits:e}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The configuration of Gemma 4 as transformers 5.24 writes it, with the heads of global layers by layer.
#[test]
fn heads_by_layer_give_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    // The name of a model is that of its folder.
    let folder = dir.path().join("gemma4");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(file("gemma4")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.join("config.json");
    let set = |by_layer: serde_json::Value| {
        let mut config: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file("gemma4/config.json")).unwrap()).unwrap();
        let text = config["text_config"].as_object_mut().unwrap();
        assert_eq!(text.remove("global_head_dim").unwrap(), 32);
        text.insert("per_layer_config".to_owned(), by_layer);
        std::fs::write(&path, config.to_string()).unwrap();
    };
    let options = ConvertOptions { text_only: true, ..to("f32") };
    set(serde_json::json!({ "01": { "head_dim": 32 } }));
    assert!(written(&folder, &options) == written(&file("gemma4"), &options));
    // Layer 0 is a local one.
    set(serde_json::json!({ "0": { "head_dim": 32 } }));
    let wrong = Converter::open(&folder, &options).unwrap_err().to_string();
    assert!(wrong.contains("per_layer_config") && wrong.contains("full attention"), "{wrong}");
}

/// Without a type, matrices keep that of the checkpoint, f16 here, whose values it holds.
#[test]
fn types_of_an_mmproj_file() {
    let of = |outtype: &str| {
        let bytes = written(&file("gemma3"), &ConvertOptions { mmproj: true, ..to(outtype) });
        Gguf::from_bytes(bytes.into()).unwrap()
    };
    for (outtype, matrix, projection) in
        [("auto", "f16", "f16"), ("f32", "f32", "f32"), ("bf16", "bf16", "f16")]
    {
        let gguf = of(outtype);
        let ty =
            |name: &str| gguf.tensors().iter().find(|info| info.name == name).unwrap().ty.unwrap().name();
        assert_eq!(ty("v.blk.0.attn_q.weight"), matrix);
        assert_eq!(ty("mm.input_projection.weight"), projection);
        for name in ["v.patch_embd.weight", "v.position_embd.weight", "v.blk.0.ln1.weight", "v.post_ln.bias"]
        {
            assert_eq!(ty(name), "f32", "{name}");
        }
    }
    let wrong = Converter::open(&file("gemma3"), &ConvertOptions { mmproj: true, ..to("q4_k_m") });
    let message = wrong.unwrap_err().to_string();
    assert!(message.contains("f32, f16, bf16, q8_0"), "{message}");
}

/// Keys and tensors are those of llama.cpp's converter for the same models, which the golden files have.
#[test]
fn names_are_those_of_golden_files() {
    for (name, of) in [
        ("gemma3", "vision-gemma3"),
        ("gemma4", "vision-gemma4v"),
        ("qwen3vl", "vision-qwen3vl"),
        ("qwen35", "vision-qwen35"),
    ] {
        let Some(golden) = golden(&format!("{of}/mmproj.gguf")) else { continue };
        let golden = Gguf::open(&golden).unwrap();
        let bytes = written(&file(name), &ConvertOptions { mmproj: true, ..to("auto") });
        let made = Gguf::from_bytes(bytes.into()).unwrap();
        let tensors = |gguf: &Gguf| {
            let of_first_layers = |name: &str| {
                let layer =
                    |prefix: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
                layer("v.blk.").is_none_or(|layer| layer < 2)
                    && layer("v.deepstack.").is_none_or(|layer| layer < 1)
            };
            let mut all: Vec<_> =
                gguf.tensors().iter().map(|info| (info.name.clone(), info.dims.len())).collect();
            all.retain(|(name, _)| of_first_layers(name));
            all.sort();
            all
        };
        assert_eq!(tensors(&made), tensors(&golden), "{name}");
        let keys = |gguf: &Gguf| -> Vec<String> {
            let mut all: Vec<_> = gguf.metadata().iter().map(|(key, _)| key.to_owned()).collect();
            all.retain(|key| key.starts_with("clip."));
            all.sort();
            all
        };
        assert_eq!(keys(&made), keys(&golden), "{name}");
    }
}

/// Keys and tensors as llama.cpp's converters write them: a width of networks that no tensor has, and a
/// placeholder of positions (Qwen2-VL), blocks after the last one (LFM2-VL), bounds on one side, and pictures
/// whose side is no multiple of a patch (384 and 14 in SmolVLM 2.2B).
#[test]
fn unusual_keys_of_published_files_are_read() {
    let made = |name: &str| written(&file(name), &ConvertOptions { mmproj: true, ..to("auto") });
    let open = |bytes: Vec<u8>| Gguf::from_bytes(bytes.into()).unwrap();
    let read = |gguf: &Gguf| Vision::read(gguf, limits("none")).unwrap();
    let text = |vision: &Vision| vision.tower.program.to_string();

    let plain = open(made("qwen2vl"));
    for (width, placeholder) in [(0_u32, Some("v.position_embd.weight")), (32, None)] {
        let changed = rewritten(&plain, "clip.vision.feed_forward_length", width, placeholder);
        assert_eq!(text(&read(&changed)), text(&read(&plain)), "{width}");
    }

    let plain = open(made("lfm2"));
    let shorter = rewritten(&plain, "clip.vision.block_count", 1_u32, None);
    let n_stages = [&plain, &shorter].map(|gguf| read(gguf).tower.program.stages.len());
    assert_eq!(n_stages, [1 + 2 * 5, 1 + 5]);

    let bytes = made("gemma4");
    let queries = |gguf: &Gguf| match &read(gguf).tower.program.stages[1].1 {
        Stage::AttnIn(s) => s.wq.clamp.expect("bounds"),
        stage => panic!("{stage:?}"),
    };
    let both = queries(&open(bytes.clone()));
    let one_sided = queries(&open(renamed(&bytes, "v.blk.0.attn_q.input_max", "a.blk.0.attn_q.input_max")));
    assert_eq!((one_sided.input, one_sided.output), ([both.input[0], f32::INFINITY], both.output));

    let plain = open(made("idefics3"));
    let larger = read(&rewritten(&plain, "clip.vision.image_size", 27_u32, None));
    assert_eq!(larger.sizing, Sizing::Square(27));
    assert_eq!(text(&larger), text(&read(&plain)));
}

/// The rest of a picture that is less than a patch is not read, as by a convolution.
#[test]
fn a_rest_of_less_than_a_patch_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine("idefics3", "f32", dir.path(), ("cpu", false));
    let pixels = |width: usize, of: &dyn Fn(usize, usize) -> f32| Pixels {
        width,
        height: width,
        values: (0..3 * width * width).map(|i| of(i / width, i % width)).collect(),
    };
    let whole = pixels(24, &|line, col| ((line * 31 + col * 7) % 64) as f32 / 32.0 - 1.0);
    let line = |line: usize| (line / 27 * 24 + line % 27, line % 27);
    let larger = pixels(27, &|at, col| match line(at) {
        (at, row) if row < 24 && col < 24 => ((at * 31 + col * 7) % 64) as f32 / 32.0 - 1.0,
        _ => 9.0,
    });
    let [whole, larger] =
        [whole, larger].map(|pixels| engine.vision().unwrap().encode_pixels(&pixels).unwrap());
    assert!(whole == larger);
}

/// Every projector has a checkpoint here, and a row in the documents.
#[test]
fn every_projector_is_converted() {
    let of = |name: &&str| {
        let bytes = written(&file(name), &ConvertOptions { mmproj: true, ..to("auto") });
        let gguf = Gguf::from_bytes(bytes.into()).unwrap();
        let keys = ["clip.projector_type", "clip.vision.projector_type"];
        keys.iter().find_map(|key| gguf.metadata().str(key).unwrap().map(str::to_owned)).unwrap()
    };
    let converted: BTreeSet<String> = CASES.iter().map(of).collect();
    let projectors = sterna::model::vision::REGISTRY.iter().flat_map(|projector| projector.names);
    assert_eq!(converted, projectors.map(|name| (*name).to_owned()).collect());
    for document in ["docs/images.md", "docs/convert.md", "docs/support.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for name in &converted {
            assert!(text.contains(&format!("`{name}`")), "{document}: {name}");
        }
    }
}
