//! Whole models in packed ternary checkpoints, which the tests make.

use std::ops::ControlFlow;

use serde_json::json;
use sterna::convert::ternary::{ScaleMeaning, pack};
use sterna::convert::{ConvertOptions, Converter, Rounding};
use sterna::gguf::{Gguf, n_zero_matrices};
use sterna::quantize::{QuantizeError, QuantizeOptions, Quantizer, Recipe};

use super::folder::{Folder, Raw, numbers, tokenizer};
use super::{convert, to, values};

const DIM: usize = 256;
const FFN: usize = 512;

/// Linear layers of the model: name, GGUF name, rows, columns.
const LINEAR: [(&str, &str, usize, usize); 7] = [
    ("self_attn.q_proj", "attn_q", DIM, DIM),
    ("self_attn.k_proj", "attn_k", DIM, DIM),
    ("self_attn.v_proj", "attn_v", DIM, DIM),
    ("self_attn.o_proj", "attn_output", DIM, DIM),
    ("mlp.gate_proj", "ffn_gate", FFN, DIM),
    ("mlp.up_proj", "ffn_up", FFN, DIM),
    ("mlp.down_proj", "ffn_down", DIM, FFN),
];

fn codes(n: usize, seed: u64) -> Vec<i8> {
    numbers(n, seed).iter().map(|number| (number * 1.49).round() as i8).collect()
}

/// A BitNet of one layer, without its linear weights.
fn bare() -> Folder {
    let mut tensors = std::collections::BTreeMap::new();
    let mut add = |name: &str, shape: &[usize]| {
        let values = numbers(shape.iter().product(), name.len() as u64);
        tensors.insert(name.to_owned(), Raw::bf16s(shape, &values));
    };
    add("model.embed_tokens.weight", &[32, DIM]);
    add("model.norm.weight", &[DIM]);
    for name in ["input_layernorm", "post_attention_layernorm", "self_attn.attn_sub_norm"] {
        add(&format!("model.layers.0.{name}.weight"), &[DIM]);
    }
    add("model.layers.0.mlp.ffn_sub_norm.weight", &[FFN]);
    let config = json!({
        "architectures": ["BitNetForCausalLM"], "hidden_act": "relu2", "hidden_size": DIM,
        "intermediate_size": FFN, "max_position_embeddings": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "vocab_size": 32, "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear",
        "quantization_mode": "offline"},
    });
    Folder { config, tokenizer: tokenizer(32), tensors }
}

/// The same model with packed linear weights. `scale` gives the scales of a matrix by its number of rows.
fn packed(scale: impl Fn(usize) -> Vec<f32>) -> Folder {
    let mut folder = bare();
    for (seed, (name, _, rows, cols)) in LINEAR.iter().enumerate() {
        let raw = Raw {
            dtype: "U8".to_owned(),
            shape: vec![rows / 4, *cols],
            bytes: pack(&codes(rows * cols, seed as u64 + 11), *cols),
        };
        folder.tensors.insert(format!("model.layers.0.{name}.weight"), raw);
        let scale = scale(*rows);
        let raw = Raw::f32s(&[scale.len()], &scale);
        folder.tensors.insert(format!("model.layers.0.{name}.weight_scale"), raw);
    }
    folder
}

/// The expected values of a matrix of the packed model.
fn want(at: usize, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    let (_, _, rows, cols) = LINEAR[at];
    let codes = codes(rows * cols, at as u64 + 11);
    codes.iter().enumerate().map(|(elem, code)| f32::from(*code) * scale(elem / cols)).collect()
}

