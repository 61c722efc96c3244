//! The GGUF reader over files of other programs, and over broken ones.

mod common;

use std::path::PathBuf;

use common::golden_dirs;
use ggml_types::Dialect;
use sterna::gguf::Gguf;

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
fn golden_files_open_and_every_supported_tensor_decodes() {
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
