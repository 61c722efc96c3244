//! Mixes and importance matrices, compared with llama.cpp's choices, sums and errors, and invalid matrices.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ggml_types::{QuantType, by_name, types};
use serde::Deserialize;
use sterna::engine::EngineOptions;
use sterna::eval::importance::Importance;
use sterna::gguf::{Gguf, GgufWriter, Metadata, type_id};
use sterna::quantize::{Imatrix, MIXES, Mix, Override, QuantizeOptions, Quantizer, Recipe, mixes_of};
use support::{golden, npy};

/// The properties of a model that the rules use.
#[derive(Clone, Deserialize)]
struct Shape {
    arch: String,
    layers: usize,
    heads: u32,
    kv: u32,
    experts: usize,
    tied: bool,
    cols: usize,
}

/// Output of `llama-quantize --dry-run`: the types per layer, for each name within a block.
#[derive(Deserialize)]
struct Chosen {
    mix: String,
    imatrix: bool,
    types: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Shape {
        case: String,
        #[serde(flatten)]
        shape: Shape,
    },
    Chosen {
        case: String,
        #[serde(flatten)]
        chosen: Chosen,
    },
}

/// Names and dimensions, in an order in which layer 10 does not follow layer 1.
fn tensors(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let (matrix, gpt2) = (vec![4, shape.cols], shape.arch == "gpt2");
    let is_hybrid = shape.arch.starts_with("qwen35");
    let mut out = Vec::new();
    for layer in (0..shape.layers).rev() {
        let mut add = |name: &str, dims: &[usize]| out.push((format!("blk.{layer}.{name}"), dims.to_vec()));
        add("attn_norm.weight", &[shape.cols]);
        let attention: &[&str] = match () {
            () if is_hybrid && layer % 4 != 3 => {
                add("ssm_conv1d.weight", &[4, 4]);
                add("ssm_a", &[4]);
                add("ssm_dt.bias", &[4]);
                add("ssm_norm.weight", &[128]);
                &["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out"]
            }
            () if gpt2 => &["attn_qkv", "attn_output"],
            () => &["attn_q", "attn_k", "attn_v", "attn_output"],
        };
        for name in attention {
            add(&format!("{name}.weight"), &matrix);
        }
        if shape.experts > 0 {
            add("ffn_gate_inp.weight", &[shape.experts, shape.cols]);
            for name in ["gate", "up", "down"] {
                add(&format!("ffn_{name}_exps.weight"), &[shape.experts, 2, shape.cols]);
                if is_hybrid {
                    add(&format!("ffn_{name}_shexp.weight"), &matrix);
                }
            }
            if is_hybrid {
                add("ffn_gate_inp_shexp.weight", &[1, shape.cols]);
            }
        } else {
            for name in ["gate", "up", "down"].into_iter().skip(usize::from(gpt2)) {
                add(&format!("ffn_{name}.weight"), &matrix);
            }
        }
    }
    if gpt2 {
        out.push(("position_embd.weight".to_owned(), matrix.clone()));
    }
    if !shape.tied {
        out.push(("output.weight".to_owned(), matrix.clone()));
    }
    out.push(("token_embd.weight".to_owned(), matrix));
    out
}

fn metadata(shape: &Shape) -> Metadata {
    let arch = &shape.arch;
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", arch.as_str());
    metadata.set(format!("{arch}.block_count"), shape.layers as u32);
    metadata.set(format!("{arch}.attention.head_count"), shape.heads);
    metadata.set(format!("{arch}.attention.head_count_kv"), shape.kv);
    if shape.experts > 0 {
        metadata.set(format!("{arch}.expert_count"), shape.experts as u32);
    }
    metadata
}