#[test]
fn one_scale_per_matrix_becomes_exact_i2_s() {
    let dir = packed(|_| vec![0.37]).write();
    let (gguf, reports, notes) = convert(dir.path(), &to("auto")).unwrap();
    for (at, (_, name, ..)) in LINEAR.iter().enumerate() {
        let name = format!("blk.0.{name}.weight");
        assert_eq!(gguf.find(&name).unwrap().type_name, "i2_s");
        assert_eq!(values(&gguf, &name), want(at, |_| 0.37), "{name}");
    }
    assert!(reports.iter().filter(|report| report.to.0 == "i2_s").all(|report| report.n_changed == 0));
    assert!(
        notes.iter().any(|note| note.starts_with("effective scales of packed weights: 0.37")),
        "{notes:?}"
    );
    // 2 bits per weight: 1/16 of f32, plus 32 bytes per matrix.
    for report in reports.iter().filter(|report| report.to.0 == "i2_s") {
        assert_eq!(report.to.1, report.from.1 / 16 + 32, "{}", report.name);
    }
}

#[test]
fn row_scales_become_tq2_0_with_a_note() {
    let scale = |row: usize| 0.01 + row as f32 * 0.0007;
    let dir = packed(|rows| (0..rows).map(scale).collect()).write();
    let (gguf, _, notes) = convert(dir.path(), &to("auto")).unwrap();
    for (at, (_, name, ..)) in LINEAR.iter().enumerate() {
        let name = format!("blk.0.{name}.weight");
        assert_eq!(gguf.find(&name).unwrap().type_name, "tq2_0");
        for (got, want) in values(&gguf, &name).iter().zip(want(at, scale)) {
            assert!((got - want).abs() <= 4.9e-4 * want.abs(), "{name}: {got}, want {want}");
        }
    }
    let why = "7 of 7 ternary matrices become tq2_0: i2_s has one scale per tensor, and each row of blk.0.";
    assert!(notes.iter().any(|note| note.contains(why)), "{notes:?}");
    // A type that would lose the row scales is refused.
    let said = convert(dir.path(), &to("i2_s")).unwrap_err().to_string();
    assert!(
        said.contains("blk.0.attn_q.weight") && said.contains("one scale per row") && said.contains("auto"),
        "{said}"
    );
}

/// Packed and unpacked weights give the same tensors.
#[test]
fn packed_and_unpacked_weights_give_the_same_bytes() {
    let from_packed = packed(|_| vec![0.25]).write();
    let mut folder = bare();
    for (at, (name, _, rows, cols)) in LINEAR.iter().enumerate() {
        let raw = Raw::bf16s(&[*rows, *cols], &want(at, |_| 0.25));
        folder.tensors.insert(format!("model.layers.0.{name}.weight"), raw);
    }
    // As a Llama the weights are taken as they are. As a BitNet they would be masters.
    folder.config["architectures"] = json!(["LlamaForCausalLM"]);
    folder.config["quantization_config"] = json!(null);
    folder.config["hidden_act"] = json!("silu");
    folder.tensors.retain(|name, _| !name.contains("sub_norm"));
    let unpacked = folder.write();
    let (a, ..) = convert(from_packed.path(), &to("auto")).unwrap();
    let (b, _, notes) = convert(unpacked.path(), &to("auto")).unwrap();
    assert!(notes.iter().any(|note| note.contains("already -s, 0 and s")), "{notes:?}");
    for name in ["attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        let name = format!("blk.0.{name}.weight");
        let bytes = |gguf: &Gguf| gguf.raw_bytes(gguf.find(&name).unwrap()).unwrap();
        assert!(bytes(&a) == bytes(&b), "{name}");
    }
}

