//! From the library's names of options to flags: errors and notes of the library name an option by its path,
//! as in `EngineOptions::n_ctx`, and a user of the command line reads `--ctx-size`.

use std::fmt::Display;

/// Paths that the library's messages name, and the flag that sets each; `None` where no flag does.
const FLAGS: &[(&str, Option<&str>)] = &[
    ("BatchOptions::chunk", None),
    ("ChatTemplate::choose", Some("--chat-template")),
    ("ConvertOptions::scale", Some("--scale")),
    ("ConvertOptions::ternary", Some("--ternary")),
    ("ConvertOptions::text_only", Some("--text-only")),
    ("ConvertOptions::tokenizer_pre", Some("--tokenizer-pre")),
    ("DeviceOptions::card", Some("--card")),
    ("DeviceOptions::device", Some("--device")),
    ("DeviceOptions::gpu_layers", Some("--gpu-layers")),
    ("DeviceOptions::int8", Some("--int8")),
    ("DeviceOptions::op_offload_min_batch", Some("--op-offload-min-batch")),
    ("DeviceOptions::override_tensor", Some("--override-tensor")),
    ("DeviceOptions::profile", Some("--profile")),
    ("DeviceOptions::resident_layers", Some("--resident-layers")),
    ("DeviceOptions::split_mode", Some("--split-mode")),
    ("DeviceOptions::stream_slots", Some("--stream-slots")),
    ("DeviceOptions::tensor_split", Some("--tensor-split")),
    ("EngineOptions::act_type", Some("--act-type")),
    ("EngineOptions::batch", Some("--batch-size")),
    ("EngineOptions::cache_type_k", Some("--cache-type-k")),
    ("EngineOptions::cache_type_v", Some("--cache-type-v")),
    ("EngineOptions::checkpoints", None),
    ("EngineOptions::head_type", Some("--head-type")),
    ("EngineOptions::kv_positions", None),
    ("EngineOptions::kv_sinks", Some("--kv-sinks")),
    ("EngineOptions::kv_window", Some("--kv-window")),
    ("EngineOptions::n_ctx", Some("--ctx-size")),
    ("EngineOptions::n_seqs", Some("--parallel")),
    ("EngineOptions::outputs", None),
    ("GrpcOptions::kv_transfer", Some("--kv-transfer")),
    ("HubOptions::offline", Some("--offline")),
    ("HubOptions::token", Some("--hf-token")),
    ("OpenOptions::access", Some("--mlock")),
    ("OpenOptions::dialect", Some("--dialect")),
    ("Preset::name", Some("--preset")),
    ("QuantizeOptions::imatrix", Some("--imatrix")),
    ("QuantizeOptions::pure", Some("--pure")),
    ("QuantizeOptions::requantize", Some("--allow-requantize")),
    ("Request::n", Some("--parallel")),
    ("SamplerOptions::frequency_penalty", Some("--frequency-penalty")),
    ("SamplerOptions::logit_bias", Some("--logit-bias")),
    ("SamplerOptions::min_p", Some("--min-p")),
    ("SamplerOptions::presence_penalty", Some("--presence-penalty")),
    ("SamplerOptions::repeat_penalty", Some("--repeat-penalty")),
    ("SamplerOptions::temperature", Some("--temp")),
    ("SamplerOptions::top_p", Some("--top-p")),
    ("SamplerOptions::typical_p", Some("--typical")),
    ("Spec::dim", Some("--dim")),
    ("Spec::ffn_dim", Some("--ffn-dim")),
    ("Spec::head_dim", Some("--head-dim")),
    ("Spec::head_ty", Some("--head-type")),
    ("Spec::n_ctx", Some("--ctx")),
    ("Spec::n_heads", Some("--heads")),
    ("Spec::n_kv_heads", Some("--kv-heads")),
    ("Spec::n_layers", Some("--layers")),
    ("Spec::n_vocab", Some("--vocab")),
    ("Spec::ty", Some("--type")),
    ("TokenizerOptions::pre", Some("--tokenizer-pre")),
];

/// What the library says, with flags in place of its options.
pub fn with_flags(said: &impl Display) -> String {
    let said = said.to_string();
    let mut out = String::with_capacity(said.len());
    let mut rest = said.as_str();
    while let Some((before, flag, after)) = next_option(rest) {
        out += before;
        out += flag;
        rest = after;
    }
    out + rest
}

/// The text up to the next option that has a flag, the flag, and the text after the option.
fn next_option(text: &str) -> Option<(&str, &'static str, &str)> {
    text.match_indices("::").find_map(|(middle, _)| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let start = text[..middle].rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        let end = text[middle + 2..].find(|c| !is_name(c)).map_or(text.len(), |at| middle + 2 + at);
        let (_, flag) = FLAGS.iter().find(|(path, _)| *path == &text[start..end])?;
        Some((&text[..start], (*flag)?, &text[end..]))
    })
}

/// Says on stderr what the library has to say of a file or an option.
pub fn note(kind: &str, said: &impl Display) {
    eprintln!("{kind}: {}", with_flags(said));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_become_flags_and_all_else_stays() {
        let said = "EngineOptions::n_ctx: want 1 to 9, got 0; EngineOptions::n_ctx sets it";
        assert_eq!(with_flags(&said), "--ctx-size: want 1 to 9, got 0; --ctx-size sets it");
        for said in ["", "EngineOptions::outputs: 0", "NoEngineOptions::n_ctx", "Options::n_ctx", "é::ü"] {
            assert_eq!(with_flags(&said), said);
        }
    }

    #[test]
    fn every_flag_is_one_of_the_command_line() {
        let cli = super::super::Cli::command();
        let known: BTreeSet<String> = cli
            .get_subcommands()
            .flat_map(|command| command.get_arguments())
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        for flag in FLAGS.iter().filter_map(|(_, flag)| *flag) {
            assert!(known.contains(flag), "{flag}");
        }
    }

    /// The library's code: file by file, without comments, unit tests and the command line.
    fn library() -> Vec<(PathBuf, String)> {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        files.retain(|file| !file.starts_with(src.join("cli")));
        let code = |file: PathBuf| {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
            let lines: Vec<_> = lines.filter(|line| !line.trim_start().starts_with("//")).collect();
            (file, lines.join("\n"))
        };
        files.into_iter().map(code).collect()
    }

    #[test]
    fn every_option_that_the_library_names_is_listed() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let mut n_named = 0;
        for (file, code) in library() {
            // In code, the path of a field would not compile: these are words of messages.
            for (middle, _) in code.match_indices("Options::").map(|(at, word)| (at + word.len(), word)) {
                let start = code[..middle - 2].rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
                let end = code[middle..].find(|c| !is_name(c)).map_or(code.len(), |at| middle + at);
                let is_field = code[middle..].starts_with(|c: char| c.is_lowercase());
                if is_field && !code[end..].starts_with('(') {
                    n_named += 1;
                    let path = &code[start..end];
                    assert!(FLAGS.iter().any(|(known, _)| *known == path), "{}: {path}", file.display());
                }
            }
        }
        assert!(n_named > 10, "messages name options in another way: {n_named}");
    }

    #[test]
    fn the_library_names_no_flag() {
        for (file, code) in library() {
            for flag in FLAGS.iter().filter_map(|(_, flag)| *flag) {
                assert!(!code.contains(flag), "{} names {flag}", file.display());
            }
        }
    }

    fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                rust_files(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
}
