//! Compares the Rust code that the build script generates from `cuda/params.h` with that of bindgen, which
//! uses libclang.

use std::io::Write as _;
use std::path::Path;

/// Constants, then structs with their fields, as lines without indentation.
fn declarations(rust: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = rust.lines().map(str::trim).filter(|line| line.starts_with("pub ")).collect();
    lines.sort_by_key(|line| !line.starts_with("pub const "));
    lines
}

#[test]
fn the_build_script_reads_the_header_as_bindgen_does() {
    if let Err(err) = clang_sys::load() {
        // The test harness would swallow what `eprintln` prints.
        writeln!(std::io::stderr(), "not run: libclang is not here ({err})").expect("stderr takes a line");
        return;
    }
    let cuda = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../cuda");
    // The first one includes all others.
    let headers = ["params_latent.h", "params_adapters.h", "params_altup.h", "params_octets.h"];
    let headers = headers.map(|name| cuda.join(name));
    let builder = bindgen::builder().headers(headers.map(|file| file.display().to_string()));
    // No declarations of system headers.
    let bindings =
        builder.allowlist_file(".*/params(_[a-z]+)?\\.h").generate().expect("a header for bindgen");
    let (ours, theirs) = (twins::rust(&twins::header(&cuda)), bindings.to_string());
    assert!(declarations(&ours).len() > 300);
    assert_eq!(declarations(&ours), declarations(&theirs));
}

#[test]
fn comments_are_skipped_and_other_types_refused() {
    let ours =
        twins::rust("/* a */\n#define N 0x10\nstruct S {\n    /* b\n     * c; */\n    float x[2];\n};\n");
    assert_eq!(declarations(&ours), ["pub const N: u32 = 16;", "pub struct S {", "pub x: [f32; 2usize],"]);
    let refused = std::panic::catch_unwind(|| twins::rust("struct S {\n    double x;\n};\n"));
    assert!(refused.is_err_and(|said| said.downcast_ref() == Some(&"params.h: double x;".to_owned())));
}