/// A file of zeros with this metadata.
fn file(metadata: Metadata, tensors: &[(String, Vec<usize>)], ty: &dyn QuantType) -> Gguf {
    let mut writer = GgufWriter::new(metadata).unwrap();
    let sizes: Vec<usize> = tensors
        .iter()
        .map(|(name, dims)| {
            let (cols, rows) = (dims[dims.len() - 1], dims.iter().rev().skip(1).product());
            let is_small = ["gate_inp", "position", "conv1d"].iter().any(|part| name.contains(part));
            let is_vector = dims.len() < 2 || is_small;
            let ty = if is_vector { &types::F32 } else { ty };
            let bytes = ty.byte_len(rows, cols).unwrap();
            writer.tensor(name, dims, type_id(ty).unwrap(), bytes as u64).unwrap();
            bytes
        })
        .collect();
    let mut data = writer.begin(Vec::new()).unwrap();
    sizes.into_iter().for_each(|bytes| data.tensor([vec![0; bytes]]).unwrap());
    Gguf::from_bytes(data.finish().unwrap().into()).unwrap()
}

/// An importance matrix in which all columns are equally important.
fn even(shape: &Shape) -> Imatrix {
    let mut imatrix = Imatrix::new("text.txt", 1, 512);
    for (name, dims) in tensors(shape).iter().filter(|(_, dims)| dims.len() > 1) {
        let matrices: usize = dims.iter().rev().skip(2).product();
        imatrix.add(name, &vec![1.0; matrices * shape.cols], &vec![1.0; matrices]).unwrap();
    }
    imatrix
}

fn options(mix: &str) -> QuantizeOptions {
    QuantizeOptions::new(Recipe::Mix(Mix::by_name(mix).unwrap()))
}

fn chosen(gguf: &Gguf, options: QuantizeOptions) -> Result<BTreeMap<String, &'static str>, String> {
    let quantizer = Quantizer::new(gguf, options).map_err(|err| err.to_string())?;
    Ok(quantizer.plan().unwrap().into_iter().map(|report| (report.name, report.to.0)).collect())
}

fn cases() -> (BTreeMap<String, Shape>, Vec<(String, Chosen)>) {
    let path = golden("quantize/mixes.jsonl").expect("it is in tests/data");
    let text = std::fs::read_to_string(path).unwrap();
    let (mut shapes, mut lists) = (BTreeMap::new(), Vec::new());
    for line in text.lines() {
        match serde_json::from_str(line).unwrap() {
            Line::Shape { case, shape } => drop(shapes.insert(case, shape)),
            Line::Chosen { case, chosen } => lists.push((case, chosen)),
        }
    }
    (shapes, lists)
}

#[test]
fn mix_types_match_llama_quantize() {
    let (shapes, lists) = cases();
    assert_eq!((shapes.len(), lists.len()), (13, 331));
    let files: BTreeMap<&String, Gguf> = shapes
        .iter()
        .map(|(case, shape)| (case, file(metadata(shape), &tensors(shape), &types::F16)))
        .collect();
    for (case, want) in &lists {
        let imatrix = (want.imatrix || want.mix == "Q2_K_S").then(|| even(&shapes[case]));
        let got = chosen(&files[case], QuantizeOptions { imatrix, ..options(&want.mix) }).unwrap();
        for (name, runs) in &want.types {
            let runs = runs.split(' ').map(|run| run.split_once('*').unwrap_or((run, "1")));
            let by_layer: Vec<&str> =
                runs.flat_map(|(ty, n)| std::iter::repeat_n(ty, n.parse().unwrap())).collect();
            let global = [format!("{name}.weight")].into_iter();
            let of_layers = (0..shapes[case].layers).map(|layer| format!("blk.{layer}.{name}.weight"));
            let names: Vec<String> = global.chain(of_layers).filter(|name| got.contains_key(name)).collect();
            assert_eq!(names.len(), by_layer.len(), "{case} {} {name}", want.mix);
            for (name, ty) in names.iter().zip(by_layer) {
                assert_eq!(got[name], ty, "{case} {} {name}, imatrix: {}", want.mix, want.imatrix);
            }
        }
        // The lists have the quantised tensors. All others keep their type.
        let is_listed = |name: &str| {
            let short = name.strip_suffix(".weight").unwrap_or(name);
            let short = if let Some(rest) = short.strip_prefix("blk.") {
                rest.split_once('.').unwrap().1
            } else {
                short
            };
            want.types.contains_key(short)
        };
        for (name, ty) in got.iter().filter(|(name, _)| !is_listed(name)) {
            assert_eq!(*ty, "f32", "{case} {} {name}", want.mix);
        }
    }
    let without = |mix: &str| chosen(&files[&"llama".to_owned()], options(mix)).unwrap_err();
    assert!(without("Q2_K_S").contains("Q2_K_S needs an importance matrix with an entry for tensor blk."));
}

