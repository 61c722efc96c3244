//! Converts pieces of a model's output to what a client receives: text, reasoning and tool calls.
//!
//! Every character is examined a bounded number of times, and only text that may begin a mark is held back.
//! The way the text is cut into pieces only changes the boundaries of the deltas.

mod channels;
mod response;

use super::bracketed::{Bracketed, PYTHON, TOOL_CODE, is_list};
use super::format::{LFM2_MARKS, OLMO3_MARKS};
use super::head::{BEGINNERS, Head, MARKS, head};
use super::json::Object;
use super::listed::{Form, Listed};
use super::scan::{Body, Found, Prefix, Read, find, prefix};
use super::tagged::Tagged;
use super::thoughts::{Marks, Thoughts};
use super::{Format, Tool};

/// Part of a parsed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Reasoning before the answer.
    Reasoning(String),
    /// Start of a call.
    CallBegun {
        /// Index of the call, from 0.
        index: usize,
        /// Generated here, or the model's own if it comes before the arguments.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// Piece of a call's arguments: JSON as the model writes it.
    Arguments {
        /// The call.
        index: usize,
        /// The piece.
        text: String,
    },
    /// End of a call; never sent for one that is cut off.
    CallEnded {
        /// The call.
        index: usize,
    },
}

/// Options of a parser.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// Format of calls; `None` disables parsing of calls.
    pub format: Option<Format>,
    /// Tools, whose schemas give the types of arguments that are written without them.
    pub tools: Vec<Tool>,
    /// Form of reasoning to split off.
    pub thoughts: Option<Thoughts>,
    /// True if the template has already opened the reasoning.
    pub thinks: bool,
    /// Seed of generated ids.
    pub seed: u64,
}

/// Parser of one message.
#[derive(Debug)]
pub struct Parser {
    options: ParserOptions,
    stage: Stage,
    /// Text received but not yet parsed, from `at` on.
    held: String,
    at: usize,
    /// Whitespace that is only shown if text follows.
    space: String,
    /// Text before a call that has not begun; it is content if the call never begins.
    begun_with: String,
    n_calls: usize,
    has_reasoned: bool,
}

#[derive(Debug)]
enum Stage {
    /// Whitespace at the start, which is dropped after reasoning and calls.
    Start {
        may_think: bool,
        drops_space: bool,
    },
    Thoughts,
    Text,
    /// After the mark of a call, before its first character.
    Open,
    /// In a list of calls, before the next one or the end.
    Item,
    Call(Box<Object>, bool),
    /// In a call that is not written in JSON.
    Body(Box<dyn Body>),
    /// Before the head of arguments that are a separate JSON object.
    Head,
    /// Before the header of a part in a channel.
    Header,
    /// After a call, before its closing mark.
    Close,
    /// In the text of `{"response": "…"}`.
    Response,
    /// After the end: further text is ignored.
    Rest,
}

const OPEN_CALL: &str = "<tool_call>";
const CLOSE_CALL: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";
const CALLS: &str = "[TOOL_CALLS]";
const FENCE: &str = "```";
const TOOL_FENCE: &str = "```tool_code";

impl Parser {
    /// Creates a parser at the start of a message.
    pub fn new(options: ParserOptions) -> Self {
        let stage = match options.thoughts {
            _ if options.format == Some(Format::Harmony) => Stage::Header,
            Some(_) if options.thinks => Stage::Thoughts,
            thoughts => Stage::Start { may_think: thoughts.is_some(), drops_space: false },
        };
        Self {
            options,
            stage,
            held: String::new(),
            at: 0,
            space: String::new(),
            begun_with: String::new(),
            n_calls: 0,
            has_reasoned: false,
        }
    }

