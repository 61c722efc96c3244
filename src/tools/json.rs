//! Parses a call as a JSON object, character by character. Arguments are passed on as written.

/// Keys and values parsed so far.
#[derive(Debug, Default)]
pub struct Object {
    state: State,
    key: String,
    /// Text of a name or an id, as JSON without the quotes.
    text: String,
    /// All text until the call has begun, in case it turns out not to be a call.
    raw: String,
    name: Option<String>,
    id: Option<String>,
    has_begun: bool,
    /// Name and id when the call began; taken once.
    begun: Option<(String, Option<String>)>,
    has_arguments: bool,
    /// Arguments that have not been taken yet.
    arguments: String,
    /// True if the object is only the arguments: name and id came before them.
    is_bare: bool,
    /// True if its only key is the name, and the value the arguments.
    is_keyed: bool,
}

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
    /// In a value that is passed on or skipped: number of open brackets, and whether in a string.
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
    /// Creates a parser for the arguments of a call of `name`.
    pub fn arguments_of(name: String, id: Option<String>) -> Self {
        let (state, key) = (State::Value, "arguments".to_owned());
        Self { state, key, name: Some(name), id, is_bare: true, ..Self::default() }
    }

    /// Creates a parser for a call whose only key is the name.
    pub fn keyed() -> Self {
        Self { is_keyed: true, ..Self::default() }
    }

    /// Takes a character. Returns `false` if the object has ended or is malformed.
    pub fn push(&mut self, c: char) -> bool {
        let next = self.next(c);
        if next == State::Wrong {
            if !self.has_begun {
                self.state = State::Wrong;
                return false;
            }
            // Output cannot be taken back: once the call has begun, skip malformed text between values.
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
                    *(if self.key == "id" { &mut self.id } else { &mut self.name }) = Some(text);
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
            if self.is_keyed && self.name.is_none() {
                let key = std::mem::take(&mut self.key);
                self.name = Some(serde_json::from_str(&format!("\"{key}\"")).unwrap_or(key));
            }
            self.has_arguments = true;
            self.begin();
        }
        match (self.key.as_str(), c) {
            ("name" | "tool_name" | "id", '"') if !self.is_keyed => {
                self.text.clear();
                State::InText { escaped: false }
            }
            (_, ',' | '}' | ']' | ':') => State::Wrong,
            _ => self.in_value(c, 0, false, false),
        }
    }

    fn in_value(&mut self, c: char, depth: usize, in_text: bool, escaped: bool) -> State {
        if depth == 0 && !in_text && (matches!(c, ',' | '}' | ']') || c.is_ascii_whitespace()) {
            // A number or literal has ended before this character.
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
        match self.is_keyed {
            true => !self.has_arguments || self.key.is_empty(),
            false => matches!(self.key.as_str(), "arguments" | "parameters"),
        }
    }

    /// Begins the call at its arguments if the name is known by then, otherwise at its end.
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

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub fn is_wrong(&self) -> bool {
        self.state == State::Wrong
    }

    /// Name and id, returned once after the call has begun.
    pub fn take_begun(&mut self) -> Option<(String, Option<String>)> {
        self.begun.take()
    }

    /// Arguments parsed since the last call of this function, if the call has begun.
    pub fn take_arguments(&mut self) -> String {
        if self.has_begun { std::mem::take(&mut self.arguments) } else { String::new() }
    }

    /// Text read so far, if the call has not begun.
    pub fn take_raw(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }
}
