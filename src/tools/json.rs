//! One call as a JSON object, read character by character. Its arguments are passed on as they are written.

/// Keys and values of an object so far.
#[derive(Debug, Default)]
pub struct Object {
    state: State,
    /// The key that was read last.
    key: String,
    /// Text of a name or an id, in JSON without its quotes.
    text: String,
    /// All text until the call has begun, in case it is none.
    raw: String,
    name: Option<String>,
    id: Option<String>,
    has_begun: bool,
    /// Name and id as they were known when the call began, until they are taken.
    begun: Option<(String, Option<String>)>,
    has_arguments: bool,
    /// Arguments that were not taken yet.
    arguments: String,
    /// True if the arguments are all there is: name and id stood before them.
    is_bare: bool,
}

/// State of reading an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    Key,
    InKey {
        escaped: bool,
    },
    Colon,
    Value,
    InText {
        escaped: bool,
    },
    /// A value that is passed on or over: brackets that are open, and whether in a text in it.
    InValue {
        depth: usize,
        in_text: bool,
        escaped: bool,
    },
    Comma,
    Done,
    Wrong,
}

impl Object {
    /// A call of `name` whose arguments are an object by themselves.
    pub fn arguments_of(name: String, id: Option<String>) -> Self {
        let (state, key) = (State::Value, "arguments".to_owned());
        Self { state, key, name: Some(name), id, is_bare: true, ..Self::default() }
    }

    /// Takes a character. `false` if it is behind the end of the object, or not as an object is written.
    pub fn push(&mut self, c: char) -> bool {
        let next = self.next(c);
        if next == State::Wrong {
            if !self.has_begun {
                self.state = State::Wrong;
                return false;
            }
            // Nothing can be taken back: what is between the values of a call that has begun is passed over.
            return true;
        }
        if !self.has_begun {
            self.raw.push(c);
        }
        self.state = next;
        true
    }

    fn next(&mut self, c: char) -> State {
        let blank = c.is_ascii_whitespace();
        match self.state {
            State::Open | State::Key | State::Colon | State::Value | State::Comma if blank => self.state,
            State::Open if c == '{' => State::Key,
            State::Key if c == '"' => {
                self.key.clear();
                State::InKey { escaped: false }
            }
            State::Key | State::Comma if c == '}' => self.end(),
            State::InKey { escaped } => match (c, escaped) {
                ('"', false) => State::Colon,
                _ => {
                    self.key.push(c);
                    State::InKey { escaped: c == '\\' && !escaped }
                }
            },
            State::Colon if c == ':' => State::Value,
            State::Value => self.value(c),
            State::InText { escaped } => match (c, escaped) {
                ('"', false) => {
                    let text = std::mem::take(&mut self.text);
                    let text = serde_json::from_str(&format!("\"{text}\"")).unwrap_or(text);
                    *(if self.key == "name" { &mut self.name } else { &mut self.id }) = Some(text);
                    State::Comma
                }
                _ => {
                    self.text.push(c);
                    State::InText { escaped: c == '\\' && !escaped }
                }
            },
            State::InValue { depth, in_text, escaped } => self.in_value(c, depth, in_text, escaped),
            State::Comma if c == ',' => State::Key,
            State::Open | State::Key | State::Colon | State::Comma | State::Done | State::Wrong => {
                State::Wrong
            }
        }
    }

    fn value(&mut self, c: char) -> State {
        if self.is_bare && c != '{' {
            return State::Wrong;
        }
        if self.is_arguments() {
            self.has_arguments = true;
            self.begin();
        }
        match (self.key.as_str(), c) {
            ("name" | "id", '"') => {
                self.text.clear();
                State::InText { escaped: false }
            }
            (_, ',' | '}' | ']' | ':') => State::Wrong,
            _ => self.in_value(c, 0, false, false),
        }
    }

    fn in_value(&mut self, c: char, depth: usize, in_text: bool, escaped: bool) -> State {
        if depth == 0 && !in_text && (matches!(c, ',' | '}' | ']') || c.is_ascii_whitespace()) {
            // A number or a word has ended before this character.
            self.state = State::Comma;
            return self.next(c);
        }
        if self.is_arguments() {
            self.arguments.push(c);
        }
        let (depth, in_text) = match (c, in_text) {
            ('"', _) if !escaped => (depth, !in_text),
            ('{' | '[', false) => (depth + 1, false),
            ('}' | ']', false) => (depth - 1, false),
            _ => (depth, in_text),
        };
        let is_end = depth == 0 && !in_text && matches!(c, '"' | '}' | ']') && !escaped;
        match is_end {
            true if self.is_bare => State::Done,
            true => State::Comma,
            false => State::InValue { depth, in_text, escaped: in_text && c == '\\' && !escaped },
        }
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    /// The call begins with its arguments, if the name is known by then, or with its end.
    fn begin(&mut self) {
        if let Some(name) = self.name.as_ref().filter(|_| !self.has_begun) {
            self.begun = Some((name.clone(), self.id.clone()));
            self.has_begun = true;
            self.raw = String::new();
        }
    }

    fn end(&mut self) -> State {
        if self.name.is_none() {
            return State::Wrong;
        }
        self.begin();
        if !self.has_arguments {
            self.arguments += "{}";
        }
        State::Done
    }

    /// True if the object has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// True if the text is no call.
    pub fn is_wrong(&self) -> bool {
        self.state == State::Wrong
    }

    /// Name and id, once, when the call has begun.
    pub fn take_begun(&mut self) -> Option<(String, Option<String>)> {
        self.begun.take()
    }

    /// The arguments that were read since the last time, if the call has begun.
    pub fn take_arguments(&mut self) -> String {
        if self.has_begun { std::mem::take(&mut self.arguments) } else { String::new() }
    }

    /// The text that was read, if the call has not begun.
    pub fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }
}
