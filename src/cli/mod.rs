//! The command line: one file per subcommand, each with a clap `Args` struct and a `run` method.
//!
//! Messages go to stderr, results to stdout. Start reading at `Command`.

pub mod args;
mod batched_bench;
mod bench;
#[cfg(feature = "hub")]
mod cached;
mod chat;
mod chunks;
mod completions;
mod control_args;
#[cfg(feature = "convert")]
mod convert;
mod ctrl_c;
mod devices;
mod edit;
mod embed;
mod export_card;
#[cfg(feature = "hub")]
mod fetch;
mod fit_args;
mod grammar_args;
#[cfg(feature = "serve")]
mod grpc_args;
mod guest;
#[cfg(feature = "serve")]
mod host_log;
pub mod hub_args;
mod imatrix;
mod input;
mod inspect;
mod kv_report;
#[cfg(feature = "serve")]
mod listener_args;
mod llama_flags;
#[cfg(feature = "serve")]
mod log;
mod logits;
mod lora_args;
#[cfg(feature = "convert")]
mod merge;
mod mmproj_args;
pub mod model_args;
#[cfg(feature = "serve")]
mod models_args;
mod names;
mod npy;
mod out_file;
mod pasted;
mod perplexity;
mod plan;
mod pooling_args;
mod prompt_cache;
#[cfg(feature = "hub")]
mod pull;
mod quantize;
pub mod report;
mod run;
pub mod sampling_args;
mod selftest;
#[cfg(feature = "serve")]
mod serve;
pub mod source;
mod speculation_args;
mod split;
mod synth;
mod tokenize;
mod trust;
mod units;

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use llama_flags::Environment;
use names::Names;

/// Runs language models from GGUF files, ternary ones (BitNet b1.58 and its derivatives) and ordinary ones.
#[derive(Parser)]
#[command(name = "sterna", version, about, max_term_width = 100, args_override_self = true)]
#[command(after_help = "Examples:
  sterna run -p 'Once upon a time'
  sterna run -m model.gguf -p 'The capital of France is' -n 32
  sterna run -hf microsoft/bitnet-b1.58-2B-4T-gguf -p 'The capital of France is'
  sterna bench -m model.gguf -p 512 -n 128 -t 1,2,4
  sterna inspect model.gguf
  sterna plan -m model.gguf --vram 16G
  sterna synth --preset tiny --type i2_s tiny.gguf")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Chat(Box<chat::ChatArgs>),
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    #[cfg(feature = "hub")]
    Pull(pull::PullArgs),
    #[cfg(feature = "hub")]
    #[command(visible_alias = "ls")]
    List(cached::ListArgs),
    #[cfg(feature = "hub")]
    Rm(cached::RmArgs),
    #[cfg(feature = "hub")]
    Verify(cached::VerifyArgs),
    Tokenize(tokenize::TokenizeArgs),
    Bench(bench::BenchArgs),
    BatchedBench(batched_bench::BatchedBenchArgs),
    Logits(logits::LogitsArgs),
    Embed(embed::EmbedArgs),
    Perplexity(perplexity::PerplexityArgs),
    KvReport(kv_report::KvReportArgs),
    #[command(alias = "show")]
    Inspect(inspect::InspectArgs),
    Plan(Box<plan::PlanArgs>),
    Synth(synth::SynthArgs),
    Imatrix(imatrix::ImatrixArgs),
    #[cfg(feature = "convert")]
    Convert(convert::ConvertArgs),
    Quantize(quantize::QuantizeArgs),
    Split(split::SplitArgs),
    Merge(split::MergeArgs),
    Edit(edit::EditArgs),
    ExportCard(export_card::ExportCardArgs),
    Devices(devices::DevicesArgs),
    Selftest(selftest::SelftestArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

#[cfg(feature = "serve")]
pub use host_log::{HostLog, Level, log_to};

/// Error of a subcommand, with a message for the user.
pub type CliError = Box<dyn std::error::Error + Send + Sync>;

/// A subcommand was stopped with ctrl-C; the message has already been printed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupted {
    /// 128 + SIGINT, as shells report it.
    pub const EXIT_CODE: u8 = 130;
}

