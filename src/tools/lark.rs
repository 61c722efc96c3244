//! Grammar of a message with tool calls, in llguidance's Lark.
//!
//! Text before a call is matched lazily: it ends with the first mark of a call, and from there on the call
//! must match the tool's schema. The crate `grammar` checks the schemas.

use std::fmt::Write;

use serde_json::{Value, json};

use super::bracketed::{Marked, Notation, PYTHON, TOOL_CODE};
use super::format::{LFM2_MARKS, OLMO3_MARKS};
use super::head::{DEEPSEEK, KIMI_K2};
use super::listed::{Form, Listed};
use super::tagged::{GLM, MINIMAX, QWEN3_CODER, SEED_OSS, Tags};
use super::thoughts::{Marks, Thoughts};
use super::{Choice, Format, Tool, is_text};

/// Largest enforced bound on the items of a list that is not written in JSON.
const MAX_ITEMS: u64 = 256;

/// Constraints on a message.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Tools, at least one.
    pub tools: &'a [Tool],
    /// Tools that must be called.
    pub choice: &'a Choice,
    /// True if there may be several calls.
    pub parallel: bool,
    /// Form of the model's reasoning.
    pub thoughts: Option<Thoughts>,
    /// True if the template has already opened the reasoning.
    pub thinks: bool,
    /// Constraint on a message without a call: JSON that matches this schema, and whether all keywords are
    /// enforced (strict). `None` for any text.
    pub answer: Option<(&'a Value, bool)>,
    /// Returns the id of a control token by its spelling; `None` if it is plain text or not in the
    /// vocabulary.
    pub token: &'a dyn Fn(&str) -> Option<u32>,
}

impl Format {
    /// Grammar of the message. `None` if it is unconstrained: no tool may be called, none is given, or none
    /// has the name in [`Choice::Named`].
    pub fn grammar(self, wanted: &Wanted<'_>) -> Option<String> {
        let tools: Vec<&Tool> = match wanted.choice {
            Choice::None => return None,
            Choice::Named(name) => wanted.tools.iter().filter(|tool| tool.name == *name).collect(),
            Choice::Auto | Choice::Required => wanted.tools.iter().collect(),
        };
        if tools.is_empty() {
            return None;
        }
        let is_forced = *wanted.choice != Choice::Auto;
        let parallel = wanted.parallel && self.is_parallel() && !matches!(wanted.choice, Choice::Named(_));
        let mut writer = Writer { out: String::new(), wanted, is_forced, parallel, n_rules: 0 };
        writer.terminals();
        let thinking = writer.thinking(self);
        let _ = writeln!(writer.out, "start: {thinking}message");
        writer.answer();
        match self {
            Self::Llama3 => writer.llama3(&tools),
            Self::Hermes => writer.hermes(&tools),
            Self::Mistral => writer.mistral(&tools),
            Self::Qwen3Coder => writer.tagged(&tools, &QWEN3_CODER),
            Self::SeedOss => writer.tagged(&tools, &SEED_OSS),
            Self::Glm => writer.tagged(&tools, &GLM),
            Self::MiniMax => writer.tagged(&tools, &MINIMAX),
            Self::MistralArgs => writer.mistral_args(&tools),
            Self::Harmony => writer.harmony(&tools),
            Self::DeepSeek => writer.deepseek(&tools, true),
            Self::DeepSeek31 => writer.deepseek(&tools, false),
            Self::KimiK2 => writer.kimi_k2(&tools),
            Self::Pythonic => writer.pythonic(&tools),
            Self::Lfm2 => writer.lfm2(&tools),
            Self::ToolCode => writer.tool_code(&tools),
            Self::FunctionGemma | Self::Gemma4 => {
                let marked = self.marked().expect("calls between marks");
                writer.marked(&tools, &marked);
            }
            Self::Glm4 => writer.glm4(&tools),
            Self::Olmo3 => writer.olmo3(&tools),
            Self::Granite3
            | Self::Phi4Mini
            | Self::Nemotron2
            | Self::Hunyuan
            | Self::Cohere2
            | Self::CommandR
            | Self::Apertus => writer.listed(&tools, self.listed().expect("calls in a list")),
            Self::Generic => writer.generic(&tools),
        }
        Some(writer.out)
    }
}

