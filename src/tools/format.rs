//! Tool call formats, and their detection from a chat template.

use serde_json::{Value, json};

use super::Tool;
use sterna_tokenizer::chat::Message;

/// Format of a model's tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Llama 3: the message is one `{"name": …, "parameters": {…}}`, possibly after `<|python_tag|>`.
    Llama3,
    /// Hermes, Qwen2.5, Qwen3: `<tool_call>` and `{"name": …, "arguments": {…}}` and `</tool_call>`.
    Hermes,
    /// Mistral: `[TOOL_CALLS]` and a list of `{"name": …, "arguments": {…}, "id": …}`.
    Mistral,
    /// Mistral Small 3.2, Devstral: `[TOOL_CALLS]name[ARGS]{…}` for each call.
    MistralArgs,
    /// gpt-oss: a message consists of parts in channels; a call is one of them:
    /// `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`.
    Harmony,
    /// DeepSeek R1 and V3: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, the arguments in a code block,
    /// `<｜tool▁call▁end｜>`; all calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`.
    DeepSeek,
    /// DeepSeek V3.1: likewise with `name<｜tool▁sep｜>{…}`.
    DeepSeek31,
    /// Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`; all
    /// calls between `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`.
    KimiK2,
    /// Llama 4, and Llama 3.2 and Gemma 3 with such templates: `[name(key="value"), …]`.
    Pythonic,
    /// LFM2: `<|tool_call_start|>[name(key="value"), …]<|tool_call_end|>`.
    Lfm2,
    /// Gemma 3 with such templates: `name(key="value")` in a code block of language `tool_code`, one call per
    /// line.
    ToolCode,
    /// FunctionGemma: `<start_function_call>call:name{key:<escape>value<escape>}<end_function_call>`.
    FunctionGemma,
    /// Gemma 4: `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>`.
    Gemma4,
    /// Qwen3-Coder: `<function=name>` with a `<parameter=key>` per argument, as plain text.
    Qwen3Coder,
    /// Seed-OSS: likewise between `<seed:tool_call>` and `</seed:tool_call>`, without lines of their own for
    /// strings.
    SeedOss,
    /// GLM 4.5 and later: `<tool_call>name` with `<arg_key>` and `<arg_value>` per argument, as plain text.
    Glm,
    /// MiniMax M2: `<invoke name="name">` with a `<parameter name="key">` per argument, as plain text; all
    /// calls between `<minimax:tool_call>` and `</minimax:tool_call>`.
    MiniMax,
    /// GLM-4-0414: the message is the name of a tool and, on the next line, the arguments in JSON.
    Glm4,
    /// OLMo 3: `name(key="value")` for each call on a line of its own, all between `<function_calls>` and
    /// `</function_calls>`.
    Olmo3,
    /// Granite 3: `<|tool_call|>` and a list of `{"name": …, "arguments": {…}}`.
    Granite3,
    /// Phi-4-mini: `<|tool_call|>`, such a list and `<|/tool_call|>`.
    Phi4Mini,
    /// Nemotron Nano 2: such a list between `<TOOLCALL>` and `</TOOLCALL>`.
    Nemotron2,
    /// Hunyuan: such a list between `<tool_calls>` and `</tool_calls>`.
    Hunyuan,
    /// Command R7B and Command A: a list of `{"tool_call_id": "0", "tool_name": …, "parameters": {…}}`
    /// between `<|START_ACTION|>` and `<|END_ACTION|>`.
    Cohere2,
    /// Command R: after `Action:` such a list in a code block, without ids.
    CommandR,
    /// Apertus: a list of `{NAME: {…}}` between `<|tools_prefix|>` and `<|tools_suffix|>`.
    Apertus,
    /// For templates without tool support: the tools are listed in a system message, and the reply is
    /// `{"tool_calls": […]}` or `{"response": …}`.
    Generic,
}

