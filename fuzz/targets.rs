//! What each fuzz target does with its input. Shared with `tests/fuzz_corpus.rs`, which replays the corpora
//! without a fuzzer.
#![allow(dead_code)] // Each binary of the fuzzer uses one of these.

use bytes::Bytes;
use sterna::gguf::{Gguf, GgufWriter};

/// Opens a GGUF file, looks at everything in it, and writes it again: what comes out reads the same.
pub fn gguf(data: &[u8]) {
    let Ok(file) = Gguf::from_bytes(Bytes::copy_from_slice(data)) else { return };
    for info in file.tensors() {
        if let Ok(tensor) = file.host_tensor(info) {
            let mut row = vec![0.0; tensor.cols];
            let last = tensor.rows - 1;
            tensor
                .ty
                .decode_row(&tensor.bytes, tensor.rows, last, &mut row)
                .expect("checked when it was opened");
        }
    }
    let mut writer = GgufWriter::new(file.metadata().clone()).expect("its alignment was good before");
    for info in file.tensors() {
        let bytes = info.bytes.len() as u64;
        writer.tensor(&info.name, &info.dims, info.type_id, bytes).expect("it was good before");
    }
    let mut out = writer.begin(Vec::new()).expect("memory takes all");
    for info in file.tensors() {
        out.tensor([file.raw_bytes(info)]).expect("as long as it was declared");
    }
    let again =
        Gguf::from_bytes(out.finish().expect("all are written").into()).expect("what we write is GGUF");
    let text = |file: &Gguf| file.metadata().iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>();
    assert_eq!(text(&file), text(&again));
    for (before, after) in file.tensors().iter().zip(again.tensors()) {
        assert_eq!((&before.name, &before.dims, before.type_id), (&after.name, &after.dims, after.type_id));
        // A tensor of unknown size reaches to the next one, so that padding may have come in.
        assert!(again.raw_bytes(after).starts_with(&file.raw_bytes(before)));
    }
}
