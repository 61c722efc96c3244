//! Flags that llama.cpp's programs have and their users type: those that ask for what is done anyway are
//! taken, the others are refused, each with the way out.

use std::fmt;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// A flag that a subcommand does not have, and its help does not show.
pub struct Flag {
    /// Long names without dashes. Messages have the first.
    names: &'static [&'static str],
    short: Option<char>,
    value: Value,
    verdict: Verdict,
}

/// Whether a value follows a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// No.
    None,
    /// One, or none.
    Maybe,
    /// Yes.
    One,
}

enum Verdict {
    Taken,
    /// What to do instead.
    Refused(&'static str),
    /// The same by the value; `None` if it is taken.
    By(fn(&str) -> Option<&'static str>),
}

/// A flag that is taken.
pub const fn taken(names: &'static [&'static str]) -> Flag {
    Flag { names, short: None, value: Value::None, verdict: Verdict::Taken }
}

/// A flag that is refused, with what to do instead.
pub const fn refused(names: &'static [&'static str], value: Value, instead: &'static str) -> Flag {
    Flag { names, short: None, value, verdict: Verdict::Refused(instead) }
}

const fn by(names: &'static [&'static str], value: Value, judge: fn(&str) -> Option<&'static str>) -> Flag {
    Flag { names, short: None, value, verdict: Verdict::By(judge) }
}

// Ways out that several flags share.
const TEXT: &str = "models read text alone";
const DOWNLOAD: &str = "-m takes addresses of the Hugging Face hub; of elsewhere, download the file";
const WHOLE: &str = "a model runs on one backend whole; --backend names it";
const POSITIONS: &str = "the file says how positions are encoded; write it there";
const SAMPLERS: &str = "there are --temp, --top-k, --top-p, --min-p, --typical and penalties";
/// Of a text that is to be longer than its context.
pub const LONGER: &str = "a text ends where its context does; -c makes it longer";
const SILENCE: &str = "the log is on stderr; 2>/dev/null leaves it out";

fn unless_zero(n: &str) -> Option<&'static str> {
    (n.parse::<f64>() != Ok(0.0)).then_some(SAMPLERS)
}

/// Flags of every program that loads a model.
#[derive(Clone, Debug)]
pub struct OfModels;

/// Flags that choose how tokens are picked.
#[derive(Clone, Debug)]
pub struct OfSampling;

/// Flags of llama-cli where it continues a text.
#[derive(Clone, Debug)]
pub struct OfRun;

/// Flags of llama-cli where it talks.
#[derive(Clone, Debug)]
pub struct OfChat;

/// The flags of a kind of program.
pub trait List: Clone + fmt::Debug + Send + Sync + 'static {
    /// None of them is one of ours.
    const FLAGS: &'static [Flag];
}

impl List for OfModels {
    const FLAGS: &'static [Flag] = &[
        Flag { names: &["flash-attn"], short: None, value: Value::Maybe, verdict: Verdict::Taken },
        taken(&["no-warmup"]),
        taken(&["warmup"]),
        refused(&["threads-batch"], Value::One, "-t sets the threads of prompts, too"),
        refused(&["numa"], Value::One, "numactl places a program"),
        refused(&["main-gpu"], Value::One, "--device names the card"),
        refused(&["no-kv-offload"], Value::None, WHOLE),
        refused(&["lora"], Value::One, "merge the adapter into the model's file"),
        refused(&["control-vector"], Value::One, "steering vectors are not there"),
        refused(&["model-draft"], Value::One, "there is no speculative decoding"),
        refused(&["mmproj"], Value::One, TEXT),
        refused(&["model-url"], Value::One, DOWNLOAD),
        refused(&["rope-scaling"], Value::One, POSITIONS),
        refused(&["rope-freq-base"], Value::One, POSITIONS),
        refused(&["rope-freq-scale"], Value::One, POSITIONS),
        refused(&["yarn-orig-ctx"], Value::One, POSITIONS),
        refused(&["override-kv"], Value::One, "write it into the file, with gguf-py's gguf_set_metadata"),
        refused(&["log-disable"], Value::None, SILENCE),
    ];
}

impl List for OfSampling {
    const FLAGS: &'static [Flag] = &[
        by(&["mirostat"], Value::One, unless_zero),
        by(&["dry-multiplier"], Value::One, unless_zero),
        by(&["xtc-probability"], Value::One, unless_zero),
        by(&["dynatemp-range"], Value::One, unless_zero),
        refused(&["top-nsigma", "top-n-sigma"], Value::One, SAMPLERS),
        refused(&["samplers"], Value::One, SAMPLERS),
        refused(&["sampling-seq", "sampler-seq"], Value::One, SAMPLERS),
    ];
}

/// What llama-cli has whether it talks or not.
macro_rules! of_llama_cli {
    ($($flag:expr),* $(,)?) => {
        &[
            taken(&["jinja"]),
            taken(&["simple-io"]),
            taken(&["no-context-shift"]),
            taken(&["no-display-prompt"]),
            refused(&["context-shift"], Value::None, LONGER),
            refused(&["keep"], Value::One, LONGER),
            refused(&["color"], Value::Maybe, "leave it out: a model's text has one colour"),
            refused(&["multiline-input"], Value::None, "a line that ends in \\ goes on in the next one"),
            $($flag),*
        ]
    };
}

