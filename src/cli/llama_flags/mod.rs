//! Flags of llama.cpp's programs that Sterna does not have: those that ask for the default behaviour are
//! accepted and ignored, the others are rejected with a hint. They are hidden from the help. The flags and
//! commands of ollama and vLLM are treated in the same way.
//!
//! `common.rs` has the flags of all llama.cpp programs, `programs.rs` those of each, `environment.rs` the
//! variables that set flags, `words.rs` commands, and names of models in places where they are not expected.
//! A subcommand gets the flags of its counterparts that it does not have itself.

mod common;
mod environment;
mod ollama;
mod programs;
mod vllm;
mod words;

use std::collections::BTreeSet;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};

pub use environment::Environment;
pub use words::explained;

/// A flag that a subcommand does not have.
struct Flag {
    /// Long names without dashes, the first of which appears in messages, and then [other
    /// names](super::names).
    names: &'static [&'static str],
    short: Option<char>,
    value: Value,
    verdict: Verdict,
}

/// Number of values after a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    /// One or none.
    Maybe,
    One,
    Two,
}

#[derive(Clone, Copy)]
enum Verdict {
    Taken,
    /// Rejected, with a hint what to do instead.
    Refused(&'static str),
    /// Depends on the value, which is empty if missing: `None` if it is accepted, otherwise the hint.
    By(fn(&str) -> Option<&'static str>),
}

const fn flag(names: &'static [&'static str], value: Value, verdict: Verdict) -> Flag {
    Flag { names, short: None, value, verdict }
}

/// A flag without a value that is accepted and ignored.
const fn taken(names: &'static [&'static str]) -> Flag {
    flag(names, Value::None, Verdict::Taken)
}

/// A flag that is rejected, with a hint what to do instead.
const fn refused(names: &'static [&'static str], value: Value, instead: &'static str) -> Flag {
    flag(names, value, Verdict::Refused(instead))
}

const fn by(names: &'static [&'static str], value: Value, judge: fn(&str) -> Option<&'static str>) -> Flag {
    flag(names, value, Verdict::By(judge))
}

impl Flag {
    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    fn id(&self) -> &'static str {
        self.names[0]
    }

    fn arg(&self) -> Arg {
        let aliases = self.names[1..].iter().copied();
        let arg = Arg::new(self.id()).long(self.id()).aliases(aliases).short(self.short).hide(true);
        match self.value {
            Value::None => arg.action(ArgAction::SetTrue),
            Value::Maybe => arg.num_args(0..=1),
            Value::One => arg.num_args(1).allow_hyphen_values(true),
            Value::Two => arg.num_args(2).allow_negative_numbers(true),
        }
    }

    /// The hint, if the flag was typed and is not supported.
    fn judge(&self, matches: &ArgMatches) -> Option<&'static str> {
        if matches.value_source(self.id()) != Some(ValueSource::CommandLine) {
            return None;
        }
        match self.verdict {
            Verdict::Taken => None,
            Verdict::Refused(instead) => Some(instead),
            Verdict::By(judge) => judge(matches.get_one::<String>(self.id()).map_or("", |value| value)),
        }
    }
}

/// Flag lists of a subcommand's counterparts. Of two flags with the same name, the first is used.
fn lists(subcommand: &str) -> &'static [&'static [Flag]] {
    use programs::*;
    match subcommand {
        "run" => &[RUN, TALK, SPECULATION, ollama::RUN, common::FLAGS],
        "chat" => &[CHAT, TALK, SPECULATION, ollama::RUN, vllm::CHAT, common::FLAGS],
        "serve" => &[SERVE, SPECULATION, vllm::SERVE, common::FLAGS],
        "perplexity" => &[PERPLEXITY, common::FLAGS],
        "imatrix" => &[IMATRIX, common::FLAGS],
        "embed" => &[EMBED, common::FLAGS],
        "bench" => &[BENCH, common::FLAGS],
        "batched-bench" => &[BATCHED_BENCH, common::FLAGS],
        "tokenize" | "logits" | "kv-report" | "plan" => &[common::FLAGS],
        "quantize" => &[QUANTIZE],
        "split" | "merge" => &[SPLIT],
        "pull" => &[ollama::PULL],
        "inspect" => &[ollama::SHOW],
        _ => &[],
    }
}

/// Flags of the llama.cpp counterpart that the subcommand does not have itself.
fn lacking(command: &Command) -> Vec<&'static Flag> {
    let mut names: BTreeSet<String> = command.get_arguments().flat_map(long_names).collect();
    let flags = lists(command.get_name()).iter().flat_map(|list| list.iter());
    let mut lacking = Vec::new();
    for flag in flags {
        if flag.names.iter().all(|name| !names.contains(*name)) {
            names.extend(flag.names.iter().map(|name| (*name).to_owned()));
            lacking.push(flag);
        }
    }
    lacking
}

/// Long names of a flag, including hidden ones.
fn long_names(arg: &Arg) -> Vec<String> {
    let aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
    arg.get_long().into_iter().chain(aliases).map(str::to_owned).collect()
}

/// Adds llama.cpp's flags to the command line.
pub fn added(command: Command) -> Command {
    command.mut_subcommands(|command| {
        // Our short flags take precedence: -p of bench is not a prompt.
        let letters: Vec<char> = command.get_arguments().filter_map(Arg::get_short).collect();
        let is_free = |flag: &Flag| flag.short.is_none_or(|short| !letters.contains(&short));
        let arg = |flag: &Flag| if is_free(flag) { flag.arg() } else { flag.arg().short(None) };
        let flags: Vec<Arg> = lacking(&command).into_iter().map(arg).collect();
        command.args(flags)
    })
}

