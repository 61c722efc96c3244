//! Architecture rules, checked on the source: import cycles, where `unsafe` and `cfg(feature)` may be used,
//! line length, number of dependencies, plain words, and that a new field of a stage is a compile error.

mod crates;
mod graph;
mod readers;
mod trials;
mod words;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use graph::Graph;

/// Folders of the crates that may name a backend besides the trait.
const USE_BACKENDS: &[&str] = &["src/", "src/backend/"];

/// Files that may check features, with the reason.
const FEATURES: &[(&str, &str)] = &[
    ("src/backend/lib.rs", "which backends are built"),
    ("src/backend/registry.rs", "which backends are built"),
    ("src/backend/cuda/driver/mod.rs", "which drivers are built"),
    ("src/backend/cuda/mod.rs", "whether the kernels also run on the CPU"),
    ("src/backend/cpu/simd/wasm.rs", "whether the host has relaxed instructions"),
    ("src/cli/grammar_args.rs", "whether grammars are in the library"),
    ("src/cli/grpc_args.rs", "whether the server speaks gRPC"),
    ("src/cli/guest.rs", "whether the server, which has a log, and the hub are built"),
    ("src/cli/hub_args.rs", "whether models can be downloaded from the hub"),
    ("src/cli/listener_args.rs", "whether images at URLs can be read"),
    ("src/cli/lora_args.rs", "whether folders of PEFT can be converted"),
    ("src/cli/mod.rs", "whether the server, the hub and the converter are built"),
    ("src/cli/names.rs", "whether the hub and the converter are built"),
    ("src/demo.rs", "whether the demo model is built in"),
    ("src/serve/http/mod.rs", "whether the server has TLS"),
    ("src/lib.rs", "which parts of the library are built"),
];

/// Files below `src/` that may hold `unsafe`, with the reason. `ggml-types` forbids it.
const UNSAFE: &[(&str, &str)] = &[
    ("src/backend/cpu/pool.rs", "tasks of a parallel region share borrowed closures and slices"),
    ("src/gguf/map.rs", "maps the file"),
    ("src/host/memory.rs", "calls the C library's allocator"),
    ("src/main.rs", "sets an environment variable and signals before any thread starts"),
    ("src/backend/cpu/simd/amx.rs", "instructions"),
    ("src/backend/cpu/simd/avx2.rs", "instructions"),
    ("src/backend/cpu/simd/avx512.rs", "instructions"),
    ("src/backend/cpu/simd/avx_vnni.rs", "instructions"),
    ("src/backend/cpu/simd/by_block/mod.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/by_block/gemm.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/by_block/gemv.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/float/mod.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/float/fetched.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/lanes.rs", "the contract of an instruction set's vectors"),
    ("src/backend/cpu/simd/neon.rs", "instructions"),
    ("src/backend/cpu/simd/q6_k.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/real/codes.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/real/trellis.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/real/vector.rs", "a kernel over an instruction set's vectors"),
    ("src/backend/cpu/simd/ternary/mod.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/ternary/gemm.rs", "kernels over an instruction set's vectors"),
    ("src/backend/cpu/simd/tile.rs", "the rectangle of a matrix that one task owns"),
    ("src/backend/cpu/simd/wasm.rs", "instructions"),
    ("src/backend/cuda/driver/real/about.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/real/kernels.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/real/mod.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/real/ring.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/real/staging.rs", "the CUDA driver's calls"),
    ("src/backend/cuda/driver/simt/host.rs", "calls the CPU build of the kernels"),
    ("src/backend/cuda/driver/simt/mod.rs", "launches kernels, and copies to and from their memory"),
    ("src/backend/wgpu/cache.rs", "gives a driver its cache of compiled kernels"),
    ("src/backend/wgpu/trusted.rs", "compiles kernels without counters in their loops"),
];

/// Files that export what their folder defines. What files of the folder share is in a file of its own, and
/// each file imports a name from the file that defines it.
const LOBBIES: &[&str] = &["src/backend/cpu/mod.rs", "src/backend/cuda/mod.rs", "src/engine/lib.rs"];

