//! `sterna plan` as a user types it.
#![cfg(feature = "cli")]

use std::path::Path;

use serde_json::Value as Json;

use super::program::{ok, sterna_in as sterna};

fn json(dir: &Path, args: &[&str]) -> Json {
    serde_json::from_str(&ok(&sterna(dir, &[&["plan", "--json"], args].concat()))).unwrap()
}

/// Writes a model without weights: a sparse file of full size that takes almost no disk space.
fn write_sparse(dir: &Path, preset: &str) -> String {
    let name = format!("{preset}.gguf");
    ok(&sterna(dir, &["synth", "--preset", preset, "--no-weights", &name]));
    name
}

fn sum(parts: &Json) -> u64 {
    parts.as_array().unwrap().iter().map(|part| part["bytes"].as_u64().unwrap()).sum()
}

#[cfg(feature = "cuda")]
#[test]
fn plan_of_an_8b_model_for_an_absent_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_sparse(dir.path(), "bitnet-8b");
    let file = std::fs::metadata(dir.path().join(&model)).unwrap();
    assert!(file.len() > 2_500_000_000);
    let args = ["-m", &model, "--vram", "16G"];
    let plan = json(dir.path(), &args);
    let device = &plan["devices"][0];
    assert_eq!(
        (&plan["fits"], &device["fits"], &device["short_bytes"]),
        (&true.into(), &true.into(), &0.into())
    );
    let bytes = |field: &str| device[field].as_u64().unwrap();
    assert_eq!(sum(&device["parts"]), bytes("weights_bytes") + bytes("kv_bytes") + bytes("buffers_bytes"));
    assert_eq!(sum(&device["overhead"]), bytes("overhead_bytes"));
    let all = ["weights_bytes", "kv_bytes", "buffers_bytes", "overhead_bytes", "margin_bytes"];
    assert_eq!(all.map(bytes).iter().sum::<u64>(), bytes("total_bytes"));
    // 32 layers of 8 heads of 128, keys and values, 2 bytes, 4096 positions.
    assert_eq!(bytes("kv_bytes"), 32 * 8 * 128 * 2 * 2 * 4096);
    assert_eq!(plan["options"]["n_ctx"], 4096);

    // The table agrees with a plan for that context.
    let cell = |plan: &Json, n_ctx: u64, codec: &str| {
        let cells = plan["contexts"].as_array().unwrap();
        let found = cells.iter().find(|cell| cell["n_ctx"] == n_ctx && cell["cache_type"] == codec);
        found.unwrap_or_else(|| panic!("no {n_ctx} of {codec}")).clone()
    };
    assert_eq!(cell(&plan, 131_072, "f16")["fits"], false);
    assert_eq!(cell(&plan, 131_072, "turboquant")["fits"], true);
    let long = json(dir.path(), &[&args[..], &["-c", "131072", "--kv-cache-type", "turboquant"]].concat());
    let total = long["devices"][0]["total_bytes"].as_u64().unwrap()
        - long["devices"][0]["margin_bytes"].as_u64().unwrap();
    assert_eq!(cell(&plan, 131_072, "turboquant")["bytes"], total);

    // The longest context fits, one more page does not, and the best plan uses f16.
    let longest = plan["longest"].as_array().unwrap();
    let of = |codec: &str| {
        longest.iter().find(|one| one["cache_type"] == codec).unwrap()["n_ctx"].as_u64().unwrap()
    };
    assert!(of("f16") < of("q8_0") && of("q8_0") <= of("turboquant") && of("turboquant") == 131_072);
    let fits =
        |n_ctx: u64| json(dir.path(), &[&args[..], &["-c", &n_ctx.to_string()]].concat())["fits"].clone();
    assert_eq!([fits(of("f16")), fits(of("f16") + 64)], [true.into(), Json::from(false)]);
    let best = &plan["best"];
    assert_eq!((best["cache_type_k"].as_str(), best["resident_layers"].is_null()), (Some("f16"), true));
    assert!((0..256).contains(&(of("f16") - best["n_ctx"].as_u64().unwrap())), "{best}");

    // The text output, with enough memory and with too little.
    let text = ok(&sterna(dir.path(), &[&["plan"], &args[..]].concat()));
    for word in [
        "layers (i2_s)",
        "embedding and output head (f16)",
        "KV cache (f16)",
        "fits, ",
        "about: ",
        "longest",
        "best      -c ",
    ] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let text = ok(&sterna(dir.path(), &["plan", "-m", &model, "--vram", "3G"]));
    assert!(text.contains("short by ") && text.contains("! "), "{text}");
    let small = json(dir.path(), &["-m", &model, "--vram", "2G"]);
    assert_eq!((small["fits"].as_bool(), small["best"].is_null()), (Some(false), true));
    // More sequences, more pages.
    let four = json(dir.path(), &[&args[..], &["-np", "4"]].concat());
    assert_eq!(four["devices"][0]["kv_bytes"], 4 * bytes("kv_bytes"));
}

