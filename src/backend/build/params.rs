//! Translates `params.h` to Rust: its constants, and its structs with the C layout. The build script writes
//! the result for `src/backend/cuda/params.rs`; `scripts/kernels/twins` compares it with bindgen's.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Text of the header, with its include expanded, and of those that include it.
pub fn header(cuda: &Path) -> String {
    let read = |name| fs::read_to_string(cuda.join(name)).expect(name);
    let all = read("params.h").replace("#include \"params_attend.h\"", &read("params_attend.h"));
    all + &["params_latent.h", "params_adapters.h", "params_altup.h", "params_octets.h"].map(read).concat()
}

/// Rust declarations of a header. `bytemuck::Pod` asserts that structs have no padding.
///
/// # Panics
/// On a line that is neither a constant nor part of a struct of integers, floats, pointers and such structs.
pub fn rust(header: &str) -> String {
    let mut out = String::new();
    for line in without_comments(header).lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let written = match words[..] {
            ["#define", name, value] if !name.contains('(') => {
                writeln!(out, "pub const {name}: u32 = {};", number(value))
            }
            ["#define" | "#ifdef" | "#ifndef" | "#include" | "#else" | "#endif", ..] => Ok(()),
            ["struct", name, "{"] => writeln!(
                out,
                "#[repr(C)]\n#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]\n\
                 pub struct {name} {{"
            ),
            ["};"] => writeln!(out, "}}"),
            _ => writeln!(out, "    pub {},", field(line).unwrap_or_else(|| panic!("params.h: {line}"))),
        };
        written.expect("memory");
    }
    out
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default();
    parts.fold(first.to_owned(), |code, part| code + part.split_once("*/").expect("comments end").1)
}

fn number(text: &str) -> u32 {
    let hex = text.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
    hex.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("params.h: {text} is not a u32"))
}

/// Translates `type name;` or `type name[n];` to `name: type`.
fn field(line: &str) -> Option<String> {
    let (ty, name) = line.strip_suffix(';')?.rsplit_once(' ')?;
    let ty = match ty {
        "float" => "f32",
        "int32_t" => "i32",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        // A device address.
        _ if ty.starts_with("POINTER(") && ty.ends_with(')') => "u64",
        _ => ty.strip_prefix("struct ")?,
    };
    // A Rust keyword.
    let name = if name == "in" { "in_" } else { name };
    Some(match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((name, n)) => format!("{name}: [{ty}; {n}usize]"),
        None => format!("{name}: {ty}"),
    })
}
