//! `sterna quantize` as a user types it.
#![cfg(feature = "cli")]

use std::fs::{self, File};

use ggml_types::by_name;
use sterna::gguf::{Gguf, GgufWriter, Metadata};

use super::program::{ended_with, files, folder_with_model, ok, sterna_in as sterna};

const F32: [&str; 4] = ["--type", "f32", "--head-type", "f32"];

#[test]
fn quantize_makes_a_runnable_ternary_model() {
    let dir = folder_with_model(&F32);
    let report = ok(&sterna(dir.path(), &["quantize", "in.gguf", "out.gguf", "I2_S"]));
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines.len(), 1 + 25 + 1, "{report}");
    let q: Vec<&str> =
        lines.iter().find(|line| line.contains("blk.0.attn_q.")).unwrap().split_whitespace().collect();
    assert_eq!(q, ["blk.0.attn_q.weight", "[256,", "256]", "f32", "i2_s", "16416", "0.000000"]);
    let bytes = fs::metadata(dir.path().join("out.gguf")).unwrap().len();
    assert!(
        lines[26].starts_with("25 tensors, ") && lines[26].contains(&format!(", {bytes} bytes now")),
        "{report}"
    );
    // The weights of synth are ternary, so both files have the same.
    let row = |file: &str| {
        let tensor = Gguf::open(&dir.path().join(file)).unwrap().tensor("blk.1.ffn_up.weight").unwrap();
        let mut row = vec![f32::NAN; tensor.cols];
        tensor.ty.decode_row(&tensor.bytes, tensor.rows, tensor.rows - 1, &mut row).unwrap();
        row
    };
    assert_eq!(row("out.gguf"), row("in.gguf"));
    ok(&sterna(dir.path(), &["run", "-p", "You may", "-n", "8", "-t", "1", "-m", "out.gguf"]));
    let inspected = ok(&sterna(dir.path(), &["inspect", "out.gguf"]));
    assert!(inspected.contains("dialect   bitnet") && inspected.contains("cpu: yes"), "{inspected}");
}

#[test]
fn type_is_given_once_by_flag_or_position() {
    let dir = folder_with_model(&F32);
    ok(&sterna(dir.path(), &["quantize", "in.gguf", "a.gguf", "q8_0", "-t", "1"]));
    ok(&sterna(dir.path(), &["quantize", "--type", "Q8_0", "--threads", "2", "in.gguf", "b.gguf"]));
    assert!(fs::read(dir.path().join("a.gguf")).unwrap() == fs::read(dir.path().join("b.gguf")).unwrap());
    for args in [&["in.gguf", "c.gguf"][..], &["in.gguf", "c.gguf", "q8_0", "--type", "q8_0"]] {
        ended_with(&sterna(dir.path(), &[&["quantize"], args].concat()), 2, &["TYPE"]);
    }
    ended_with(&sterna(dir.path(), &["quantize", "in.gguf", "c.gguf", "q9"]), 2, &["'q9'", "TYPE", "i2_s"]);
    let flag = ["quantize", "in.gguf", "c.gguf", "i2_s", "--head-type", "q9"];
    ended_with(&sterna(dir.path(), &flag), 2, &["'q9'", "--head-type", "i2_s"]);
    assert_eq!(files(dir.path()), ["a.gguf", "b.gguf", "in.gguf"]);
}

