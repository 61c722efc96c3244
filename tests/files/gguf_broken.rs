//! Broken, foreign and split GGUF files: each has its own message, and none makes the reader panic.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ggml_types::Dialect;
use proptest::prelude::*;
use sterna::gguf::{Gguf, OpenOptions};

/// A file built by hand, so that the reader is not tested with our own writer.
#[derive(Clone, Default)]
struct Raw {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Raw {
    fn key(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.keys.push([&text(key)[..], &ty.to_le_bytes(), value].concat());
        self
    }

    fn str(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &text(value))
    }

    fn u32(self, key: &str, value: u32) -> Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    /// Adds a tensor. Dimensions are in the order of the file: contiguous first.
    fn tensor(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut info = [&text(name)[..], &(dims.len() as u32).to_le_bytes()].concat();
        info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        info.extend(ty.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push(info);
        self
    }

    fn data(mut self, bytes: usize) -> Self {
        self.data = vec![0; bytes];
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        out.extend(self.keys.iter().flatten());
        out.extend(self.tensors.iter().flatten());
        if !self.data.is_empty() {
            out.resize(out.len().next_multiple_of(32), 0);
        }
        out.extend(&self.data);
        out
    }

    fn open(&self) -> Result<Gguf, String> {
        open(self.bytes())
    }
}

fn open(bytes: Vec<u8>) -> Result<Gguf, String> {
    Gguf::from_bytes(bytes.into()).map_err(|err| err.to_string())
}

fn small() -> Raw {
    Raw::default()
        .str("general.architecture", "llama")
        .tensor("a", &[4, 2], 0, 0)
        .tensor("b", &[8], 0, 32)
        .data(64)
}

#[track_caller]
fn refused<T>(result: Result<T, String>, words: &str) {
    let Err(message) = result else { panic!("opened, but this error was expected: {words}") };
    assert!(message.contains(words), "`{words}` is not in `{message}`");
}

#[test]
fn small_file_opens() {
    let gguf = small().open().unwrap();
    assert_eq!(gguf.find("a").unwrap().dims, [2, 4]);
    assert_eq!(gguf.dialect().unwrap(), Dialect::Ggml);
}

#[test]
fn other_formats_are_named() {
    let version = |version: u32| [&b"GGUF"[..], &version.to_le_bytes(), &[0; 24]].concat();
    refused(open(version(1)), "GGUF version 1 (August 2023), want 2 or 3; convert");
    refused(open(version(3u32.swap_bytes())), "big-endian GGUF version 3");
    refused(open(version(4)), "GGUF version 4, want 2 or 3");
    refused(open(version(0)), "GGUF version 0, want 2 or 3; no such version exists: the file is damaged");
    refused(open(b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0".to_vec()), "a gzip archive; unpack it");
    refused(open(b"{\"error\":\"Repository not found\"}".to_vec()), "JSON text; read it");
    refused(open(b"<html><body>".to_vec()), "a web page");
    refused(open([1; 16].to_vec()), "it starts with [01, 01");
    refused(open(b"PK\x03\x04....".to_vec()), "PyTorch");
    refused(open(b"version https://git-lfs".to_vec()), "Git LFS");
    refused(open(b"\x10\x27\0\0\0\0\0\0{\"".to_vec()), "safetensors");
    refused(open(b"tjgg\x03\0\0\0".to_vec()), "GGJT");
    refused(open(b"GGUF".to_vec()), "ends in its first 8 bytes");
    refused(open(b"hello, world".to_vec()), "it starts with the text \"hello, world\"");
    refused(open(Vec::new()), "not a GGUF file");
}

#[test]
fn files_without_a_model_are_named() {
    let kinds = [
        ("general.type", "adapter", "a LoRA adapter"),
        ("adapter.type", "lora", "a LoRA adapter"),
        ("general.type", "imatrix", "an importance matrix"),
        ("general.architecture", "clip", "the image or audio encoder"),
        ("general.architecture", "controlvector", "a control vector"),
    ];
    for (key, value, found) in kinds {
        let gguf = Raw::default().str(key, value).open().unwrap();
        let wanted = format!("the file contains {found}");
        let said = sterna::model::hyper(&gguf).unwrap_err().to_string();
        assert!(said.starts_with(&wanted) && said.contains(", not a model: "), "{said}");
    }
    let model = Raw::default().str("general.type", "model").str("general.architecture", "llama");
    assert!(model.open().unwrap().metadata().check_is_model().is_ok());
}

#[test]
fn huge_counts_and_lengths_are_refused() {
    let header = |tensors: u64, keys: u64| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    refused(open(header(u64::MAX, 0)), "tensor count");
    refused(open(header(0, u64::MAX)), "metadata count");
    refused(open(header(3, 0)), "tensor name at 0x18: want 8 bytes, file has 0");
    refused(Raw::default().key("s", 8, &u64::MAX.to_le_bytes()).open(), "metadata string");
    let array = |ty: u32, len: u64| [&ty.to_le_bytes()[..], &len.to_le_bytes()].concat();
    for ty in [0, 4, 8, 9, 12] {
        refused(Raw::default().key("a", 9, &array(ty, u64::MAX)).open(), "metadata array");
        refused(Raw::default().key("a", 9, &array(ty, 1 << 40)).open(), "metadata array");
    }
    refused(Raw::default().key("a", 9, &array(13, 0)).open(), "want a value type from 0 to 12, found 13");
    refused(Raw::default().key("a", 99, &[]).open(), "want a value type from 0 to 12, found 99");
    refused(Raw::default().key("a", 7, &[2]).open(), "want a bool (0 or 1), found 2");
    let bools = [&array(7, 3)[..], &[1, 0, 9]].concat();
    refused(Raw::default().key("a", 9, &bools).open(), "want bools (0 or 1), element 2 is 9");
    refused(Raw::default().key("a", 8, &[&2_u64.to_le_bytes()[..], b"\xc3("].concat()).open(), "not UTF-8");
    // A thousand arrays, each the only element of the one before.
    let nested = array(9, 1).repeat(1000);
    refused(Raw::default().key("a", 9, &nested).open(), "nested more than");
}

#[test]
fn duplicate_names_are_refused() {
    refused(small().u32("x", 1).u32("x", 1).open(), "metadata key `x`");
    refused(small().tensor("a", &[1], 0, 0).open(), "tensor `a`");
}

#[test]
fn shapes_and_offsets_are_checked() {
    let one = |dims: &[u64], ty, offset| Raw::default().tensor("t", dims, ty, offset).data(64);
    refused(one(&[1; 5], 0, 0).open(), "tensor t: want at most 4 dimensions, found 5");
    refused(one(&[4, 0], 0, 0).open(), "tensor t: want dimensions of at least 1, found 0");
    refused(one(&[1 << 40, 1 << 40], 0, 0).open(), "overflow");
    refused(one(&[u64::MAX], 0, 0).open(), "overflow");
    refused(one(&[1 << 62], 0, 0).open(), "overflow");
    refused(one(&[4], 0, 8).open(), "want an offset that is a multiple of 32, found 8");
    refused(one(&[4], 0, 64).open(), "incomplete: 128 of 144 bytes; download it again");
    refused(one(&[4], 0, u64::MAX - 31).open(), "tensor t: ");
    refused(one(&[17], 0, 0).open(), "incomplete: 128 of 132 bytes; download it again");
    // Q8_0 has blocks of 32. The size of an unsupported type is checked, too.
    refused(one(&[33], 8, 0).open(), "tensor t: q8_0: want columns in blocks of 32, found 33");
    refused(one(&[256], 12, 0).open(), "incomplete: 128 of 208 bytes; download it again");
    refused(small().tensor("c", &[1], 0, 32).open(), "tensor c: starts at");
    let overlap = Raw::default().tensor("a", &[9], 0, 0).tensor("b", &[8], 0, 32).data(64);
    refused(overlap.open(), "tensor a: want [9] f32 (36 bytes), the next tensor leaves 32");
    // A scalar, and an unknown type.
    assert!(one(&[], 0, 0).open().is_ok());
    let unknown = one(&[4], 77, 0).open().unwrap();
    assert_eq!(unknown.find("t").unwrap().type_name, "type 77");
    refused(unknown.tensor("t").map_err(|err| err.to_string()), "tensor t: type 77 is not supported; suppo");
    for (ty, instead) in [(4, "convert the model again"), (31, "Q4_0 file"), (37, "IQ4_NL file")] {
        let dropped =
            Raw::default().str("general.architecture", "llama").tensor("t", &[256], ty, 0).data(144);
        refused(dropped.open().unwrap().tensor("t").map_err(|err| err.to_string()), instead);
    }
}

#[test]
fn alignment_must_be_a_power_of_two() {
    for bad in [0, 3, 48, u32::MAX] {
        refused(small().u32("general.alignment", bad).open(), "`general.alignment`: want a power of two");
    }
    refused(small().str("general.alignment", "32").open(), "want u32, found string");
    // 2^31 puts the data far after the end of the file, and no offset is a multiple of it.
    refused(small().u32("general.alignment", 1 << 31).open(), "want an offset that is a multiple of");
    let bytes = Raw::default()
        .u32("general.alignment", 64)
        .tensor("a", &[1], 0, 0)
        .tensor("b", &[1], 0, 64)
        .data(128);
    assert!(bytes.open().is_ok());
}

#[test]
fn dialect_is_found_by_sizes_and_architecture() {
    // 256 weights: I2_S takes 96 bytes, Q2_0 72 (padded 96), MXFP4 136 (padded 160).
    let file = |architecture: &str, ty: u32, bytes: usize| {
        Raw::default()
            .str("general.architecture", architecture)
            .tensor("w", &[256], ty, 0)
            .data(bytes)
            .open()
            .unwrap()
    };
    assert_eq!(file("llama", 36, 96).dialect().unwrap(), Dialect::BitNet);
    assert_eq!(file("llama", 36, 96).tensor("w").unwrap().ty.name(), "i2_s");
    assert_eq!(file("llama", 39, 160).dialect().unwrap(), Dialect::Ggml);
    assert_eq!(file("llama", 42, 96).dialect().unwrap(), Dialect::Ggml);
    let tl2 = file("bitnet-b1.58", 42, 128);
    assert_eq!(tl2.dialect().unwrap(), Dialect::BitNet);
    refused(
        tl2.tensor("w").map_err(|err| err.to_string()),
        "type tl2 is not supported; its layout depends on a kernel",
    );
    // The size of Q2_0, with an architecture name that only the forks use.
    let doubtful = file("bitnet-b1.58", 42, 96);
    refused(
        doubtful.dialect().map_err(|err| err.to_string()),
        "choose with OpenOptions::dialect: ggml or bitnet",
    );
    refused(doubtful.tensor("w").map_err(|err| err.to_string()), "OpenOptions::dialect");
    let raw = Raw::default().str("general.architecture", "bitnet-b1.58").tensor("w", &[256], 42, 0).data(96);
    let chosen = OpenOptions { dialect: Some(Dialect::Ggml), ..OpenOptions::default() };
    let chosen = Gguf::from_bytes_with(raw.bytes().into(), chosen).unwrap();
    assert_eq!(chosen.find("w").unwrap().type_name, "q2_0");
}

/// Three layouts have the id 42 in files with upstream's numbering. The size tells them apart.
#[test]
fn layouts_with_one_id_are_found_by_sizes() {
    let file = |bytes: usize| {
        let raw = Raw::default().str("general.architecture", "qwen3").tensor("w", &[4096], 42, 0);
        raw.tensor("next", &[8], 0, bytes as u64).data(bytes + 32).open().unwrap()
    };
    for (bytes, name) in [(1152, "q2_0"), (1088, "pq2_0")] {
        let file = file(bytes);
        let info = file.find("w").unwrap();
        assert_eq!((info.type_name.as_str(), info.n_bytes as usize), (name, bytes));
        assert_eq!(file.tensor("w").unwrap().ty.name(), name);
    }
    // 42 bytes per 256 weights fit neither layout.
    refused(file(672).tensor("w").map_err(|err| err.to_string()), "cannot tell which type ids the file uses");
    // The type ids of PrismML.
    let own =
        Raw::default().tensor("a", &[128], 142, 0).tensor("b", &[128], 143, 64).data(96).open().unwrap();
    assert_eq!(own.tensor("a").unwrap().ty.name(), "pq2_0");
    assert_eq!(own.tensor("b").unwrap().ty.name(), "ptq1_0");
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn part(number: u16, count: u16, total: i32, tensor: &str) -> Vec<u8> {
    Raw::default()
        .key("split.no", 2, &number.to_le_bytes())
        .key("split.count", 2, &count.to_le_bytes())
        .key("split.tensors.count", 5, &total.to_le_bytes())
        .u32("number", number.into())
        .tensor(tensor, &[8], 0, 0)
        .data(32)
        .bytes()
}

#[test]
fn split_files_open_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let name = |number| format!("m-{number:05}-of-00003.gguf");
    for number in 0..3 {
        write(dir.path(), &name(number + 1), &part(number, 3, 3, &format!("t{number}")));
    }
    let open = |name: &str| Gguf::open(&dir.path().join(name)).map_err(|err| err.to_string());
    for number in 1..4 {
        let gguf = open(&name(number)).unwrap();
        let parts: Vec<usize> = gguf.tensors().iter().map(|info| info.part).collect();
        assert_eq!(parts, [0, 1, 2]);
        assert_eq!(gguf.metadata().require_u32("number").unwrap(), 0, "the first part's metadata");
        assert!(gguf.tensor("t2").is_ok());
    }
    refused(Gguf::from_bytes(part(0, 3, 3, "t").into()).map_err(|err| err.to_string()), "one of 3 parts");
    write(dir.path(), "renamed.gguf", &part(1, 3, 3, "t1"));
    refused(open("renamed.gguf"), "does not end in -NNNNN-of-00003.gguf");
    write(dir.path(), &name(2), &part(2, 3, 3, "t1"));
    refused(open(&name(1)), "want split.no 1 and split.count 3, found 2 and 3");
    write(dir.path(), &name(2), &part(1, 3, 3, "t0"));
    refused(open(&name(1)), "tensor `t0`");
    write(dir.path(), &name(2), &part(1, 3, 3, "t1"));
    write(dir.path(), &name(1), &part(0, 3, 4, "t0"));
    refused(open(&name(1)), "want 4 tensors (split.tensors.count), the 3 parts have 3");
    fs::remove_file(dir.path().join(name(3))).unwrap();
    refused(open(&name(1)), "m-00003-of-00003.gguf: cannot open");
}

#[test]
fn missing_files_and_folders_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| Gguf::open(path).map_err(|err| err.to_string());
    refused(open(&dir.path().join("none.gguf")), "none.gguf: cannot open");
    refused(open(dir.path()), "want a GGUF file, found a directory");
    refused(open(&write(dir.path(), "empty.gguf", b"")), "want a GGUF file, found an empty file");
    #[cfg(unix)]
    refused(open(Path::new("/dev/null")), "found a pipe or a device");
}

/// Reads all metadata, and the last row of each tensor.
fn read_all(gguf: &Gguf) {
    for (_, value) in gguf.metadata().iter() {
        let _ = format!("{value:?}");
    }
    for info in gguf.tensors() {
        if let Ok(tensor) = gguf.host_tensor(info) {
            let mut row = vec![0.0; tensor.cols];
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, tensor.rows - 1, &mut row).unwrap();
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = Bytes::from(
        small().key("a", 9, &[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 65]).bytes(),
    );
    read_all(&Gguf::from_bytes(bytes.clone()).unwrap());
    for len in 0..bytes.len() {
        assert!(Gguf::from_bytes(bytes.slice(..len)).is_err(), "{len} of {} bytes opened", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn flipped_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = small().str("k", "v").bytes();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(gguf) = Gguf::from_bytes(bytes.into()) {
            read_all(&gguf);
        }
    }

    #[test]
    fn any_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(gguf) = Gguf::from_bytes([&b"GGUF\x03\0\0\0"[..], &tail].concat().into()) {
            read_all(&gguf);
        }
    }
}

/// Rows of ik_llama.cpp's types begin with a scale, which is part of the size.
#[test]
fn row_sizes_include_the_row_scale() {
    for (id, name, dims, bytes) in [
        (135, "iq2_bn", [192, 3], 3 * (4 + 48)),
        (134, "iq1_bn", [192, 3], 3 * (2 + 39)),
        (335, "iq2_bn_r4", [192, 4], 4 * (4 + 48)),
    ] {
        for architecture in ["llama", "bitnet-25"] {
            let file = Raw::default().str("general.architecture", architecture).tensor("a", &dims, id, 0);
            let gguf = file.clone().data(bytes).open().unwrap();
            let info = gguf.find("a").unwrap();
            assert_eq!((&info.type_name[..], info.n_bytes as usize), (name, bytes));
            assert!(gguf.tensor("a").is_ok());
            let said = file.data(bytes - 1).open().unwrap_err();
            let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
            assert!(said.contains("incomplete: ") && numbers[0] + 1 == numbers[1], "{said}");
        }
    }
    for (id, dims, want) in [
        (135, [100, 3], "iq2_bn: want columns in blocks of 64, found 100"),
        (134, [32, 4], "iq1_bn: want columns in blocks of 64, found 32"),
        (335, [64, 6], "iq2_bn_r4: want rows in multiples of 4, found 6"),
    ] {
        let said = Raw::default().tensor("a", &dims, id, 0).data(4096).open().unwrap_err();
        assert!(said.contains(want), "{said}");
    }
    // Other types of ik_llama.cpp have a name, but their size is unknown.
    let gguf = Raw::default().tensor("a", &[256, 2], 144, 0).data(4096).open().unwrap();
    let said = gguf.tensor("a").unwrap_err().to_string();
    assert!(said.contains("iq4_ks") && said.contains("supported are"), "{said}");
}
