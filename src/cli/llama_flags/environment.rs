//! Environment variables that llama.cpp's programs read, and the flags that they set.

use std::ffi::OsString;

use clap::Command;

use super::{Verdict, lacking, long_names, ollama};
use crate::cli::names::Names;

/// Subcommands whose llama.cpp counterparts read the environment.
const READERS: &[&str] =
    &["run", "chat", "serve", "perplexity", "imatrix", "tokenize", "embed", "batched-bench"];

/// Flags whose variable may not be empty: a server that was meant to have keys would have none.
const NEVER_EMPTY: &[&str] = &["api-key", "api-key-file"];

/// Flags in the environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The command line: flags from the environment first, so that the user's own flags override them.
    pub args: Vec<OsString>,
    /// Variables that are applied.
    pub counted: Vec<String>,
    /// Variables that are ignored, each with the reason.
    pub ignored: Vec<String>,
}

impl Environment {
    /// Adds the flags of the environment to a command line. `command` has the subcommands without llama.cpp's
    /// flags.
    pub fn read(
        command: &Command,
        names: &Names,
        args: Vec<OsString>,
        get: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let name = args.get(1).and_then(|name| name.to_str()).filter(|name| READERS.contains(name));
        let Some(subcommand) = name.and_then(|name| command.find_subcommand(name)) else {
            return Self { args, ..Self::default() };
        };
        let is_server = subcommand.get_name() == "serve";
        let mut env = Self { args, ..Self::default() };
        for (variable, instead) in ollama::VARIABLES.iter().filter(|_| is_server) {
            if get(variable).is_some_and(|value| !value.is_empty()) {
                env.ignored.push(format!("ignoring {variable}: {instead}"));
            }
        }
        let typed = env.args.split_off(2);
        // A hub model on the command line overrides a model file in the environment; both on the command line
        // are an error.
        let is_of_hub = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.starts_with("--hf-repo"));
        let has_model = typed.iter().any(is_of_hub);
        // LLAMA_ARG_N_PARALLEL means the requests of a server, not the texts of other commands.
        let is_meant = |flag: &str| (flag != "model" || !has_model) && (flag != "parallel" || is_server);
        for (variable, flag) in names.variables().filter(|(_, flag)| is_meant(flag)) {
            let Some((flag, value)) = flag_of_variable(subcommand, variable, flag, &get) else { continue };
            let other = lacking(subcommand).into_iter().find(|other| other.names.contains(&&*flag));
            let instead = other.and_then(|other| match other.verdict {
                Verdict::Taken => None,
                Verdict::Refused(instead) => Some(instead),
                Verdict::By(judge) => judge(value.as_ref().and_then(|value| value.to_str()).unwrap_or("")),
            });
            if let Some(instead) = instead.filter(|_| !is_server) {
                env.ignored.push(format!("ignoring {variable}: --{flag} is not supported: {instead}"));
                continue;
            }
            let mut arg = OsString::from(format!("--{flag}"));
            if let Some(value) = value {
                arg.push("=");
                arg.push(value);
            }
            env.args.push(arg);
            env.counted.push(variable.to_owned());
        }
        env.args.extend(typed);
        env
    }
}

/// The flag that a variable sets in a subcommand, with its value if it takes one. For a switch that is off,
/// the negated flag. `None` if the variable is not set or the subcommand has no such flag.
fn flag_of_variable(
    subcommand: &Command,
    variable: &str,
    flag: &str,
    get: impl Fn(&str) -> Option<OsString>,
) -> Option<(String, Option<OsString>)> {
    let one_of = |words: [&str; 4], value: &OsString| words.iter().any(|word| value == word);
    let is_on = |value: &OsString| one_of(["1", "true", "on", "enabled"], value);
    let value = get(variable).filter(|value| !value.is_empty() || NEVER_EMPTY.contains(&flag));
    match takes_value(subcommand, flag)? {
        true => Some((flag.to_owned(), Some(value?))),
        false => {
            let off = format!("no-{flag}");
            let is_off = |value: &OsString| one_of(["0", "false", "off", "disabled"], value);
            let says_no = get(&variable.replacen("_ARG_", "_ARG_NO_", 1)).is_some_and(|value| is_on(&value));
            match value {
                _ if says_no => takes_value(subcommand, &off).map(|_| (off, None)),
                Some(value) if is_on(&value) => Some((flag.to_owned(), None)),
                Some(value) if is_off(&value) => takes_value(subcommand, &off).map(|_| (off, None)),
                // The parser rejects it.
                value => Some((flag.to_owned(), Some(value?))),
            }
        }
    }
}

