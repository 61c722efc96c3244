//! Weight types, compared with upstream's blocks and their exact dequantised values.

use ggml_types::{Dialect, QuantType, Ternary, byte_len_of, types::REGISTRY};
use support::{golden, npy};

/// Shape of the values that upstream quantised: `[5, 768]`.
const ROWS: usize = 5;
const COLS: usize = 768;

/// Types without upstream blocks: those of BitNet, PrismML and ik_llama.cpp, and F32, which is the source.
const OTHERS: [&str; 7] = ["i2_s", "f32", "pq2_0", "ptq1_0", "iq2_bn", "iq2_bn_r4", "iq1_bn"];

/// Upstream's blocks of a type, and their values.
fn reference(ty: &dyn QuantType) -> Option<(Vec<u8>, Vec<f32>)> {
    let &(_, id) = ty.ids().iter().find(|(dialect, _)| *dialect == Dialect::Ggml)?;
    let dir = golden("dequant")?;
    // Upstream spells the K types with a capital.
    let name = ty.name().replace("_k", "_K");
    let bytes = npy(&dir.join(format!("{id:02}_{name}.bytes.npy"))).bytes;
    Some((bytes, npy(&dir.join(format!("{id:02}_{name}.f32.npy"))).f32s()))
}

fn decode(ty: &dyn QuantType, bytes: &[u8], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        ty.decode_row(bytes, rows, row, out).expect("a whole tensor");
    }
    out
}

fn squared_error(values: &[f32], of: &[f32]) -> f64 {
    values.iter().zip(of).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

#[test]
fn every_golden_block_decodes_to_the_same_bits() {
    for ty in REGISTRY.iter().filter(|ty| !OTHERS.contains(&ty.name())) {
        let Some((bytes, want)) = reference(*ty) else { return };
        let got = decode(*ty, &bytes, ROWS, COLS);
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{} element {at}: {got} for {want}", ty.name());
        }
    }
}

/// For types that are plainly rounded the bytes are upstream's. For the others upstream searches for scales,
/// and ours may find another optimum, but not a worse one.
#[test]
fn encoding_is_at_least_as_good_as_upstream() {
    let Some(dir) = golden("dequant") else { return };
    let source = npy(&dir.join("source_f32.npy")).f32s();
    const PLAINLY_ROUNDED: [&str; 7] = ["f16", "bf16", "q8_0", "tq1_0", "tq2_0", "q1_0", "q2_0"];
    for ty in REGISTRY {
        let name = ty.name();
        if OTHERS.contains(&name) || !ty.encodes() {
            continue;
        }
        let Some((want_bytes, want)) = reference(*ty) else { return };
        let bytes = ty.encode(&source, ROWS, COLS).expect("rows of 768");
        let (ours, theirs) =
            (squared_error(&decode(*ty, &bytes, ROWS, COLS), &source), squared_error(&want, &source));
        eprintln!(
            "{name}: {} of {} bytes differ, error {ours} for {theirs}",
            bytes.iter().zip(&want_bytes).filter(|(a, b)| a != b).count(),
            bytes.len()
        );
        assert!(ours <= theirs, "{name}: squared error {ours}, upstream's {theirs}");
        if PLAINLY_ROUNDED.contains(&name) {
            assert!(bytes == want_bytes, "{name}: other bytes than upstream's");
        }
    }
}

/// The sizes of all types, also of unsupported ones, from upstream's blocks.
#[test]
fn block_sizes_match_upstream() {
    let Some(dir) = golden("dequant") else { return };
    let mut n_types = 0;
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".bytes.npy") {
            let id = name[..2].parse().expect("a number");
            assert_eq!(byte_len_of(Dialect::Ggml, id, ROWS, COLS), Some(npy(&path).bytes.len()), "{name}");
            n_types += 1;
        }
    }
    assert!(n_types >= 20, "only {n_types} types checked");
}

/// The rows that `tests/data/README.md` describes, as ik_llama.cpp's own quantiser writes them.
#[test]
fn ternary_rows_match_ik_llama_cpp_byte_for_byte() {
    let Some(dir) = golden("ik") else { return };
    let (rows, cols) = (8, 192);
    let value = |at: usize| ((at * at * 7 + at * 13 + at / cols * 5) % 31 % 3) as f32 - 1.0;
    let values: Vec<f32> = (0..rows * cols).map(|at| value(at) * 0.375 * (at / cols + 1) as f32).collect();
    for ty in REGISTRY.iter().filter(|ty| ty.ternary() == Some(Ternary::PerRow)) {
        let want = std::fs::read(dir.join(format!("{}.bin", ty.name()))).expect("a file of the type");
        assert_eq!(ty.encode(&values, rows, cols).unwrap(), want, "{}", ty.name());
        assert_eq!(decode(*ty, &want, rows, cols), values, "{}", ty.name());
    }
}
