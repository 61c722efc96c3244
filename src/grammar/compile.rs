//! Compiles a user's grammar source for the parser, within limits on memory and time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use llguidance::api::GrammarInit;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory, regex_to_lark};

use super::matching::Matching;
use super::text::Text;
use super::vocabulary::Vocabulary;
use super::workers::Workers;
use super::{
    GrammarError, Limits, Source, Space, at_most, caught, effort, gbnf, numbers, parser_message, quote,
};
use sterna_engine::{Constraint, Grammar};
use sterna_tokenizer::Tokenizer;

/// Stack of a compiling thread, committed as it is used. The parser walks rules and references recursively: a
/// chain of references takes about 10 KiB per link, and a stack overflow would abort the process.
const STACK_BYTES: usize = 256 << 20;
/// Number of grammars that may be compiled at a time, including timed-out ones whose threads still run.
const MAX_THREADS: usize = 4;
/// Maximum number of states of the lexer's automaton, 1 to 2 kB each.
const MAX_LEXER_STATES: usize = 20_000;
/// Maximum number of rules that may apply at one position: a choice of 200 objects with 30 optional
/// properties each has 6000.
const MAX_ITEMS_IN_ROW: usize = 10_000;

/// Compiles grammars for one vocabulary. Clones share the data built for it, which happens at the first
/// grammar.
#[derive(Clone)]
pub struct Grammars {
    shared: Arc<Shared>,
}

struct Shared {
    vocabulary: Vocabulary,
    limits: Limits,
    ready: OnceLock<Result<Ready, GrammarError>>,
    n_running: AtomicUsize,
}

struct Ready {
    factory: ParserFactory,
    workers: Arc<Workers>,
}

/// A compiled grammar, usable by any number of sequences.
pub struct Compiled {
    /// Matcher of a sequence without text.
    matcher: Arc<Mutex<Matcher>>,
    /// True if only the empty text is allowed.
    is_done: bool,
    workers: Arc<Workers>,
    limits: Limits,
    notes: Vec<String>,
}

impl Grammars {
    /// For the vocabulary of `tokenizer`, with default limits.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self::with_limits(tokenizer, Limits::default())
    }

    /// For the vocabulary of `tokenizer`.
    pub fn with_limits(tokenizer: &Tokenizer, limits: Limits) -> Self {
        Self::of_vocabulary(Vocabulary::new(tokenizer), limits)
    }

    fn of_vocabulary(vocabulary: Vocabulary, limits: Limits) -> Self {
        let (ready, n_running) = (OnceLock::new(), AtomicUsize::new(0));
        Self { shared: Arc::new(Shared { vocabulary, limits, ready, n_running }) }
    }

    /// Grammars that allow all tokenisations of a text.
    #[cfg(test)]
    pub fn of_any_tokens(tokenizer: &Tokenizer) -> Self {
        let mut vocabulary = Vocabulary::new(tokenizer);
        vocabulary.is_canonical = false;
        Self::of_vocabulary(vocabulary, Limits::default())
    }

    /// Compiles a grammar with compact JSON. The first call also prepares the vocabulary, which takes about
    /// half a second for 128 thousand tokens; after that a typical grammar takes a few milliseconds.
    ///
    /// # Errors
    /// [`GrammarError`]; for any grammar, within [`Limits::time`].
    pub fn compile(&self, source: &Source) -> Result<Compiled, GrammarError> {
        self.compile_with(source, Space::default())
    }

    /// Compiles a grammar; `space` sets the white space allowed in its JSON.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(&self, source: &Source, space: Space) -> Result<Compiled, GrammarError> {
        let shared = &self.shared;
        let ready = shared.ready.get_or_init(|| Ready::new(&shared.vocabulary)).as_ref();
        let workers = Arc::clone(&ready.map_err(Clone::clone)?.workers);
        let permit = Permit::new(shared)?;
        let (send, built) = sync_channel(1);
        let source = source.clone();
        let build = move || {
            let ready = permit.0.ready.get().and_then(|ready| ready.as_ref().ok());
            let follow = |ready: &Ready| ready.follow(permit.0.read(&source, space)?, &permit.0.limits);
            let made = ready.map(follow);
            drop(permit);
            // The receiver is gone after a timeout.
            let _ = send.send(made);
        };
        // A browser has no threads, so there is no timeout.
        let made = if cfg!(target_arch = "wasm32") {
            build();
            built.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            let thread =
                thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES).spawn(build);
            thread.map_err(|err| GrammarError::Thread(err.to_string()))?;
            built.recv_timeout(shared.limits.time)
        };
        let (matcher, notes) = match made {
            Ok(Some(made)) => made?,
            Err(RecvTimeoutError::Timeout) => return Err(GrammarError::TooSlow(shared.limits.time)),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::Invalid("the compiler thread has died".to_owned()));
            }
        };
        let (is_done, limits) = (matcher.is_stopped() && !matcher.is_error(), shared.limits);
        Ok(Compiled { matcher: Arc::new(Mutex::new(matcher)), is_done, workers, limits, notes })
    }
}