/// True if a flag takes a value; `None` if neither the subcommand nor its llama.cpp counterpart has it.
fn takes_value(subcommand: &Command, flag: &str) -> Option<bool> {
    let ours = subcommand.get_arguments().find(|arg| long_names(arg).iter().any(|name| name == flag));
    let other = || lacking(subcommand).into_iter().find(|other| other.names.contains(&flag));
    let arg = ours.cloned().or_else(|| other().map(super::Flag::arg))?;
    Some(arg.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::super::{Cli, names};
    use super::*;

    fn args(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    fn read(typed: &[&str], variables: &[(&str, &str)]) -> Environment {
        let get =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Environment::read(&Cli::command(), &names(), args(typed), get)
    }

    #[test]
    fn every_variable_names_a_flag_of_a_subcommand() {
        let cli = Cli::command();
        for (variable, flag) in names().variables() {
            let has =
                |name: &&str| cli.find_subcommand(name).is_some_and(|sub| takes_value(sub, flag).is_some());
            assert!(!cfg!(feature = "serve") || READERS.iter().any(has), "{variable}: {flag}");
        }
    }

    #[test]
    #[cfg(feature = "serve")]
    fn the_environment_stands_before_what_is_typed() {
        let variables = [
            ("LLAMA_ARG_PORT", "9000"),
            ("LLAMA_ARG_ENDPOINT_METRICS", "1"),
            ("LLAMA_ARG_NO_ENDPOINT_SLOTS", "0"),
            ("LLAMA_ARG_HOST", ""),
            ("VLLM_API_KEY", "secret"),
        ];
        let env = read(&["sterna", "serve", "--port", "1"], &variables);
        assert_eq!(env.args, args(&["sterna", "serve", "--metrics", "--port=9000", "--port", "1"]));
        assert_eq!(env.counted, ["LLAMA_ARG_ENDPOINT_METRICS", "LLAMA_ARG_PORT"]);
        assert!(env.ignored[0].starts_with("ignoring VLLM_API_KEY: --api-key"), "{:?}", env.ignored);
        // A server that was meant to have a key does not start without one.
        let no_key = read(&["sterna", "serve"], &[("LLAMA_API_KEY", ""), ("LLAMA_ARG_API_KEY_FILE", "")]);
        assert_eq!(no_key.args, args(&["sterna", "serve", "--api-key=", "--api-key-file="]));
        // `bench` reads no variables.
        let bench = read(&["sterna", "bench", "-p", "serve"], &[("LLAMA_ARG_MODEL", "a")]);
        assert_eq!(bench.args, args(&["sterna", "bench", "-p", "serve"]));
    }

    #[test]
    fn each_subcommand_reads_what_it_has() {
        let variables = [
            ("LLAMA_ARG_MODEL", "a.gguf"),
            ("LLAMA_ARG_CTX_SIZE", "16"),
            ("LLAMA_ARG_N_PARALLEL", "4"),
            ("LLAMA_ARG_MAIN_GPU", "1"),
            ("LLAMA_ARG_PORT", "1"),
            ("LLAMA_ARG_KV_OFFLOAD", "off"),
        ];
        let run = read(&["sterna", "run"], &variables);
        assert_eq!(run.args, args(&["sterna", "run", "--ctx-size=16", "--model=a.gguf"]));
        assert_eq!(run.counted, ["LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_MODEL"]);
        assert_eq!(run.ignored.len(), 2, "{:?}", run.ignored);
        assert!(
            run.ignored.iter().any(|said| said.contains("LLAMA_ARG_MAIN_GPU") && said.contains("--device"))
        );
        assert!(run.ignored.iter().any(|said| said.contains("--no-kv-offload is not supported")));
        // A hub model on the command line is the only model.
        let hub = read(&["sterna", "run", "--hf-repo", "a/b"], &variables[..1]);
        assert_eq!(hub.args, args(&["sterna", "run", "--hf-repo", "a/b"]));
    }
}
