//! Makes the Rust twins of our C headers with bindgen, which takes libclang from the system. Its test, among
//! those of `cargo test --workspace`, fails where a twin is stale.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Header, its twin, and whether it includes others, whose items have no place in the twin but for those of
/// its own parts (`params_attend.h`).
const TWINS: &[(&str, &str, bool)] = &[
    ("ggml-types/include/ggml_type_ids.h", "ggml-types/src/ids.rs", false),
    ("cuda/params.h", "src/backend/cuda/params.rs", true),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every twin's path and text.
fn twins() -> Result<Vec<(PathBuf, String)>, Box<dyn Error>> {
    clang_sys::load().map_err(|err| format!("libclang is not here: {err}"))?;
    // Headers are named as they stand in the twins.
    env::set_current_dir(root())?;
    let twin = |&(header, file, includes): &(&str, &str, bool)| {
        let mut builder = bindgen::builder()
            .header(header)
            .disable_header_comment()
            .raw_line(format!("// Made of {header} by scripts/bindgen.sh."));
        if includes {
            let parts = header.replace(".h", "(_[a-z]+)?\\.h");
            builder = builder.allowlist_file(parts);
        }
        Ok((root().join(file), builder.generate()?.to_string()))
    };
    TWINS.iter().map(twin).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    for (file, text) in twins()? {
        fs::write(file, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Other tests compare headers and constants without libclang; this one adds that bindgen reads them so.
    #[test]
    fn twins_are_what_bindgen_makes_of_the_headers() {
        if let Err(err) = clang_sys::load() {
            // The test harness would swallow what `eprintln` prints.
            writeln!(std::io::stderr(), "not run: libclang is not here ({err})")
                .expect("stderr takes a line");
            return;
        }
        for (file, text) in twins().expect("headers that bindgen can read") {
            let have = fs::read_to_string(&file).expect("a twin");
            assert!(have == text, "{} is stale: run scripts/bindgen.sh", file.display());
        }
    }
}
