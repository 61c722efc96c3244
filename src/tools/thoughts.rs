//! Reasoning before an answer: the marks around it, and the syntax of a model as a whole.

use sterna_tokenizer::Tokenizer;
use sterna_tokenizer::chat::{ChatError, ChatTemplate, Extras, Message, Prompt};

use super::Format;

/// Form in which reasoning is separated from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// Between marks, before the answer.
    Marked(&'static Marks),
    /// Parts of a message in their own channel ([`Format::Harmony`]).
    Channels,
}

/// Marks around reasoning.
#[derive(Debug, PartialEq, Eq)]
pub struct Marks {
    /// Before the reasoning.
    pub open: &'static str,
    /// After the reasoning.
    pub close: &'static str,
    /// Around the answer; most models have none.
    pub answer: Option<[&'static str; 2]>,
}

/// Marks of most models.
pub const THINK: Marks = Marks { open: "<think>", close: "</think>", answer: None };

/// All marks. A template uses the first entry whose opening mark it contains.
pub const MARKS: &[Marks] = &[
    // Seed-OSS.
    Marks { open: "<seed:think>", close: "</seed:think>", answer: None },
    // Magistral 2507 and later.
    Marks { open: "[THINK]", close: "[/THINK]", answer: None },
    // Command R7B, Command A.
    Marks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        answer: Some(["<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
    },
    // Gemma 4.
    Marks { open: "<|channel>thought", close: "<channel|>", answer: None },
    // Kimi-VL.
    Marks { open: "◁think▷", close: "◁/think▷", answer: None },
    // Apertus.
    Marks { open: "<|inner_prefix|>", close: "<|inner_suffix|>", answer: None },
    // EXAONE Deep.
    Marks { open: "<thought>", close: "</thought>", answer: None },
    // Reka Flash 3.
    Marks { open: "<reasoning>", close: "</reasoning>", answer: None },
    // Hunyuan.
    Marks { answer: Some(["<answer>", "</answer>"]), ..THINK },
    THINK,
];

impl Thoughts {
    /// Marks around the reasoning, unless it is in a channel.
    pub(super) fn marks(self) -> Option<&'static Marks> {
        match self {
            Self::Marked(marks) => Some(marks),
            Self::Channels => None,
        }
    }

    /// Marks whose spelling a [`Parser`](super::Parser) needs if they are control tokens.
    pub fn spellings(self) -> impl Iterator<Item = &'static str> {
        let marks = self.marks().into_iter();
        marks
            .flat_map(|marks| [marks.open, marks.close].into_iter().chain(marks.answer.into_iter().flatten()))
    }

    /// True if a prompt ends with an opening mark written by the template.
    pub fn are_open(self, prompt: &str) -> bool {
        self.marks().is_some_and(|marks| prompt.trim_end().ends_with(marks.open))
    }
}

/// Syntax of a model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Format of tool calls.
    pub calls: Format,
    /// Form of reasoning; `None` if the template has none.
    pub thoughts: Option<Thoughts>,
    /// True if the template shows the tools itself; otherwise [`Format::messages`] does.
    pub shows_tools: bool,
}

impl Syntax {
    /// Detects the syntax of a model from its template; `has_token` checks its vocabulary.
    pub fn of_model(source: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let calls = Format::of_model(source, has_token);
        // Hunyuan's differ from those of most models only in the answer's.
        let has = |marks: &&Marks| {
            let is_answer = |[open, _]: [&str; 2]| marks.open != THINK.open || source.contains(open);
            source.contains(marks.open) && marks.answer.is_none_or(is_answer)
        };
        let marks = || MARKS.iter().find(has);
        let thoughts = match calls.has_channels() {
            true => Some(Thoughts::Channels),
            false => marks().map(Thoughts::Marked),
        };
        Self { calls, thoughts, shows_tools: calls.shows_tools(source) }
    }

    /// Detects the syntax of a model as [`of_model`](Self::of_model). A template that raises an exception for
    /// tools gets [`Format::Generic`].
    pub fn of_template(template: &ChatTemplate, has_token: impl Fn(&str) -> bool) -> Self {
        let syntax = Self::of_model(template.source(), has_token);
        let is_refused =
            !matches!(syntax.calls, Format::Generic | Format::Harmony) && template.refuses_tools();
        if is_refused { Self { calls: Format::Generic, shows_tools: false, ..syntax } } else { syntax }
    }

    /// Text to append to a prompt before a given answer: the header of the final channel, or the end of the
    /// reasoning that the template has opened.
    pub(super) fn opens_answer(self, prompt: &str) -> String {
        match self.thoughts {
            Some(Thoughts::Channels) => "<|channel|>final<|message|>".to_owned(),
            Some(thoughts @ Thoughts::Marked(marks)) if thoughts.are_open(prompt) => {
                // Write empty reasoning as templates do: on its own lines if the mark is.
                let line = if prompt.ends_with('\n') { "\n" } else { "" };
                format!("{line}{}{line}{line}{}", marks.close, marks.answer.map_or("", |answer| answer[0]))
            }
            _ => String::new(),
        }
    }

    /// Renders a conversation as the model reads it, in a form that its template can show. With an
    /// `assistant_prefix`, the answer begins with it.
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