/// Mistral Small 24B, Qwen2.5 32B, Qwen3 32B and Llama 70B, whose FFN rows in f32 do not fit in the shared
/// memory of a GeForce.
#[cfg(feature = "cuda")]
#[test]
fn long_ffn_rows_fit_a_gpu() {
    let dir = tempfile::tempdir().unwrap();
    for (dim, ffn_dim, heads) in
        [("5120", "32768", "32"), ("5120", "27648", "40"), ("5120", "25600", "64"), ("8192", "28672", "64")]
    {
        let shape =
            ["--dim", dim, "--ffn-dim", ffn_dim, "--heads", heads, "--kv-heads", "8", "--head-dim", "128"];
        let file = ["--preset", "llama-3.2-1b", "--layers", "2", "--type", "q4_k", "--head-type", "q6_k"];
        let how = ["--no-weights", "--force", "model.gguf"];
        ok(&sterna(dir.path(), &[&["synth"], &shape[..], &file, &how].concat()));
        let plan = json(dir.path(), &["-m", "model.gguf", "--card", "rtx 5080", "-c", "4096"]);
        assert_eq!(plan["fits"], true, "{ffn_dim} columns: {plan}");
    }
}

/// A step takes at least as long as reading its bytes from GPU memory or over the link.
#[cfg(feature = "cuda")]
#[test]
fn plan_bounds_speed_and_chooses_streamed_layers() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_sparse(dir.path(), "bitnet-8b");
    let args = ["-m", &model, "--card", "rtx 5080", "-c", "4096"];
    let with = |more: &[&str]| json(dir.path(), &[&args[..], more].concat());
    let near = |got: &Json, want: f64| (got.as_f64().unwrap() / want - 1.0).abs() < 0.01;
    let whole = with(&[]);
    let device = &whole["devices"][0];
    // Embedding and output head share one table, of which the embedding reads one row.
    let read = device["weights_bytes"].as_f64().unwrap() + device["kv_bytes"].as_f64().unwrap();
    assert!(near(&whole["bound"]["decode"], 960e9 / read), "{}", whole["bound"]);
    assert!(whole["streamed"].is_null());
    // 32 layers of 4 square matrices of 4096 with a quarter of the KV heads, and 3 of 14336 x 4096.
    let macs = 32.0 * 4096.0 * (4096.0 * 2.5 + 3.0 * 14336.0);
    let prompt = whole["bound"]["prompt"].as_f64().unwrap() * 2.0 * macs;
    assert!((0.95..1.0).contains(&(prompt / 450e12)), "{prompt:e} operations/s");

    let small = with(&["--vram", "2500MiB"]);
    assert_eq!((small["fits"].as_bool(), small["best"].is_null()), (Some(false), true));
    let streamed = &small["streamed"];
    let host = streamed["host_bytes"].as_u64().unwrap();
    let n = streamed["streamed_layers"].as_u64().unwrap();
    let layers = device["parts"].as_array().unwrap().iter().find(|part| part["name"] == "layers (i2_s)");
    assert_eq!(host * 32, layers.unwrap()["bytes"].as_u64().unwrap() * n, "{streamed}");
    assert!(near(&streamed["bound"]["decode"], 56.3e9 / host as f64), "{streamed}");
    let of = |field: &str| streamed["device"][field].as_u64().unwrap();
    // The CPU, which is measured, reads the layers that are not on the GPU.
    let processor = &streamed["processor"];
    let [memory, ops, decode] = ["memory_bytes", "ops", "decode"].map(|of| processor[of].as_f64().unwrap());
    let shared = of("shared_bytes");
    // Only the file has a scale and padding after the codes of each matrix.
    assert!((host..=host + 7 * 32 * n).contains(&shared), "{shared} in the file, {host} in memory");
    assert!(decode > 0.0 && decode <= 1.001 * memory / shared as f64 && ops > 0.0, "{processor}");
    assert!(processor["min_batch"].as_u64().is_some_and(|n| n < 512), "{processor}");
    assert!(whole["processor"].is_null());
    assert!(of("total_bytes") - of("margin_bytes") <= 2500 << 20);
    // Weights that the user leaves to the CPU are not on the GPU, with or without a GPU in this machine.
    let few = ["--layers", "6", "--no-weights", "mixture.gguf"];
    ok(&sterna(dir.path(), &[&["synth", "--preset", "qwen3-30b-a3b"], &few[..]].concat()));
    for left in [&["-ot", "ffn_.*_exps=CPU"][..], &["--cpu-moe"], &["-ngl", "0"]] {
        let args = [&["-m", "mixture.gguf", "--vram", "6G", "-c", "4096"], left].concat();
        let plan = json(dir.path(), &args);
        assert_eq!((plan["backend"].as_str(), &plan["fits"]), (Some("cuda"), &true.into()), "{left:?}");
        assert!(plan["devices"][0]["weights_bytes"].as_u64().unwrap() < 4 << 30, "{left:?}: {plan}");
    }
    // One more layer on the GPU would use the reserve, which is 1/32 of the memory that is left by the CUDA
    // context of 84 multiprocessors and 12 captured graphs.
    let stay = ["-ngl".to_owned(), (32 - n + 1).to_string()];
    let more = with(&["--vram", "2500MiB", &stay[0], &stay[1]]);
    let bytes = ["weights_bytes", "kv_bytes", "buffers_bytes"];
    let asked: u64 = bytes.iter().map(|field| more["devices"][0][field].as_u64().unwrap()).sum();
    assert!(asked > ((2500 - 3 * 84 - 12 * 24) << 20) / 32 * 31, "{asked}");

    let text = ok(&sterna(dir.path(), &[&["plan"], &args[..], &["--vram", "2500MiB"]].concat()));
    for word in [
        &format!("-ngl auto: {} of 32 layers", 32 - n),
        "best      -c 4096 -ngl auto",
        "upper bound, computed",
    ] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    // How decode and prefill run and why, or what the flag chose.
    let with = |choice: &str| {
        let more = ["--vram", "2500MiB", "--op-offload-min-batch", choice];
        ok(&sterna(dir.path(), &[&["plan"], &args[..], &more].concat()))
    };
    for (choice, words, not) in [
        (
            "auto",
            &["  decode  ", "  prompt  copied to the GPU, as in all steps of at least ", "measured: "][..],
            "never copied",
        ),
        (
            "7",
            &["  decode  the CPU computes these layers: ", "all steps of at least 7 rows: "],
            "never copied",
        ),
        ("1", &["of page-locked memory are copied to it in each step"], "  decode  "),
        (
            "off",
            &["  prompt  the same, as in all steps", "the weights of the others are never copied"],
            "link",
        ),
    ] {
        let text = with(choice);
        for word in words {
            assert!(text.contains(word), "{choice}: `{word}` is not in: {text}");
        }
        assert!(!text.contains(not), "{choice}: `{not}` is in: {text}");
    }
}