impl Format {
    /// All formats with their names.
    pub const ALL: &[(&'static str, Self)] = &[
        ("llama3", Self::Llama3),
        ("hermes", Self::Hermes),
        ("mistral", Self::Mistral),
        ("mistral-args", Self::MistralArgs),
        ("harmony", Self::Harmony),
        ("deepseek", Self::DeepSeek),
        ("deepseek-v3.1", Self::DeepSeek31),
        ("kimi-k2", Self::KimiK2),
        ("pythonic", Self::Pythonic),
        ("lfm2", Self::Lfm2),
        ("tool-code", Self::ToolCode),
        ("function-gemma", Self::FunctionGemma),
        ("gemma4", Self::Gemma4),
        ("qwen3-coder", Self::Qwen3Coder),
        ("seed-oss", Self::SeedOss),
        ("glm", Self::Glm),
        ("minimax", Self::MiniMax),
        ("glm-4", Self::Glm4),
        ("olmo3", Self::Olmo3),
        ("granite3", Self::Granite3),
        ("phi4-mini", Self::Phi4Mini),
        ("nemotron-v2", Self::Nemotron2),
        ("hunyuan", Self::Hunyuan),
        ("cohere2", Self::Cohere2),
        ("command-r", Self::CommandR),
        ("apertus", Self::Apertus),
        ("generic", Self::Generic),
    ];

    /// Finds a format by name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Name of the format.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// Detects the format of a template from the strings in it. A template that does not use `tools` cannot
    /// show them.
    pub fn of_template(source: &str) -> Self {
        let has = |words: &[&str]| words.iter().all(|word| source.contains(word));
        WORDS.iter().find(|(words, _)| has(words)).map_or(Self::Generic, |(_, format)| *format)
    }

    /// Detects the format of a model: that of its template. If the template shows calls but no tools, it is
    /// the format of those calls, provided the vocabulary has the tokens for it.
    pub fn of_model(source: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let replayed = Self::DeepSeek.section().is_some_and(|section| {
            source.contains(section.separator) && section.marks().into_iter().all(has_token)
        });
        match Self::of_template(source) {
            Self::Generic if replayed && source.contains("```json") => Self::DeepSeek,
            Self::Generic if replayed => Self::DeepSeek31,
            format => format,
        }
    }

    /// True if a template of this format shows the tools itself; otherwise [`messages`](Self::messages) does.
    pub(super) fn shows_tools(self, source: &str) -> bool {
        match self {
            // Phi-4-mini's has them in the system message.
            Self::Generic | Self::Phi4Mini => false,
            Self::DeepSeek | Self::DeepSeek31 => source.contains("tools"),
            _ => true,
        }
    }

    /// True if string arguments are written as plain text, so that only their `enum` can be enforced.
    pub fn has_plain_texts(self) -> bool {
        self.tags().is_some() || self.marked().is_some()
    }

    /// True if a message may hold several calls.
    pub fn is_parallel(self) -> bool {
        !matches!(self, Self::Llama3 | Self::Harmony | Self::Glm4)
    }

    /// True if calls contain control tokens, so that a [`Parser`](super::Parser) needs their spelling
    /// (`GenerateOptions::show_special`).
    pub fn needs_special(self) -> bool {
        !matches!(
            self,
            Self::Hermes
                | Self::Qwen3Coder
                | Self::Pythonic
                | Self::ToolCode
                | Self::Glm4
                | Self::CommandR
                | Self::Generic
        )
    }

    /// True if messages consist of parts in channels, which a [`Parser`](super::Parser) must parse even
    /// without tools.
    pub fn has_channels(self) -> bool {
        self == Self::Harmony
    }

    /// Returns the messages in a form that the template can show, with a system text for the `tools` that it
    /// does not show. [`Generic`](Self::Generic) converts calls and answers to ordinary messages, and
    /// [`Lfm2`](Self::Lfm2) and [`Phi4Mini`](Self::Phi4Mini) calls to text, since their templates show only
    /// texts; [`Glm4`](Self::Glm4) has a message per call; [`Harmony`](Self::Harmony) allows one text besides
    /// a call, in the analysis channel.
    pub fn messages(self, messages: &[Message], tools: &[Tool]) -> Vec<Message> {
        match self {
            Self::Generic => {}
            Self::Harmony => return messages.iter().map(thought_aloud).collect(),
            Self::Lfm2 => {
                return with_tools(messages.iter().map(called_in_python).collect(), tools, AS_TRAINED);
            }
            Self::Glm4 => {
                return with_tools(messages.iter().flat_map(observed).collect(), tools, AS_TRAINED);
            }
            Self::Phi4Mini => return with_system_tools(messages.iter().map(called_in_list), tools),
            _ => return with_tools(messages.to_vec(), tools, AS_TRAINED),
        }
        let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        for message in messages {
            match out.last_mut() {
                // Answers of several tools are merged into one turn.
                Some(last) if message.role == "tool" && is_answer(last) => {
                    last.content += "\n";
                    last.content += &answer(message);
                }
                _ => out.push(plain(message)),
            }
        }
        with_tools(out, tools, IN_JSON)
    }
}

/// Strings that a template must all contain, and its format; the first match wins.
const WORDS: &[(&[&str], Format)] = &[
    (&["<|channel|>", "<|message|>", "<|call|>"], Format::Harmony),
    (&["<｜tool▁sep｜>", "```json", "tools"], Format::DeepSeek),
    (&["<｜tool▁sep｜>", "tools"], Format::DeepSeek31),
    (&["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"], Format::KimiK2),
    (&["<start_function_call>", "<escape>"], Format::FunctionGemma),
    (&["<|tool_list_start|>"], Format::Lfm2),
    (&["List of tools: ["], Format::Lfm2),
    (&["<|tool_call>", "<|\"|>"], Format::Gemma4),
    (&["<seed:tool_call>", "<function="], Format::SeedOss),
    (&["<minimax:tool_call>", "<invoke name="], Format::MiniMax),
    (&["<tool_call>", "<arg_key>", "<arg_value>"], Format::Glm),
    (&["<function=", "<parameter="], Format::Qwen3Coder),
    (&["<|START_ACTION|>", "tool_name"], Format::Cohere2),
    (&["Action: ```json", "tool_name"], Format::CommandR),
    (&["<|tools_prefix|>"], Format::Apertus),
    (&["<function_calls>", "<functions>"], Format::Olmo3),
    (&["<TOOLCALL>"], Format::Nemotron2),
    (&["<tool_calls>", "<answer>"], Format::Hunyuan),
    (&["<|tool|>", "<|/tool|>"], Format::Phi4Mini),
    (&["<|tool_call|>"], Format::Granite3),
    (&["[gMASK]", "<|observation|>", "metadata", "if tools"], Format::Glm4),
    (&["<tool_call>"], Format::Hermes),
    (&["[TOOL_CALLS]", "[ARGS]"], Format::MistralArgs),
    (&["[TOOL_CALLS]"], Format::Mistral),
    (&["```tool_code"], Format::ToolCode),
    (&["[func_name1("], Format::Pythonic),
    (&["<|python_tag|>"], Format::Llama3),
    (&["ipython", "\"parameters\""], Format::Llama3),
    (&["\"parameters\": dictionary of argument name"], Format::Llama3),
];

/// Moves the reasoning of a message with calls into its text.
fn thought_aloud(message: &Message) -> Message {
    let mut message = message.clone();
    if !message.tool_calls.is_empty()
        && let Some(thoughts) = message.reasoning_content.take().filter(|thoughts| !thoughts.is_empty())
    {
        let said = std::mem::take(&mut message.content);
        message.content = if said.is_empty() { thoughts } else { format!("{thoughts}\n\n{said}") };
    }
    message
}

/// Around LFM2's list of calls, in Python notation.
pub const LFM2_MARKS: [&str; 2] = ["<|tool_call_start|>", "<|tool_call_end|>"];

/// Moves the calls of a message into its text, in LFM2's notation.
fn called_in_python(message: &Message) -> Message {
    let mut message = message.clone();
    let calls = std::mem::take(&mut message.tool_calls);
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let arguments = call.json();
            let arguments = arguments.as_object().into_iter().flatten();
            let arguments = arguments.map(|(key, value)| format!("{key}={}", in_python(value)));
            format!("{}({})", call.name, arguments.collect::<Vec<_>>().join(", "))
        });
        let [open, close] = LFM2_MARKS;
        message.content += &format!("{open}[{}]{close}", calls.collect::<Vec<_>>().join(", "));
    }
    message
}

