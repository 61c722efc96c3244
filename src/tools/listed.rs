//! Calls as a list of JSON objects between marks.

use super::Format;

/// Marks around a list of calls, and the form of its objects.
#[derive(Debug)]
pub struct Listed {
    /// Before the list.
    pub open: &'static str,
    /// After the list; empty if there is none.
    pub close: &'static str,
    /// Form of a call.
    pub form: Form,
}

/// Form of a call in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `{"name": …, "arguments": {…}}`
    Named,
    /// `{"tool_name": …, "parameters": {…}}`, possibly with a number `tool_call_id` before the name.
    Cohere,
    /// `{NAME: {…}}`
    Keyed,
}

const fn listed(open: &'static str, close: &'static str, form: Form) -> Listed {
    Listed { open, close, form }
}

static GRANITE3: Listed = listed("<|tool_call|>", "", Form::Named);
static PHI4_MINI: Listed = listed("<|tool_call|>", "<|/tool_call|>", Form::Named);
static NEMOTRON2: Listed = listed("<TOOLCALL>", "</TOOLCALL>", Form::Named);
static HUNYUAN: Listed = listed("<tool_calls>", "</tool_calls>", Form::Named);
static COHERE2: Listed = listed("<|START_ACTION|>", "<|END_ACTION|>", Form::Cohere);
static COMMAND_R: Listed = listed("Action: ```json", "```", Form::Cohere);
static APERTUS: Listed = listed("<|tools_prefix|>", "<|tools_suffix|>", Form::Keyed);

impl Format {
    /// Marks and form of the format, if its calls are such a list.
    pub(super) fn listed(self) -> Option<&'static Listed> {
        match self {
            Self::Granite3 => Some(&GRANITE3),
            Self::Phi4Mini => Some(&PHI4_MINI),
            Self::Nemotron2 => Some(&NEMOTRON2),
            Self::Hunyuan => Some(&HUNYUAN),
            Self::Cohere2 => Some(&COHERE2),
            Self::CommandR => Some(&COMMAND_R),
            Self::Apertus => Some(&APERTUS),
            _ => None,
        }
    }
}
