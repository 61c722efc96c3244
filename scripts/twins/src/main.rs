//! Makes the Rust twins of our C headers with bindgen, which takes libclang from the system. With `--check` it
//! changes nothing, and fails where a twin is stale.

use std::error::Error;
use std::path::Path;
use std::{env, fs, process};

/// Header, its twin, and whether it includes others, whose items have no place in the twin.
const TWINS: &[(&str, &str, bool)] = &[
    ("ggml-types/include/ggml_type_ids.h", "ggml-types/src/ids.rs", false),
    ("cuda/params.h", "src/backend/cuda/params.rs", true),
];

fn twin(header: &str, includes: bool) -> Result<String, Box<dyn Error>> {
    let mut builder = bindgen::builder()
        .header(header)
        .disable_header_comment()
        .raw_line(format!("// Made of {header} by scripts/bindgen.sh."));
    if includes {
        builder = builder.allowlist_file(header);
    }
    Ok(builder.generate()?.to_string())
}

fn main() -> Result<(), Box<dyn Error>> {
    let check = env::args().any(|arg| arg == "--check");
    // Headers are named as they stand in the twins.
    env::set_current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    if let Err(err) = clang_sys::load() {
        let missing = format!("libclang is not here: {err}");
        if check {
            // The tests compare header and constants without it; this check adds that bindgen reads them so.
            println!("not run: {missing}");
            return Ok(());
        }
        return Err(missing.into());
    }
    let mut stale = false;
    for (header, file, includes) in TWINS {
        let made = twin(header, *includes)?;
        if !check {
            fs::write(file, made)?;
        } else if fs::read_to_string(file)? != made {
            eprintln!("{file} is stale: run scripts/bindgen.sh");
            stale = true;
        }
    }
    process::exit(i32::from(stale));
}
