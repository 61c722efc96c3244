//! Other names of flags. Each flag is defined once, by its `#[arg]` or its line in `llama_flags`. Its aliases
//! include names that are not long flags: `-ngl`, llama.cpp's single-dash word, and `LLAMA_ARG_N_GPU_LAYERS`,
//! its environment variable. They are given at one definition, and apply to every subcommand with a flag of
//! that long name.
//!
//! Errors of the library carry the option that they are about, such as `DeviceOptions::gpu_layers`.
//! [`with_flags`] names the flag instead.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;

use clap::{Arg, Command};

use super::guest;
use crate::backend::BackendError;
use crate::engine::{self, SamplerError};
use crate::eval::importance::ImportanceError;
use crate::gguf::GgufError;
use crate::quantize::QuantizeError;
use crate::synth::SynthError;
use crate::tokenizer::TokenizerError;

/// Other names of all flags, each with the long name of its flag without dashes.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// The other names in all subcommands.
    pub fn of(command: &Command) -> Self {
        let flags = command.get_subcommands().flat_map(Command::get_arguments);
        let flags = flags.filter_map(|arg| Some((arg, arg.get_long()?)));
        let named = flags.flat_map(|(arg, flag)| {
            aliases(arg).filter(|name| !is_long(name)).map(|name| (name.to_owned(), flag.to_owned()))
        });
        // llama.cpp and vLLM also accept `--ctx_size`.
        let long = command.get_subcommands().flat_map(Command::get_arguments).flat_map(|arg| {
            let names = arg.get_long().into_iter().chain(aliases(arg).filter(|name| is_long(name)));
            names.filter(|name| name.contains('-')).map(str::to_owned).collect::<Vec<_>>()
        });
        let spelled = long.map(|name| (format!("--{}", name.replace('-', "_")), name));
        Self(named.chain(spelled).collect())
    }

    /// The flag of another name.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Environment variables with the flags that they set.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(name, flag)| (name.as_str(), flag.as_str()));
        all.filter(|(name, _)| name.starts_with("LLAMA_"))
    }
}

fn aliases(arg: &Arg) -> impl Iterator<Item = &str> {
    arg.get_all_aliases().unwrap_or_default().into_iter()
}

