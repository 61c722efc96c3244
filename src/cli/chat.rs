//! `sterna chat`: a conversation at the terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use sterna_host::files::{Links, private_folder};

use super::input::BYTE_ORDER_MARK;
use super::mmproj_args::{self, MmprojArgs};
use super::model_args::{ContextArgs, ModelArgs};
use super::report::Generator;
use super::sampling_args::SamplingArgs;
use super::speculation_args::SpeculationArgs;
use super::{CliError, input, names, pasted, report};
use crate::demo;
use crate::engine::{Conversation, Engine, GenerateOptions, ImageRows, Stats, StopReason};
use crate::tokenizer::chat::{ChatTemplate, IMAGE, built_in};

const HELP: &str = "\
/image FILE  show an image together with the next message; a line may also begin with its path
/clear   forget the conversation (the system prompt stays)
/exit    end; so does ctrl-D
/help    this text
Ctrl-C stops an answer. A line that ends in \\ continues on the next line.";

/// Chats with a model.
///
/// Answers go to stdout, everything else to stderr; without a terminal, each line of stdin is a message. The
/// conversation stays in the KV cache, so each turn computes only the new tokens. When the context is full,
/// the oldest turns are dropped. Exits with an error if messages were piped in and none was answered.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna chat
  sterna chat -m model.gguf
  sterna chat -m model.gguf -sys 'You are a terse assistant.' --temp 0.6
  sterna chat -m model.gguf --chat-template llama3 -c 8192
  sterna chat -m gemma-3.gguf --mmproj mmproj.gguf
  printf 'Hello\\nWho was Ada Lovelace?\\n' | sterna chat -m model.gguf -n 200")]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    mmproj: MmprojArgs,
    /// System prompt (also -sys)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(alias = "-sys")]
    system_prompt: Option<String>,
    /// Chat template in place of the model's: bitnet, chatml, llama3, or a Jinja file
    #[arg(long, value_name = "NAME|FILE", visible_alias = "chat-template-file")]
    #[arg(alias = "LLAMA_ARG_CHAT_TEMPLATE")]
    chat_template: Option<String>,
    /// Maximum tokens of an answer; -1 fills the context
    #[arg(short, long, value_name = "N", default_value_t = -1)]
    #[arg(allow_negative_numbers = true, visible_alias = "predict")]
    n_predict: i64,
    /// Also print what was loaded and how much memory it takes
    #[arg(short, long)]
    verbose: bool,
}

impl ChatArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from loading; a chat template that is missing or invalid; stdout that cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let source = self.model.source()?;
        let chosen = self.chat_template.as_deref().map(template_source).transpose()?;
        let mmproj = self.mmproj.mmproj(&source)?;
        let Generator { engine, cancel, speculation } =
            report::load(&self.model, &source, &self.context, &self.speculation, mmproj, 1, self.verbose)?;
        let template =
            ChatTemplate::choose(engine.gguf().metadata(), engine.tokenizer()?, chosen.as_deref())?;
        template.notices().iter().for_each(|notice| names::note("note", notice));
        let options = GenerateOptions {
            sampler: self.sampling.options(&engine)?,
            max_tokens: usize::try_from(self.n_predict).ok(),
            speculation,
            cancel: Some(cancel),
            ..GenerateOptions::default()
        };
        let conversation = Conversation::new(&engine, template, self.system_prompt.as_deref())?;
        let is_demo = source.is_demo();
        let stats = Stats::default();
        let (engine, images) = (engine.clone(), Vec::new());
        let mut chat =
            Chat { engine, conversation, images, options, stats, n_answers: 0, n_failed: 0, is_demo };
        let result = chat.talk();
        let Chat { conversation, stats, n_answers, .. } = chat;
        drop(conversation);
        if n_answers > 0 {
            report::took(&stats, n_answers);
        }
        result
    }
}

/// The name of a built-in template, or the content of a file.
pub(super) fn template_source(name: &str) -> Result<String, CliError> {
    if built_in(name).is_some() {
        return Ok(name.to_owned());
    }
    input::file(Path::new(name)).map_err(|err| {
        let unknown = crate::tokenizer::chat::ChatError::Unknown { found: name.to_owned() };
        format!("{unknown} ({err})").into()
    })
}

/// Action after a line.
#[derive(PartialEq)]
enum Next {
    GoOn,
    End,
}

struct Chat {
    engine: Engine,
    conversation: Conversation,
    /// Images for the next message.
    images: Vec<Arc<ImageRows>>,
    options: GenerateOptions,
    /// Sum over all answers.
    stats: Stats,
    n_answers: u32,
    /// Messages without an answer.
    n_failed: u32,
    is_demo: bool,
}

impl Chat {
    fn talk(&mut self) -> Result<(), CliError> {
        if !io::stdin().is_terminal() {
            self.read_pipe()?;
            return match (self.n_answers, self.n_failed) {
                (0, 1..) => Err("no message was answered".into()),
                _ => Ok(()),
            };
        }
        if self.is_demo {
            eprintln!("It knows a small world. Ask it, for example:");
            demo::QUESTIONS.iter().for_each(|question| eprintln!("  {question}"));
        }
        eprintln!("/help lists the commands; ctrl-D ends the chat.");
        let mut editor = DefaultEditor::new()?;
        let history = history_file();
        if let Some(path) = &history {
            // The file does not exist the first time.
            let _ = editor.load_history(path);
        }
        let result = self.read_lines(&mut editor);
        if let Some(path) = &history {
            let folder = path.parent().map_or(Ok(()), |folder| private_folder(folder, Links::Follow));
            let saved = folder.map_err(ReadlineError::from);
            if let Err(err) = saved.and_then(|()| editor.save_history(path)) {
                eprintln!("note: the history cannot be saved to {}: {err}", path.display());
            }
        }
        result
    }