impl Shared {
    /// Checks a source and converts it to the parser's form.
    fn read(&self, source: &Source, space: Space) -> Result<Text, GrammarError> {
        let checked = |text: &str| at_most("bytes", text.len(), self.limits.bytes);
        let lark = |text: &str| Text::lark(text, space, &self.limits);
        Ok(match source {
            Source::JsonObject => {
                Text::schema(&serde_json::json!({ "type": "object" }), true, space, &self.limits)?
            }
            Source::JsonSchema { schema, strict } => Text::schema(schema, *strict, space, &self.limits)?,
            Source::Regex(regex) => {
                checked(regex)?;
                match whole(regex) {
                    "" => Text::plain("start: \"\"".to_owned()),
                    regex => Text::plain(format!("start: /{}/", regex_to_lark(regex, ""))),
                }
            }
            Source::Choice(choices) => {
                let text = choice(choices)?;
                checked(&text)?;
                Text::plain(text)
            }
            Source::Gbnf(text) if !text.trim_start().starts_with("%llguidance") => {
                checked(text)?;
                let text = gbnf::to_lark(text, &|name| self.vocabulary.find(name), self.vocabulary.len())?;
                Text::plain(text)
            }
            Source::Lark(text) | Source::Gbnf(text) => lark(text)?,
        })
    }
}

impl Ready {
    fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        // A file's vocabulary is untrusted: an assertion of the trie becomes an error.
        let built = catch_unwind(AssertUnwindSafe(|| {
            let trie = vocabulary.trie()?;
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&trie, InferenceCapabilities::default(), &slices)
                .map_err(|err| GrammarError::Vocabulary(parser_message(&err.to_string())))
        }));
        let wrong = || GrammarError::Vocabulary("its tokens cannot be put into a trie".to_owned());
        let mut factory = built.map_err(|_| wrong())??;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_items_in_row = MAX_ITEMS_IN_ROW;
        limits.verbose_errors = false;
        Ok(Self { factory, workers: Arc::new(Workers::new()) })
    }

    /// Builds a matcher, and lists what is not enforced. From schemas that are not strict, parts that do not
    /// compile are dropped; if that does not help because they are too large, everything but their types.
    fn follow(&self, mut text: Text, limits: &Limits) -> Result<(Matcher, Vec<String>), GrammarError> {
        let mut made = self.matcher(&text, limits);
        if text.has_schemas() && matches!(made, Err(GrammarError::Invalid(_))) {
            // The other half is for the matchers.
            text.mend(limits.time / 2)?;
            made = self.matcher(&text, limits);
        }
        if let Err(err) = &made
            && text.keep_only_type(err)
        {
            made = self.matcher(&text, limits);
        }
        let mut matcher = made?;
        let notes = text.notes().into_iter().chain(matcher.grammar_warnings()).collect();
        Ok((matcher, notes))
    }

    fn matcher(&self, text: &Text, limits: &Limits) -> Result<Matcher, GrammarError> {
        let grammar = GrammarInit::Serialized(text.grammar(limits)?);
        let parser = caught(|| {
            let Self { factory, .. } = self;
            let (grammar, mut words) =
                grammar.to_internal(Some(factory.tok_env().clone()), factory.limits().clone())?;
            if let Some(digits) = text.digits() {
                numbers::bound(&mut words, digits, text.space())?;
            }
            effort::check(&words, factory.limits())?;
            factory.create_parser_from_init_default(GrammarInit::Internal(grammar, words))
        });
        let matcher = Matcher::new(Ok(parser.map_err(GrammarError::Invalid)?)).into_cancellable();
        match matcher.get_error() {
            Some(err) => Err(GrammarError::Invalid(parser_message(&err))),
            None => Ok(matcher),
        }
    }
}

/// Permission to compile one grammar.
struct Permit(Arc<Shared>);

impl Permit {
    fn new(shared: &Arc<Shared>) -> Result<Self, GrammarError> {
        if shared.n_running.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
            shared.n_running.fetch_sub(1, Ordering::Relaxed);
            return Err(GrammarError::Busy(MAX_THREADS));
        }
        Ok(Self(Arc::clone(shared)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.n_running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compiled {
    /// Parts of the source that are not enforced, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn Constraint> {
        let (matcher, workers) = (Arc::clone(&self.matcher), Arc::clone(&self.workers));
        Box::new(Matching::new(matcher, self.is_done, workers, self.limits))
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("notes", &self.notes).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { vocabulary, limits, .. } = &*self.shared;
        f.debug_struct("Grammars").field("n_vocab", &vocabulary.len()).field("limits", limits).finish()
    }
}

/// Strips anchors at the ends of a regular expression: it must match the whole text anyway.
fn whole(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let escapes = |text: &str| text.bytes().rev().take_while(|byte| *byte == b'\\').count();
    match regex.strip_suffix('$') {
        Some(rest) if escapes(rest) % 2 == 0 => rest,
        _ => regex,
    }
}

/// Builds a grammar with one terminal for several texts.
fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError::Invalid("the list of choices is empty".to_owned()));
    }
    let quoted: Vec<String> = choices.iter().map(|text| quote(text)).collect();
    Ok(format!("start: TEXT\nTEXT: {}\n", quoted.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_at_the_ends_are_dropped() {
        let cases =
            [("^a$", "a"), ("a\\$", "a\\$"), ("a\\\\$", "a\\\\"), ("^", ""), ("$", ""), ("[^a]", "[^a]")];
        for (regex, want) in cases {
            assert_eq!(whole(regex), want, "{regex}");
        }
    }

    #[test]
    fn only_what_went_wrong_is_said() {
        assert_eq!(parser_message("no rule\n<state>\nTokens"), "no rule");
        assert_eq!(parser_message("panic: assertion\n<backtrace>\n1: x\n</backtrace>"), "assertion");
    }
}