/// Moves the calls of a message into its text, in Phi-4-mini's form.
fn called_in_list(message: &Message) -> Message {
    let mut message = message.clone();
    let calls = std::mem::take(&mut message.tool_calls);
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| json!({ "name": call.name, "arguments": call.json() }));
        let calls = Value::from(calls.collect::<Vec<_>>());
        message.content += &format!("<|tool_call|>{calls}<|/tool_call|>");
    }
    message
}

/// Adds the tools to the system message under a key of its own, as Phi-4-mini's template reads them.
fn with_system_tools(messages: impl Iterator<Item = Message>, tools: &[Tool]) -> Vec<Message> {
    let mut messages: Vec<Message> = messages.collect();
    if !tools.is_empty() {
        let list: Vec<Value> = tools.iter().map(|tool| tool.to_json()["function"].clone()).collect();
        if messages.first().is_none_or(|first| first.role != "system") {
            messages.insert(0, Message::new("system", ""));
        }
        messages[0].more.push(("tools", Value::from(list).to_string()));
    }
    messages
}

/// The messages of GLM-4's template for one: its text, and one for each call, with the tool's name as
/// `metadata`. Results of tools are observations.
fn observed(message: &Message) -> Vec<Message> {
    if message.role == "tool" {
        return vec![Message { role: "observation".to_owned(), ..message.clone() }];
    }
    let text = Message { tool_calls: Vec::new(), ..message.clone() };
    let calls = message.tool_calls.iter().map(|call| Message {
        more: vec![("metadata", call.name.clone())],
        ..Message::new("assistant", call.json().to_string())
    });
    let has_text = message.tool_calls.is_empty() || !message.content.is_empty();
    has_text.then_some(text).into_iter().chain(calls).collect()
}

