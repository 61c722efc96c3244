//! An answer as a sequence of blocks: thoughts, texts and calls. Anthropic's content, the items of OpenAI's
//! responses and ollama's messages are built from them, streamed or whole.

use serde_json::{Map, Value};

use super::answer::Choice;
use super::deltas::{Delta, Splitter};
use sterna_engine::{Event, PickedToken, Stats, StopReason};
use sterna_tokenizer::Tokenizer;
use sterna_tools::ParserOptions;

/// Kind of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Thoughts.
    Thoughts,
    /// Text.
    Text,
    /// A call of a tool.
    Call {
        /// Index among the calls, from 0.
        index: usize,
        /// Id that the tool's result refers to.
        id: String,
        /// Name of the tool.
        name: String,
    },
}

/// A part of an answer, complete or in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Kind of the block.
    pub kind: Kind,
    /// Its text; for a call, its arguments as JSON.
    pub text: String,
    /// True if it is complete, and was not cut off.
    pub is_whole: bool,
}

impl Block {
    /// The arguments of a call; `None` if the call was cut off.
    pub fn arguments(&self) -> Option<Map<String, Value>> {
        let is_call = matches!(self.kind, Kind::Call { .. });
        let text = (is_call && self.is_whole).then_some(self.text.as_str())?;
        if text.is_empty() { Some(Map::new()) } else { serde_json::from_str(text).ok() }
    }
}

/// Event of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// An empty block starts.
    Begun,
    /// Text is appended.
    More(&'a str),
    /// The block is complete.
    Ended,
}

/// Reads the text of one choice into blocks.
#[derive(Debug, Default)]
pub struct Reader {
    splitter: Splitter,
    blocks: Vec<Block>,
    is_open: bool,
    /// Progress of the choice.
    pub choice: Choice,
}

impl Reader {
    /// A reader with these parser options.
    pub fn new(reading: ParserOptions) -> Self {
        Self { splitter: Splitter::new(reading), ..Self::default() }
    }

