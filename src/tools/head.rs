//! Text before the arguments of a call whose arguments are a separate JSON object: marks, and the name of the
//! tool.

use super::format::Format;
use super::scan::{Found, find};

/// Longest text before the arguments, in bytes; anything longer is not a call.
const MAX_BYTES: usize = 512;

/// Marks of calls whose arguments are a separate JSON object.
#[derive(Debug)]
pub struct Section {
    /// Marks around all calls.
    pub all: [&'static str; 2],
    /// Marks around each call.
    pub one: [&'static str; 2],
    /// Separator between the parts of a call.
    pub separator: &'static str,
}

/// Marks of [`Format::DeepSeek`] and [`Format::DeepSeek31`].
pub const DEEPSEEK: Section = Section {
    all: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    one: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    separator: "<｜tool▁sep｜>",
};

/// Marks of [`Format::KimiK2`].
///
/// Source: `docs/tool_call_guidance.md` of moonshotai/Kimi-K2-Instruct.
pub const KIMI_K2: Section = Section {
    all: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    one: ["<|tool_call_begin|>", "<|tool_call_end|>"],
    separator: "<|tool_call_argument_begin|>",
};

impl Section {
    pub fn marks(&self) -> [&'static str; 5] {
        let Self { all, one, separator } = *self;
        [all[0], one[0], separator, one[1], all[1]]
    }
}

impl Format {
    /// Marks of the format, if it has any.
    pub(super) fn section(self) -> Option<&'static Section> {
        match self {
            Self::DeepSeek | Self::DeepSeek31 => Some(&DEEPSEEK),
            Self::KimiK2 => Some(&KIMI_K2),
            _ => None,
        }
    }
}

/// Result of parsing a head.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// Length of the head in bytes, the name of the tool, and the id assigned by the model.
    Call(usize, String, Option<String>),
    /// More text is needed.
    More,
    Wrong,
}

/// Parses the head of a call: from after its opening mark to the start of its arguments.
pub fn head(format: Option<Format>, rest: &str) -> Head {
    let end = match rest.bytes().take(MAX_BYTES).position(|byte| byte == b'{') {
        Some(end) => end,
        None if rest.len() < MAX_BYTES => return Head::More,
        None => return Head::Wrong,
    };
    let text = &rest[..end];
    let found = match format {
        Some(Format::MistralArgs) => text.trim_end().strip_suffix("[ARGS]").map(|text| {
            let (name, id) = text.split_once("[CALL_ID]").map_or((text, None), |(name, id)| (name, Some(id)));
            (name, id.map(str::to_owned))
        }),
        // `name<｜tool▁sep｜>`, or `function<｜tool▁sep｜>name` and the fence of a code block.
        Some(Format::DeepSeek | Format::DeepSeek31) => {
            text.split_once(DEEPSEEK.separator).map(|(before, after)| {
                let name = after.trim_start().lines().next().unwrap_or_default();
                (if name.is_empty() || name.starts_with("```") { before } else { name }, None)
            })
        }
        // `functions.name:0`; the whole string is the id.
        Some(Format::KimiK2) => text.split_once(KIMI_K2.separator).map(|(id, _)| {
            let id = id.trim();
            let name = id.strip_prefix("functions.").unwrap_or(id);
            (name.split_once(':').map_or(name, |(name, _)| name), Some(id.to_owned()))
        }),
        _ => None,
    };
    match found.map(|(name, id)| (name.trim(), id)) {
        Some((name, id)) if is_name(name) => Head::Call(end, name.to_owned(), id),
        _ => Head::Wrong,
    }
}

/// True if a text can be the name of a tool.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Kind of a part of a message in gpt-oss's channels.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Reasoning, in the analysis channel.
    Thoughts,
    Text,
    Call(String),
}

/// Result of parsing the header of a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    /// Length of the header in bytes, and the part that follows.
    Part(usize, Part),
    /// More text is needed.
    More,
    None,
}

/// Marks that end a part in a channel.
pub const MARKS: &[&str] = &["<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>"];
/// Marks that begin a part.
pub const BEGINNERS: &[&str] = &["<|start|>", "<|channel|>"];

const MESSAGE: &str = "<|message|>";

/// Parses the header of a part: `<|channel|>analysis<|message|>` or `<|channel|>final<|message|>`; for a
/// call, `to=` before or in the channel names the tool. `is_tool` checks for known tools.
///
/// Source: <https://cookbook.openai.com/articles/openai-harmony>.
pub fn header(rest: &str, is_tool: impl Fn(&str) -> bool) -> Header {
    // A header contains no other marks and has one channel.
    const STOPS: [&str; 6] = [MESSAGE, "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|channel|>"];
    const OPENERS: [&str; 4] = ["<|start|>", "<|channel|>", " to=", MESSAGE];
    let Some(opener) = OPENERS.iter().find(|opener| rest.starts_with(**opener)) else {
        let may_become_one = OPENERS.iter().any(|opener| opener.starts_with(rest));
        return if may_become_one { Header::More } else { Header::None };
    };
    let head = &rest[..rest.floor_char_boundary(MAX_BYTES)];
    let stops = if *opener == "<|channel|>" { &STOPS[..] } else { &STOPS[..5] };
    let begun = if *opener == MESSAGE { 0 } else { opener.len() };
    let end = match find(&head[begun..], stops) {
        Found::Mark(at, 0) => begun + at,
        Found::None(_) if rest.len() < MAX_BYTES => return Header::More,
        _ => return Header::None,
    };
    let word = |key: &str| {
        let (_, after) = head[..end].split_once(key)?;
        after.split(|c: char| c.is_whitespace() || c == '<').next().filter(|word| !word.is_empty())
    };
    let part = match word("to=").map(|to| to.strip_prefix("functions.").ok_or(to)) {
        Some(Ok(name)) => Part::Call(name.to_owned()),
        Some(Err(name)) if is_tool(name) => Part::Call(name.to_owned()),
        // Built-in tools of the model, which are not offered.
        Some(Err(_)) => Part::Thoughts,
        None if word("<|channel|>") == Some("analysis") => Part::Thoughts,
        None => Part::Text,
    };
    Header::Part(end + MESSAGE.len(), part)
}
