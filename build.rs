//! Compiles `cuda/`: for GPUs with nvcc (feature `cuda`), and for the CPU (feature `simt`).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

#[path = "src/backend/build/params.rs"]
mod params;

/// Root of the project, from `src/backend`: cargo runs a build script in the folder of its package.
const ROOT: &str = "../..";

/// Architectures with machine code in a release. `STERNA_CUDA_ARCHS=90,120` sets another list,
/// `STERNA_CUDA_ARCHS=none` disables nvcc. There is no sm_89: nvcc generates the same machine code as for
/// sm_86, byte for byte in every kernel, and GPUs of 8.9 run code for 8.6.
const ARCHS: &str = "75,80,86,90,120";

/// Architecture of the machine code and PTX of a debug build, which all supported GPUs can run or compile.
/// All architectures of a release would take nvcc four times as long.
const DEBUG_ARCH: &str = "80";

/// Architecture of the PTX that GPUs without machine code in a release compile.
const PTX: &str = "90";

/// Oldest supported architecture, Turing: the first with integer tensor cores, which kernels use.
const LEAST_ARCH: u32 = 75;

/// Products and sums are not fused unless a kernel calls `fmaf`, as on the host.
const NVCC_FLAGS: &[&str] = &["-std=c++17", "-O3", "-fmad=false", "-Xfatbin=-compress-all", "-fatbin"];

fn main() {
    println!("cargo::rerun-if-changed={ROOT}/build.rs");
    println!("cargo::rerun-if-changed={ROOT}/cuda");
    for name in ["CUDA_HOME", "CUDA_PATH", "STERNA_CUDA_ARCHS", "STERNA_SIMT_SANITIZE"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        write_params();
        device::build();
    }
    #[cfg(feature = "simt")]
    host::build();
}

/// Writes the kernels' parameters in Rust, for `src/backend/cuda/params.rs`.
fn write_params() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let rust = params::rust(&params::header(&Path::new(ROOT).join("cuda")));
    fs::write(out.join("params.rs"), rust).expect("OUT_DIR can be written");
}

/// Kernel source files; each is a separate CUDA module.
fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = ["cuda/stage", "cuda/types", "cuda/kv"]
        .iter()
        .flat_map(|folder| fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder of kernels"))
        .map(|entry| entry.expect("a folder that can be read").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "cu"))
        .collect();
    sources.sort();
    sources
}

/// `types_i2_s` for `cuda/types/i2_s.cu`.
fn unit(source: &Path) -> String {
    let folder = source.parent().and_then(Path::file_name).expect("a folder").to_string_lossy();
    format!("{folder}_{}", source.file_stem().expect("a name").to_string_lossy())
}