/// Checks the llama.cpp flags of a command line.
///
/// # Errors
/// The first unsupported flag, with what to do instead.
pub fn judge_all(command: &Command, matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = command.find_subcommand(name) else { return Ok(()) };
    match lacking(command).into_iter().find_map(|flag| Some((flag.id(), flag.judge(matches)?))) {
        Some((name, instead)) => {
            Err(Error::raw(ErrorKind::InvalidValue, format!("--{name} is not supported: {instead}\n")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{command, normalise, parse};

    /// Error message for a command line, if it is invalid.
    fn parsed(line: &str) -> Result<(), String> {
        let args = normalise(line.split_whitespace().map(Into::into));
        parse(args).map(drop).map_err(|err| err.to_string())
    }

    /// True if this build has the subcommand.
    fn is_built(line: &str) -> bool {
        cfg!(feature = "serve") || !line.starts_with("sterna serve")
    }

    #[test]
    fn flags_of_llama_cpp_are_taken_or_refused_with_the_way_out() {
        for line in [
            "sterna run -m model.gguf -p Hello -n 32 -ngl 99 -fa on -c 4096 -no-cnv --no-warmup",
            "sterna run -fa -ngl all --jinja -e --no-display-prompt --mirostat 0",
            "sterna chat -cnv -fa 1 -ngl -1 --interactive --xtc-probability 0.0",
            "sterna bench -ngl 9999 -fa 1 -mmp 1 -p 512 -n 128 -nkvo 0 -embd 0",
            "sterna bench -mmp 0",
            "sterna chat --mlock",
            "sterna tokenize --no-mmap Hello",
            "sterna perplexity -f wiki.txt -ngl 99",
            "sterna run -hf a/b:Q4_0 -hff x.gguf -hft word --offline",
            "sterna bench -hfr a/b",
            "sterna tokenize -hf=a/b Hello",
            "sterna run --backend cuda -ngl 20 --stream-slots 3",
            "sterna run -ot exps=CPU -cmoe -ncmoe 3 -lm mmap+mlock",
            "sterna serve --embeddings --pooling mean --embd-normalize -1",
            "sterna serve --reranking",
            "sterna embed -p Hello --pooling cls --embd-output-format array --no-warmup -ngl 99",
            "sterna serve --jinja -cb -ngl 99 -fa on --no-context-shift",
            "sterna inspect -m model.gguf",
            "sterna tokenize -m model.gguf -p Hello --no-parse-special",
            "sterna run --stop --- -r -",
            "sterna run -t -1 --top-p -0.1 --repeat-penalty -1",
            "sterna quantize in.gguf out.gguf Q4_K_M 4",
        ]
        .into_iter()
        .filter(|line| is_built(line))
        {
            assert_eq!(parsed(line), Ok(()), "{line}");
        }
        let refused = [
            ("sterna run -cnv", "--conversation", "sterna chat"),
            ("sterna run -mu https://a.co/x.gguf", "--model-url", "-m"),
            ("sterna chat -no-cnv", "--no-conversation", "sterna run"),
            ("sterna chat --mirostat 2", "--mirostat", "--top-p"),
            ("sterna serve --tools all", "--tools", "clients call tools"),
            ("sterna serve --no-webui", "--no-ui", "page"),
            ("sterna serve -nocb", "--no-cont-batching", "steps"),
            ("sterna run -lv 1", "--verbosity", "-v"),
            ("sterna run --prio 2", "--prio", "nice"),
            ("sterna run --no-perf", "--no-perf", "2>/dev/null"),
            ("sterna run --override-kv a=int:3", "--override-kv", "sterna edit"),
            ("sterna run --rope-scaling yarn", "--rope-scaling", "A.rope.scaling.type=yarn"),
            ("sterna bench -nkvo 1", "--no-kv-offload", "--backend"),
            ("sterna perplexity -f a.txt --temp 1", "--temp", "generates no text"),
        ];
        for (line, flag, way) in refused.into_iter().filter(|(line, ..)| is_built(line)) {
            let message = parsed(line).unwrap_err();
            let wanted = format!("error: {flag} is not supported: ");
            assert!(message.starts_with(&wanted) && message.contains(way), "{line}: {message}");
        }
    }

    #[test]
    fn numbers_below_their_range_are_said_to_be_so() {
        let lines = [
            ("sterna run -c -1", "'-1' for '--ctx-size <N>': want a whole number, 0 or more"),
            ("sterna run -t -2", "'-2' for '--threads <N>': want 1 to 1024, or -1"),
            ("sterna run -b -1", "'-1' for '--batch-size <N>'"),
            ("sterna serve -np -3", "'-3' for '--parallel <N>': -3 is not in 1..=1024"),
        ];
        for (line, want) in lines.into_iter().filter(|(line, _)| is_built(line)) {
            let message = parsed(line).unwrap_err();
            assert!(message.contains(want), "{line}: {message}");
        }
    }

    /// No flag is defined twice: clap checks the names within a subcommand.
    #[test]
    fn none_is_a_flag_of_ours() {
        command().debug_assert();
    }
}