/// The command line with our flags and llama.cpp's. Negative numbers are parsed as values, so that the error
/// can name the valid range.
pub fn command() -> clap::Command {
    let may_be_negative = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let ours = Cli::command().mut_subcommands(|command| command.mut_args(may_be_negative));
    llama_flags::added(ours).mut_subcommands(|command| command.mut_args(names::as_typed))
}

/// Other names of the flags of all subcommands.
fn names() -> Names {
    Names::of(&llama_flags::added(Cli::command()))
}

/// Rewrites llama.cpp's single-dash words to long flags.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    args::normalise(args, &names())
}

/// Parses command lines. The flags of all subcommands are built only once.
pub struct LineParser {
    command: clap::Command,
    /// Without llama.cpp's flags.
    ours: clap::Command,
    names: Names,
}

impl LineParser {
    /// Builds the flags of all subcommands.
    #[allow(clippy::new_without_default)] // It takes a while.
    pub fn new() -> Self {
        Self { command: command(), ours: Cli::command(), names: names() }
    }

    /// Does what [`normalise`] does.
    pub fn normalise(&self, args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        args::normalise(args, &self.names)
    }

    /// Parses arguments after [`normalise`].
    ///
    /// # Errors
    /// An invalid command line; an unsupported flag of llama.cpp's, with a hint; requested help.
    pub fn parse(&mut self, args: Vec<OsString>) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&self.matches(args)?)
    }

    fn matches(&mut self, args: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
        let name = args.get(1).and_then(|name| name.to_str()).map(str::to_owned);
        let explained = |err| llama_flags::explained(err, &self.ours, name.as_deref());
        let matches = self.command.try_get_matches_from_mut(args).map_err(explained)?;
        llama_flags::judge_all(&self.ours, &matches)?;
        Ok(matches)
    }
}

/// Parses one command line, see [`LineParser::parse`].
///
/// # Errors
/// Same as [`LineParser::parse`].
pub fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    LineParser::new().parse(args)
}

/// Parses the command line, whose first word is the program's name, runs the subcommand, and prints an error
/// as one message. Returns the exit code: 1 for an error, 2 for an invalid command line.
///
/// A closed stdout (`| head`) is not an error.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let names = names();
    let args = args::normalise(args, &names);
    let env = Environment::read(&Cli::command(), &names, args, |name| std::env::var_os(name));
    env.ignored.iter().for_each(|said| eprintln!("note: {said}"));
    let is_alone = env.args.len() == 1 && io::stdout().is_terminal();
    let ended = match parse(env.args) {
        Err(_) if is_alone => devices::greet(&Cli::command()),
        Ok(cli) => run(cli.command),
        // Printing help can fail too, for example on a full disk.
        Err(told) => match told.print() {
            Ok(()) => {
                if told.exit_code() != 0 && !env.counted.is_empty() {
                    eprintln!("note: also set by the environment: {}", env.counted.join(", "));
                }
                return told.exit_code() as u8;
            }
            Err(err) => Err(err.into()),
        },
    };
    let Err(err) = ended else { return 0 };
    if err.is::<Interrupted>() {
        return Interrupted::EXIT_CODE;
    }
    // Errors of files include the file's name, so a bare I/O error is from stdout.
    match err.downcast_ref::<io::Error>() {
        Some(err) if err.kind() == io::ErrorKind::BrokenPipe => return 0,
        Some(err) => eprintln!("error: stdout: {err}"),
        None => names::note("error", &names::with_flags(&*err)),
    }
    let mut source = err.source();
    while let Some(cause) = source {
        names::note("  because", &names::with_flags(cause));
        source = cause.source();
    }
    1
}