/// A packed model with this dim, and an FFN dim of twice that.
fn of_width(dim: usize) -> Folder {
    let mut folder = packed(|_| vec![0.5]);
    folder.config["hidden_size"] = json!(dim);
    folder.config["intermediate_size"] = json!(2 * dim);
    folder.tensors.clear();
    let mut add = |name: &str, raw: Raw| folder.tensors.insert(name.to_owned(), raw);
    add("model.embed_tokens.weight", Raw::bf16s(&[32, dim], &numbers(32 * dim, 5)));
    add("model.norm.weight", Raw::bf16s(&[dim], &vec![1.0; dim]));
    for (name, n) in [
        ("input_layernorm", dim),
        ("post_attention_layernorm", dim),
        ("self_attn.attn_sub_norm", dim),
        ("mlp.ffn_sub_norm", 2 * dim),
    ] {
        add(&format!("model.layers.0.{name}.weight"), Raw::bf16s(&[n], &vec![1.0; n]));
    }
    for (name, _, rows, cols) in LINEAR {
        let of = |n: usize| n / DIM * dim;
        let (rows, cols) = (of(rows), of(cols));
        let bytes = pack(&codes(rows * cols, 3), cols);
        let raw = Raw { dtype: "U8".to_owned(), shape: vec![rows / 4, cols], bytes };
        add(&format!("model.layers.0.{name}.weight"), raw);
        add(&format!("model.layers.0.{name}.weight_scale"), Raw::bf16s(&[1], &[0.5]));
    }
    folder
}

#[test]
fn number_of_columns_decides_the_ternary_type() {
    for (dim, up, down, why) in [
        (60, "f16", "f16", "not a multiple of 256"),
        (64, "q2_0", "q2_0", "64 columns, not a multiple of 128"),
        // The 384 columns of `down` are blocks of 128, but i2_s is used for all matrices or none.
        (192, "q2_0", "q2_0", "192 columns, not a multiple of 128"),
        (128, "i2_s", "i2_s", "one scale"),
    ] {
        let dir = of_width(dim).write();
        let (gguf, reports, notes) = convert(dir.path(), &to("auto")).unwrap();
        let found = |name: &str| gguf.find(name).unwrap().type_name.clone();
        assert_eq!(
            (found("blk.0.ffn_up.weight"), found("blk.0.ffn_down.weight")),
            (up.into(), down.into()),
            "{dim}"
        );
        // The embedding, which is also the output head, stays f16, and no weight changes.
        assert_eq!(found("token_embd.weight"), "f16", "{dim}");
        assert!(reports.iter().all(|report| report.n_changed == 0), "{dim}");
        assert!(
            notes.iter().any(|note| note.contains(&format!("become {up}")) && note.contains(why)),
            "{notes:?}"
        );
    }
    let dir = of_width(192).write();
    let (gguf, ..) = convert(dir.path(), &to("q2_0")).unwrap();
    assert_eq!(gguf.find("token_embd.weight").unwrap().type_name, "f16");
}

#[test]
fn convert_to_a_mix_equals_convert_and_quantize() {
    let dir = packed(|_| vec![0.37]).write();
    let (one, ..) = convert(dir.path(), &to("q4_k_m")).unwrap();
    let (real, ..) = convert(dir.path(), &to("f32")).unwrap();
    let options = QuantizeOptions::new(Recipe::named("Q4_K_M").unwrap());
    let mut two = Vec::new();
    Quantizer::new(&real, options).unwrap().write(&mut two, |_| ControlFlow::Continue(())).unwrap();
    let two = Gguf::from_bytes(two.into()).unwrap();
    assert_eq!(one.find("blk.0.attn_norm.weight").unwrap().type_name, "f32");
    for want in two.tensors() {
        let got = one.find(&want.name).unwrap();
        assert_eq!(got.type_name, want.type_name, "{}", want.name);
        assert!(one.raw_bytes(got).unwrap() == two.raw_bytes(want).unwrap(), "{}", want.name);
    }
}

#[test]
fn interrupted_convert_writes_a_prefix_of_the_file() {
    let dir = packed(|_| vec![0.37]).write();
    let converter = Converter::open(dir.path(), &to("auto")).unwrap();
    let write = |most: u64| {
        let mut out = Vec::new();
        let stop = |written| if written >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let result = converter.quantizer().unwrap().write(&mut out, stop);
        (out, result.map(|reports| reports.len()))
    };
    let (whole, result) = write(u64::MAX);
    assert_eq!(result.unwrap(), 13);
    for most in [0, 1, 4000, whole.len() as u64 / 2, whole.len() as u64 - 1100] {
        let (part, result) = write(most);
        assert!(matches!(result, Err(QuantizeError::Interrupted)), "{most}: {result:?}");
        assert!(part.len() < whole.len() && part == whole[..part.len()], "{most}");
    }
}