/// Runs `task` for every source on all cores.
fn for_each_source<T: Send>(sources: &[PathBuf], task: impl Fn(&Path) -> T + Sync) -> Vec<T> {
    let next = Mutex::new(0);
    let done = Mutex::new(Vec::new());
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    thread::scope(|scope| {
        for _ in 0..jobs.min(sources.len()) {
            scope.spawn(|| {
                loop {
                    let at = {
                        let mut next = next.lock().unwrap();
                        *next += 1;
                        *next - 1
                    };
                    let Some(source) = sources.get(at) else { return };
                    let result = task(source);
                    done.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A file in a folder shared by all profiles, so that everything is compiled once for all profiles, feature
/// sets and lints. Its name is a hash of `made_of`, of `source`, and of the headers that it includes; `make`
/// writes it if it does not exist.
fn cached(folder: &str, source: &Path, ext: &str, made_of: &impl Hash, make: impl FnOnce(&Path)) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let folder = out.ancestors().nth(4).expect("OUT_DIR is in the target folder").join(folder);
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let mut hasher = DefaultHasher::new();
    made_of.hash(&mut hasher);
    // Header that only the other compiler reads.
    let other = if ext == "fatbin" { "host/simt_host.h" } else { "simt_device.h" };
    for file in with_headers(source, other) {
        fs::read(&file).unwrap_or_else(|err| panic!("{}: {err}", file.display())).hash(&mut hasher);
    }
    let file = folder.join(format!("{}-{:016x}.{ext}", unit(source), hasher.finish()));
    if !file.exists() {
        // Concurrent builds may need the same file: each writes its own and renames it.
        let own = file.with_extension(format!("{}.part", std::process::id()));
        make(&own);
        fs::rename(own, &file).expect("the target folder can be written");
    }
    file
}

/// A source and every header that it includes, directly or not, except `other`.
fn with_headers(source: &Path, other: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![source.to_owned()];
    while let Some(file) = open.pop() {
        let Ok(path) = file.canonicalize() else { continue };
        if !found.insert(path) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
        let names = names.filter(|name| *name != other);
        open.extend(names.map(|name| file.parent().expect("a folder").join(name)));
    }
    found
}

mod device {
    use super::*;

    pub fn build() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        let list = out.join("kernels.rs");
        let is_debug = env::var("PROFILE").is_ok_and(|profile| profile == "debug");
        let (archs, ptx) = if is_debug { (DEBUG_ARCH, DEBUG_ARCH) } else { (ARCHS, PTX) };
        let archs = env::var("STERNA_CUDA_ARCHS").unwrap_or_else(|_| archs.into());
        println!("cargo::rustc-env=STERNA_CUDA_PTX={ptx}");
        if archs == "none" {
            without_nvcc(&list, "none");
            return;
        }
        if let Some(wrong) = archs.split(',').find(|arch| !is_arch(arch)) {
            panic!(
                "STERNA_CUDA_ARCHS={archs}: `{wrong}` is not an architecture of at least {LEAST_ARCH}; use \
                 a list such as STERNA_CUDA_ARCHS=90,120, or STERNA_CUDA_ARCHS=none"
            );
        }
        let Some(nvcc) = find_nvcc() else {
            println!(
                "cargo::warning=nvcc was not found, so this build has no CUDA kernels; \
                 scripts/setup-cuda installs it without root"
            );
            without_nvcc(&list, "");
            return;
        };
        let flags = flags(&archs, ptx);
        let version = Command::new(&nvcc).arg("--version").output().expect("nvcc runs").stdout;
        let release = String::from_utf8_lossy(&version);
        let release = release.split("release ").nth(1).and_then(|text| text.split(',').next());
        println!("cargo::rustc-env=STERNA_CUDA_ARCHS={archs}");
        println!("cargo::rustc-env=STERNA_CUDA_TOOLKIT={}", release.expect("nvcc names its release"));
        let sources = sources();
        let built = for_each_source(&sources, |source| {
            let make = |fatbin: &Path| compile(&nvcc, &flags, source, fatbin);
            cached("cuda-kernels", source, "fatbin", &(&flags, &version), make)
        });
        let mut text = String::new();
        for (source, fatbin) in sources.iter().zip(built) {
            let name = unit(source);
            fs::copy(fatbin, out.join(format!("{name}.fatbin"))).expect("OUT_DIR can be written");
            writeln!(text, "    ({name:?}, &Aligned(*include_bytes!(\"{name}.fatbin\")).0),").unwrap();
        }
        write_list(&list, &text);
    }

    /// Writes the images as a Rust expression, aligned as machine code headers may require.
    fn write_list(list: &Path, images: &str) {
        let aligned = if images.is_empty() { "" } else { "#[repr(C, align(64))]\nstruct Aligned<T>(T);\n" };
        fs::write(list, format!("{{\n{aligned}&[\n{images}]\n}}\n")).expect("OUT_DIR can be written");
    }

    /// Build without machine code. With feature `simt`, images that only the CUDA driver of the tests
    /// (tests/stand-in) accepts: the names of the files.
    fn without_nvcc(list: &Path, archs: &str) {
        let simt = env::var_os("CARGO_FEATURE_SIMT").is_some();
        let mut text = String::new();
        for name in sources().iter().map(|source| unit(source)).filter(|_| simt) {
            writeln!(text, "    ({name:?}, &Aligned(*b\"kernels of {name}\\n\").0),").unwrap();
        }
        write_list(list, &text);
        println!("cargo::rustc-env=STERNA_CUDA_ARCHS={}", if simt { "simt" } else { archs });
        println!("cargo::rustc-env=STERNA_CUDA_TOOLKIT=");
    }

    /// True if kernels can be compiled for it, judging by its number.
    fn is_arch(arch: &str) -> bool {
        arch.trim().parse().is_ok_and(|arch: u32| arch >= LEAST_ARCH)
    }

    fn find_nvcc() -> Option<PathBuf> {
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
        let homes = homes.map(|home| Path::new(&home).join("bin"));
        let path = env::var_os("PATH").unwrap_or_default();
        let usual = ["/usr/local/cuda/bin", "/opt/cuda/bin"].map(PathBuf::from);
        let here = fs::read_dir(Path::new(ROOT).join(".cuda/lib")).into_iter().flatten().flatten();
        let here = here.map(|python| python.path().join("site-packages/nvidia/cu13/bin"));
        let here = here.filter_map(|bin| bin.canonicalize().ok());
        let name = format!("nvcc{}", env::consts::EXE_SUFFIX);
        let mut bins = homes.chain(env::split_paths(&path)).chain(usual).chain(here);
        bins.find_map(|bin| Some(bin.join(&name)).filter(|nvcc| nvcc.is_file()))
    }

    fn flags(archs: &str, ptx: &str) -> Vec<String> {
        let mut flags: Vec<String> = NVCC_FLAGS.iter().map(|&flag| flag.to_owned()).collect();
        let mut archs: Vec<u32> = archs.split(',').filter_map(|arch| arch.trim().parse().ok()).collect();
        archs.sort_unstable();
        // No kernel distinguishes the architectures of one generation by `__CUDA_ARCH__`, so PTX of the
        // oldest gives the others the same machine code as their own PTX would, and generating PTX is half of
        // the work.
        for generation in archs.chunk_by(|a, b| a / 10 == b / 10) {
            let codes: Vec<String> = generation.iter().map(|arch| format!("sm_{arch}")).collect();
            flags.push(format!("-gencode=arch=compute_{},code=[{}]", generation[0], codes.join(",")));
        }
        flags.push(format!("-gencode=arch=compute_{ptx},code=compute_{ptx}"));
        flags
    }

    fn compile(nvcc: &Path, flags: &[String], source: &Path, fatbin: &Path) {
        let run = Command::new(nvcc).args(flags).arg(source).arg("-o").arg(fatbin).output();
        let run = run.unwrap_or_else(|err| panic!("{}: {err}", nvcc.display()));
        let said = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{} {}:\n{said}", nvcc.display(), source.display());
    }
}

#[cfg(feature = "simt")]
mod host {
    use super::*;

    /// Compiler flags for features of this CPU, if the program is built for this machine.
    fn processor() -> &'static [&'static str] {
        #[cfg(target_arch = "x86_64")]
        if env::var_os("HOST") == env::var_os("TARGET")
            && std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
        {
            return &["-mavx2", "-mfma", "-mf16c"];
        }
        &[]
    }

    pub fn build() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        let mut sources = sources();
        sources.push(Path::new(ROOT).join("cuda/host/broken.cu"));
        // The linker only keeps members of an archive that something references, and nothing references the
        // kernels.
        let units: Vec<String> = sources.iter().map(|source| unit(source)).collect();
        let mut text = String::new();
        for unit in &units {
            writeln!(text, "extern \"C\" void sterna_simt_unit_{unit}();").unwrap();
        }
        text.push_str("extern \"C\" void sterna_simt_units() {\n");
        units.iter().for_each(|unit| writeln!(text, "    sterna_simt_unit_{unit}();").unwrap());
        text.push_str("}\n");
        let list = out.join("units.cpp");
        fs::write(&list, text).expect("OUT_DIR can be written");

        let sanitizer = env::var("STERNA_SIMT_SANITIZE").unwrap_or_default();
        let (races, sanitize) = (sanitizer == "races", !["", "races"].contains(&&*sanitizer));
        let compiler = || {
            let mut build = cc::Build::new();
            build.cpp(true).std("c++17").opt_level(2).cargo_metadata(false).flag("-xc++");
            build.flag("-ffp-contract=off").flag_if_supported("-Wno-unknown-pragmas");
            // Chunks of weights are loaded and used under the same condition, which gcc cannot see.
            build.flag_if_supported("-Wno-maybe-uninitialized");
            // In the shared library of tests/stand-in, every access to the current fiber would otherwise be a
            // call.
            build.flag_if_supported("-ftls-model=initial-exec");
            // Hardware f16 conversion and `fmaf`: same results, faster.
            for flag in processor() {
                build.flag_if_supported(flag);
            }
            if sanitize {
                build.flag("-fsanitize=address,undefined").flag("-fno-sanitize-recover=undefined");
                build.flag("-fno-omit-frame-pointer").flag("-g");
            }
            if races {
                build.define("STERNA_SIMT_RACES", None).flag("-g");
            }
            build
        };
        let mut all = sources.clone();
        let host = Path::new(ROOT).join("cuda/host");
        all.extend(["runtime", "races", "count", "switch"].map(|name| host.join(format!("{name}.cpp"))));
        all.push(list);
        let tool = compiler().get_compiler();
        let version = tool.to_command().arg("--version").output().expect("a compiler that runs").stdout;
        let made_of = (tool.path(), tool.args(), version);
        let objects = for_each_source(&all, |source| {
            cached("simt-kernels", source, "o", &made_of, |object| {
                let mut build = compiler();
                if source.extension().is_some_and(|ext| ext == "cu") {
                    build.define("STERNA_UNIT", format!("sterna_simt_unit_{}", unit(source)).as_str());
                    if races {
                        build.flag("-fsanitize=thread");
                    }
                }
                let made = build.file(source).compile_intermediates();
                fs::copy(&made[0], object).expect("the target folder can be written");
            })
        });
        let mut library = cc::Build::new();
        library.cpp(true).objects(objects).compile("sterna_simt");
        if sanitize {
            println!("cargo::rustc-link-lib=asan");
            println!("cargo::rustc-link-lib=ubsan");
        }
    }
}
