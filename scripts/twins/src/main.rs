//! Makes the Rust twins of our C headers with bindgen, which takes libclang from the system. Its test, among
//! those of `cargo test --workspace`, fails where a twin is stale.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Each header and its twin.
const TWINS: &[(&str, &str)] = &[("cuda/params.h", "src/backend/cuda/params.rs")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every twin's path and text.
fn twins() -> Result<Vec<(PathBuf, String)>, Box<dyn Error>> {
    clang_sys::load().map_err(|err| format!("libclang is not here: {err}"))?;
    // Headers are named as they stand in the twins.
    env::set_current_dir(root())?;
    let twin = |&(header, file): &(&str, &str)| {
        let builder = bindgen::builder()
            .header(header)
            .disable_header_comment()
            .raw_line(format!("// Made of {header} by scripts/bindgen.sh."))
            // Of what a header includes, only its own parts (`params_attend.h`) have a place in the twin.
            .allowlist_file(header.replace(".h", "(_[a-z]+)?\\.h"));
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