#[test]
fn all_zero_matrices_are_counted() {
    let mut folder = packed(|_| vec![0.5]);
    for name in ["mlp.gate_proj", "mlp.up_proj"] {
        let weight = folder.tensors.get_mut(&format!("model.layers.0.{name}.weight")).unwrap();
        // Code 1 is zero.
        weight.bytes.fill(0b0101_0101);
    }
    let dir = folder.write();
    for outtype in ["auto", "f16", "q8_0"] {
        let (gguf, reports, _) = convert(dir.path(), &to(outtype)).unwrap();
        let zero: Vec<&str> =
            reports.iter().filter(|report| report.n_zero > 0).map(|report| report.name.as_str()).collect();
        assert_eq!(zero, ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"], "{outtype}");
        let found: Vec<_> =
            sterna::gguf::zero_matrices(&gguf).iter().map(|(info, n)| (info.name.clone(), *n)).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        let tensor = gguf.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!(n_zero_matrices(&[DIM, DIM], &tensor), 0);
    }
}

#[test]
fn llama_masters_need_the_ternary_option() {
    let mut folder = super::folder::llama();
    folder.config["hidden_size"] = json!(8);
    let dir = folder.write();
    let said = convert(dir.path(), &to("i2_s")).unwrap_err().to_string();
    assert!(said.contains("not") && said.contains("ConvertOptions::ternary absmean"), "{said}");
    // With the option they are rounded to three values, and the mean is the scale.
    let options = ConvertOptions { ternary: Some(Rounding::Absmean), ..to("f32") };
    let (gguf, ..) = convert(dir.path(), &options).unwrap();
    let raw = folder.tensors["model.layers.0.mlp.up_proj.weight"].values();
    let mean = (raw.iter().map(|w| f64::from(w.abs())).sum::<f64>() / raw.len() as f64) as f32;
    for (got, raw) in values(&gguf, "blk.0.ffn_up.weight").iter().zip(raw) {
        let want = (raw * (1.0 / mean)).round_ties_even().clamp(-1.0, 1.0) * mean;
        assert_eq!(*got, want);
    }
    assert_ne!(values(&gguf, "token_embd.weight")[..3], [0.0; 3]);
}

#[test]
fn scale_meaning_comes_from_config_or_option() {
    let mut folder = packed(|_| vec![0.25]);
    let up = |folder: &Folder, options: &ConvertOptions| {
        let dir = folder.write();
        convert(dir.path(), options)
            .map(|(gguf, ..)| values(&gguf, "blk.0.ffn_up.weight"))
            .map_err(|err| err.to_string())
    };
    let largest = |values: Vec<f32>| values.into_iter().fold(0.0, f32::max);
    assert_eq!(up(&folder, &to("f32")).map(largest), Ok(0.25));
    let divide = ConvertOptions { scale: Some(ScaleMeaning::Divide), ..to("f32") };
    assert_eq!(up(&folder, &divide).map(largest), Ok(4.0));
    folder.config["quantization_config"] = json!({"quant_method": "bitnet"});
    assert_eq!(up(&folder, &to("f32")).map(largest), Ok(4.0));
    // Packed codes although the configuration declares real weights, or declares nothing.
    let online =
        json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"});
    for config in [online, json!(null)] {
        folder.config["quantization_config"] = config;
        let said = up(&folder, &to("f32")).unwrap_err();
        assert!(said.contains("q_proj") && said.contains("ConvertOptions::scale"), "{said}");
    }
    let multiply = ConvertOptions { scale: Some(ScaleMeaning::Multiply), ..to("f32") };
    assert_eq!(up(&folder, &multiply).map(largest), Ok(0.25));
}