#[test]
fn heads_have_own_types_and_fallbacks_are_noted() {
    let dir = folder_with_model(&F32);
    let types = |args: &[&str]| {
        let output = sterna(dir.path(), &[&["quantize", "--force", "in.gguf", "out.gguf"], args].concat());
        ok(&output);
        let gguf = Gguf::open(&dir.path().join("out.gguf")).unwrap();
        let of = |name| gguf.find(name).unwrap().type_name.clone();
        (of("token_embd.weight"), of("output.weight"), String::from_utf8(output.stderr).unwrap())
    };
    let (embd, output, notes) = types(&["i2_s"]);
    assert_eq!((&embd[..], &output[..], &notes[..]), ("f16", "f16", ""));
    let (embd, output, _) = types(&["i2_s", "--head-type", "q6_k"]);
    assert_eq!((&embd[..], &output[..]), ("q6_k", "q6_k"));
    let (embd, output, _) =
        types(&["tq2_0", "--token-embedding-type", "q8_0", "--output-tensor-type", "f32"]);
    assert_eq!((&embd[..], &output[..]), ("q8_0", "f32"));
    // 384 columns are not a multiple of the block of 256.
    let shape = ["--dim", "384", "--ffn-dim", "512", "--heads", "3", "--kv-heads", "1", "--force"];
    ok(&sterna(dir.path(), &[&["synth", "--type", "f16", "in.gguf"], &shape[..]].concat()));
    let (.., notes) = types(&["tq2_0"]);
    let fits = |name: &str| {
        !notes.contains(&format!("note: {name} is q4_0, because tq2_0: want columns in blocks of 256"))
    };
    assert!(!fits("blk.0.attn_q.weight") && fits("blk.0.ffn_down.weight"), "{notes}");
}