    /// Takes an event, and reports every change and the index of its block to `tell`. Returns the event's
    /// token, unless the token only ended the text.
    pub fn take(
        &mut self,
        event: &Event,
        stats: Stats,
        mut tell: impl FnMut(usize, &Block, Change<'_>),
    ) -> Option<PickedToken> {
        let token = self.choice.take(event, stats);
        let mut deltas = self.splitter.push(&event.text);
        if event.end.is_some() {
            deltas.extend(self.splitter.finish());
        }
        deltas.into_iter().for_each(|delta| self.add(delta, &mut tell));
        token
    }

    /// Ends the last block. An empty answer gets one empty text block.
    pub fn end(&mut self, mut tell: impl FnMut(usize, &Block, Change<'_>)) {
        if self.blocks.is_empty() {
            self.open(Kind::Text, &mut tell);
        }
        self.close(self.is_whole(), &mut tell);
    }

    /// All blocks so far.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// True if the model ended the answer itself, or a stop string was found.
    pub fn is_whole(&self) -> bool {
        matches!(self.choice.end, Some(StopReason::EndOfText | StopReason::StopString))
    }

    /// True if the answer ended with calls that can be run.
    pub fn calls(&self) -> bool {
        self.choice.end == Some(StopReason::EndOfText)
            && self.blocks.iter().any(|block| block.arguments().is_some())
    }

    /// Number of tokens of the thoughts.
    pub fn n_thoughts(&self, tokenizer: &Tokenizer) -> usize {
        self.splitter.n_thoughts(tokenizer)
    }

    /// Text of all thoughts.
    pub fn thoughts(&self) -> String {
        self.text_of(&Kind::Thoughts)
    }

    /// Text of all text blocks.
    pub fn text(&self) -> String {
        self.text_of(&Kind::Text)
    }

    fn text_of(&self, kind: &Kind) -> String {
        self.blocks.iter().filter(|block| block.kind == *kind).map(|block| block.text.as_str()).collect()
    }

    fn add(&mut self, delta: Delta, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        match delta {
            Delta::Content(text) => self.more(Kind::Text, &text, tell),
            Delta::Reasoning(text) => self.more(Kind::Thoughts, &text, tell),
            Delta::CallBegun { index, id, name } => {
                self.close(true, tell);
                self.open(Kind::Call { index, id, name }, tell);
            }
            Delta::Arguments { text, .. } => self.write(&text, tell),
            Delta::CallEnded { .. } => {
                if let Some(block) = self.blocks.last_mut() {
                    block.is_whole = true;
                }
                self.close(true, tell);
            }
        }
    }

    fn more(&mut self, kind: Kind, text: &str, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        if text.is_empty() {
            return;
        }
        let goes_on = self.is_open && self.blocks.last().is_some_and(|block| block.kind == kind);
        if !goes_on {
            self.close(true, tell);
            self.open(kind, tell);
        }
        self.write(text, tell);
    }

    fn open(&mut self, kind: Kind, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        self.blocks.push(Block { kind, text: String::new(), is_whole: false });
        self.is_open = true;
        self.tell(Change::Begun, tell);
    }

    fn write(&mut self, text: &str, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        if let Some(block) = self.blocks.last_mut().filter(|_| self.is_open) {
            block.text += text;
            self.tell(Change::More(text), tell);
        }
    }

    fn close(&mut self, is_whole: bool, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        if let Some(block) = self.blocks.last_mut() {
            // The parser decides if a call is complete, whatever follows it.
            block.is_whole |= is_whole && !matches!(block.kind, Kind::Call { .. });
            self.tell(Change::Ended, tell);
        }
    }

    fn tell(&self, change: Change<'_>, tell: &mut impl FnMut(usize, &Block, Change<'_>)) {
        if let Some(block) = self.blocks.last() {
            tell(self.blocks.len() - 1, block, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_tools::{Format, THINK, Thoughts};

    const TEXT: &str = "<think>hm</think>Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                        </tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": ";

    fn reading() -> ParserOptions {
        ParserOptions {
            format: Some(Format::Hermes),
            thoughts: Some(Thoughts::Marked(&THINK)),
            ..Default::default()
        }
    }

    fn event(text: &str, end: Option<StopReason>) -> Event {
        Event { token: None, text: text.to_owned(), end, ends_text: false, fault: None }
    }

    /// A choice whose `text` arrives at once.
    fn read(reading: ParserOptions, text: &str, end: StopReason) -> Reader {
        let mut reader = Reader::new(reading);
        reader.take(&event(text, Some(end)), Stats::default(), |_, _, _| ());
        reader.end(|_, _, _| ());
        reader
    }

    #[test]
    fn blocks_are_the_same_however_the_text_comes() {
        let whole = read(reading(), TEXT, StopReason::Limit);
        let kinds: Vec<bool> = whole.blocks().iter().map(|block| block.is_whole).collect();
        assert_eq!(kinds, [true, true, true, false]);
        assert_eq!((whole.thoughts().as_str(), whole.text().as_str()), ("hm", "Well."));
        let arguments: Vec<_> = whole.blocks().iter().map(Block::arguments).collect();
        assert_eq!(arguments[2].clone().map(Value::Object), Some(serde_json::json!({ "a": 1 })));
        // A call that was cut off cannot be run, and so the answer does not end with calls.
        assert!(arguments[3].is_none() && !whole.calls() && !whole.is_whole());

        let mut pieces = Reader::new(reading());
        let mut told: Vec<String> = Vec::new();
        let mut ended = 0;
        let mut hear = |index: usize, block: &Block, change: Change<'_>| match change {
            Change::Begun => {
                assert_eq!((index, block.text.as_str()), (told.len(), ""));
                told.push(String::new());
            }
            Change::More(text) => told[index] += text,
            Change::Ended => ended += 1,
        };
        for c in TEXT.chars() {
            pieces.take(&event(&c.to_string(), None), Stats::default(), &mut hear);
        }
        pieces.take(&event("", Some(StopReason::Limit)), Stats::default(), &mut hear);
        pieces.end(&mut hear);
        assert_eq!(ended, 4);
        assert!(told.iter().eq(whole.blocks().iter().map(|block| &block.text)));
        // Ids are derived from the seed, so the blocks are equal.
        assert_eq!(pieces.blocks(), whole.blocks());
    }

    #[test]
    fn an_answer_without_words_is_an_empty_text() {
        let reader = read(ParserOptions::default(), "", StopReason::EndOfText);
        assert_eq!(reader.blocks(), [Block { kind: Kind::Text, text: String::new(), is_whole: true }]);
    }
}
