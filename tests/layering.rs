//! The rules of the house, read off the source: who may import whom, where `unsafe` and
//! `cfg(feature)` may stand, and how long a file may be.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms of `src/` and the rooms each may name through `crate::`. The command line may name all.
const ALLOWED: &[(&str, &[&str])] = &[
    ("program", &[]),
    ("demo", &[]),
    ("gguf", &[]),
    ("tokenizer", &["gguf"]),
    ("model", &["program", "gguf"]),
    ("backend", &["program"]),
    ("synth", &["gguf"]),
    ("quantize", &["gguf", "parallel"]),
    ("engine", &["program", "gguf", "tokenizer", "model", "backend", "error", "parallel"]),
    ("cli", &["program", "gguf", "tokenizer", "model", "backend", "synth", "quantize", "demo", "engine"]),
];

/// Files that may ask which features are on, with the reason.
const FEATURES: &[(&str, &str)] = &[
    ("src/backend/mod.rs", "which backends are built"),
    ("src/backend/cuda/driver/mod.rs", "which drivers are built"),
    ("src/demo.rs", "whether the demo model is in the program"),
];

/// Files of the root crate that may hold `unsafe`, with the reason. `ggml-types` forbids it.
const UNSAFE: &[(&str, &str)] = &[
    ("src/backend/cpu/pool.rs", "tasks of a parallel region share borrowed closures and slices"),
    ("src/gguf/map.rs", "maps the file"),
    ("src/backend/cpu/simd/amx.rs", "instructions"),
    ("src/backend/cpu/simd/avx2.rs", "instructions"),
    ("src/backend/cpu/simd/avx512.rs", "instructions"),
    ("src/backend/cpu/simd/avx_vnni.rs", "instructions"),
    ("src/backend/cpu/simd/float.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/lanes.rs", "the contract of an instruction set's vectors"),
    ("src/backend/cpu/simd/neon.rs", "instructions"),
    ("src/backend/cpu/simd/q6_k.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/quantise.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/real/codes.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/real/vector.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/ternary.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/ternary/many.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cuda/driver/real.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/simt.rs", "calls into the host form of the kernels"),
    ("src/backend/cuda/pod.rs", "that parameter structs are plain bytes"),
    ("src/backend/wgpu/cache.rs", "hands a driver the kernels that it has compiled before"),
];

#[test]
fn rooms_import_only_what_they_may() {
    let mut faults = Vec::new();
    for file in rust_files("src") {
        let room = room_of(&file);
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == room) else {
            // lib.rs and main.rs name the rooms; a new folder must be entered above.
            assert!(file.parent().is_some_and(|dir| dir.ends_with("src")), "{room}: a room without rules");
            continue;
        };
        for (line, target) in crate_paths(&file) {
            let mut segments = target.split("::");
            let to = segments.next().unwrap_or_default();
            if to != room && !allowed.contains(&to) {
                faults.push(format!("{}:{line}: {room} must not import {to}", file.display()));
            }
            let part = segments.next().unwrap_or_default();
            if to == "backend" && room != "backend" && room != "cli" && is_device(part) {
                faults.push(format!(
                    "{}:{line}: {room} may know the backend trait, not {part}",
                    file.display()
                ));
            }
            if to == "backend" && is_device(part) && device_of(&file).is_some_and(|own| own != part) {
                faults.push(format!("{}:{line}: a backend must not import another one", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn types_know_nothing_of_the_engine() {
    for file in rust_files("ggml-types/src") {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("sterna"), "{} names the engine", file.display());
    }
}

#[test]
fn unsafe_stands_only_in_the_files_that_are_listed() {
    let mut found = BTreeSet::new();
    for file in rust_files("src") {
        let text = fs::read_to_string(&file).unwrap();
        if text.contains("allow(unsafe_code)") {
            found.insert(relative(&file));
        }
    }
    let listed: BTreeSet<String> = UNSAFE.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, listed, "files with unsafe code and the list in tests/layering.rs differ");
}

#[test]
fn features_are_chosen_in_the_files_that_are_listed() {
    for file in rust_files("src") {
        let text = fs::read_to_string(&file).unwrap();
        let listed = FEATURES.iter().any(|(name, _)| relative(&file) == *name);
        let features = |line: &str| line.replace("target_feature", "").contains("feature = ");
        let asks = text.lines().any(|line| line.contains("cfg") && features(line));
        assert!(listed || !asks, "{}: asks for a feature", file.display());
    }
}

#[test]
fn no_file_is_longer_than_600_lines() {
    let mut long = Vec::new();
    for root in ["src", "ggml-types/src", "tests", "benches", "examples", "cuda", "scripts"] {
        for file in files(root) {
            let bytes = fs::read(&file).unwrap();
            // What scripts/bindgen.sh makes is read by nobody.
            if bytes.starts_with(b"// Made of ") {
                continue;
            }
            let lines = bytes.iter().filter(|&&b| b == b'\n').count();
            let is_code = file
                .extension()
                .is_some_and(|e| ["rs", "cu", "cuh", "h", "wgsl", "py", "sh"].iter().any(|x| e == *x));
            if is_code && lines > 600 {
                long.push(format!("{}: {lines}", relative(&file)));
            }
        }
    }
    assert!(long.is_empty(), "files over 600 lines: {long:?}");
}

/// The folder or file below `src/` that a file belongs to.
fn room_of(file: &Path) -> String {
    let path = relative(file);
    let below = path.strip_prefix("src/").unwrap_or(&path);
    below.split(['/', '.']).next().unwrap_or_default().to_owned()
}

fn is_device(module: &str) -> bool {
    ["cpu", "cuda", "wgpu"].contains(&module)
}

/// The backend that a file belongs to, if any.
fn device_of(file: &Path) -> Option<String> {
    let path = relative(file);
    let device = path.strip_prefix("src/backend/")?.split('/').next()?;
    is_device(device).then(|| device.to_owned())
}

/// Every path behind a `crate::` outside comments and unit tests, groups (`crate::{a, b::c}`) taken apart.
fn crate_paths(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).unwrap();
    let code: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::").filter(|(at, _)| !code[..*at].ends_with('$')) {
        let line = 1 + code[..at].matches('\n').count();
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => paths.extend(group_members(group).into_iter().map(|name| (line, name))),
            None => {
                let end =
                    rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
                paths.push((line, rest[..end].to_owned()));
            }
        }
    }
    paths
}

/// The members of a group whose opening brace has been taken off; of a nested group only its root.
fn group_members(group: &str) -> Vec<String> {
    let (mut members, mut depth) = (vec![String::new()], 0usize);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(String::new()),
            c if depth == 0 && !c.is_whitespace() => members.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    members.retain(|name| !name.is_empty());
    members
}

#[test]
fn groups_are_taken_apart() {
    let want = ["program::", "gguf::Gguf", "error"].map(str::to_owned);
    assert_eq!(group_members("\n    program::{Step, Row},\n    gguf::Gguf, error,\n};\nuse x::{y};"), want);
}

fn rust_files(root: &str) -> Vec<PathBuf> {
    let found: Vec<_> =
        files(root).into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs")).collect();
    assert!(!found.is_empty(), "no Rust files below {root}");
    found
}

/// Every file below a folder of the project; none where there is no such folder yet.
fn files(root: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(root)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn relative(file: &Path) -> String {
    file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_string_lossy().replace('\\', "/")
}