    /// Each line of stdin is a message.
    fn read_pipe(&mut self) -> Result<(), CliError> {
        let (mut message, mut is_first) = (String::new(), true);
        for line in io::stdin().lock().lines() {
            let line = line.map_err(|err| format!("stdin: {err}"))?;
            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(&line);
            is_first = false;
            if is_whole(&mut message, line) && self.line(&std::mem::take(&mut message))? == Next::End {
                return Ok(());
            }
        }
        // The last line may end in a backslash.
        self.line(&message).map(|_| ())
    }

    fn read_lines(&mut self, editor: &mut DefaultEditor) -> Result<(), CliError> {
        let mut message = String::new();
        loop {
            match editor.readline(if message.is_empty() { "> " } else { ". " }) {
                Ok(line) => {
                    if !is_whole(&mut message, &line) {
                        continue;
                    }
                    let message = std::mem::take(&mut message);
                    if !message.trim().is_empty() {
                        editor.add_history_entry(message.as_str())?;
                    }
                    if self.line(&message)? == Next::End {
                        return Ok(());
                    }
                }
                Err(ReadlineError::Interrupted) if message.is_empty() => {
                    eprintln!("(ctrl-D or /exit ends the chat)")
                }
                Err(ReadlineError::Interrupted) => message.clear(),
                Err(ReadlineError::Eof) => return Ok(()),
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// Handles one complete message or command.
    fn line(&mut self, line: &str) -> Result<Next, CliError> {
        if let Some(file) = line.trim().strip_prefix("/image ") {
            self.show(&pasted::path(file.trim()));
            return Ok(Next::GoOn);
        }
        if let Some((file, rest)) = pasted::image(line.trim()) {
            if self.show(&file) && !rest.is_empty() {
                self.answer(rest)?;
            }
            return Ok(Next::GoOn);
        }
        match line.trim() {
            "" => {}
            "/image" => eprintln!("/image needs the path of a file"),
            "/exit" | "/quit" => return Ok(Next::End),
            "/help" => eprintln!("{HELP}"),
            "/clear" => {
                self.conversation.clear();
                self.images.clear();
                eprintln!("(forgotten)");
            }
            word if word.starts_with('/') && !word.contains(char::is_whitespace) => {
                eprintln!("unknown command {word}; /help lists the commands");
            }
            _ => self.answer(line)?,
        }
        Ok(Next::GoOn)
    }

    /// Encodes an image for the next message. Returns false after an error.
    fn show(&mut self, file: &Path) -> bool {
        match mmproj_args::encoded(&self.engine, &[file.to_owned()]) {
            Ok(images) => {
                let n_rows: usize = images.iter().map(|rows| rows.len()).sum();
                eprintln!("({}: {n_rows} tokens, with the next message)", file.display());
                self.images.extend(images);
                true
            }
            Err(err) => {
                names::note("error", &names::with_flags(&*err));
                self.n_failed += 1;
                false
            }
        }
    }

    fn answer(&mut self, message: &str) -> Result<(), CliError> {
        let images = std::mem::take(&mut self.images);
        // Whatever a terminal pastes, only these images have marks.
        let message = IMAGE.repeat(images.len()) + &message.replace(IMAGE, "");
        if let Some(cancel) = &self.options.cancel {
            cancel.store(false, Ordering::Relaxed);
        }
        let mut stdout = io::stdout().lock();
        let answered = self.conversation.answer_about(
            &message,
            images,
            &self.options,
            |piece| -> Result<(), CliError> {
                stdout.write_all(piece.as_bytes())?;
                Ok(stdout.flush()?)
            },
        );
        writeln!(stdout)?;
        let answer = match answered {
            Ok(answer) => answer,
            // An error of stdout ends the conversation; an error of the model or the template does not.
            Err(err) if err.is::<io::Error>() => return Err(err),
            Err(err) => {
                names::note("error", &names::with_flags(&*err));
                self.n_failed += 1;
                return Ok(());
            }
        };
        self.stats.add(&answer.stats);
        self.n_answers += 1;
        if answer.forgotten > 0 {
            eprintln!("(the context was full: the {} oldest messages are forgotten)", answer.forgotten);
        }
        match answer.reason {
            StopReason::ContextFull => {
                eprintln!("(the context is full; the next message forgets the oldest turns)")
            }
            StopReason::Cancelled => eprintln!("(stopped)"),
            StopReason::Limit => eprintln!("(stopped after --n-predict tokens)"),
            StopReason::EndOfText
            | StopReason::StopString
            | StopReason::Constraint
            | StopReason::BrokenLogits => {}
        }
        Ok(())
    }
}

/// Appends a line to the message. Returns false if it ends in a backslash: the message continues.
fn is_whole(message: &mut String, line: &str) -> bool {
    match line.strip_suffix('\\') {
        Some(begun) => {
            message.push_str(begun);
            message.push('\n');
            false
        }
        None => {
            message.push_str(line);
            true
        }
    }
}

/// Path of the input history, in the system's folder for user data.
fn history_file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = if cfg!(windows) {
        folder("APPDATA")
    } else if cfg!(target_os = "macos") {
        folder("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        folder("XDG_DATA_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/share")))
    };
    data.map(|data| data.join("sterna").join("chat-history.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_joins_lines() {
        let mut message = String::new();
        assert!(!is_whole(&mut message, "a\\"));
        assert!(is_whole(&mut message, "b"));
        assert_eq!(message, "a\nb");
    }
}