/// True if an alias is a long name of its flag, typed after two dashes.
pub fn is_long(alias: &str) -> bool {
    alias.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// A flag with only those aliases that are long names.
pub fn as_typed(arg: Arg) -> Arg {
    let long = |names: Vec<&str>| -> Vec<String> {
        names.into_iter().filter(|name| is_long(name)).map(str::to_owned).collect()
    };
    let visible = long(arg.get_visible_aliases().unwrap_or_default());
    let mut hidden = long(arg.get_all_aliases().unwrap_or_default());
    hidden.retain(|name| !visible.contains(name));
    arg.alias(None::<&'static str>).aliases(hidden).visible_aliases(visible)
}

/// Formats an error, with flags in place of the library options that it names.
pub fn with_flags(err: &(dyn Error + 'static)) -> String {
    if let Some(err) = err.downcast_ref::<engine::Error>() {
        match err {
            engine::Error::Option { option, want, got } => {
                return format!("{}: want {want}, got {got}", flag(option));
            }
            engine::Error::Sampler(err) => return with_flags(err),
            engine::Error::Backend(err) => return with_flags(err),
            _ => {}
        }
    }
    if let Some(SamplerError { option, want, got }) = err.downcast_ref() {
        return format!("{}: want {want}, got {got}", flag(option));
    }
    if let Some(SynthError::Spec { what, detail }) = err.downcast_ref() {
        return format!("{}: {detail}", flag(what));
    }
    if let Some(ImportanceError::Engine(err)) = err.downcast_ref() {
        return with_flags(err);
    }
    match err.downcast_ref::<BackendError>() {
        Some(BackendError::Option { backend, option, detail }) => {
            return format!("backend {backend}: {}: {detail}", flag(option.path()));
        }
        Some(BackendError::Avoidable { error, way_out: [before, option, after] }) => {
            return format!("{}{before}{}{after}", with_flags(&**error), flag(option));
        }
        _ => {}
    }
    let message = err.to_string();
    let Some(way_out @ [before, option, after]) = way_out(err) else { return message };
    let fault = message.strip_suffix(&way_out.concat()).unwrap_or(&message);
    format!("{fault}{before}{}{after}", flag(option))
}

/// The end of an error's message that names an option: text, the option's path, and text.
fn way_out(err: &(dyn Error + 'static)) -> Option<[&'static str; 3]> {
    fn of<E: Error + 'static>(
        err: &(dyn Error + 'static),
        way_out: fn(&E) -> Option<[&'static str; 3]>,
    ) -> Option<[&'static str; 3]> {
        err.downcast_ref().and_then(way_out)
    }
    let of_feature = || {
        #[cfg(feature = "hub")]
        if let Some(found) = of(err, crate::hub::HubError::way_out) {
            return Some(found);
        }
        #[cfg(feature = "convert")]
        if let Some(found) = of(err, crate::convert::ConvertError::way_out) {
            return Some(found);
        }
        None
    };
    of(err, engine::Error::way_out)
        .or_else(|| of(err, GgufError::way_out))
        .or_else(|| of(err, TokenizerError::way_out))
        .or_else(|| of(err, QuantizeError::way_out))
        .or_else(of_feature)
}

/// Flags that are not called like the library option that they set.
const RENAMED: &[(&str, &str)] = &[
    ("EngineOptions::batch", "--batch-size"),
    ("EngineOptions::control_layers", "--control-vector-layer-range"),
    ("EngineOptions::drafts", "--draft-max"),
    ("EngineOptions::draft_head", "--draft-head"),
    ("EngineOptions::mtp", "--spec-type"),
    ("EngineOptions::n_ctx", "--ctx-size"),
    ("EngineOptions::n_seqs", "--parallel"),
    ("HubOptions::token", "--hf-token"),
    ("NgramLookup::size", "--spec-ngram-size-n"),
    ("OpenOptions::access", "--mlock"),
    ("Preset::name", "--preset"),
    ("QuantizeOptions::requantize", "--allow-requantize"),
    ("Request::adapters", "--lora"),
    ("Request::n", "--parallel"),
    ("SamplerOptions::temperature", "--temp"),
    ("SamplerOptions::typical_p", "--typical"),
    ("ServeOptions::hosts", "--allowed-hosts"),
    ("ServeOptions::lora_folder", "--lora-dir"),
    ("ServeOptions::origins", "--cors-origins"),
    ("Spec::head_ty", "--head-type"),
    ("Spec::n_ctx", "--ctx"),
    ("Spec::n_heads", "--heads"),
    ("Spec::n_kv_heads", "--kv-heads"),
    ("Spec::n_layers", "--layers"),
    ("Spec::n_vocab", "--vocab"),
    ("Spec::ty", "--type"),
    ("TokenizerOptions::pre", "--tokenizer-pre"),
];

/// Library options that no flag sets.
const WITHOUT: &[&str] = &["BatchOptions::chunk", "EngineOptions::checkpoints", "EngineOptions::outputs"];

/// The flag that sets a library option, as it is typed; the option's path if there is none.
pub fn flag(option: &str) -> String {
    match RENAMED.iter().find(|(renamed, _)| *renamed == option) {
        Some((_, flag)) => (*flag).to_owned(),
        None if WITHOUT.contains(&option) => option.to_owned(),
        None => format!("--{}", option.rsplit("::").next().unwrap_or(option).replace('_', "-")),
    }
}

/// Prints a message to stderr, or logs it inside another program.
pub fn note(kind: &str, said: &impl Display) {
    guest::say(kind, said);
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::{Cli, llama_flags};
    use super::*;
    use crate::backend::OptionId;
    use clap::CommandFactory;

    #[test]
    fn errors_name_flags() {
        let of = |option| engine::Error::Option { option, want: "1 to 9".into(), got: "0".into() };
        assert_eq!(with_flags(&of("EngineOptions::n_ctx")), "--ctx-size: want 1 to 9, got 0");
        assert_eq!(with_flags(&of("EngineOptions::outputs")), "EngineOptions::outputs: want 1 to 9, got 0");
        let full = engine::Error::ContextFull { n_ctx: 8, used: 8, more: 1 };
        let facts = "the context is full: 8 of 8 positions are used and 1 more are needed; ";
        assert_eq!(with_flags(&full), format!("{facts}--ctx-size sets it"));
        assert_eq!(full.to_string(), format!("{facts}EngineOptions::n_ctx sets it"));
        let (option, detail) = (OptionId::Device, "no".into());
        let both = BackendError::Avoidable {
            error: Box::new(BackendError::Option { backend: "cuda", option, detail }),
            way_out: ["; see ", OptionId::GpuLayers.path(), ""],
        };
        let said = with_flags(&engine::Error::Backend(both));
        assert_eq!(said, "backend cuda: --device: no; see --gpu-layers");
    }

    #[test]
    fn each_name_stands_for_one_flag() {
        let command = llama_flags::added(Cli::command());
        let names = Names::of(&command);
        for arg in command.get_subcommands().flat_map(Command::get_arguments) {
            for name in aliases(arg).filter(|name| !is_long(name)) {
                assert_eq!(names.flag(name), arg.get_long(), "{name}");
                let is_word = name.starts_with('-') && !name.starts_with("--");
                assert!(is_word || name.starts_with("LLAMA_"), "{name}");
            }
        }
    }

    #[test]
    fn only_long_names_are_typed_after_two_dashes() {
        let command = super::super::command();
        for arg in command.get_subcommands().flat_map(Command::get_arguments) {
            assert!(aliases(arg).all(is_long), "{arg}");
        }
        let run = command.find_subcommand("run").unwrap();
        let layers = run.get_arguments().find(|arg| arg.get_long() == Some("gpu-layers")).unwrap();
        assert!(aliases(layers).any(|name| name == "n-gpu-layers"));
    }

    /// Code of the library per file, without comments, unit tests and the command line.
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

    /// The options that messages of the library name, with the file.
    fn options() -> Vec<(PathBuf, String)> {
        let mut options = Vec::new();
        for (file, code) in library() {
            // In code, the path of a field would not compile: these are words of messages.
            for (middle, _) in code.match_indices("Options::").map(|(at, word)| (at + word.len(), word)) {
                let start = code[..middle - 2].rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
                let end = code[middle..].find(|c| !is_word(c)).map_or(code.len(), |at| middle + at);
                let is_field = code[middle..].starts_with(|c: char| c.is_lowercase());
                if is_field && !code[end..].starts_with('(') {
                    options.push((file.clone(), code[start..end].to_owned()));
                }
            }
        }
        let of_backends = [OptionId::Device, OptionId::GpuLayers, OptionId::MinBatch, OptionId::Card];
        options.extend(of_backends.map(|option| (PathBuf::from("src/backend"), option.path().to_owned())));
        options.extend(RENAMED.iter().map(|(option, _)| (PathBuf::from(file!()), (*option).to_owned())));
        options
    }

    #[test]
    #[cfg(all(feature = "serve", feature = "hub", feature = "convert"))]
    fn every_option_that_the_library_names_has_a_flag() {
        let command = Cli::command();
        let args = command.get_subcommands().flat_map(Command::get_arguments);
        let flags: Vec<String> = args.filter_map(Arg::get_long).map(|flag| format!("--{flag}")).collect();
        let options = options();
        assert!(options.len() > 30, "messages name options in another way: {}", options.len());
        for (file, option) in options {
            let is_known = WITHOUT.contains(&&*option) || flags.contains(&flag(&option));
            assert!(is_known, "{}: {option}", file.display());
        }
    }

    #[test]
    fn the_library_names_no_flag() {
        let flags: Vec<String> = options().iter().map(|(_, option)| flag(option)).collect();
        for (file, code) in library() {
            for flag in flags.iter().filter(|flag| flag.starts_with("--")) {
                assert!(!code.contains(flag.as_str()), "{} names {flag}", file.display());
            }
        }
    }

    fn is_word(c: char) -> bool {
        c.is_alphanumeric() || c == '_'
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