/// Marks around OLMo 3's calls.
pub const OLMO3_MARKS: [&str; 2] = ["<function_calls>", "</function_calls>"];

/// Writes a value in Python notation.
fn in_python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(list) => format!("[{}]", list.iter().map(in_python).collect::<Vec<_>>().join(", ")),
        Value::Object(named) => {
            let named = named.iter().map(|(key, value)| format!("{}: {}", json!(key), in_python(value)));
            format!("{{{}}}", named.collect::<Vec<_>>().join(", "))
        }
        Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

const ANSWER: &str = "{\"tool_response\": ";

fn is_answer(message: &Message) -> bool {
    message.role == "user" && message.content.starts_with(ANSWER)
}

fn answer(message: &Message) -> String {
    let name = message.name.as_ref().map_or(String::new(), |name| format!(", \"name\": {}", json!(name)));
    format!("{ANSWER}{}{name}}}", json!(message.content))
}

fn plain(message: &Message) -> Message {
    match message.role.as_str() {
        "tool" => Message::new("user", answer(message)),
        "assistant" if !message.tool_calls.is_empty() => {
            let calls = message.tool_calls.iter();
            let calls = calls.map(|call| json!({ "name": call.name, "arguments": call.json() }));
            let calls = json!({ "tool_calls": calls.collect::<Vec<_>>() }).to_string();
            let content = match message.content.is_empty() {
                true => calls,
                false => format!("{}\n{calls}", message.content),
            };
            Message { content, tool_calls: Vec::new(), ..message.clone() }
        }
        _ => message.clone(),
    }
}

const IN_JSON: &str = "Answer in JSON. To call tools: {\"tool_calls\": [{\"name\": NAME, \"arguments\": \
                       {…}}]}. To answer with text: {\"response\": TEXT}.";
const AS_TRAINED: &str = "To call tools, end the answer with function calls in the form that you know: for \
                          each one the name, and the arguments as a JSON object.";

/// Adds a system text with the tools and how to call them.
fn with_tools(mut messages: Vec<Message>, tools: &[Tool], how: &str) -> Vec<Message> {
    if tools.is_empty() {
        return messages;
    }
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    let text = format!("These tools can be called:\n{}\n\n{how}", list.join("\n"));
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(system) => system.content = format!("{}\n\n{text}", system.content),
        None => messages.insert(0, Message::new("system", text)),
    }
    messages
}
