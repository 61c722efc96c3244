//! Thoughts that a model writes before its answer: the marks around them, and the model's syntax as a whole.

use sterna_tokenizer::Tokenizer;
use sterna_tokenizer::chat::{ChatError, ChatTemplate, Extras, Message, Prompt};

use super::Format;

/// How thoughts are told from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// They stand between marks before the answer.
    Marked(&'static Marks),
    /// They are parts of a message, in a channel of their own ([`Format::Harmony`]).
    Channels,
}

/// Marks around thoughts.
#[derive(Debug, PartialEq, Eq)]
pub struct Marks {
    /// Before the thoughts.
    pub open: &'static str,
    /// Behind them.
    pub close: &'static str,
    /// Around the answer, which has none in most models.
    pub answer: Option<[&'static str; 2]>,
}

/// Marks of most models.
pub const THINK: Marks = Marks { open: "<think>", close: "</think>", answer: None };

/// All marks. A template has those of the first entry whose opening it writes.
pub const MARKS: &[Marks] = &[
    // Seed-OSS.
    Marks { open: "<seed:think>", close: "</seed:think>", answer: None },
    // Magistral, from 2507 on.
    Marks { open: "[THINK]", close: "[/THINK]", answer: None },
    // Command R7B, Command A.
    Marks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        answer: Some(["<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
    },
    // Kimi-VL.
    Marks { open: "◁think▷", close: "◁/think▷", answer: None },
    // Apertus.
    Marks { open: "<|inner_prefix|>", close: "<|inner_suffix|>", answer: None },
    // EXAONE Deep.
    Marks { open: "<thought>", close: "</thought>", answer: None },
    // Reka Flash 3.
    Marks { open: "<reasoning>", close: "</reasoning>", answer: None },
    THINK,
];

impl Thoughts {
    /// The marks around them, if they are not in channels.
    pub(super) fn marks(self) -> Option<&'static Marks> {
        match self {
            Self::Marked(marks) => Some(marks),
            Self::Channels => None,
        }
    }

    /// Marks that must be shown to a [`Parser`](super::Parser) where they are tokens that steer the model.
    pub fn spellings(self) -> impl Iterator<Item = &'static str> {
        let marks = self.marks().into_iter();
        marks
            .flat_map(|marks| [marks.open, marks.close].into_iter().chain(marks.answer.into_iter().flatten()))
    }

    /// True if a prompt ends with thoughts that the template has opened.
    pub fn are_open(self, prompt: &str) -> bool {
        self.marks().is_some_and(|marks| prompt.trim_end().ends_with(marks.open))
    }
}

/// Syntax of a model's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Format of calls.
    pub calls: Format,
    /// Marks of thoughts; `None` if the template knows none.
    pub thoughts: Option<Thoughts>,
    /// True if the template shows the tools itself. If not, [`Format::messages`] does.
    pub shows_tools: bool,
}

impl Syntax {
    /// The syntax of a model with this template; `has_token` knows its vocabulary.
    pub fn of_model(source: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let calls = Format::of_model(source, has_token);
        let marks = || MARKS.iter().find(|marks| source.contains(marks.open));
        let thoughts = match calls.has_channels() {
            true => Some(Thoughts::Channels),
            false => marks().map(Thoughts::Marked),
        };
        Self { calls, thoughts, shows_tools: calls.shows_tools(source) }
    }

    /// Opening of an answer that is given, behind a prompt: the channel of answers, or the end of thoughts
    /// that the template has opened.
    pub(super) fn opens_answer(self, prompt: &str) -> String {
        match self.thoughts {
            Some(Thoughts::Channels) => "<|channel|>final<|message|>".to_owned(),
            Some(thoughts @ Thoughts::Marked(marks)) if thoughts.are_open(prompt) => {
                // Empty thoughts as templates write them, on lines of their own or not.
                let line = if prompt.ends_with('\n') { "\n" } else { "" };
                format!("{line}{}{line}{line}{}", marks.close, marks.answer.map_or("", |answer| answer[0]))
            }
            _ => String::new(),
        }
    }

    /// A conversation as the model reads it, with messages that its template can show. With an
    /// `assistant_prefix` the answer begins with it.
    ///
    /// # Errors
    /// As [`ChatTemplate::prompt`].
    pub fn prompt(
        self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &[Message],
        extras: &Extras,
        add_generation_prompt: bool,
        assistant_prefix: Option<&str>,
    ) -> Result<Prompt, ChatError> {
        let messages = self.calls.messages(messages, &[]);
        let opens = |prompt: &str| self.opens_answer(prompt);
        let begun = assistant_prefix.map(|words| (&opens as &dyn Fn(&str) -> String, words));
        template.prompt(tokenizer, &messages, extras, add_generation_prompt, begun)
    }
}