/// Grammar of an answer after reasoning that the template has opened with `marks`: any text up to their end,
/// then JSON that matches `schema`. `token` is as in [`Wanted`].
pub fn json_after_thoughts(
    marks: &'static Marks,
    schema: &Value,
    strict: bool,
    token: &dyn Fn(&str) -> Option<u32>,
) -> String {
    let (answer, thoughts) = (Some((schema, strict)), Some(Thoughts::Marked(marks)));
    let choice = &Choice::None;
    let wanted = Wanted { tools: &[], choice, parallel: false, thoughts, thinks: true, answer, token };
    let mut writer =
        Writer { out: String::new(), wanted: &wanted, is_forced: false, parallel: false, n_rules: 0 };
    writer.terminals();
    writer.up_to("thoughts", marks.close);
    writer.line("start: thoughts SPACE? answer");
    writer.answer();
    writer.out
}

/// Grammar of an answer in channels: free reasoning, then JSON that matches `schema` in the final channel.
/// `token` is as in [`Wanted`].
pub fn json_in_channels(schema: &Value, strict: bool, token: &dyn Fn(&str) -> Option<u32>) -> String {
    let answer = Some((schema, strict));
    let (choice, thoughts) = (&Choice::None, Some(Thoughts::Channels));
    let wanted = Wanted { tools: &[], choice, parallel: false, thoughts, thinks: false, answer, token };
    let mut writer =
        Writer { out: String::new(), wanted: &wanted, is_forced: false, parallel: false, n_rules: 0 };
    writer.terminals();
    writer.channels();
    writer.line("start: part* final");
    writer.answer();
    writer.out
}