    /// Number of calls begun so far.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.held += piece;
        let mut out = Vec::new();
        while self.step(&mut out, false) {}
        self.held.drain(..self.at);
        self.at = 0;
        out
    }

    /// Ends the message and returns the text that was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        while self.step(&mut out, true) {}
        let rest = std::mem::take(&mut self.held).split_off(self.at);
        self.at = 0;
        match std::mem::replace(&mut self.stage, Stage::Rest) {
            Stage::Start { drops_space: false, .. } => {
                let space = std::mem::take(&mut self.space);
                content(&mut out, &(space + &rest));
            }
            Stage::Start { .. } | Stage::Text => content(&mut out, &rest),
            Stage::Header => {}
            Stage::Thoughts => self.reason(&mut out, &rest),
            Stage::Open | Stage::Head => {
                let begun = std::mem::take(&mut self.begun_with);
                content(&mut out, &(begun + &rest));
            }
            Stage::Call(mut object, _) => {
                let begun = std::mem::take(&mut self.begun_with);
                let raw = object.take_raw();
                if !raw.is_empty() {
                    content(&mut out, &(begun + &raw));
                }
            }
            Stage::Item | Stage::Body(_) if !self.begun_with.is_empty() => {
                let begun = std::mem::take(&mut self.begun_with);
                content(&mut out, &(begun + &rest));
            }
            Stage::Item | Stage::Body(_) | Stage::Close | Stage::Response | Stage::Rest => {}
        }
        out
    }

    /// Marks of the reasoning to split off.
    fn marks(&self) -> Option<&'static Marks> {
        self.options.thoughts.and_then(Thoughts::marks)
    }

    /// Marks around the answer, which are dropped.
    fn answer(&self) -> Option<[&'static str; 2]> {
        self.marks().and_then(|marks| marks.answer)
    }

    fn rest(&self) -> &str {
        &self.held[self.at..]
    }

    /// Consumes `bytes` of the text and returns them.
    fn pass(&mut self, bytes: usize) -> String {
        let passed = self.rest()[..bytes].to_owned();
        self.at += bytes;
        passed
    }

    /// Skips whitespace. Returns `false` if nothing follows yet.
    fn pass_blanks(&mut self) -> bool {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        !self.rest().is_empty()
    }

    /// Performs one parsing step; returns `false` if it needs more text.
    fn step(&mut self, out: &mut Vec<Delta>, at_end: bool) -> bool {
        match self.stage {
            Stage::Start { may_think, drops_space } => self.start(out, may_think, drops_space, at_end),
            Stage::Thoughts => self.thoughts(out),
            Stage::Text => self.text(out),
            Stage::Open => self.open(out, at_end),
            Stage::Item => self.item(out, at_end),
            Stage::Head => self.head(out),
            Stage::Header => self.header(out, at_end),
            Stage::Call(..) => self.call(out),
            Stage::Body(_) => self.body(out),
            Stage::Close => self.close(at_end),
            Stage::Response => self.response(out),
            Stage::Rest => {
                self.at = self.held.len();
                false
            }
        }
    }

    fn start(&mut self, out: &mut Vec<Delta>, may_think: bool, drops_space: bool, at_end: bool) -> bool {
        let rest = self.rest();
        let blanks = rest.len() - rest.trim_start().len();
        let blanks = self.pass(blanks);
        if !drops_space {
            self.space += &blanks;
        }
        let rest = self.rest();
        if rest.is_empty() {
            return false;
        }
        let open = self.marks().filter(|_| may_think).map(|marks| (marks.open, Stage::Thoughts));
        let answer =
            self.answer().map(|[open, _]| (open, Stage::Start { may_think: false, drops_space: true }));
        for (mark, stage) in open.into_iter().chain(answer) {
            if rest.starts_with(mark) {
                self.pass(mark.len());
                self.space.clear();
                self.stage = stage;
                return true;
            }
            if !at_end && mark.starts_with(rest) {
                return false;
            }
        }
        match self.options.format {
            Some(Format::Llama3) if rest.starts_with('{') => {
                self.begun_with = std::mem::take(&mut self.space);
                self.stage = Stage::Call(Box::default(), false);
            }
            Some(Format::Pythonic) if rest.starts_with('[') => match is_list(rest) {
                Some(true) => {
                    self.begun_with = std::mem::take(&mut self.space) + &self.pass(1);
                    self.stage = Stage::Body(Box::new(Bracketed::new(&PYTHON)));
                }
                None if !at_end => return false,
                _ => self.begin_text(out),
            },
            Some(Format::Glm4) => match self.glm4_name() {
                Some(Some((name, bytes))) => {
                    self.begun_with = std::mem::take(&mut self.space) + &self.pass(bytes);
                    self.stage = Stage::Call(Box::new(Object::arguments_of(name, None)), false);
                }
                None if !at_end => return false,
                _ => self.begin_text(out),
            },
            Some(Format::Generic) if rest.starts_with('{') => {
                let calls = prefix(rest, &["{", "\"tool_calls\"", ":", "["]);
                let said = prefix(rest, &["{", "\"response\"", ":", "\""]);
                match (calls, said) {
                    (Prefix::Whole(bytes), _) => {
                        self.pass(bytes);
                        self.stage = Stage::Item;
                    }
                    (_, Prefix::Whole(bytes)) => {
                        self.pass(bytes);
                        self.stage = Stage::Response;
                    }
                    (Prefix::No, Prefix::No) => self.begin_text(out),
                    _ if at_end => self.begin_text(out),
                    _ => return false,
                }
            }
            _ => self.begin_text(out),
        }
        true
    }

    /// The name of a tool at the start, if the rest of its line is blank and an object follows, with the
    /// number of bytes before that. `None` if more text is needed to tell.
    fn glm4_name(&self) -> Option<Option<(String, usize)>> {
        let rest = self.rest();
        let names = self.options.tools.iter().map(|tool| tool.name.as_str());
        let mut may_follow = false;
        for name in names {
            let Some(after) = rest.strip_prefix(name) else {
                may_follow |= name.starts_with(rest);
                continue;
            };
            let blank = after.trim_start();
            let has_line = after[..after.len() - blank.len()].contains('\n');
            if has_line && blank.starts_with('{') {
                return Some(Some((name.to_owned(), rest.len() - blank.len())));
            }
            may_follow |= blank.is_empty();
        }
        if may_follow { None } else { Some(None) }
    }

    /// A parser of the next call in a list.
    fn object(&self) -> Stage {
        let form = self.options.format.and_then(Format::listed).map(|listed| listed.form);
        let object = if form == Some(Form::Keyed) { Object::keyed() } else { Object::default() };
        Stage::Call(Box::new(object), true)
    }

    fn begin_text(&mut self, out: &mut Vec<Delta>) {
        let space = std::mem::take(&mut self.space);
        content(out, &space);
        self.stage = Stage::Text;
    }

    fn thoughts(&mut self, out: &mut Vec<Delta>) -> bool {
        let in_channel = self.options.format == Some(Format::Harmony);
        let close = self.marks().map(|marks| marks.close);
        let marks = if in_channel { MARKS } else { close.as_slice() };
        let (bytes, mark) = match find(self.rest(), marks) {
            Found::Mark(at, which) => (at, Some(marks[which])),
            Found::None(safe) => (safe, None),
        };
        let text = self.pass(bytes);
        self.reason(out, &text);
        match mark {
            Some(mark) if in_channel => self.end_part(mark),
            Some(mark) => {
                self.pass(mark.len());
                self.space.clear();
                self.stage = Stage::Start { may_think: false, drops_space: true };
            }
            None => {}
        }
        mark.is_some()
    }

    /// Emits reasoning, without whitespace around it.
    fn reason(&mut self, out: &mut Vec<Delta>, text: &str) {
        let text = if self.has_reasoned { text } else { text.trim_start() };
        let end = text.trim_end().len();
        if end > 0 {
            self.has_reasoned = true;
            let space = std::mem::take(&mut self.space);
            let text = space + &text[..end];
            match out.last_mut() {
                Some(Delta::Reasoning(last)) => *last += &text,
                _ => out.push(Delta::Reasoning(text)),
            }
        }
        self.space += &text[end..];
    }

    fn text(&mut self, out: &mut Vec<Delta>) -> bool {
        let tags = self.options.format.and_then(Format::tags);
        let section = self.options.format.and_then(Format::section);
        let marked = self.options.format.and_then(Format::marked);
        let listed = self.options.format.and_then(Format::listed).map(|listed| [listed.open]);
        let of_tags = tags.map(|tags| [tags.outer[0], tags.call]);
        let of_section = section.map(|section| [section.all[0], section.one[0]]);
        let marks: &[&str] = match self.options.format {
            Some(Format::Hermes | Format::Glm) => &[OPEN_CALL],
            Some(Format::Qwen3Coder | Format::SeedOss | Format::MiniMax) => {
                of_tags.as_ref().map_or(&[], |marks| marks)
            }
            Some(Format::Mistral | Format::MistralArgs) => &[CALLS],
            Some(Format::DeepSeek | Format::DeepSeek31 | Format::KimiK2) => {
                of_section.as_ref().map_or(&[], |marks| marks)
            }
            Some(Format::FunctionGemma | Format::Gemma4) => {
                marked.as_ref().map_or(&[], |marked| &marked.marks[..1])
            }
            Some(Format::Lfm2) => &LFM2_MARKS[..1],
            Some(Format::Olmo3) => &OLMO3_MARKS[..1],
            Some(
                Format::Granite3
                | Format::Phi4Mini
                | Format::Nemotron2
                | Format::Hunyuan
                | Format::Cohere2
                | Format::CommandR
                | Format::Apertus,
            ) => listed.as_ref().map_or(&[], |marks| marks),
            Some(Format::ToolCode) => &[TOOL_FENCE],
            Some(Format::Harmony) => MARKS,
            Some(Format::Llama3) => &[PYTHON_TAG],
            Some(Format::Pythonic | Format::Glm4 | Format::Generic) | None => &[],
        };
        let mut marks = marks.to_vec();
        marks.extend(self.answer().map(|[_, close]| close));
        match find(self.rest(), &marks) {
            Found::Mark(at, which) => {
                let text = self.pass(at);
                content(out, &text);
                if self.answer().is_some_and(|[_, close]| marks[which] == close) {
                    self.pass(marks[which].len());
                    return true;
                }
                if self.options.format == Some(Format::Harmony) {
                    if self.options.thoughts.is_none() && !BEGINNERS.contains(&marks[which]) {
                        content(out, marks[which]);
                    }
                    self.end_part(marks[which]);
                    return true;
                }
                // The tag of a function is parsed in stage `Open`.
                if tags.is_some_and(|tags| marks[which] == tags.call) {
                    self.begun_with.clear();
                } else {
                    self.begun_with = self.pass(marks[which].len());
                }
                let begins_one = section.is_some_and(|section| marks[which] == section.one[0]);
                self.stage = if begins_one { Stage::Head } else { Stage::Open };
                true
            }
            Found::None(safe) => {
                let text = self.pass(safe);
                content(out, &text);
                false
            }
        }
    }

    fn open(&mut self, out: &mut Vec<Delta>, at_end: bool) -> bool {
        let rest = self.rest();
        let blanks = rest.len() - rest.trim_start().len();
        let blanks = self.pass(blanks);
        self.begun_with += &blanks;
        let tags = self.options.format.and_then(Format::tags);
        let section = self.options.format.and_then(Format::section);
        let marked = self.options.format.and_then(Format::marked);
        let wanted = match (self.options.format, tags, section) {
            _ if marked.is_some() => marked.as_ref().map_or("", |marked| marked.notation.call),
            (_, Some(tags), _) => tags.call,
            (_, _, Some(section)) => section.one[0],
            (Some(Format::Mistral | Format::MistralArgs | Format::Lfm2), ..) => "[",
            (Some(format), ..) if format.listed().is_some() => "[",
            (Some(Format::ToolCode | Format::Olmo3), ..) => "",
            _ => "{",
        };
        let rest = self.rest();
        if rest.is_empty() {
            return false;
        }
        if let Some(tags) = tags.filter(|_| rest.starts_with(wanted)) {
            let mark = self.pass(tags.call.len());
            self.begun_with += &mark;
            self.stage = Stage::Body(Box::new(Tagged::new(tags)));
            return true;
        }
        if rest.starts_with(wanted) {
            match self.options.format {
                Some(format)
                    if matches!(format, Format::Mistral | Format::MistralArgs)
                        || format.listed().is_some() =>
                {
                    self.pass(1);
                    self.begun_with.clear();
                    self.stage = Stage::Item;
                }
                Some(Format::DeepSeek | Format::DeepSeek31 | Format::KimiK2) => {
                    let mark = self.pass(wanted.len());
                    self.begun_with += &mark;
                    self.stage = Stage::Head;
                }
                Some(Format::Lfm2) => {
                    let bracket = self.pass(1);
                    self.begun_with += &bracket;
                    self.stage = Stage::Body(Box::new(Bracketed::new(&PYTHON)));
                }
                Some(Format::ToolCode | Format::Olmo3) => self.stage = Stage::Item,
                _ => {
                    self.stage = match marked {
                        Some(marked) => Stage::Body(Box::new(Bracketed::new(marked.notation))),
                        None => Stage::Call(Box::default(), false),
                    };
                }
            }
            return true;
        }
        if wanted.starts_with(rest) && !at_end {
            return false;
        }
        if self.options.format == Some(Format::MistralArgs) {
            self.stage = Stage::Head;
            return true;
        }
        self.no_call(out, "");
        true
    }

    /// Emits what looked like a call as text.
    fn no_call(&mut self, out: &mut Vec<Delta>, more: &str) {
        let text = std::mem::take(&mut self.begun_with) + more;
        content(out, &text);
        self.stage = Stage::Text;
    }

    fn item(&mut self, out: &mut Vec<Delta>, at_end: bool) -> bool {
        if !self.pass_blanks() {
            return false;
        }
        let is_code = self.options.format == Some(Format::ToolCode);
        match self.rest().as_bytes().first() {
            Some(b'`') if is_code => return self.end_fence(out, at_end),
            Some(b'<') if self.options.format == Some(Format::Olmo3) => match self.begun_with.is_empty() {
                true => self.stage = Stage::Close,
                false => self.no_call(out, ""),
            },
            Some(b'{') => self.stage = self.object(),
            // Brackets around calls, or separators.
            Some(b'[' | b']' | b')' | b',' | b';') if is_code => {
                let passed = self.pass(1);
                if !self.begun_with.is_empty() {
                    self.begun_with += &passed;
                }
            }
            Some(b']') => {
                self.pass(1);
                self.stage = match self.options.format {
                    Some(Format::Mistral | Format::MistralArgs | Format::Pythonic) => {
                        Stage::Start { may_think: false, drops_space: true }
                    }
                    Some(format) if format == Format::Lfm2 || format.listed().is_some() => Stage::Close,
                    _ => Stage::Rest,
                };
            }
            Some(byte)
                if matches!(self.options.format, Some(Format::Pythonic | Format::Lfm2)) && *byte != b',' =>
            {
                self.stage = Stage::Body(Box::new(Bracketed::new(&PYTHON)));
            }
            Some(_) if self.options.format == Some(Format::Olmo3) => {
                self.stage = Stage::Body(Box::new(Bracketed::new(&PYTHON)));
            }
            Some(_) if is_code => self.stage = Stage::Body(Box::new(Bracketed::new(&TOOL_CODE))),
            // A comma, or an unexpected character.
            _ => self.at += self.rest().chars().next().map_or(0, char::len_utf8),
        }
        true
    }

    /// Ends a code block with calls; if there were none, it is text.
    fn end_fence(&mut self, out: &mut Vec<Delta>, at_end: bool) -> bool {
        if !self.begun_with.is_empty() {
            self.no_call(out, "");
        } else if self.rest().starts_with(FENCE) {
            self.pass(FENCE.len());
            self.stage = Stage::Start { may_think: false, drops_space: true };
        } else if at_end || !FENCE.starts_with(self.rest()) {
            self.stage = Stage::Text;
        } else {
            return false;
        }
        true
    }

    fn call(&mut self, out: &mut Vec<Delta>) -> bool {
        let Stage::Call(object, in_list) = &mut self.stage else { return false };
        let in_list = *in_list;
        for c in self.held[self.at..].chars() {
            if object.is_done() || !object.push(c) {
                break;
            }
            self.at += c.len_utf8();
        }
        if object.is_wrong() {
            let raw = object.take_raw();
            self.no_call(out, &raw);
            return true;
        }
        let (begun, arguments, is_done) = (object.take_begun(), object.take_arguments(), object.is_done());
        if let Some((name, id)) = begun {
            self.begin_call(out, name, id);
        }
        self.argue(out, arguments);
        if is_done {
            out.push(Delta::CallEnded { index: self.n_calls - 1 });
            self.stage = match (in_list, self.options.format) {
                (true, _) => Stage::Item,
                (false, Some(Format::Llama3 | Format::Glm4)) => {
                    Stage::Start { may_think: false, drops_space: true }
                }
                (false, _) => Stage::Close,
            };
        }
        is_done
    }

    fn body(&mut self, out: &mut Vec<Delta>) -> bool {
        let Stage::Body(body) = &mut self.stage else { return false };
        match body.read(&self.held[self.at..], &self.options.tools) {
            Read::More => return false,
            Read::Wrong => self.no_call(out, ""),
            Read::Begun(bytes, name) => {
                self.at += bytes;
                self.begin_call(out, name, None);
            }
            Read::Arguments(bytes, text) => {
                self.at += bytes;
                self.argue(out, text);
            }
            Read::Ended(bytes, text) => {
                self.at += bytes;
                self.argue(out, text);
                out.push(Delta::CallEnded { index: self.n_calls - 1 });
                self.stage = match self.options.format {
                    Some(Format::Pythonic | Format::Lfm2 | Format::Olmo3 | Format::ToolCode) => Stage::Item,
                    _ => Stage::Close,
                };
            }
        }
        true
    }

    fn head(&mut self, out: &mut Vec<Delta>) -> bool {
        match head(self.options.format, self.rest()) {
            Head::Call(bytes, name, id) => {
                let passed = self.pass(bytes);
                self.begun_with += &passed;
                self.stage = Stage::Call(Box::new(Object::arguments_of(name, id)), false);
            }
            Head::More => return false,
            Head::Wrong => self.no_call(out, ""),
        }
        true
    }

    fn begin_call(&mut self, out: &mut Vec<Delta>, name: String, id: Option<String>) {
        self.begun_with.clear();
        let index = self.n_calls;
        self.n_calls += 1;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.id(index));
        out.push(Delta::CallBegun { index, id, name });
    }

    fn argue(&self, out: &mut Vec<Delta>, text: String) {
        if text.is_empty() {
            return;
        }
        match out.last_mut() {
            Some(Delta::Arguments { text: last, .. }) => *last += &text,
            _ => out.push(Delta::Arguments { index: self.n_calls - 1, text }),
        }
    }

    /// Generates an id of letters and digits: 9 as Mistral's templates require, or 16 after `call_`.
    fn id(&self, index: usize) -> String {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let is_mistral = matches!(self.options.format, Some(Format::Mistral | Format::MistralArgs));
        let (head, n) = if is_mistral { ("", 9) } else { ("call_", 16) };
        let mut state = self.options.seed.wrapping_add((index as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let mut digit = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            char::from(DIGITS[((mixed ^ (mixed >> 31)) % 36) as usize])
        };
        head.chars().chain((0..n).map(|_| digit())).collect()
    }

    fn close(&mut self, at_end: bool) -> bool {
        if !self.pass_blanks() {
            return false;
        }
        let tags = self.options.format.and_then(Format::tags);
        let section = self.options.format.and_then(Format::section);
        let of_section = section.map(|section| [section.one[1], section.all[1], FENCE]);
        let listed = self.options.format.and_then(Format::listed);
        let closing = listed.map(|Listed { close, .. }| *close).filter(|close| !close.is_empty());
        let marked = self.options.format.and_then(Format::marked);
        let marks: &[&str] = match (self.options.format, tags, &of_section) {
            (Some(Format::KimiK2), _, Some(marks)) => &marks[..2],
            (_, _, Some(marks)) => marks,
            (_, Some(tags), _) => &tags.outer[1..],
            (Some(Format::Hermes), ..) => &[CLOSE_CALL],
            _ if marked.is_some() => marked.as_ref().map_or(&[], |marked| &marked.marks[1..]),
            (Some(Format::Lfm2), ..) => &LFM2_MARKS[1..],
            (Some(Format::Olmo3), ..) => &OLMO3_MARKS[1..],
            _ => closing.as_slice(),
        };
        if let Some(mark) = marks.iter().find(|mark| self.rest().starts_with(**mark)) {
            self.pass(mark.len());
            return true;
        }
        if marks.iter().any(|mark| mark.starts_with(self.rest())) && !at_end {
            return false;
        }
        self.stage = match self.options.format {
            Some(Format::Harmony) => Stage::Text,
            _ => Stage::Start { may_think: false, drops_space: true },
        };
        true
    }
}

fn content(out: &mut Vec<Delta>, text: &str) {
    if text.is_empty() {
        return;
    }
    match out.last_mut() {
        Some(Delta::Content(last)) => *last += text,
        _ => out.push(Delta::Content(text.to_owned())),
    }
}