/// Loads the model that the flags of `sterna serve` name, for use in this process, whose signal handlers are
/// not changed: [`interrupt`] stops a download. Messages go to [`log_to`].
///
/// # Errors
/// Invalid flags, or an error from loading the model, in terms of the flags.
#[cfg(feature = "serve")]
pub fn in_process(flags: impl IntoIterator<Item = OsString>) -> Result<crate::serve::InProcess, String> {
    guest::be_guest();
    let command = ["sterna", "serve"].map(OsString::from);
    let args = normalise(command.into_iter().chain(flags));
    let parse_error = |err: clap::Error| {
        let message = err.to_string();
        let message = message.split("\n\nUsage:").next().unwrap_or_default();
        let message = message.split("\n\nFor more information").next().unwrap_or_default();
        message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned()
    };
    let matches = LineParser::new().matches(args).map_err(parse_error)?;
    let (_, given) = matches.subcommand().expect("`serve` is one");
    let is_given =
        |id: &clap::Id| given.value_source(id.as_str()) == Some(clap::parser::ValueSource::CommandLine);
    if let Some(id) = of_listeners().into_iter().find(is_given) {
        return Err(format!("--{}: there is no listener, and only one model", id.as_str().replace('_', "-")));
    }
    let args = serve::ServeArgs::from_arg_matches(given).map_err(parse_error)?;
    args.in_process().map_err(|err| {
        let causes = std::iter::successors(Some(&*err as &dyn std::error::Error), |err| err.source());
        causes.map(names::with_flags).collect::<Vec<_>>().join(": ")
    })
}

/// Flags of `sterna serve` without a meaning inside a process.
#[cfg(feature = "serve")]
fn of_listeners() -> Vec<clap::Id> {
    let command = serve::ServeArgs::augment_args(clap::Command::new("serve"));
    let groups = command.get_groups().filter(|group| serve::OF_LISTENERS.contains(&group.get_id().as_str()));
    groups.flat_map(|group| group.get_args().cloned().collect::<Vec<_>>()).collect()
}

/// A flag of [`in_process`].
#[cfg(feature = "serve")]
#[derive(Clone, Debug)]
pub struct Flag {
    /// Long names without dashes, the usual one first.
    pub names: Vec<String>,
    /// Minimum and maximum number of values: 0 and 0 for a switch.
    pub values: (usize, usize),
    /// Its help; `None` for a flag of another program that is only accepted for compatibility.
    pub help: Option<String>,
}

/// All flags that [`in_process`] accepts.
#[cfg(feature = "serve")]
pub fn in_process_flags() -> Vec<Flag> {
    let (listeners, mut command) = (of_listeners(), llama_flags::added(Cli::command()));
    command.build();
    let serve = command.find_subcommand("serve").expect("`serve` is one");
    let args = serve.get_arguments().filter(|arg| !listeners.contains(arg.get_id()));
    let flag = |arg: &Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
        let names = arg.get_long().into_iter().chain(aliases.filter(|name| names::is_long(name)));
        let values = arg.get_num_args().filter(|_| arg.get_action().takes_values());
        let values = values.map_or((0, 0), |n| (n.min_values(), n.max_values()));
        let help = arg.get_help().filter(|_| !arg.is_hide_set()).map(ToString::to_string);
        Flag { names: names.map(str::to_owned).collect(), values, help }
    };
    args.map(flag).filter(|flag| !flag.names.is_empty() && flag.names[0] != "help").collect()
}

/// Does what ctrl-C does on the command line, for [`in_process`].
pub fn interrupt() {
    ctrl_c::press();
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Run(args) => args.run(),
        Command::Chat(args) => args.run(),
        #[cfg(feature = "serve")]
        Command::Serve(args) => args.run(),
        #[cfg(feature = "hub")]
        Command::Pull(args) => args.run(),
        #[cfg(feature = "hub")]
        Command::List(args) => args.run(),
        #[cfg(feature = "hub")]
        Command::Rm(args) => args.run(),
        #[cfg(feature = "hub")]
        Command::Verify(args) => args.run(),
        Command::Tokenize(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::BatchedBench(args) => args.run(),
        Command::Logits(args) => args.run(),
        Command::Embed(args) => args.run(),
        Command::Perplexity(args) => args.run(),
        Command::KvReport(args) => args.run(),
        Command::Inspect(args) => args.run(),
        Command::Plan(args) => args.run(),
        Command::Synth(args) => args.run(),
        Command::Imatrix(args) => args.run(),
        #[cfg(feature = "convert")]
        Command::Convert(args) => args.run(),
        Command::Quantize(args) => args.run(),
        Command::Split(args) => args.run(),
        Command::Merge(args) => args.run(),
        Command::Edit(args) => args.run(),
        Command::ExportCard(args) => args.run(),
        Command::Devices(args) => args.run(),
        Command::Selftest(args) => args.run(),
        Command::Completions(args) => args.run(Cli::command()),
        Command::Man(args) => args.run(Cli::command()),
    }
}