#[test]
fn no_file_imports_from_the_lobby_of_its_folder() {
    let mut faults = Vec::new();
    for (_, graph) in graphs() {
        for (file, line, lobby) in &graph.sources {
            let (folder, _) = lobby.rsplit_once('/').expect("a file is in a folder");
            if LOBBIES.contains(&lobby.as_str()) && file.starts_with(folder) {
                faults.push(format!("{file}:{line}: imports from {lobby}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Imports between crates are checked by cargo.
#[test]
fn backends_are_used_through_their_trait() {
    let mut faults = BTreeSet::new();
    for (folder, graph) in graphs() {
        assert!(graph.unresolved.is_empty(), "unresolved paths:\n{}", graph.unresolved.join("\n"));
        for (file, line, path) in &graph.foreign {
            let device = path[0] == "sterna_backend" && path.get(1).is_some_and(|name| is_device(name));
            if device && !USE_BACKENDS.contains(&folder.as_str()) {
                faults.insert(format!("{file}:{line}: may use the backend trait, not {}", path.join("::")));
            }
        }
        for (from, to, line) in graph.imports() {
            let (own, other) = (device_of(from), device_of(to));
            if own.is_some() && other.is_some() && own != other {
                faults.insert(format!("{from}:{line}: a backend must not import another one, {to}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn imports_have_no_cycles() {
    let cycles = graphs().into_iter().flat_map(|(_, graph)| graph.cycles());
    let text =
        cycles.map(|(files, edges)| format!("{}\n{edges}", files.into_iter().collect::<Vec<_>>().join(", ")));
    let text = text.collect::<Vec<_>>().join("\n");
    assert!(text.is_empty(), "cycles:\n{text}");
}

/// Code for one architecture in an engine or a backend belongs in `src/model`.
#[test]
fn engine_and_backends_name_no_architecture() {
    let areas = ["program", "backend", "engine", "eval", "host"];
    for (file, text) in all_sources().iter().filter(|(file, _)| areas.contains(&area_of(file))) {
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        let code = code.map(|line| line.split("//").next().unwrap_or_default());
        for (at, line) in code.enumerate() {
            let name = ["\"bitnet", "\"llama", "\"gpt2", "\"qwen"].iter().find(|name| line.contains(**name));
            assert!(name.is_none(), "{file}:{}: {}", at + 1, line.trim());
        }
    }
}

#[test]
fn ggml_types_does_not_name_the_engine() {
    for file in rust_files("ggml-types/src") {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("sterna"), "{} names the engine", file.display());
    }
}

#[test]
fn unsafe_is_only_in_listed_files() {
    let mut found = BTreeSet::new();
    for file in rust_files("src") {
        let text = fs::read_to_string(&file).unwrap();
        if text.contains("allow(unsafe_code)") {
            found.insert(relative(&file));
        }
    }
    let listed: BTreeSet<String> = UNSAFE.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, listed, "files with unsafe code and the list in tests/layering differ");
}

#[test]
fn features_are_checked_only_in_listed_files() {
    for file in rust_files("src") {
        let text = fs::read_to_string(&file).unwrap();
        let listed = FEATURES.iter().any(|(name, _)| relative(&file) == *name);
        let features = |line: &str| line.replace("target_feature", "").contains("feature = ");
        // Unit tests may check features.
        let mut code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        let checks = code.any(|line| line.contains("cfg") && features(line));
        assert!(listed || !checks, "{}: checks a feature", file.display());
    }
}

fn all_sources() -> Vec<(String, String)> {
    rust_files("src").iter().map(|file| (relative(file), fs::read_to_string(file).unwrap())).collect()
}

/// The crates of `src/` and `ggml-types`: their root folders and dependency graphs.
fn graphs() -> Vec<(String, Graph)> {
    let mut sources = all_sources();
    let types = rust_files("ggml-types/src");
    sources.extend(types.iter().map(|file| (relative(file), fs::read_to_string(file).unwrap())));
    let mut folders: Vec<String> =
        sources.iter().filter_map(|(file, _)| Some(file.strip_suffix("lib.rs")?.to_owned())).collect();
    // A file belongs to the crate with the innermost folder.
    folders.sort_by_key(|folder| Reverse(folder.len()));
    let graph = |folder: String| {
        let (own, others) = sources.drain(..).partition(|(file, _)| file.starts_with(&folder));
        sources = others;
        let graph = Graph::of(&folder, &own);
        (folder, graph)
    };
    folders.into_iter().map(graph).collect()
}

/// Folder or file below `src/` that a file belongs to.
fn area_of(file: &str) -> &str {
    file.strip_prefix("src/").unwrap_or(file).split(['/', '.']).next().unwrap_or_default()
}

fn device_of(file: &str) -> Option<&str> {
    let device = file.strip_prefix("src/backend/")?.split('/').next()?;
    is_device(device).then_some(device)
}

fn is_device(name: &str) -> bool {
    ["cpu", "cuda", "wgpu"].contains(&name)
}

fn rust_files(root: &str) -> Vec<PathBuf> {
    let found: Vec<_> =
        files(root).into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs")).collect();
    assert!(!found.is_empty(), "no Rust files below {root}");
    found
}

/// Files and folders whose lines end at 110 columns: code, comments, strings, and documents except for their
/// tables.
const NARROW: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "assets",
    "benches",
    "build.rs",
    "cuda",
    "docs",
    "examples",
    "fuzz",
    "ggml-types",
    "python",
    "src",
    "tests",
    "training",
];

#[test]
fn lines_end_at_110_columns() {
    let is_text = |file: &PathBuf| {
        let kinds = ["rs", "cu", "cuh", "h", "cpp", "wgsl", "md"];
        let is_data =
            ["tests/data/", "fuzz/corpus/", "fuzz/target/"].iter().any(|dir| relative(file).starts_with(dir));
        !is_data && file.extension().is_some_and(|e| kinds.iter().any(|kind| e == *kind))
    };
    let mut long = Vec::new();
    for file in NARROW.iter().flat_map(|name| files(name)).filter(is_text) {
        let text = fs::read_to_string(&file).unwrap();
        if text.starts_with("// Made of ") {
            continue;
        }
        let is_long = |line: &str| !line.starts_with('|') && line.chars().count() > 110;
        let lines = text.lines().enumerate().filter(|(_, line)| is_long(line));
        long.extend(lines.map(|(at, _)| format!("{}:{}", relative(&file), at + 1)));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// A file of the project, or all files below a folder; empty if the folder does not exist yet.
fn files(root: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    if root.is_file() {
        return vec![root];
    }
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.ends_with("node_modules") {
                continue;
            }
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn relative(file: &Path) -> String {
    file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_string_lossy().replace('\\', "/")
}
