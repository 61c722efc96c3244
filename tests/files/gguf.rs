//! The GGUF reader and writer, with files of other programs and generated ones.

use std::path::PathBuf;

use bytes::Bytes;
use ggml_types::Dialect;
use proptest::prelude::*;
use sterna::gguf::{Array, Gguf, GgufWriter, Metadata, Value, ValueType};
use support::golden_dirs;

/// Every golden GGUF file.
fn golden_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in ["bitnet", "gpt2", "llama", "tokenizer"].into_iter().flat_map(golden_dirs) {
        let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|ext| ext == "gguf")));
    }
    files
}

#[test]
fn golden_files_open_and_decode() {
    for path in golden_files() {
        let gguf = Gguf::open(&path).unwrap();
        let architecture = gguf.metadata().require_str("general.architecture").unwrap();
        let bitnet = architecture.starts_with("bitnet");
        assert_eq!(gguf.dialect().unwrap(), if bitnet { Dialect::BitNet } else { Dialect::Ggml });
        assert!(gguf.metadata().require_strs("tokenizer.ggml.tokens").unwrap().len() >= 640);
        for info in gguf.tensors() {
            if info.ty.is_none() {
                continue;
            }
            let tensor = gguf.tensor(&info.name).unwrap();
            assert_eq!(tensor.bytes.len(), tensor.ty.byte_len(tensor.rows, tensor.cols).unwrap());
            let mut row = vec![f32::NAN; tensor.cols];
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, tensor.rows - 1, &mut row).unwrap();
            assert!(row.iter().all(|value| value.is_finite() && value.abs() < 1e3), "{}", info.name);
        }
    }
}

/// Writes the file again from what was read.
fn rewritten(gguf: &Gguf) -> Vec<u8> {
    let mut writer = GgufWriter::new(gguf.metadata().clone()).unwrap();
    if gguf.version() == 2 {
        writer = writer.version_2();
    }
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes).unwrap();
    }
    let file_bytes = writer.file_bytes();
    let mut data = writer.begin(Vec::new()).unwrap();
    for info in gguf.tensors() {
        data.tensor([gguf.raw_bytes(info).unwrap()]).unwrap();
    }
    let out = data.finish().unwrap();
    assert_eq!(out.len() as u64, file_bytes);
    out
}

#[test]
fn golden_files_are_rewritten_byte_for_byte() {
    for path in golden_files() {
        let gguf = Gguf::open(&path).unwrap();
        assert!(rewritten(&gguf) == std::fs::read(&path).unwrap(), "{} differs", path.display());
    }
}

#[test]
fn dimensions_are_reversed_and_typed() {
    let Some(path) = support::golden("bitnet/tiny-i2_s.gguf") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let gate = gguf.tensor("blk.0.ffn_gate.weight").unwrap();
    // The file has 384, 1024: 1024 outputs of 384 inputs.
    assert_eq!((gate.ty.name(), gate.rows, gate.cols, gate.bytes.len()), ("i2_s", 1024, 384, 98_336));
    let norm = gguf.find("blk.0.ffn_sub_norm.weight").unwrap();
    assert_eq!((norm.dims.as_slice(), norm.type_name.as_str(), norm.type_id), (&[1024][..], "f32", 0));
    assert_eq!(gguf.tensor("no.such").unwrap_err().to_string(), "tensor no.such is missing");
    let metadata = gguf.metadata();
    assert_eq!(metadata.require_u32("bitnet-b1.58.block_count").unwrap(), 3);
    assert_eq!(metadata.require_f32("bitnet-b1.58.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(metadata.require_strs("tokenizer.ggml.tokens").unwrap().last(), Some("<|pad|>"));
    assert_eq!(metadata.require_i32s("tokenizer.ggml.token_type").unwrap().sum::<i32>(), 636 + 4 * 3);
}

#[test]
fn unsupported_type_is_an_error_only_if_used() {
    let Some(path) = support::golden("llama/tiny-q4_k.gguf") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let info = gguf.find("blk.0.ffn_up.weight").unwrap();
    if info.ty.is_none() {
        assert_eq!((info.type_name.as_str(), info.n_bytes), ("q4_k", 512 * 144));
        let error = gguf.tensor("blk.0.ffn_up.weight").unwrap_err().to_string();
        assert!(
            error.starts_with("tensor blk.0.ffn_up.weight: type q4_k is not supported; supported are"),
            "{error}"
        );
    }
}

#[test]
fn getters_name_the_key_and_both_types() {
    let mut metadata = Metadata::default();
    metadata.set("count", -1_i32);
    metadata.set("list", Array::from_i32s([1, -2, 3]));
    metadata.set("text", "words");
    metadata.set("wide", 7_u64);
    metadata.set("eps", 1e-6_f64);
    assert_eq!(metadata.u32("wide").unwrap(), Some(7));
    assert_eq!(metadata.f32("eps").unwrap(), Some(1e-6));
    assert_eq!(metadata.f32("wide").unwrap(), Some(7.0));
    assert_eq!(metadata.u32("none").unwrap(), None);
    assert!(metadata.i32s("list").unwrap().unwrap().eq([1, -2, 3]));
    let said = |error: sterna::gguf::GgufError| error.to_string();
    assert_eq!(said(metadata.u32("count").unwrap_err()), "metadata key `count`: want u32, found i32 -1");
    assert_eq!(said(metadata.bool("text").unwrap_err()), "metadata key `text`: want bool, found string");
    let list = metadata.u32s("list").map(|_| ()).unwrap_err();
    assert_eq!(said(list), "metadata key `list`: want array of u32, found array of 3 i32");
    assert_eq!(
        said(metadata.require_str("none").unwrap_err()),
        "metadata key `none` is missing (want string)"
    );
}

/// Any value of any type, including nested arrays.
fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e30..1e30_f32).prop_map(Value::F32),
        (-1e300..1e300_f64).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        "\\PC{0,12}".prop_map(Value::Str),
    ];
    scalar.prop_recursive(3, 24, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(|values| {
            let elem_type = values.first().map_or(ValueType::U32, Value::value_type);
            let alike = values.iter().filter(|value| value.value_type() == elem_type);
            Value::Array(Array::from_values(elem_type, alike))
        })
    })
}