struct Writer<'a> {
    out: String,
    wanted: &'a Wanted<'a>,
    is_forced: bool,
    parallel: bool,
    n_rules: usize,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        self.out += text;
        self.out.push('\n');
    }

    fn terminals(&mut self) {
        self.line("TEXT: /(.|\\n)*/\nSPACE: /[ \\n]{1,4}/");
    }

    /// Grammar symbol of a mark: a token if the vocabulary has one, otherwise text.
    fn mark(&self, spelling: &str) -> String {
        match (self.wanted.token)(spelling) {
            Some(id) => format!("<[{id}]>"),
            None => quote(spelling),
        }
    }

    /// Writes a rule `name` for text up to and including the first occurrence of a mark.
    fn up_to(&mut self, name: &str, spelling: &str) {
        match (self.wanted.token)(spelling) {
            Some(id) => self.line(&format!("{name}: TEXT <[{id}]>")),
            None => self.line(&format!("{name}[lazy]: TEXT {}", quote(spelling))),
        }
    }

    /// Writes the rule `answer` for a message without a call, if it must be JSON.
    fn answer(&mut self) {
        if let Some((schema, strict)) = self.wanted.answer.filter(|_| !self.is_forced) {
            self.line(&format!("answer: %json {}", marked(schema, json!({ "lenient": !strict }))));
        }
    }

    /// True if a message without a call must be JSON.
    fn is_answer(&self) -> bool {
        !self.is_forced && self.wanted.answer.is_some()
    }

    /// Alternative for an answer besides calls.
    fn or_answer(&self) -> &'static str {
        if self.is_answer() { " | answer" } else { "" }
    }

    /// True if a message may be any text.
    fn is_free(&self) -> bool {
        !self.is_forced && self.wanted.answer.is_none()
    }

    /// Writes the rule for reasoning before the message.
    fn thinking(&mut self, format: Format) -> &'static str {
        let marks = self.wanted.thoughts.and_then(Thoughts::marks);
        let Some(marks) = marks.filter(|_| self.wanted.thinks || !self.is_free()) else {
            // Channels have their own reasoning, and free text may contain any.
            return "";
        };
        self.up_to("thoughts", marks.close);
        if self.wanted.thinks {
            // Free text includes leading whitespace.
            let has_blanks = self.is_free() && format != Format::Generic;
            return if has_blanks { "thoughts " } else { "thoughts SPACE? " };
        }
        let open = self.mark(marks.open);
        self.line(&format!("thinking: {open} thoughts SPACE?"));
        "thinking? "
    }

    /// Writes a rule `call_0`… for each tool, built from `open`, the name, `between`, the arguments and
    /// `close`; and the rule `call` for any tool.
    fn json_calls(&mut self, tools: &[&Tool], open: &str, between: &str, close: &str) {
        for (i, tool) in tools.iter().enumerate() {
            let head = format!("{open}{}{between}", json!(tool.name));
            if open.starts_with('{') && close == "}" && self.is_answer() {
                self.line(&format!("call_{i}: {} args_{i} {}", pieces(&head), quote(close)));
            } else {
                self.line(&format!("call_{i}: HEAD_{i} args_{i} {}", quote(close)));
                self.line(&format!("HEAD_{i}: /[ \\n]{{0,4}}/ {}", quote(&head)));
            }
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.any_call(tools.len());
    }

    fn any_call(&mut self, n_tools: usize) {
        let calls: Vec<String> = (0..n_tools).map(|i| format!("call_{i}")).collect();
        self.line(&format!("call: {}", calls.join(" | ")));
    }

    fn hermes(&mut self, tools: &[&Tool]) {
        self.json_calls(tools, "{\"name\": ", ", \"arguments\": ", "}\n");
        self.tagged_message(["<tool_call>", "</tool_call>"], "call", self.parallel);
    }

    /// Writes `calls` between two marks; if `more`, this pair may repeat.
    fn tagged_message(&mut self, marks: [&str; 2], calls: &str, more: bool) {
        let [open, close] = marks.map(|mark| self.mark(mark));
        if more {
            self.line(&format!("more: \"\\n\" {open} {calls} {close}"));
        }
        let more = if more { " more*" } else { "" };
        if self.is_free() {
            self.up_to("head", marks[0]);
            self.line(&format!("message: TEXT | head {calls} {close}{more}"));
        } else {
            let or = self.or_answer();
            self.line(&format!("message: {open} {calls} {close}{more}{or}"));
        }
    }

    fn mistral(&mut self, tools: &[&Tool]) {
        self.json_calls(tools, "{\"name\": ", ", \"arguments\": ", "");
        let open = self.mark("[TOOL_CALLS]");
        let more = if self.parallel { " (\", \" one)*" } else { "" };
        self.line("one: call (\", \\\"id\\\": \\\"\" ID \"\\\"\")? \"}\"");
        self.line("ID: /[a-zA-Z0-9]{9}/");
        if self.is_free() {
            self.up_to("head", "[TOOL_CALLS]");
            self.line(&format!("message: TEXT | head \"[\" one{more} \"]\""));
        } else {
            let or = self.or_answer();
            self.line(&format!("message: {open} \"[\" one{more} \"]\"{or}"));
        }
    }

    fn mistral_args(&mut self, tools: &[&Tool]) {
        let [open, arguments, id] = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"].map(|mark| self.mark(mark));
        for (i, tool) in tools.iter().enumerate() {
            self.line(&format!("call_{i}: {} ({id} ID)? {arguments} args_{i}", quote(&tool.name)));
            self.line(&format!("args_{i}: %json {}", self::arguments(tool)));
        }
        self.line("ID: /[a-zA-Z0-9]{9}/");
        self.any_call(tools.len());
        let more = if self.parallel { format!(" ({open} call)*") } else { String::new() };
        self.message("[TOOL_CALLS]", &format!("call{more}"));
    }

    /// Writes a message that consists of calls, after any text if allowed; `open` is the mark before the
    /// first call.
    fn message(&mut self, open: &str, calls: &str) {
        if self.is_free() {
            self.up_to("head", open);
            self.line(&format!("message: TEXT | head {calls}"));
        } else {
            let (open, or) = (self.mark(open), self.or_answer());
            self.line(&format!("message: {open} {calls}{or}"));
        }
    }

    fn deepseek(&mut self, tools: &[&Tool], fenced: bool) {
        let [open, separator, close, end] =
            [DEEPSEEK.one[0], DEEPSEEK.separator, DEEPSEEK.one[1], DEEPSEEK.all[1]]
                .map(|mark| self.mark(mark));
        for (i, tool) in tools.iter().enumerate() {
            let call = match fenced {
                true => {
                    let head = quote(&format!("{}\n```json\n", tool.name));
                    format!("\"function\" {separator} {head} args_{i} \"\\n```\"")
                }
                false => format!("{} {separator} args_{i}", quote(&tool.name)),
            };
            self.line(&format!("call_{i}: {open} {call} {close}"));
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.any_call(tools.len());
        let more = if self.parallel { " (\"\\n\"? call)*" } else { "" };
        self.message(DEEPSEEK.all[0], &format!("call{more} {end}"));
    }

    fn kimi_k2(&mut self, tools: &[&Tool]) {
        let [open, separator, close, end] =
            [KIMI_K2.one[0], KIMI_K2.separator, KIMI_K2.one[1], KIMI_K2.all[1]].map(|mark| self.mark(mark));
        for (i, tool) in tools.iter().enumerate() {
            let id = quote(&format!("functions.{}:", tool.name));
            self.line(&format!("call_{i}: {open} {id} COUNT {separator} args_{i} {close}"));
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.line("COUNT: /[0-9]{1,4}/");
        self.any_call(tools.len());
        let more = if self.parallel { " call*" } else { "" };
        self.message(KIMI_K2.all[0], &format!("call{more} {end}"));
    }

    /// Writes rules `part` for reasoning and commentary, and `final` for the answer.
    fn channels(&mut self) {
        let [start, channel, message] =
            ["<|start|>", "<|channel|>", "<|message|>"].map(|mark| self.mark(mark));
        self.up_to("body", "<|end|>");
        self.line(&format!(
            "part: {channel} (\"analysis\" | \"commentary\") {message} body {start} \"assistant\""
        ));
        let constrain = self.mark("<|constrain|>");
        self.line(&format!("kind: (\" \" {constrain} \"json\" | {constrain} \"json\" | \" json\")?"));
        let (kind, answer) = if self.is_answer() { ("kind ", "answer") } else { ("", "TEXT") };
        self.line(&format!("final: {channel} \"final\" {kind}{message} {answer}"));
    }

    fn harmony(&mut self, tools: &[&Tool]) {
        self.channels();
        let [channel, message] = ["<|channel|>", "<|message|>"].map(|mark| self.mark(mark));
        for (i, tool) in tools.iter().enumerate() {
            let to = format!(" to=functions.{}", tool.name);
            let (first, last) = (quote(&to), quote(&format!("commentary{to}")));
            self.line(&format!(
                "call_{i}: ({first} {channel} \"commentary\" | {channel} {last}) kind {message} args_{i}"
            ));
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.any_call(tools.len());
        self.line(if self.is_forced { "message: part* call" } else { "message: part* (call | final)" });
    }

    fn pythonic(&mut self, tools: &[&Tool]) {
        let (mut first, mut next) = (Vec::new(), Vec::new());
        for (i, tool) in tools.iter().enumerate() {
            let arguments = self.properties(tool, "#", &tool.parameters, &PYTHON);
            self.line(&format!("HEAD_{i}: /[ \\n]{{0,4}}/ {}", quote(&format!("[{}(", tool.name))));
            first.push(format!("HEAD_{i} {arguments} \")\""));
            next.push(format!("{} {arguments} \")\"", quote(&format!("{}(", tool.name))));
        }
        self.line(&format!("first: {}\nnext: {}", first.join(" | "), next.join(" | ")));
        let more = if self.parallel { " (\", \" next)*" } else { "" };
        if self.is_free() {
            let names: Vec<String> = tools.iter().map(|tool| tool.name.replace('.', "\\.")).collect();
            self.line(&format!("message: first{more} \"]\" | FREE"));
            // A message that begins like a call must be one.
            self.line(&format!("FREE: TEXT & ~/[ \\n]{{0,4}}\\[({})\\((.|\\n)*/", names.join("|")));
        } else {
            let or = self.or_answer();
            self.line(&format!("message: first{more} \"]\"{or}"));
        }
    }

    /// Writes a rule `call_0`… for each tool in a notation, and `call` for any tool.
    fn bracketed_calls(&mut self, tools: &[&Tool], notation: &Notation) {
        let [open, close] = notation.around;
        for (i, tool) in tools.iter().enumerate() {
            let arguments = self.properties(tool, "#", &tool.parameters, notation);
            let head = quote(&format!("{}{}{open}", notation.call, tool.name));
            self.line(&format!("call_{i}: {head} {arguments} \"{close}\""));
        }
        self.any_call(tools.len());
    }

    fn lfm2(&mut self, tools: &[&Tool]) {
        self.bracketed_calls(tools, &PYTHON);
        let more = if self.parallel { " (\", \" call)*" } else { "" };
        self.tagged_message(LFM2_MARKS, &format!("\"[\" call{more} \"]\""), false);
    }

    fn olmo3(&mut self, tools: &[&Tool]) {
        self.bracketed_calls(tools, &PYTHON);
        let more = if self.parallel { " (\"\\n\" call)*" } else { "" };
        self.tagged_message(OLMO3_MARKS, &format!("\"\\n\"? call{more} \"\\n\"?"), false);
    }

    fn glm4(&mut self, tools: &[&Tool]) {
        for (i, tool) in tools.iter().enumerate() {
            self.line(&format!("call_{i}: HEAD_{i} args_{i}"));
            self.line(&format!("HEAD_{i}: /[ \\n]{{0,4}}/ {} / ?\\n/", quote(&tool.name)));
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.any_call(tools.len());
        if self.is_free() {
            let names: Vec<String> = tools.iter().map(|tool| tool.name.replace('.', "\\.")).collect();
            self.line("message: call | FREE");
            // A message that begins like a call must be one.
            self.line(&format!("FREE: TEXT & ~/[ \\n]{{0,4}}({}) ?\\n(.|\\n)*/", names.join("|")));
        } else {
            let or = self.or_answer();
            self.line(&format!("message: call{or}"));
        }
    }

    fn listed(&mut self, tools: &[&Tool], Listed { open, close, form }: &Listed) {
        for (i, tool) in tools.iter().enumerate() {
            let name = json!(tool.name);
            let head = match form {
                Form::Named => quote(&format!("{{\"name\": {name}, \"arguments\": ")),
                Form::Keyed => quote(&format!("{{{name}: ")),
                Form::Cohere => {
                    let named = quote(&format!("\"tool_name\": {name}, \"parameters\": "));
                    format!("\"{{\" /(\"tool_call_id\": \"[0-9]{{1,4}}\", )?/ {named}")
                }
            };
            self.line(&format!("call_{i}: HEAD_{i} args_{i} \"}}\""));
            self.line(&format!("HEAD_{i}: /[ \\n]{{0,8}}/ {head}"));
            self.line(&format!("args_{i}: %json {}", arguments(tool)));
        }
        self.any_call(tools.len());
        self.line("END: /[ \\n]{0,8}\\]/");
        let more = if self.parallel { " (\",\" call)*" } else { "" };
        let close = if close.is_empty() { String::new() } else { format!("/\\n?/ {}", self.mark(close)) };
        self.message(open, &format!("/[ \\n]{{0,2}}\\[/ call{more} END {close}"));
    }

    fn tool_code(&mut self, tools: &[&Tool]) {
        self.bracketed_calls(tools, &TOOL_CODE);
        let more = if self.parallel { " (\"\\n\" call)*" } else { "" };
        self.message("```tool_code\n", &format!("call{more} \"\\n```\""));
    }

    fn marked(&mut self, tools: &[&Tool], Marked { marks, notation }: &Marked) {
        let quotes = notation.quotes[0].0;
        let [open, close, quote] = [marks[0], marks[1], quotes].map(|mark| self.mark(mark));
        self.up_to("text_end", quotes);
        self.line(&format!("text: {quote} text_end"));
        self.bracketed_calls(tools, notation);
        let more = if self.parallel { format!(" ({open} call {close})*") } else { String::new() };
        self.message(marks[0], &format!("call {close}{more}"));
    }

    /// Writes rules for the properties of an object, in order and with their names; returns the start rule.
    fn properties(&mut self, tool: &Tool, at: &str, schema: &Value, notation: &Notation) -> String {
        let id = self.number();
        let required = schema.get("required").and_then(Value::as_array);
        let properties = schema.get("properties").and_then(Value::as_object);
        let mut n = 0;
        for (k, (name, schema)) in properties.into_iter().flatten().enumerate() {
            let at = format!("{at}/properties/{}", pointer(name));
            let value = self.value_in(tool, &at, schema, notation);
            // After a previous argument it needs a comma; an optional one may be omitted.
            let is_required = required.is_some_and(|all| all.iter().any(|one| one == name));
            let argument = format!("{} {value}", quote(&format!("{name}{}", notation.assign)));
            for (rule, comma) in [("none", String::new()), ("some", quote(notation.comma) + " ")] {
                let or = if is_required { String::new() } else { format!(" | {rule}_{id}_{}", k + 1) };
                self.line(&format!("{rule}_{id}_{k}: {comma}{argument} some_{id}_{}{or}", k + 1));
            }
            n = k + 1;
        }
        self.line(&format!("none_{id}_{n}: \"\"\nsome_{id}_{n}: \"\""));
        format!("none_{id}_0")
    }

    /// Writes a value in a notation as part of a rule. Values that contain no string are JSON in all
    /// notations.
    fn value_in(&mut self, tool: &Tool, at: &str, schema: &Value, notation: &Notation) -> String {
        let has_escapes = notation.quotes[0].1;
        let kind = schema.get("type").and_then(Value::as_str);
        match (kind, schema.get("items")) {
            (Some("boolean"), _) if has_escapes => "(\"True\" | \"False\" | \"true\" | \"false\")".to_owned(),
            (Some("string"), _) if !has_escapes => {
                let choices = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                let quotes = notation.quotes[0].0;
                let texts: Vec<String> = choices
                    .filter_map(Value::as_str)
                    .map(|text| self.sequence(&[quotes, text, quotes]))
                    .collect();
                if texts.is_empty() { "text".to_owned() } else { format!("({})", texts.join(" | ")) }
            }
            (Some("array"), Some(items)) if !has_escapes && has_text(items) => {
                let item = self.value_in(tool, &format!("{at}/items"), items, notation);
                // The grammar grows with the bound of a repetition.
                let bound = |key| schema.get(key).and_then(Value::as_u64).filter(|n| *n <= MAX_ITEMS);
                let least = bound("minItems").unwrap_or(0);
                let most = bound("maxItems").map(|most| most.max(least));
                let more = match most {
                    _ if most == Some(0) => return "\"[]\"".to_owned(),
                    Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most - 1),
                    None => format!("{{{},}}", least.saturating_sub(1)),
                };
                let items = format!("{item} (\",\" {item}){more}");
                if least == 0 { format!("\"[\" ({items})? \"]\"") } else { format!("\"[\" {items} \"]\"") }
            }
            (Some("object"), _) if !has_escapes && has_text(schema) => {
                let properties = self.properties(tool, at, schema, notation);
                format!("\"{{\" {properties} \"}}\"")
            }
            _ => self.value(tool, at, schema),
        }
    }

    /// Writes a rule for a JSON value and returns its name.
    fn value(&mut self, tool: &Tool, at: &str, schema: &Value) -> String {
        let schema = referring(schema, &tool.parameters);
        let rule = format!("value_{}", self.number());
        self.line(&format!("{rule}: %json {}", of_tool(&schema, tool, at)));
        rule
    }

    fn number(&mut self) -> usize {
        self.n_rules += 1;
        self.n_rules - 1
    }

    fn llama3(&mut self, tools: &[&Tool]) {
        self.json_calls(tools, "{\"name\": ", ", \"parameters\": ", "}");
        let tag = match (self.wanted.token)("<|python_tag|>") {
            Some(id) => format!("<[{id}]>? "),
            None => String::new(),
        };
        if self.is_free() {
            self.line(&format!("message: {tag}call | FREE"));
            // A message that begins like a call must be one.
            self.line("FREE: TEXT & ~/[ \\n]{0,4}\\{\"name\": (.|\\n)*/");
        } else {
            let or = self.or_answer();
            self.line(&format!("message: {tag}call{or}"));
        }
    }

    fn generic(&mut self, tools: &[&Tool]) {
        self.json_calls(tools, "{\"name\": ", ", \"arguments\": ", "}");
        let more = if self.parallel { " (\", \" call)*" } else { "" };
        let head = "{\"tool_calls\": [";
        let head = if self.is_answer() { pieces(head) } else { quote(head) };
        let calls = format!("{head} call{more} \"]}}\"");
        if self.is_free() {
            self.line(&format!("message: ({calls} | \"{{\\\"response\\\": \" said \"}}\")"));
            self.line("said: %json {\"type\": \"string\"}");
        } else {
            let or = self.or_answer();
            self.line(&format!("message: {calls}{or}"));
        }
    }

    /// Concatenates texts; those that are tokens of the vocabulary become tokens.
    fn sequence(&self, texts: &[&str]) -> String {
        let (mut out, mut plain) = (Vec::new(), String::new());
        for text in texts.iter().filter(|text| !text.is_empty()) {
            match (self.wanted.token)(text) {
                Some(id) => {
                    out.extend((!plain.is_empty()).then(|| quote(&std::mem::take(&mut plain))));
                    out.push(format!("<[{id}]>"));
                }
                None => plain += text,
            }
        }
        out.extend((!plain.is_empty()).then(|| quote(&plain)));
        out.join(" ")
    }

    fn tagged(&mut self, tools: &[&Tool], tags: &Tags) {
        let line = if tags.in_lines { "\n" } else { "" };
        let end = self.sequence(&[line, tags.close_value, "\n"]);
        let lazy = if (self.wanted.token)(tags.close_value).is_some() { "" } else { "[lazy]" };
        self.line(&format!("value{lazy}: TEXT {end}"));
        let before_value = if tags.value.is_empty() { "" } else { "\n" };
        for (i, tool) in tools.iter().enumerate() {
            let mut parameters = Vec::new();
            let required = tool.parameters.get("required").and_then(Value::as_array);
            let properties = tool.parameters.get("properties").and_then(Value::as_object);
            for (k, (name, schema)) in properties.into_iter().flatten().enumerate() {
                let at = format!("#/properties/{}", pointer(name));
                let [open, close] = tags.key;
                let head = self.sequence(&[open, name.as_str(), close, before_value, tags.value, line]);
                let choices = schema.get("enum").and_then(Value::as_array);
                let choices = choices.filter(|_| is_text(schema)).into_iter().flatten();
                let texts: Vec<String> = choices
                    .filter_map(Value::as_str)
                    .map(|text| self.sequence(&[text, line, tags.close_value, "\n"]))
                    .collect();
                let body = if !texts.is_empty() {
                    format!("({})", texts.join(" | "))
                } else if is_text(schema) {
                    "value".to_owned()
                } else {
                    format!("{} {end}", self.value(tool, &at, schema))
                };
                let is_required = required.is_some_and(|all| all.iter().any(|one| one == name));
                let optional = if is_required { "" } else { "?" };
                self.line(&format!("parameter_{i}_{k}: {head} {body}"));
                parameters.push(format!("parameter_{i}_{k}{optional}"));
            }
            let (before, close) = match (tags.call.is_empty(), tags.holds_several) {
                (true, _) => ("", String::new()),
                (_, true) => ("", self.sequence(&[tags.close, "\n"])),
                (_, false) => ("\n", self.sequence(&[tags.close, "\n"])),
            };
            // The end of a name is written together with the newline after it.
            let [end, line] = if tags.name_ends[0] == "\n" { ["\n", ""] } else { [tags.name_ends[0], "\n"] };
            let head = self.sequence(&[before, tags.call, tool.name.as_str(), end, line]);
            self.line(&format!("call_{i}: {head} {} {close}", parameters.join(" ")));
        }
        self.any_call(tools.len());
        match (tags.holds_several, self.parallel) {
            (false, parallel) => self.tagged_message(tags.outer, "call", parallel),
            (true, false) => self.tagged_message(tags.outer, "\"\\n\" call", false),
            (true, true) => self.tagged_message(tags.outer, "\"\\n\" call+", false),
        }
    }
}

/// Splits the start of a JSON text into single symbols and strings. The lexer is greedy and does not
/// backtrack, so text that an answer may also begin with must not be part of a longer terminal.
fn pieces(head: &str) -> String {
    let mut out = Vec::new();
    let mut rest = head;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => 2 + rest[1..].find('"').expect("strings are terminated"),
            _ => 1,
        };
        out.push(if first == ' ' { "SPACE?".to_owned() } else { quote(&rest[..len]) });
        rest = &rest[len..];
    }
    out.join(" ")
}

fn pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// True if values of a schema are strings, or lists or objects with named properties that may contain one.
fn has_text(schema: &Value) -> bool {
    let inner = |key: &str| schema.get(key);
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => true,
        Some("array") => inner("items").is_some_and(has_text),
        Some("object") => {
            inner("properties").and_then(Value::as_object).is_some_and(|all| all.values().any(has_text))
        }
        _ => false,
    }
}

