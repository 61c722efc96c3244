//! Vision towers and prompts with images, against transformers. The README of each folder of golden data
//! describes how it was created, and how far its references are apart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna::engine::vision::{Pixels, TokenLimits};
use sterna::engine::{
    Batch, BatchOptions, Engine, EngineOptions, GenerateOptions, ImageRows, Mmproj, PlacedImage, Request,
    SamplerOptions,
};
use sterna::gguf::Gguf;
use sterna::model::vision::Vision;
use support::{golden, npy};

use super::speculation::Hints;

/// Folder of the golden data, its images, and whether each is decoded without loss.
const CASES: [(&str, [(&str, bool); 3]); 4] = [
    ("vision-gemma3", [("square", true), ("wide", true), ("large", false)]),
    ("vision-qwen35", [("exact", true), ("small", true), ("large", false)]),
    ("vision-qwen3vl", [("exact", true), ("wide", true), ("large", false)]),
    ("vision-gemma4v", [("exact", true), ("small", true), ("large", false)]),
];

fn engine(folder: &Path, mmproj: &str, outputs: usize) -> Engine {
    engine_with(folder, mmproj, |options| options.outputs = outputs)
}

fn engine_with(folder: &Path, mmproj: &str, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let file = folder.join(mmproj);
    let mut options = EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(2),
        n_ctx: Some(512),
        n_seqs: 3,
        cache_type_k: "f32".parse().unwrap(),
        cache_type_v: "f32".parse().unwrap(),
        mmproj: Some(Mmproj { file, ..Mmproj::default() }),
        ..EngineOptions::default()
    };
    change(&mut options);
    Engine::open(folder.join("text.gguf"), &options).unwrap()
}

fn pixels(folder: &Path, image: &str) -> Pixels {
    let pixels = npy(&folder.join(format!("{image}.pixels.npy")));
    let [3, height, width] = pixels.shape[..] else { panic!("{:?}", pixels.shape) };
    Pixels { width, height, values: pixels.f32s() }
}

/// Largest and mean distance.
fn apart(got: &[f32], want: &[f32]) -> (f32, f32) {
    assert_eq!(got.len(), want.len());
    let distances: Vec<f32> = got.iter().zip(want).map(|(a, b)| (a - b).abs()).collect();
    let most = distances.iter().copied().fold(0.0, f32::max);
    (most, distances.iter().sum::<f32>() / distances.len() as f32)
}