#[test]
fn options_override_the_mix() {
    let shape = Shape { tied: false, ..cases().0["qwen3"].clone() };
    let gguf = file(metadata(&shape), &tensors(&shape), &types::F16);
    let of = |options: QuantizeOptions| chosen(&gguf, options).unwrap();
    let pure = of(QuantizeOptions { pure: true, ..options("Q4_K_M") });
    assert!(pure.values().all(|ty| ["q4_k", "f32"].contains(ty)), "{pure:?}");
    let left = of(QuantizeOptions { leave_output: true, ..options("Q4_K_M") });
    assert_eq!((left["output.weight"], left["token_embd.weight"]), ("f16", "q4_k"));
    let (head, embd) = (by_name("q8_0"), by_name("q5_k"));
    let heads = of(QuantizeOptions { output: head, token_embd: embd, ..options("Q4_K_M") });
    assert_eq!((heads["output.weight"], heads["token_embd.weight"]), ("q8_0", "q5_k"));

    // As in llama-quantize, the rule does not count layers that have an override.
    let overrides =
        vec![Override::new(r"blk\.[0-2]\.ATTN_V", "q3_k").unwrap(), Override::new("attn_v", "q8_0").unwrap()];
    let named = of(QuantizeOptions { overrides, ..options("Q4_K_M") });
    assert_eq!(
        ["0", "2", "3"].map(|layer| named[&format!("blk.{layer}.attn_v.weight")]),
        ["q3_k", "q3_k", "q8_0"]
    );
    let first = |pattern: &str| {
        let overrides = vec![Override::new(pattern, "q8_0").unwrap()];
        of(QuantizeOptions { overrides, ..options("Q3_K_M") })
    };
    assert_eq!(first("blk.0.attn_v")["blk.1.attn_v.weight"], "q5_k");
    assert_eq!(first("blk.0.attn_v")["blk.2.attn_v.weight"], "q5_k");
    assert_eq!(first("blk.0.attn_q")["blk.2.attn_v.weight"], "q4_k");

    let overrides = vec![Override::new("no_such_thing", "q8_0").unwrap()];
    let unmatched = chosen(&gguf, QuantizeOptions { overrides, ..options("Q4_K_M") }).unwrap_err();
    assert!(unmatched.contains("no tensor name matches `no_such_thing`"), "{unmatched}");
    let said = |pattern: &str, ty: &str| Override::new(pattern, ty).unwrap_err().to_string();
    assert!(said("blk.(", "q8_0").contains("unclosed group"));
    assert!(said("blk", "q9").contains("q9") && said("blk", "q9").contains("iq4_xs"));
}

#[test]
fn mix_is_found_from_the_types_of_a_file() {
    let shape = cases().0["llama"].clone();
    for (mix, ty) in [("Q8_0", "q8_0"), ("F16", "f16")] {
        let gguf = file(metadata(&shape), &tensors(&shape), by_name(ty).unwrap());
        let found: Vec<&str> = mixes_of(&gguf).iter().map(|mix| mix.name).collect();
        // Without experts these two give the same types.
        let want: &[&str] = if mix == "F16" { &[] } else { &["Q8_0", "MXFP4_MOE"] };
        assert_eq!(found, want);
    }
    assert!(mixes_of(&file(Metadata::default(), &tensors(&shape), &types::F16)).is_empty());
    if let Some(path) = golden("llama/tiny-q4_k_m.gguf") {
        let found: Vec<&str> = mixes_of(&Gguf::open(&path).unwrap()).iter().map(|mix| mix.name).collect();
        assert_eq!(found, ["Q4_K_M"]);
    }
}