/// Schema of a tool's arguments, always an object.
fn arguments(tool: &Tool) -> Value {
    let mut schema = match &tool.parameters {
        Value::Object(schema) => Value::Object(schema.clone()),
        _ => json!({}),
    };
    if schema.get("type").is_none_or(Value::is_null) {
        schema["type"] = json!("object");
    }
    of_tool(&schema, tool, "#")
}

/// Copies definitions into a part of a schema, so that its references resolve.
fn referring(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    for key in ["$defs", "definitions"] {
        if let (Some(defs), Some(part)) = (whole.get(key), part.as_object_mut()) {
            part.entry(key).or_insert_with(|| defs.clone());
        }
    }
    part
}

/// Marks a part of a tool's schema with its position.
fn of_tool(schema: &Value, tool: &Tool, at: &str) -> Value {
    marked(schema, json!({ "lenient": !tool.strict, "tool": tool.name, "at": at }))
}

/// Adds the annotation that the crate `grammar` reads: the tool, and whether all keywords must be enforced.
/// Null and an empty list become an empty schema.
fn marked(schema: &Value, mark: Value) -> Value {
    let mut schema = match schema {
        Value::Null => json!({}),
        Value::Array(list) if list.is_empty() => json!({}),
        schema => schema.clone(),
    };
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".to_owned(), mark);
    }
    schema
}

/// Quotes a Lark literal.
fn quote(text: &str) -> String {
    json!(text).to_string().replace('\u{7f}', "\\u007f")
}