const TALK: &str = "`sterna chat` talks";
const PIPED: &str = "pipe the message into `sterna chat`, which ends with its input";

impl List for OfRun {
    const FLAGS: &'static [Flag] = of_llama_cli![
        Flag { names: &["escape"], short: Some('e'), value: Value::None, verdict: Verdict::Taken },
        taken(&["no-conversation"]),
        refused(&["conversation"], Value::None, TALK),
        refused(&["single-turn"], Value::None, PIPED),
        refused(&["system-prompt"], Value::One, TALK),
        refused(&["chat-template"], Value::One, TALK),
        Flag {
            names: &["interactive"],
            short: Some('i'),
            value: Value::None,
            verdict: Verdict::Refused(TALK)
        },
    ];
}

impl List for OfChat {
    const FLAGS: &'static [Flag] = of_llama_cli![
        taken(&["conversation"]),
        Flag { names: &["interactive"], short: Some('i'), value: Value::None, verdict: Verdict::Taken },
        refused(&["no-conversation"], Value::None, "`sterna run` continues a text"),
        refused(&["single-turn"], Value::None, PIPED),
        refused(&["system-prompt-file"], Value::One, "-sys \"$(cat FILE)\" gives the text"),
    ];
}

/// The flags of a list. It holds nothing: what was typed is judged while it is read.
#[derive(Clone, Debug)]
pub struct Others<L>(PhantomData<L>);

impl Flag {
    fn id(&self) -> &'static str {
        self.names[0]
    }

    fn arg(&self) -> Arg {
        let aliases = self.names[1..].iter().copied();
        let arg = Arg::new(self.id()).long(self.id()).aliases(aliases).short(self.short).hide(true);
        match self.value {
            Value::None => arg.action(ArgAction::SetTrue),
            Value::Maybe => arg.num_args(0..=1),
            Value::One => arg.num_args(1).allow_negative_numbers(true),
        }
    }

    /// What to do instead, if the flag was typed and asks for something that is not there.
    fn judge(&self, matches: &ArgMatches) -> Option<&'static str> {
        if matches.value_source(self.id()) != Some(ValueSource::CommandLine) {
            return None;
        }
        match self.verdict {
            Verdict::Taken => None,
            Verdict::Refused(instead) => Some(instead),
            Verdict::By(judge) => judge(matches.get_one::<String>(self.id())?),
        }
    }
}

impl<L: List> Args for Others<L> {
    fn augment_args(command: Command) -> Command {
        command.args(L::FLAGS.iter().map(Flag::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<L: List> FromArgMatches for Others<L> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        match L::FLAGS.iter().find_map(|flag| Some((flag.id(), flag.judge(matches)?))) {
            Some((name, instead)) => {
                Err(Error::raw(ErrorKind::InvalidValue, format!("--{name} is not supported: {instead}")))
            }
            None => Ok(Self(PhantomData)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;
    use super::super::args::normalise;

    /// What a command line comes to: nothing, or the message.
    fn parsed(line: &str) -> Result<(), String> {
        let args = normalise(line.split_whitespace().map(Into::into));
        Cli::try_parse_from(args).map(drop).map_err(|err| err.to_string())
    }

    #[test]
    fn flags_of_llama_cpp_are_taken_or_refused_with_the_way_out() {
        for line in [
            "sterna run -m model.gguf -p Hello -n 32 -ngl 99 -fa on -c 4096 -no-cnv --no-warmup",
            "sterna run -fa -ngl all --jinja -e --no-display-prompt --mirostat 0",
            "sterna chat -cnv -fa 1 -ngl -1 --interactive --xtc-probability 0.0",
            "sterna bench -ngl 9999 -fa 1 -mmp 1 -p 512 -n 128",
            "sterna bench -mmp 0",
            "sterna chat --mlock",
            "sterna tokenize --no-mmap Hello",
            "sterna perplexity -f wiki.txt -ngl 99",
            "sterna run -hf a/b:Q4_0 -hff x.gguf -hft word --offline",
            "sterna bench -hfr a/b",
            "sterna tokenize -hf=a/b Hello",
            "sterna run --backend cuda -ngl 20 --stream-slots 3",
            "sterna run -ot exps=CPU -cmoe -ncmoe 3 -lm mmap+mlock",
        ] {
            assert_eq!(parsed(line), Ok(()), "{line}");
        }
        for (line, flag, way) in [
            ("sterna run -cnv", "--conversation", "sterna chat"),
            ("sterna run -mu https://a.co/x.gguf", "--model-url", "-m"),
            ("sterna chat -no-cnv", "--no-conversation", "sterna run"),
            ("sterna chat --mirostat 2", "--mirostat", "--top-p"),
        ] {
            let message = parsed(line).unwrap_err();
            let wanted = format!("error: {flag} is not supported: ");
            assert!(message.starts_with(&wanted) && message.contains(way), "{line}: {message}");
        }
    }

    /// No flag has two meanings: clap checks names within a subcommand.
    #[test]
    fn none_is_a_flag_of_ours() {
        Cli::command().debug_assert();
    }
}