#[test]
fn failed_quantize_leaves_no_files() {
    let dir = folder_with_model(&F32);
    let quantize = |args: &[&str]| sterna(dir.path(), &[&["quantize"], args, &["i2_s"]].concat());
    let before = fs::read(dir.path().join("in.gguf")).unwrap();
    // The input under its own name, and under other names.
    ended_with(&quantize(&["in.gguf", "in.gguf", "--force"]), 1, &["in.gguf", "is the input"]);
    fs::create_dir(dir.path().join("sub")).unwrap();
    ended_with(&quantize(&["in.gguf", "sub/../in.gguf", "--force"]), 1, &["is the input"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("in.gguf", dir.path().join("link.gguf")).unwrap();
        ended_with(&quantize(&["in.gguf", "link.gguf", "--force"]), 1, &["is the input"]);
        fs::remove_file(dir.path().join("link.gguf")).unwrap();
    }
    fs::remove_dir(dir.path().join("sub")).unwrap();
    assert!(fs::read(dir.path().join("in.gguf")).unwrap() == before, "the input has changed");

    fs::write(dir.path().join("there.gguf"), "the user's data").unwrap();
    ended_with(&quantize(&["in.gguf", "there.gguf"]), 1, &["there.gguf already exists", "--force"]);
    assert_eq!(fs::read(dir.path().join("there.gguf")).unwrap(), b"the user's data");
    ended_with(&quantize(&["none.gguf", "out.gguf"]), 1, &["none.gguf: cannot open"]);
    ended_with(&quantize(&["in.gguf", "none/out.gguf"]), 1, &["none"]);
    ended_with(&quantize(&["there.gguf", "out.gguf"]), 1, &["there.gguf: not a GGUF file"]);
    fs::write(dir.path().join("there.gguf"), &before[..before.len() - 9000]).unwrap();
    ended_with(&quantize(&["there.gguf", "out.gguf"]), 1, &["there.gguf: incomplete: ", "download it again"]);
    ok(&sterna(dir.path(), &["synth", "--type", "q8_0", "--force", "there.gguf"]));
    ended_with(
        &quantize(&["there.gguf", "out.gguf"]),
        1,
        &["there.gguf", "is already q8_0", "--allow-requantize"],
    );

    // A NaN in the last matrix, when most of the file is written.
    let mut broken = before.clone();
    let gguf = Gguf::open(&dir.path().join("in.gguf")).unwrap();
    let place = gguf.find("blk.1.ffn_down.weight").unwrap().start as usize;
    broken[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(dir.path().join("there.gguf"), broken).unwrap();
    ended_with(
        &quantize(&["there.gguf", "out.gguf"]),
        1,
        &["there.gguf: tensor blk.1.ffn_down.weight, row 0, column 0: NaN"],
    );
    assert_eq!(files(dir.path()), ["in.gguf", "there.gguf"]);
}

/// A sparse input whose output is twice the free space of the disk.
#[test]
fn quantize_checks_disk_space_before_writing() {
    const COLS: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let free = fs4::available_space(dir.path()).unwrap() as usize;
    let rows = free / 2 / COLS + 1;
    let mut writer = GgufWriter::new(Metadata::default()).unwrap();
    let bytes = by_name("f16").unwrap().byte_len(rows, COLS).unwrap();
    writer.tensor("vast.weight", &[rows, COLS], 1, bytes as u64).unwrap();
    let file_bytes = writer.file_bytes();
    let file = File::create(dir.path().join("vast.gguf")).unwrap();
    writer.begin(&file).unwrap();
    if let Err(err) = file.set_len(file_bytes) {
        use std::io::Write as _;
        return writeln!(std::io::stderr(), "not run: no sparse file of {file_bytes} bytes: {err}").unwrap();
    }
    drop(file);
    let output = sterna(dir.path(), &["quantize", "vast.gguf", "out.gguf", "f32"]);
    ended_with(&output, 1, &["bytes needed in .", "bytes free there"]);
    assert_eq!(files(dir.path()), ["vast.gguf"]);
}

#[test]
fn quantize_joins_split_models() {
    let dir = folder_with_model(&F32);
    let gguf = Gguf::open(&dir.path().join("in.gguf")).unwrap();
    let (front, back) = gguf.tensors().split_at(11);
    for (number, tensors) in [front, back].into_iter().enumerate() {
        let mut metadata = if number == 0 { gguf.metadata().clone() } else { Metadata::default() };
        metadata.set("split.no", number as u16);
        metadata.set("split.count", 2_u16);
        metadata.set("split.tensors.count", 25_i32);
        let mut writer = GgufWriter::new(metadata).unwrap();
        for info in tensors {
            writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes).unwrap();
        }
        let file = File::create(dir.path().join(format!("s-0000{}-of-00002.gguf", number + 1))).unwrap();
        let mut data = writer.begin(file).unwrap();
        tensors.iter().for_each(|info| data.tensor([gguf.raw_bytes(info).unwrap()]).unwrap());
        data.finish().unwrap();
    }
    let (first, second) = ("s-00001-of-00002.gguf", "s-00002-of-00002.gguf");
    ended_with(&sterna(dir.path(), &["quantize", first, second, "--force", "i2_s"]), 1, &["is the input"]);
    ok(&sterna(dir.path(), &["quantize", second, "split.gguf", "i2_s"]));
    ok(&sterna(dir.path(), &["quantize", "in.gguf", "whole.gguf", "i2_s"]));
    assert!(
        fs::read(dir.path().join("split.gguf")).unwrap() == fs::read(dir.path().join("whole.gguf")).unwrap()
    );
}

/// Gate and up are Q4_K; down and V are Q6_K in some layers.
#[cfg(feature = "simt")]
#[test]
fn mix_gives_the_same_text_on_cuda_and_cpu() {
    let dir = folder_with_model(&F32);
    ok(&sterna(dir.path(), &["quantize", "in.gguf", "out.gguf", "Q4_K_M"]));
    let said = ["cpu", "cuda-simt"].map(|backend| {
        let args =
            ["run", "-m", "out.gguf", "--backend", backend, "-p", "You may", "-n", "12", "--temp", "0"];
        // By default only the CPU quantises activations.
        ok(&sterna(dir.path(), &[&args[..], &["--act-type", "trained"]].concat()))
    });
    assert!(!said[0].trim().is_empty() && said[0] == said[1], "{said:?}");
}

#[test]
fn mixes_are_planned_written_and_inspected() {
    let dir = folder_with_model(&F32);
    let plan = ok(&sterna(dir.path(), &["quantize", "--dry-run", "--type", "q4_k_m", "in.gguf"]));
    assert_eq!(files(dir.path()), ["in.gguf"], "--dry-run wrote something");
    let line = |text: &str, name: &str| {
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line(&plan, "output.weight"), ["output.weight", "[640,", "256]", "f32", "q6_k", "134400"]);
    let made = ok(&sterna(dir.path(), &["quantize", "in.gguf", "out.gguf", "Q4_K_M"]));
    // The result is as planned, with an error in the last column.
    assert_eq!(line(&made, "output.weight")[..6], line(&plan, "output.weight"));
    assert_eq!(plan.lines().last(), made.lines().last());
    let inspected = ok(&sterna(dir.path(), &["inspect", "out.gguf"]));
    assert!(inspected.contains("\nmix       Q4_K_M\n") && inspected.contains("cpu: yes"), "{inspected}");
    assert!(!ok(&sterna(dir.path(), &["inspect", "in.gguf"])).contains("\nmix "));
    let json: serde_json::Value =
        serde_json::from_str(&ok(&sterna(dir.path(), &["inspect", "out.gguf", "--json"]))).unwrap();
    assert_eq!(
        (&json["mix"], &json["metadata"]["general.file_type"]["value"]),
        (&"Q4_K_M".into(), &15.into())
    );

    let asked = [
        "--tensor-type",
        "blk.0.ffn_(up|gate)=Q5_0",
        "--tensor-type",
        "ffn_up=q8_0",
        "--leave-output-tensor",
    ];
    let plan = ok(&sterna(
        dir.path(),
        &[&["quantize", "--dry-run", "--type", "Q4_K", "in.gguf"], &asked[..]].concat(),
    ));
    let ty = |name: &str| line(&plan, name)[4].clone();
    assert_eq!(
        ["blk.0.ffn_gate", "blk.0.ffn_up", "blk.1.ffn_up", "blk.1.ffn_gate", "output.weight"].map(ty),
        ["q5_0", "q5_0", "q8_0", "q4_k", "f32"]
    );
    let pure = ["quantize", "--dry-run", "--pure", "--type", "Q4_K", "in.gguf"];
    assert_eq!(line(&ok(&sterna(dir.path(), &pure)), "output.weight")[4], "q4_k");

    let quantize =
        |args: &[&str]| sterna(dir.path(), &[&["quantize", "in.gguf", "x.gguf", "Q4_K_M"], args].concat());
    ended_with(&quantize(&["--tensor-type", "ffn_up"]), 2, &["--tensor-type", "REGEX=TYPE"]);
    ended_with(&quantize(&["--tensor-type", "=q8_0"]), 2, &["a regular expression before the `=`"]);
    ended_with(&quantize(&["--tensor-type", "ffn_(up=q8_0"]), 2, &["unclosed group"]);
    ended_with(&quantize(&["--tensor-type", "ffn_up=q9_9"]), 2, &["q9_9", "iq4_xs", "q8_0"]);
    ended_with(&quantize(&["--tensor-type", "ffn_upp=q8_0"]), 1, &["no tensor name", "ffn_upp"]);
    ended_with(
        &quantize(&["--leave-output-tensor", "--output-tensor-type", "q8_0"]),
        2,
        &["cannot be used with"],
    );
    ended_with(
        &sterna(dir.path(), &["quantize", "in.gguf", "x.gguf", "Q9_K_M"]),
        2,
        &["Q9_K_M", "Q4_K_M", "i2_s"],
    );
    ended_with(
        &sterna(dir.path(), &["quantize", "in.gguf", "x.gguf", "Q2_K_S"]),
        1,
        &["Q2_K_S needs", "--imatrix"],
    );
    assert_eq!(files(dir.path()), ["in.gguf", "out.gguf"]);
}

#[test]
fn imatrix_is_written_and_used_by_quantize() {
    let dir = folder_with_model(&F32);
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(30);
    fs::write(dir.path().join("text.txt"), text).unwrap();
    let imatrix = |args: &[&str]| {
        let fixed = ["imatrix", "-m", "in.gguf", "-f", "text.txt", "-c", "64", "-t", "1"];
        sterna(dir.path(), &[&fixed[..], args].concat())
    };
    ok(&imatrix(&["-o", "i.gguf", "--chunks", "2"]));
    let gguf = Gguf::open(&dir.path().join("i.gguf")).unwrap();
    assert_eq!(gguf.tensors().len(), 2 * 2 * 7);
    assert_eq!(gguf.metadata().require_u32("imatrix.chunk_count").unwrap(), 2);
    let counts = gguf.tensor("blk.1.ffn_down.weight.counts").unwrap();
    assert_eq!(counts.bytes, 128f32.to_le_bytes().to_vec());
    ended_with(&imatrix(&["-o", "i.gguf"]), 1, &["i.gguf already exists", "--force"]);
    ok(&imatrix(&["-o", "i.gguf", "--force", "--chunks", "1"]));

    let with = |out: &str, args: &[&str]| {
        ok(&sterna(dir.path(), &[&["quantize", "in.gguf", out], args].concat()));
        fs::read(dir.path().join(out)).unwrap()
    };
    assert!(with("a.gguf", &["Q3_K_M", "--imatrix", "i.gguf"]) != with("b.gguf", &["Q3_K_M"]));
    with("c.gguf", &["Q2_K_S", "--imatrix", "i.gguf"]);
    ok(&sterna(dir.path(), &["run", "-p", "You may", "-n", "4", "-t", "1", "-m", "c.gguf"]));
    let inspected = ok(&sterna(dir.path(), &["inspect", "c.gguf"]));
    assert!(inspected.contains("mix       Q2_K_S") && inspected.contains("i.gguf"), "{inspected}");

    let quantize =
        |file: &str| sterna(dir.path(), &["quantize", "in.gguf", "x.gguf", "Q4_K_M", "--imatrix", file]);
    ended_with(&quantize("none.gguf"), 1, &["none.gguf: cannot read"]);
    ended_with(&quantize("in.gguf"), 1, &["in.gguf: not an importance matrix", "want general.type imatrix"]);
    ended_with(&quantize("text.txt"), 1, &["text.txt: not an importance matrix", "more bytes"]);
    fs::write(dir.path().join("empty"), "").unwrap();
    ended_with(&quantize("empty"), 1, &["empty: not an importance matrix", "want 4 more bytes, found 0"]);
    ok(&sterna(
        dir.path(),
        &["synth", "--dim", "512", "--heads", "4", "--kv-heads", "2", "--type", "f32", "w.gguf"],
    ));
    let wider = sterna(dir.path(), &["quantize", "w.gguf", "x.gguf", "Q4_K_M", "--imatrix", "i.gguf"]);
    ended_with(
        &wider,
        1,
        &["w.gguf: the importance matrix has 256 columns for tensor blk.0.attn_q.weight, which has 512"],
    );

    let experts = [
        "synth",
        "--preset",
        "qwen3moe-small",
        "--layers",
        "1",
        "--dim",
        "256",
        "--ffn-dim",
        "256",
        "--heads",
        "2",
        "--kv-heads",
        "1",
        "--vocab",
        "640",
        "--ctx",
        "64",
        "moe.gguf",
    ];
    ok(&sterna(dir.path(), &experts));
    ok(&sterna(dir.path(), &["imatrix", "-m", "moe.gguf", "-f", "text.txt", "-c", "64", "-o", "m.gguf"]));
    let of_experts = Gguf::open(&dir.path().join("m.gguf")).unwrap();
    assert_eq!(of_experts.find("blk.0.ffn_down_exps.weight.counts").unwrap().dims, [16, 1]);
    fs::remove_file(dir.path().join("m.gguf")).unwrap();
    ended_with(&imatrix(&["-o", "none/i.gguf"]), 1, &["none"]);
    fs::write(dir.path().join("text.txt"), "Too short.").unwrap();
    ended_with(&imatrix(&["-o", "m.gguf"]), 1, &["less than one chunk of 64", "--ctx-size"]);
    assert!(
        files(dir.path())
            .iter()
            .all(|name| !name.contains("partial") && name != "m.gguf" && name != "x.gguf")
    );
}
