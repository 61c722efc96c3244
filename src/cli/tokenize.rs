//! `sterna tokenize`: shows the token ids of a text.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;

use super::args::unescape;
use super::hub_args::HubArgs;
use super::model_args::FileArgs;
use super::source::Source;
use super::{CliError, input, names};
use crate::tokenizer::{Special, Tokenizer, TokenizerOptions};

/// Shows the tokens of a text. A vocabulary-only file is enough.
///
/// The text is TEXT, -f or stdin, unchanged: no newline is dropped and no escape processed; or -p, as
/// llama-tokenize reads it. It must be UTF-8. Each line of output is the id of a token and, in quotes, its
/// bytes. BOS and EOS are added if the file asks for them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna tokenize -m model.gguf 'Hello, world'
  sterna tokenize -m model.gguf -p 'Hello, world' --show-count
  sterna tokenize -m model.gguf --ids --special '<|begin_of_text|>Hi<|eot_id|>'
  sterna tokenize -m model.gguf --ids --no-bos < book.txt > book.ids")]
pub struct TokenizeArgs {
    /// GGUF file of the model, or one with only its vocabulary [default: the built-in demo model]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    file_args: FileArgs,
    /// The text
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "prompt", "stdin"])]
    text: Option<String>,
    /// The text as llama-tokenize reads it: escapes are processed unless --no-escape is given, special tokens
    /// are parsed unless --no-parse-special is given
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["file", "stdin"])]
    prompt: Option<String>,
    /// File with the text
    #[arg(short, long, value_name = "FILE", conflicts_with = "stdin")]
    file: Option<PathBuf>,
    /// Read the text from stdin, which is also the default
    #[arg(long)]
    stdin: bool,
    /// Print only the ids, as one list: [1, 2, 3]
    #[arg(long)]
    ids: bool,
    /// Parse special tokens that are spelled out in the text
    #[arg(long)]
    #[arg(alias = "-sp")]
    special: bool,
    /// Treat special tokens as plain text, also in -p; the default for other texts
    #[arg(long, conflicts_with = "special")]
    no_parse_special: bool,
    /// Do not process escapes in -p
    #[arg(long)]
    no_escape: bool,
    /// Also process escapes in TEXT, -f and stdin
    #[arg(short, long, conflicts_with = "no_escape")]
    escape: bool,
    /// Also print the number of tokens, on a line at the end
    #[arg(long)]
    show_count: bool,
    /// Do not add BOS and EOS
    #[arg(long)]
    no_bos: bool,
}

impl TokenizeArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A file that is not GGUF or has no usable vocabulary; text that is not UTF-8; stdout that cannot be
    /// written.
    pub fn run(self) -> Result<(), CliError> {
        let source = Source::choose(self.model.as_deref(), &self.hub, "-m FILE")?;
        let gguf = source.open_header(self.file_args.open_options())?;
        let options = TokenizerOptions { pre: self.file_args.tokenizer_pre };
        let tokenizer = Tokenizer::from_gguf(&gguf, options)?;
        tokenizer.notices().iter().for_each(|notice| names::note("note", notice));
        let parses = self.special || self.prompt.is_some() && !self.no_parse_special;
        let special = if parses { Special::Parse } else { Special::AsText };
        let reads_escapes = self.escape || self.prompt.is_some() && !self.no_escape;
        let text = match self.text.or(self.prompt) {
            Some(text) => text,
            None => input::verbatim(
                self.file.as_deref(),
                "no text was given. Pass it as TEXT, -p TEXT or -f FILE, or pipe it in",
            )?,
        };
        let text = if reads_escapes { unescape(&text) } else { text };
        let ids = tokenizer.encode(&text, special, !self.no_bos);

        let mut out = BufWriter::new(io::stdout().lock());
        let n_tokens = ids.len();
        if self.ids {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            writeln!(out, "[{}]", ids.join(", "))?;
        } else {
            for id in ids {
                write!(out, "{id:6} -> '")?;
                out.write_all(tokenizer.token_bytes(id))?;
                writeln!(out, "'")?;
            }
        }
        if self.show_count {
            writeln!(out, "Total number of tokens: {n_tokens}")?;
        }
        Ok(out.flush()?)
    }
}