proptest! {
    #[test]
    fn written_files_are_read_back(
        values in prop::collection::btree_map("[a-z.]{1,12}", any_value(), 0..8),
        shapes in prop::collection::vec((1_usize..5, 1_usize..9), 0..5),
        alignment in 0_u32..10,
        version_2 in any::<bool>(),
    ) {
        let mut metadata = Metadata::default();
        metadata.set("general.alignment", 1_u32 << alignment);
        for (key, value) in &values {
            metadata.set(key.as_str(), value.clone());
        }
        let mut writer = GgufWriter::new(metadata).unwrap();
        if version_2 {
            writer = writer.version_2();
        }
        let name = |at: usize| format!("tensor.{at}");
        for (at, (rows, cols)) in shapes.iter().enumerate() {
            writer.tensor(&name(at), &[*rows, *cols], 0, (rows * cols * 4) as u64).unwrap();
        }
        let mut data = writer.begin(Vec::new()).unwrap();
        for (at, (rows, cols)) in shapes.iter().enumerate() {
            // In two pieces, as from a stream.
            let bytes = vec![at as u8; rows * cols * 4];
            let (head, tail) = bytes.split_at(cols * 2);
            data.tensor([head, tail]).unwrap();
        }
        let file = Bytes::from(data.finish().unwrap());
        let gguf = Gguf::from_bytes(file.clone()).unwrap();
        prop_assert_eq!(gguf.version(), if version_2 { 2 } else { 3 });
        prop_assert_eq!(gguf.metadata().len(), values.len() + 1);
        for (key, value) in &values {
            prop_assert_eq!(gguf.metadata().get(key), Some(value));
        }
        for (at, (rows, cols)) in shapes.iter().enumerate() {
            let tensor = gguf.tensor(&name(at)).unwrap();
            prop_assert_eq!((tensor.rows, tensor.cols), (*rows, *cols));
            prop_assert!(tensor.bytes.iter().all(|byte| *byte == at as u8));
        }
        prop_assert_eq!(rewritten(&gguf), file.to_vec());
    }
}

#[test]
fn writer_refuses_data_that_differs_from_its_header() {
    let new = || {
        let mut writer = GgufWriter::new(Metadata::default()).unwrap();
        writer.tensor("a", &[2, 4], 0, 32).unwrap();
        writer
    };
    assert!(new().tensor("a", &[1], 0, 4).is_err(), "a duplicate name");
    assert!(new().tensor("b", &[1, 1, 1, 1, 1], 0, 4).is_err(), "five dimensions");
    assert!(new().tensor("b", &[1], 0, u64::MAX).is_err(), "the size overflows");
    let mut data = new().begin(Vec::new()).unwrap();
    assert_eq!(data.tensor([[0; 16]]).unwrap_err().to_string(), "tensor a: want 32 bytes, found 16");
    let mut data = new().begin(Vec::new()).unwrap();
    assert!(data.tensor([[0; 16], [0; 16], [0; 16]]).is_err(), "too many bytes");
    assert!(new().begin(Vec::new()).unwrap().finish().is_err(), "a tensor is missing");
}