fn folders() -> impl Iterator<Item = (PathBuf, [(&'static str, bool); 3])> {
    CASES.into_iter().filter_map(|(folder, images)| Some((golden(folder)?, images)))
}

/// Each row followed by the further rows of its token.
fn whole(rows: &ImageRows) -> Vec<f32> {
    let dim = rows.values().len() / rows.len();
    let lists: Vec<&[f32]> =
        [rows.values()].into_iter().chain(rows.deepstack().iter().map(Vec::as_slice)).collect();
    (0..rows.len())
        .flat_map(|at| lists.iter().flat_map(move |list| &list[at * dim..][..dim]))
        .copied()
        .collect()
}

/// 1e-5 for rows with a standard deviation of 0.4 to 1: f32 sums in another order. The smallest mistake that
/// the golden data knows is 7e-5 in the mean.
#[test]
fn rows_of_a_tower_match_transformers() {
    for (folder, images) in folders() {
        let engine = engine(&folder, "mmproj.gguf", 1);
        for (image, _) in images {
            let rows = engine.vision().unwrap().encode_pixels(&pixels(&folder, image)).unwrap();
            let want = npy(&folder.join(format!("{image}.hf-fp32.embd.npy")));
            assert_eq!(want.shape[0], rows.len(), "{image}");
            let (most, mean) = apart(&whole(&rows), &want.f32s());
            eprintln!("{} {image}: most {most:e}, mean {mean:e}", folder.display());
            assert!(most <= 1e-5, "{} {image}: {most:e} apart", folder.display());
        }
    }
}

/// Files of early 2025 have exchanged the names of two layers.
#[test]
fn old_names_give_the_same_rows() {
    let Some(folder) = golden("vision-gemma3") else { return };
    let rows = |mmproj: &str| -> ImageRows {
        let engine = engine(&folder, mmproj, 1);
        engine.vision().unwrap().encode_pixels(&pixels(&folder, "wide")).unwrap()
    };
    assert_eq!(rows("mmproj.gguf"), rows("mmproj-old-names.gguf"));
}

fn ids(prompt: &serde_json::Value, key: &str) -> Vec<u32> {
    prompt[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Logits of every position, those of the image included, in two steps or more. 5e-5 in the mean for logits
/// with a standard deviation of 1 to 1.4, from the pixels of the golden data; the smallest mistake is 4e-4.
/// From a JPEG, the bounds of the golden data for another decoder.
#[test]
fn logits_around_an_image_match_transformers() {
    for (folder, images) in folders() {
        let prompts = prompts(&folder);
        // An image whose rows see each other needs as many rows of logits.
        let outputs = if folder.ends_with("vision-gemma4v") { 280 } else { 24 };
        let engine = engine(&folder, "mmproj.gguf", outputs);
        let mut session = engine.session().unwrap();
        for (image, is_exact) in images {
            let prompt = &prompts["images"][image];
            let tower = engine.vision().unwrap();
            let of_pixels = tower.encode_pixels(&pixels(&folder, image)).unwrap();
            let of_file = engine.encode_image(&picture(&folder, prompt["file"].as_str().unwrap())).unwrap();
            let of_jpeg = prompts["bound_mean"]["jpg"].as_f64().unwrap() as f32;
            for (rows, bound) in
                [(Arc::new(of_pixels), 5e-5), (of_file, if is_exact { 5e-5 } else { of_jpeg })]
            {
                session.cut_back(0);
                session.push(&ids(prompt, "before")).unwrap();
                session.push_image(&rows).unwrap();
                session.push(&ids(prompt, "after")).unwrap();
                let mut got = Vec::new();
                let each = |_, logits: &[f32]| {
                    got.extend_from_slice(logits);
                    Ok::<_, sterna::engine::Error>(())
                };
                session.pushed_logits(each).unwrap();
                let want = npy(&folder.join(format!("{image}.hf-fp32.logits.npy"))).f32s();
                let (most, mean) = apart(&got, &want);
                eprintln!("{} {image}: most {most:e}, mean {mean:e}", folder.display());
                assert!(mean <= bound, "{} {image}: {mean:e} apart", folder.display());
            }
        }
    }
}

fn prompts(folder: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("prompts.json")).unwrap()).unwrap()
}

/// The picture of an image file of the golden data.
fn picture(folder: &Path, file: &str) -> sterna::engine::Picture {
    sterna::image::decode(&std::fs::read(folder.join(file)).unwrap()).unwrap()
}

/// PNGs are exact. The JPEG decoder differs from libjpeg-turbo by a few of 255 in some pixels.
#[test]
fn pixels_are_those_of_pillow() {
    for (folder, images) in folders() {
        let engine = engine(&folder, "mmproj.gguf", 1);
        for (image, is_exact) in images {
            let file = format!("{image}.{}", if is_exact { "png" } else { "jpg" });
            let got = engine.vision().unwrap().pixels(&picture(&folder, &file)).unwrap().pixels.remove(0);
            let want = pixels(&folder, image);
            assert_eq!((got.width, got.height), (want.width, want.height), "{} {image}", folder.display());
            let (most, mean) = apart(&got.values, &want.values);
            eprintln!("{} {image}: most {most:e}, mean {mean:e}", folder.display());
            assert!(if is_exact { most == 0.0 } else { mean <= 3e-3 }, "{} {image}", folder.display());
        }
    }
}

fn request(engine: &Engine, folder: &Path, prompts: &serde_json::Value, images: &[&str]) -> Request {
    let (mut tokens, mut placed) = (Vec::new(), Vec::new());
    for image in images {
        let prompt = &prompts["images"][image];
        tokens.extend(ids(prompt, "before"));
        let rows = engine.encode_image(&picture(folder, prompt["file"].as_str().unwrap())).unwrap();
        placed.push(PlacedImage::append(rows, &mut tokens));
        tokens.extend(ids(prompt, "after"));
    }
    let options = GenerateOptions {
        sampler: SamplerOptions::greedy(),
        max_tokens: Some(16),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    Request { images: placed, ..Request::new(tokens, options) }
}

/// Generated tokens per request, and the number of prompt tokens found in the prefix cache.
fn run(batch: &mut Batch, requests: &[Request]) -> Vec<(Vec<u32>, usize)> {
    let ids: Vec<_> = requests.iter().map(|request| batch.add(request).unwrap()[0]).collect();
    let mut results = vec![(Vec::new(), 0); ids.len()];
    while !batch.is_idle() {
        for (id, event) in batch.step().unwrap() {
            let at = ids.iter().position(|known| *known == id).unwrap();
            results[at].0.extend(event.token.map(|token| token.id));
            results[at].1 = batch.stats_of(id).unwrap().cached_tokens;
            assert!(event.fault.is_none(), "{:?}", event.fault);
        }
    }
    results
}

/// Steps of 8 rows for prompts do not cut an image of 16 rows whose rows see each other, and prompts with
/// images share steps with others.
#[test]
fn a_batch_generates_the_tokens_of_transformers() {
    for (folder, images) in folders() {
        let prompts = prompts(&folder);
        let engine = engine(&folder, "mmproj.gguf", 24);
        let images: Vec<&str> =
            images.iter().filter(|(_, is_exact)| *is_exact).map(|(image, _)| *image).collect();
        let mut requests: Vec<Request> =
            images.iter().map(|image| request(&engine, &folder, &prompts, &[image])).collect();
        requests.push(Request { images: Vec::new(), ..requests[0].clone() });
        for chunk in [None, Some(8)] {
            let mut batch = engine.batch(BatchOptions { chunk, ..BatchOptions::default() }).unwrap();
            let results = run(&mut batch, &requests);
            for (image, (got, _)) in images.iter().zip(&results) {
                let want = ids(&prompts["images"][image], "greedy");
                assert_eq!(*got, want, "{} {image}, {chunk:?}", folder.display());
            }
            assert_ne!(results[0].0, results[2].0, "placeholders without an image");
        }
    }
}

/// A prompt that begins with the same images is found in the prefix cache, one with another image is not.
#[test]
fn prompts_share_pages_only_with_the_same_images() {
    let Some(folder) = golden("vision-gemma3") else { return };
    let prompts = prompts(&folder);
    let engine = engine(&folder, "mmproj.gguf", 24);
    let of = |images: &[&str]| request(&engine, &folder, &prompts, images);
    let (first, other) = (of(&["square", "wide"]), of(&["wide", "square"]));
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let fresh = run(&mut batch, std::slice::from_ref(&first));
    let again = run(&mut batch, &[first]);
    let swapped = run(&mut batch, std::slice::from_ref(&other));
    assert_eq!((fresh[0].1, again[0].1, swapped[0].1), (0, 64, 0));
    assert_eq!(fresh[0].0, again[0].0);
    drop(batch);
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    assert_eq!(run(&mut batch, &[other])[0].0, swapped[0].0);
}

/// A conversation in which a new image appears resumes after the pages that it had, and each image is encoded
/// once. The first image, another one of the same size, makes all the difference.
#[test]
fn a_new_image_leaves_the_pages_before_it() {
    let Some(folder) = golden("vision-gemma3") else { return };
    let prompts = prompts(&folder);
    let engine = engine(&folder, "mmproj.gguf", 24);
    let of = |images: &[&str]| request(&engine, &folder, &prompts, images);
    let before = of(&["square", "wide"]);
    let [longer, other] = [of(&["square", "wide", "wide"]), of(&["wide", "wide", "wide"])];
    assert!(longer.prompt.starts_with(&before.prompt) && before.prompt.len() > 64);
    assert_eq!(engine.vision().unwrap().n_encoded(), 2);
    let alone = |request: &Request| {
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        run(&mut batch, std::slice::from_ref(request)).remove(0)
    };
    let fresh = [&longer, &other].map(alone);
    let mut batch = engine.batch(BatchOptions::default()).unwrap();
    let mut cached = |request: &Request| run(&mut batch, std::slice::from_ref(request)).remove(0);
    cached(&before);
    let [longer, other] = [cached(&longer), cached(&other)];
    assert_eq!((longer.1, other.1), (before.prompt.len() / 64 * 64, 0));
    assert_eq!([longer.0, other.0], fresh.map(|(tokens, _)| tokens));
}

/// Drafts after an image, right and wrong ones, do not change the text, whatever its positions are.
#[test]
fn drafts_after_an_image_do_not_change_the_text() {
    for (folder, images) in folders().filter(|(folder, _)| !folder.ends_with("vision-gemma4v")) {
        let prompts = prompts(&folder);
        let engine =
            engine_with(&folder, "mmproj.gguf", |options| (options.outputs, options.drafts) = (24, 3));
        let (image, _) = images[0];
        let mut request = request(&engine, &folder, &prompts, &[image]);
        let want = ids(&prompts["images"][image], "greedy");
        let text = [request.prompt.as_slice(), &want].concat();
        request.options.speculation = Some(Arc::new(Hints { text, wrong: 5 }));
        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let got = run(&mut batch, &[request]).remove(0).0;
        assert_eq!(got, want, "{}", folder.display());
        let stats = batch.stats();
        assert!(stats.accepted_tokens >= 4 && stats.drafted_tokens > stats.accepted_tokens, "{stats:?}");
    }
}

/// A PNG that ends where its pixels begin, with a valid header.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    chunk.extend([8, 2, 0, 0, 0]);
    let sum = crc32fast::hash(&chunk).to_be_bytes();
    [b"\x89PNG\r\n\x1a\n".as_slice(), &13_u32.to_be_bytes(), &chunk, &sum, b"\0\0\0\x08IDAT\x78\x9c"].concat()
}

#[test]
fn pictures_beyond_the_limits_are_refused_by_their_header() {
    for (size, word) in
        [([60000, 60000], "60000 x 60000"), ([16385, 1], "16384"), ([16000, 16000], "in total")]
    {
        let message = sterna::image::decode(&png_header(size[0], size[1])).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    let message = sterna::image::decode(&png_header(8, 8)).unwrap_err().to_string();
    assert!(message.contains("cannot be decoded"), "{message}");
    let long = vec![0; sterna::image::MAX_BYTES + 1];
    assert!(sterna::image::decode(&long).unwrap_err().to_string().contains("at most"));
    assert!(sterna::image::decode(b"GGUF").unwrap_err().to_string().contains("not an image"));
}

/// Files of one or two pixels, written by hand: BMP (two pixels, red and blue), GIF and WebP.
#[test]
fn every_format_is_decoded() {
    let mut bmp = b"BM\x3e\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bmp.extend([2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 24, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
    bmp.extend([0; 16]);
    bmp.extend([0, 0, 255, 255, 0, 0, 0, 0]);
    let gif = b"GIF89a\x01\0\x01\0\x80\0\0\xff\x80\0\0\0\0\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0\x3b";
    let webp = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\0\0\0\x10\x07\x10\x11\x11\x88\x88\xfe\x07\0";
    let picture = sterna::image::decode(&bmp).unwrap();
    assert_eq!((picture.width(), picture.height(), picture.rgb()), (2, 1, &[255, 0, 0, 0, 0, 255][..]));
    assert_eq!(sterna::image::decode(gif).unwrap().rgb(), [255, 128, 0]);
    let picture = sterna::image::decode(webp).unwrap();
    assert_eq!((picture.width(), picture.height()), (1, 1));
}

/// A photo that lies on its side (orientation 6) is turned.
#[test]
fn orientation_is_applied() {
    let Some(folder) = golden("vision-qwen35") else { return };
    let plain = std::fs::read(folder.join("large.jpg")).unwrap();
    // One entry of type SHORT: tag 0x0112 with the value 6.
    let exif = b"Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let len = (exif.len() as u16 + 2).to_be_bytes();
    let turned = [&plain[..2], b"\xff\xe1", &len, exif, &plain[2..]].concat();
    let [plain, turned] = [plain, turned].map(|file| sterna::image::decode(&file).unwrap());
    let [width, height] = [plain.width() as usize, plain.height() as usize];
    assert_eq!((turned.width() as usize, turned.height() as usize), (height, width));
    // A quarter turn to the right: the first row was the first column, from the bottom.
    let was: Vec<u8> =
        (0..height).rev().flat_map(|row| &plain.rgb()[3 * row * width..][..3]).copied().collect();
    assert_eq!(turned.rgb()[..3 * height], was);
    assert_ne!(plain.id(), turned.id());
}

/// llama.cpp's files of Gemma 4 do not name the activation function of the tower; others must.
#[test]
fn only_towers_of_gemma_4_need_no_activation() {
    let read = |folder: &str, named: bool| {
        let mut bytes = std::fs::read(golden(&format!("{folder}/mmproj.gguf"))?).unwrap();
        if !named {
            let key = b"clip.use_gelu";
            let at = bytes.windows(key.len()).position(|word| word == key).unwrap();
            bytes[at..at + key.len()].copy_from_slice(b"tool.use_gelu");
        }
        Some(Vision::read(&Gguf::from_bytes(bytes.into()).unwrap(), TokenLimits::default()))
    };
    let (Some(named), Some(unnamed)) = (read("vision-gemma4v", true), read("vision-gemma4v", false)) else {
        return;
    };
    let text = |vision: Vision| vision.tower.program.to_string();
    assert_eq!(text(named.unwrap()), text(unnamed.unwrap()));
    let message = read("vision-gemma3", false).unwrap().unwrap_err().to_string();
    assert!(message.contains("clip.use_gelu") && message.contains("quick GELU"), "{message}");
}