#[test]
fn plan_for_the_cpu_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_sparse(dir.path(), "tiny");
    let plan = json(dir.path(), &["-m", &model, "--backend", "cpu", "-ctk", "q8_0"]);
    assert_eq!(
        (plan["backend"].as_str(), plan["contexts"][0]["cache_type"].as_str()),
        (Some("cpu"), Some("q8_0/f16"))
    );
    assert_eq!(plan["devices"][0]["overhead"], Json::Array(Vec::new()));
    assert_eq!(plan["model"]["n_ctx_train"], 512);
    assert_eq!(plan["best"]["cache_type_k"], "q8_0");
    // Layers that are read in every step take no memory, apart from a few slots.
    let larger = write_sparse(dir.path(), "bitnet-8b");
    let of =
        |layers: &str| json(dir.path(), &["-m", &larger, "--resident-layers", layers])["devices"][0].clone();
    let [all, four] = [of("all"), of("4")];
    let bytes = |device: &Json, field: &str| device[field].as_u64().unwrap();
    assert_eq!([bytes(&all, "file_bytes"), bytes(&all, "streamed_layers")], [0, 0]);
    assert_eq!(bytes(&four, "streamed_layers"), 28);
    let slots = bytes(&four, "weights_bytes") + bytes(&four, "file_bytes") - bytes(&all, "weights_bytes");
    assert!((24 << 20..33 << 20).contains(&slots), "{slots}");
    let text = ok(&sterna(dir.path(), &["plan", "-m", &larger, "--resident-layers", "none"]));
    assert!(text.contains("weights read in every step"), "{text}");
    // `--no-weights` does not overwrite a file.
    let there = sterna(dir.path(), &["synth", "--preset", "tiny", "--no-weights", &model]);
    assert!(String::from_utf8_lossy(&there.stderr).contains("already exists"));
}