#[test]
fn models_that_the_rules_do_not_cover_are_refused() {
    let shape = cases().0["mixtral"].clone();
    let mix = |metadata: Metadata, tensors: &[(String, Vec<usize>)]| {
        chosen(&file(metadata, tensors, &types::F16), options("Q4_K_M")).unwrap_err()
    };
    assert!(mix(Metadata::default(), &tensors(&shape)).contains("general.architecture"));
    let falcon = metadata(&Shape { arch: "falcon".into(), ..shape.clone() });
    assert!(mix(falcon.clone(), &tensors(&shape)).contains("not supported for architecture falcon"));
    let pure = QuantizeOptions { pure: true, ..options("Q4_K_M") };
    let falcon = chosen(&file(falcon, &tensors(&shape), &types::F16), pure).unwrap();
    assert_eq!(falcon["output.weight"], "q4_k");
    let far = vec![("blk.32.ffn_down_exps.weight".to_owned(), vec![8, 2, 256])];
    assert!(mix(metadata(&shape), &far).contains("a number below 32"));
    let mut no_layers = metadata(&shape);
    no_layers.set("llama.block_count", "many");
    assert!(mix(no_layers, &tensors(&shape)).contains("llama.block_count"));
}

/// Columns of very different importance. No type may have a larger weighted error than llama.cpp (ggml
/// 0.25.3) with the same importance, whose errors are in `THEIRS`.
#[test]
fn weighted_errors_are_at_most_llama_cpps() {
    const THEIRS: [(&str, f64); 11] = [
        ("q4_0", 798.826247),
        ("q4_1", 422.532371),
        ("q5_0", 207.872453),
        ("q5_1", 110.05162),
        ("q2_k", 5345.32588),
        ("q3_k", 2063.78411),
        ("q4_k", 434.703849),
        ("q5_k", 125.331119),
        ("q6_k", 30.368753),
        ("iq4_nl", 580.496396),
        ("iq4_xs", 593.837282),
    ];
    const COLS: usize = 768;
    let Some(dir) = golden("dequant") else { return };
    let source = npy(&dir.join("source_f32.npy")).f32s();
    let importance: Vec<f32> = (0..COLS).map(|col| ((1 + col * 37 % 101) as f32).powi(2) / 1000.0).collect();
    let mut worse = Vec::new();
    for (name, theirs) in THEIRS {
        let ty = by_name(name).unwrap();
        assert!(ty.weighs());
        let error = |encode: &dyn Fn(&[f32]) -> Vec<u8>| -> f64 {
            let mut kept = vec![f32::NAN; COLS];
            let of_row = |row: &[f32]| -> f64 {
                ty.decode_row(&encode(row), 1, 0, &mut kept).unwrap();
                let off = row.iter().zip(&kept).map(|(a, b)| f64::from(a - b).powi(2));
                off.zip(&importance).map(|(off, weight)| off * f64::from(*weight)).sum()
            };
            source.chunks_exact(COLS).map(of_row).sum()
        };
        let ours = error(&|row| ty.encode_weighted(row, &importance).unwrap());
        let plain = error(&|row| ty.encode(row, 1, COLS).unwrap());
        eprintln!("{name}: weighted error {ours} with the importance, {plain} without, llama.cpp's {theirs}");
        assert!(ours < plain, "{name}: {ours} is not below {plain}");
        if ours > theirs {
            worse.push(format!("{name}: weighted error {ours}, upstream's {theirs}"));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn extreme_importance_gives_finite_weights() {
    let values: Vec<f32> = (0..256).map(|at| (at as f32 * 0.37).sin()).collect();
    for ty in types::REGISTRY.iter().filter(|ty| ty.weighs()) {
        for importance in [0.0, f32::MIN_POSITIVE, 1.0, 1e30, f32::MAX] {
            let bytes = ty.encode_weighted(&values, &[importance; 256]).unwrap();
            let mut kept = vec![f32::NAN; 256];
            ty.decode_row(&bytes, 1, 0, &mut kept).unwrap();
            let off = kept.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= ty.error_bound(1.0), "{}: {off} off at {importance}", ty.name());
        }
        assert!(ty.encode_weighted(&values, &[1.0; 255]).is_err());
    }
}

/// The sums of llama.cpp on the CPU with f32 caches, whose f16 products round the activations.
#[test]
fn input_sums_match_llama_cpp() {
    #[derive(Deserialize)]
    struct Sums {
        name: String,
        rows: u64,
        sums: Vec<f64>,
    }
    let gguf = Gguf::open(&golden("qwen3/tiny-f16.gguf").expect("it is in tests/data")).unwrap();
    let prompts = std::fs::read_to_string(golden("prompts.txt").unwrap()).unwrap();
    let prompt = prompts.lines().nth(2).unwrap();
    let is_digit = |c: char| c.is_ascii_digit();
    let tokens = prompt.split(|c| !is_digit(c)).filter(|word| !word.is_empty());
    let tokens: Vec<u32> = tokens.map(|word| word.parse().unwrap()).collect();
    let mut importance = Importance::new(&gguf, &EngineOptions::default(), tokens.len()).unwrap();
    importance.add(&tokens).unwrap();
    let ours: BTreeMap<&str, &[f64]> = importance.sums().map(|(name, sums, _)| (name, sums)).collect();
    assert_eq!(ours.len(), 2 * 7, "{:?}", ours.keys());
    assert_eq!(ours["blk.1.attn_v.weight"], ours["blk.1.attn_q.weight"]);
    let text = std::fs::read_to_string(golden("quantize/qwen3-importance.jsonl").unwrap()).unwrap();
    for line in text.lines() {
        let Sums { name, rows, sums } = serde_json::from_str(line).unwrap();
        let got = ours[name.as_str()];
        assert_eq!((rows, sums.len()), (importance.n_rows(), got.len()), "{name}");
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        for (col, (got, want)) in got.iter().zip(&sums).enumerate() {
            // The rounding to the 11 bits of an f16, doubled by the square, also in earlier layers.
            assert!((got - want).abs() < 3e-3 * want + 1e-3 * mean, "{name} column {col}: {got} for {want}");
        }
    }
    assert_eq!(text.lines().count(), 8);
}

/// Each expert has its own sums. Each row goes through three experts, whose input is that of the router, so
/// the sums of all experts add up to three times the router's. The quantiser accepts the result.
#[test]
fn experts_have_their_own_sums() {
    let gguf = Gguf::open(&golden("gpt-oss/tiny-mxfp4.gguf").expect("it is in tests/data")).unwrap();
    let (n_experts, n_used, dim, ffn_dim) = (6, 3, 64, 32);
    let mut importance = Importance::new(&gguf, &EngineOptions::default(), 24).unwrap();
    for chunk in 0..2 {
        importance.add(&(0..24).map(|i| (i * 29 + chunk * 7) % 96).collect::<Vec<u32>>()).unwrap();
    }
    let mut imatrix = Imatrix::new("numbers", 2, 24);
    let mut found = BTreeMap::new();
    for (name, sums, counts) in importance.sums() {
        imatrix.add(name, &sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>(), &counts).unwrap();
        found.insert(name.to_owned(), (sums.to_vec(), counts));
    }
    // Per layer: q, k, v, output, router, gate, up, down.
    assert_eq!(found.len(), 3 * 8, "{:?}", found.keys());
    for layer in 0..3 {
        let of = |name: &str| &found[&format!("blk.{layer}.{name}.weight")];
        let (router, gate, down) = (of("ffn_gate_inp"), of("ffn_gate_exps"), of("ffn_down_exps"));
        assert_eq!(router.1, [48.0]);
        assert_eq!((gate, gate.1.len()), (of("ffn_up_exps"), n_experts));
        assert_eq!(gate.1.iter().sum::<f32>(), (n_used * 48) as f32);
        assert_eq!(down.1, gate.1);
        assert!(gate.1.iter().any(|count| *count != gate.1[0]), "all experts have the same number of rows");
        for col in 0..dim {
            let all: f64 = gate.0.chunks_exact(dim).map(|sums| sums[col]).sum();
            let want = n_used as f64 * router.0[col];
            assert!((all - want).abs() < 1e-9 * want, "layer {layer}, column {col}: {all} for {want}");
        }
        assert_eq!(down.0.len(), n_experts * ffn_dim);
        for (sums, count) in down.0.chunks_exact(ffn_dim).zip(&down.1) {
            assert_eq!(sums.iter().all(|sum| *sum > 0.0), *count > 0.0);
        }
    }
    let mut file = Vec::new();
    imatrix.write(&mut file).unwrap();
    let back = Imatrix::from_gguf(&Gguf::from_bytes(file.into()).unwrap()).unwrap();
    assert_eq!(back.importance("blk.0.ffn_down_exps.weight").map(<[f32]>::len), Some(n_experts * ffn_dim));
}

fn entries(imatrix: &Imatrix, names: &[&str]) -> Vec<Vec<f32>> {
    names.iter().map(|name| imatrix.importance(name).unwrap().to_vec()).collect()
}

#[test]
fn both_imatrix_formats_give_the_same_entries() {
    let mut made = Imatrix::new("text.txt", 3, 512);
    made.add("blk.0.ffn_up.weight", &[2.0, 4.0, 8.0, 0.0], &[2.0]).unwrap();
    // The second of these experts was never chosen.
    made.add("blk.0.ffn_up_exps.weight", &[9.0, 3.0, 0.0, 0.0], &[3.0, 0.0]).unwrap();
    let mut bytes = Vec::new();
    made.write(&mut bytes).unwrap();
    assert_eq!(made.file_bytes().unwrap(), bytes.len() as u64);
    let gguf = Gguf::from_bytes(bytes.into()).unwrap();
    assert_eq!(gguf.metadata().require_str("general.type").unwrap(), "imatrix");
    assert_eq!(gguf.find("blk.0.ffn_up_exps.weight.in_sum2").unwrap().dims, [2, 2]);
    assert_eq!(gguf.find("blk.0.ffn_up_exps.weight.counts").unwrap().dims, [2, 1]);
    let names = ["blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"];
    let want = vec![vec![1.0, 2.0, 4.0, 0.0], vec![3.0, 1.0, 1.0, 1.0]];
    let read = Imatrix::from_gguf(&gguf).unwrap();
    assert_eq!((entries(&read, &names), read.len()), (want.clone(), 2));

    let mut dat = 2i32.to_le_bytes().to_vec();
    for (name, means) in names.iter().zip(&want) {
        dat.extend((name.len() as i32).to_le_bytes());
        dat.extend(name.as_bytes());
        dat.extend([5, means.len() as i32].iter().flat_map(|number: &i32| number.to_le_bytes()));
        dat.extend(means.iter().flat_map(|mean| (5.0 * mean).to_le_bytes()));
    }
    let short = dat.clone();
    dat.extend([3i32, 8].iter().flat_map(|number| number.to_le_bytes()));
    dat.extend(b"text.txt");
    for bytes in [&short, &dat] {
        assert_eq!(entries(&Imatrix::from_dat(bytes).unwrap(), &names), want);
    }
    // Truncated anywhere except where older files end, it is an error and does not panic.
    for end in (0..dat.len()).filter(|end| *end != short.len()) {
        assert!(Imatrix::from_dat(&dat[..end]).is_err(), "cut at {end}");
    }
    for (at, number, want) in [
        (0, -1i32, "a number of entries, found -1"),
        (0, i32::MAX, "more bytes"),
        (4, i32::MAX, "more bytes"),
        (8 + names[0].len() + 4, i32::MAX, "more bytes"),
        (8 + names[0].len() + 8, f32::NAN.to_bits() as i32, "want sums of squares, found NaN in column 0"),
    ] {
        let mut broken = dat.clone();
        broken[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let said = Imatrix::from_dat(&broken).unwrap_err().to_string();
        assert!(said.contains(want), "{said}");
    }
}

#[test]
fn invalid_imatrices_are_refused() {
    let add =
        |sums: &[f32], counts: &[f32]| Imatrix::new("", 1, 1).add("w", sums, counts).unwrap_err().to_string();
    assert!(add(&[1.0, f32::NAN], &[1.0]).contains("found NaN in column 1"));
    assert!(add(&[1.0, f32::INFINITY], &[1.0]).contains("found inf"));
    assert!(add(&[-1.0], &[1.0]).contains("found -1"));
    assert!(add(&[1.0], &[-1.0]).contains("a number of rows, found -1"));
    assert!(add(&[1.0], &[f32::NAN]).contains("a number of rows"));
    assert!(add(&[1.0, 2.0, 3.0], &[1.0, 1.0]).contains("found 3 for 2"));
    assert!(add(&[], &[1.0]).contains("found 0 for 1") && add(&[1.0], &[]).contains("found 1 for 0"));
    let mut twice = Imatrix::new("", 1, 1);
    twice.add("w", &[1.0], &[1.0]).unwrap();
    assert!(twice.add("w", &[1.0], &[1.0]).unwrap_err().to_string().contains("duplicate"));

    // Files with half an entry, with another type, or without a matrix.
    let file = |name: &str, ty: &dyn QuantType, metadata: Metadata| {
        Imatrix::from_gguf(&file(metadata, &[(name.to_owned(), vec![2, 32])], ty)).unwrap_err().to_string()
    };
    let imatrix = || {
        let mut metadata = Metadata::default();
        metadata.set("general.type", "imatrix");
        metadata
    };
    assert!(file("w.counts", &types::F32, imatrix()).contains("its tensor .in_sum2 is missing"));
    assert!(file("w.in_sum2", &types::F32, imatrix()).contains("w.counts"));
    assert!(file("w.in_sum2", &types::F16, imatrix()).contains("want f32, found f16"));
    assert!(file("w", &types::F32, Metadata::default()).contains("want general.type imatrix"));

    // The matrix of another model.
    let shape = cases().0["llama"].clone();
    let gguf = self::file(metadata(&shape), &tensors(&shape), &types::F16);
    let with = |imatrix| chosen(&gguf, QuantizeOptions { imatrix: Some(imatrix), ..options("Q4_K_M") });
    let wider = even(&Shape { cols: 512, ..shape.clone() });
    assert!(with(wider).unwrap_err().contains("has 512 columns for tensor blk."));
    let mut foreign = Imatrix::new("", 1, 1);
    foreign.add("layers.0.q", &[1.0], &[1.0]).unwrap();
    assert!(with(foreign).unwrap_err().contains("none of the 1 entries of the importance matrix"));
}

#[test]
fn metadata_names_the_imatrix() {
    let shape = Shape { layers: 1, ..cases().0["llama"].clone() };
    let gguf = file(metadata(&shape), &tensors(&shape), &types::F16);
    let made = |imatrix, mix: &str| {
        let quantizer = Quantizer::new(&gguf, QuantizeOptions { imatrix, ..options(mix) }).unwrap();
        let mut out = Vec::new();
        quantizer.write(&mut out, |_| ControlFlow::Continue(())).unwrap();
        Gguf::from_bytes(out.into()).unwrap()
    };
    let with = made(Some(even(&shape)), "Q4_K_S");
    assert_eq!(with.metadata().require_u32("general.file_type").unwrap(), 14);
    assert_eq!(with.metadata().require_str("quantize.imatrix.dataset").unwrap(), "text.txt");
    assert_eq!(with.metadata().require_u32("quantize.imatrix.entries_count").unwrap(), 9);
    assert_eq!(with.metadata().require_u32("quantize.imatrix.chunks_count").unwrap(), 1);
    assert!(made(None, "Q4_K_S").metadata().iter().all(|(key, _)| !key.starts_with("quantize.")));
    assert_eq!(MIXES.len(), 22);
}