#[test]
fn plan_errors_say_why() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text.gguf"), "no model, but text").unwrap();
    let refused = |args: &[&str], words: &[&str]| {
        let output = sterna(dir.path(), &[&["plan"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        for word in words {
            assert!(said.contains(word), "{args:?}: `{word}` is not in: {said}");
        }
    };
    refused(&["-m", "text.gguf"], &["text.gguf", "not a GGUF file"]);
    refused(&["-m", "absent.gguf"], &["absent.gguf", "cannot open"]);
    refused(&["--vram", "16"], &["--vram", "a size with a unit"]);
    refused(&["--vram", "999T"], &["999T is out of range", "16384.00 GiB"]);
    refused(&["--vram", "16G", "--device", "0"], &["cannot be used with"]);
    let model = write_sparse(dir.path(), "qwen3moe-small");
    if cfg!(feature = "cuda") {
        refused(&["-m", &model, "--card", "geforce 256"], &["--card", "`geforce 256`", "RTX 5080"]);
        refused(&["-m", &model, "--vram", "16G", "--backend", "cpu"], &["leave out --backend cpu"]);
        refused(&["-m", &model, "--vram", "16G", "--int8", "floats"], &["backend cuda: --int8: "]);
    }
}

/// Gemma 3 1B: 26 layers with one KV head of 256. Every sixth layer sees all positions, the others see 512.
#[test]
fn plan_sizes_sliding_windows_and_swa_full() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_sparse(dir.path(), "gemma-3-1b");
    let kv_bytes = |more: &[&str]| {
        let args = [&["-m", &model, "--backend", "cpu", "-c", "32768"], more].concat();
        json(dir.path(), &args)["devices"][0]["kv_bytes"].as_u64().unwrap()
    };
    let layer = |positions: u64| 256 * 2 * 2 * positions;
    assert_eq!(kv_bytes(&["--swa-full"]), 26 * layer(32768));
    // A window takes whole pages, plus pages for the tokens of a step.
    let sliding = kv_bytes(&[]).checked_sub(4 * layer(32768)).unwrap();
    assert!((22 * layer(512)..22 * layer(2048)).contains(&sliding), "{sliding}");

    // Windows of 24, which a text of 150 tokens exceeds.
    let Some(model) = support::golden("gemma3/tiny-f16.gguf") else { return };
    let said = |more: &[&str]| {
        let args = ["run", "-m", model.to_str().unwrap(), "--backend", "cpu", "-p", "You may", "-n", "150"];
        ok(&sterna(dir.path(), &[&args[..], &["--temp", "0", "--ignore-eos"], more].concat()))
    };
    assert_eq!(said(&["--swa-full"]), said(&[]));
}
