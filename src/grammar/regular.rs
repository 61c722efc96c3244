//! Converts Lark grammars without recursive rules to regular expressions, by substituting each rule for its
//! name.
//!
//! Strings in JSON are escaped. A regular expression in a schema (`pattern`) takes this into account; Lark
//! rules cannot, because the parser finds terminals first, and an escape is longer than the character that
//! marks the end of a terminal.
//!
//! Source: <https://lark-parser.readthedocs.io/en/stable/grammar.html>.

use std::collections::HashMap;

use super::GrammarError;

/// Longest expression, in bytes.
const MAX_BYTES: usize = 32 << 10;
/// Deepest nesting of brackets and rules.
const MAX_DEPTH: usize = 200;

/// Terminals of Lark's library, as regular expressions.
const COMMON: &[(&str, &str)] = &[
    ("CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("CR", r"\r"),
    ("C_COMMENT", r"/\*([^*]|\*+[^*/])*\*+/"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("DIGIT", "[0-9]"),
    ("ESCAPED_STRING", r#""([^"\\\n]|\\[^\n])*""#),
    ("FLOAT", r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("HEXDIGIT", "[0-9a-fA-F]"),
    ("INT", "[0-9]+"),
    ("LCASE_LETTER", "[a-z]"),
    ("LETTER", "[a-zA-Z]"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("NUMBER", r"[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("SIGNED_FLOAT", r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("SIGNED_NUMBER", r"[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("SQL_COMMENT", r"--[^\n]*"),
    ("UCASE_LETTER", "[A-Z]"),
    ("WORD", "[a-zA-Z]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("WS_INLINE", r"[ \t]+"),
];

/// Returns a regular expression that matches the same texts as a Lark grammar.
///
/// # Errors
/// [`GrammarError::Invalid`] for a recursive rule, invalid Lark, or syntax specific to llguidance;
/// [`GrammarError::TooLarge`].
pub fn lark_to_regex(text: &str) -> Result<String, GrammarError> {
    let mut grammar = Grammar::default();
    Parser { tokens: tokens(text)?, at: 0, depth: 0 }.definitions(&mut grammar)?;
    let ignored = std::mem::take(&mut grammar.ignored);
    let ignored = ignored.iter().map(|node| grammar.write(node, true)).collect::<Result<Vec<_>, _>>()?;
    if !ignored.is_empty() {
        grammar.skip = format!("(?:{})*", ignored.join("|"));
    }
    let start = grammar.rule("start")?;
    Ok(format!("{}{start}", grammar.skip))
}

fn invalid(detail: impl Into<String>) -> GrammarError {
    GrammarError::Invalid(detail.into())
}

/// A token of Lark, and its line, from 1.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    word: Word,
    line: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    /// Name of a rule or terminal, or a number.
    Name(String),
    /// `%import` and its kind.
    Directive(String),
    /// A quoted string, and whether it ignores case.
    Text(String, bool),
    Regex(String),
    /// `->`, `..`, or a character.
    Sign(&'static str),
}

/// Signs; longer ones first.
const SIGNS: &[&str] =
    &["->", "..", ":", "|", "(", ")", "[", "]", "{", "}", "?", "*", "+", "~", ",", ".", "!"];

fn tokens(text: &str) -> Result<Vec<Token>, GrammarError> {
    let (mut tokens, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(c) = rest.chars().next() {
        let (word, used) = match c {
            '\n' => {
                line += 1;
                (None, 1)
            }
            _ if c.is_whitespace() => (None, c.len_utf8()),
            _ if c == '#' || rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            '"' => {
                let end = closed(&rest[1..], '"').ok_or_else(|| at(line, "unterminated string"))? + 2;
                let text = serde_json::from_str(&rest[..end]).map_err(|err| at(line, &err.to_string()))?;
                let any_case = rest[end..].starts_with('i');
                (Some(Word::Text(text, any_case)), end + usize::from(any_case))
            }
            '/' => {
                let end = closed(&rest[1..], '/').ok_or_else(|| at(line, "unterminated regex"))? + 2;
                let flags = rest[end..].find(|c: char| !"imslux".contains(c)).unwrap_or(rest.len() - end);
                // The Unicode and locale flags only exist in Python.
                let kept = rest[end..end + flags].replace(['l', 'u'], "");
                let regex = format!("(?{kept}:{})", rest[1..end - 1].replace("\\/", "/"));
                (Some(Word::Regex(regex)), end + flags)
            }
            '%' => {
                let end =
                    rest[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(rest.len(), |end| end + 1);
                (Some(Word::Directive(rest[..end].to_owned())), end)
            }
            _ if c.is_ascii_alphanumeric() || c == '_' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                // An arrow may follow without a space.
                let end =
                    if rest[end..].starts_with('>') { rest[..end].trim_end_matches('-').len() } else { end };
                (Some(Word::Name(rest[..end].to_owned())), end)
            }
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Some(Word::Sign(sign)), sign.len()),
                None => {
                    return Err(at(line, &format!("`{}` is not standard Lark", c.escape_debug())));
                }
            },
        };
        tokens.extend(word.map(|word| Token { word, line }));
        line += rest[..used].matches('\n').count() - usize::from(c == '\n');
        rest = &rest[used..];
    }
    Ok(tokens)
}

/// Length up to a mark that is not escaped by a backslash.
fn closed(text: &str, mark: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let is_end = c == mark && !escaped;
        escaped = c == '\\' && !escaped;
        is_end.then_some(at)
    })
}

fn at(line: usize, detail: &str) -> GrammarError {
    invalid(format!("line {line}: {detail}"))
}

#[derive(Clone, Debug)]
enum Node {
    /// A regular expression, written as it is.
    Regex(String),
    Name(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// Repeated by `?`, `*`, `+` or `{2,3}`.
    Repeated(Box<Node>, String),
}

/// Rules, and the expressions that they were converted to.
#[derive(Debug, Default)]
struct Grammar {
    rules: HashMap<String, Node>,
    ignored: Vec<Node>,
    /// Expression for ignored text, allowed after every terminal.
    skip: String,
    /// `None` while a rule is being written.
    written: HashMap<String, Option<String>>,
    depth: usize,
}

impl Grammar {
    fn rule(&mut self, name: &str) -> Result<String, GrammarError> {
        match self.written.get(name) {
            Some(Some(written)) => return Ok(written.clone()),
            Some(None) => {
                return Err(invalid(format!(
                    "the rule `{name}` refers to itself, which a regular expression cannot"
                )));
            }
            None => {}
        }
        let node = self.rules.get(name).ok_or_else(|| invalid(format!("there is no rule `{name}`")))?.clone();
        self.written.insert(name.to_owned(), None);
        let written = self.write(&node, is_terminal(name))?;
        self.written.insert(name.to_owned(), Some(written.clone()));
        Ok(written)
    }

    /// Writes the expression of a node. Outside a terminal, ignored text may follow each terminal.
    fn write(&mut self, node: &Node, in_terminal: bool) -> Result<String, GrammarError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_large("levels of brackets and rules", self.depth, MAX_DEPTH));
        }
        let skip = if in_terminal { String::new() } else { self.skip.clone() };
        let written = match node {
            Node::Regex(regex) => regex.clone() + &skip,
            Node::Name(name) if is_terminal(name) => self.rule(name)? + &skip,
            Node::Name(name) => self.rule(name)?,
            Node::Sequence(nodes) => self.join(nodes, "", in_terminal)?,
            Node::Choice(nodes) => format!("(?:{})", self.join(nodes, "|", in_terminal)?),
            Node::Repeated(node, times) => format!("(?:{}){times}", self.write(node, in_terminal)?),
        };
        self.depth -= 1;
        Ok(written)
    }

    fn join(&mut self, nodes: &[Node], between: &str, in_terminal: bool) -> Result<String, GrammarError> {
        let mut joined = String::new();
        for (i, node) in nodes.iter().enumerate() {
            joined += if i > 0 { between } else { "" };
            joined += &self.write(node, in_terminal)?;
            if joined.len() > MAX_BYTES {
                return Err(too_large("bytes as a regular expression", joined.len(), MAX_BYTES));
            }
        }
        Ok(joined)
    }
}

fn too_large(what: &'static str, got: usize, most: usize) -> GrammarError {
    GrammarError::TooLarge { what, got, most }
}

/// True for the name of a terminal, which is upper case.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// Writes a text as a regular expression.
fn literal(text: &str, any_case: bool) -> String {
    let is_sign = |c: char| c.is_ascii_punctuation() && c != '_' && c != '"' && c != '\'';
    let escape = |c: char| if is_sign(c) { format!("\\{c}") } else { c.to_string() };
    let escaped: String = text.chars().map(escape).collect();
    format!("(?{}:{escaped})", if any_case { "i" } else { "" })
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn definitions(&mut self, grammar: &mut Grammar) -> Result<(), GrammarError> {
        while let Some(token) = self.tokens.get(self.at).cloned() {
            match token.word {
                Word::Directive(word) if word == "%import" => {
                    self.at += 1;
                    self.import(grammar, token.line)?;
                }
                Word::Directive(word) if word == "%ignore" => {
                    self.at += 1;
                    let last = self.tokens[self.at..].iter().position(|next| next.line != token.line);
                    let after = self.tokens.split_off(last.map_or(self.tokens.len(), |last| self.at + last));
                    grammar.ignored.push(self.choice()?);
                    self.all_read()?;
                    self.tokens.extend(after);
                }
                // These only shape the syntax tree.
                Word::Sign("?" | "!") => self.at += 1,
                Word::Name(name) if self.defines(self.at) => {
                    while !self.take(":") {
                        self.at += 1;
                    }
                    let node = self.choice()?;
                    if grammar.rules.insert(name.clone(), node).is_some() {
                        return Err(at(token.line, &format!("`{name}` is defined twice")));
                    }
                }
                _ => return Err(self.unexpected()),
            }
        }
        Ok(())
    }

    /// True if a definition begins at `at`: a name, optionally its priority, and a colon.
    fn defines(&self, at: usize) -> bool {
        let is = |at: usize, sign: &'static str| self.sign(at) == Some(sign);
        self.name(at).is_some()
            && (is(at + 1, ":") || is(at + 1, ".") && self.name(at + 2).is_some() && is(at + 3, ":"))
    }

    fn name(&self, at: usize) -> Option<&str> {
        match &self.tokens.get(at)?.word {
            Word::Name(name) => Some(name),
            _ => None,
        }
    }

    fn sign(&self, at: usize) -> Option<&'static str> {
        match self.tokens.get(at)?.word {
            Word::Sign(sign) => Some(sign),
            _ => None,
        }
    }

    fn take(&mut self, sign: &'static str) -> bool {
        let is = self.sign(self.at) == Some(sign);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), GrammarError> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> GrammarError {
        match self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))) {
            Some(Token { word, line }) => {
                let shown = match word {
                    Word::Name(text) | Word::Directive(text) | Word::Text(text, _) | Word::Regex(text) => {
                        text
                    }
                    Word::Sign(sign) => *sign,
                };
                at(*line, &format!("unexpected `{}`", shown.escape_debug()))
            }
            None => invalid("the grammar has no rules"),
        }
    }

    fn all_read(&self) -> Result<(), GrammarError> {
        if self.at == self.tokens.len() { Ok(()) } else { Err(self.unexpected()) }
    }

    /// `common.NAME`, `common.NAME -> OTHER`, `common (NAME, OTHER)`.
    fn import(&mut self, grammar: &mut Grammar, line: usize) -> Result<(), GrammarError> {
        if self.name(self.at) != Some("common") {
            return Err(at(line, "only `common` can be imported"));
        }
        self.at += 1;
        let is_list = self.take("(");
        if !is_list {
            self.expect(".")?;
        }
        loop {
            let name = self.name(self.at).ok_or_else(|| self.unexpected())?.to_owned();
            self.at += 1;
            let found = COMMON.iter().find(|(known, _)| *known == name);
            let (_, regex) = found.ok_or_else(|| at(line, &format!("`common` has no `{name}`")))?;
            let alias = match !is_list && self.take("->") {
                true => {
                    self.at += 1;
                    self.name(self.at - 1).ok_or_else(|| self.unexpected())?.to_owned()
                }
                false => name,
            };
            grammar.rules.insert(alias, Node::Regex(format!("(?:{regex})")));
            if !is_list || !self.take(",") {
                break;
            }
        }
        if is_list { self.expect(")") } else { Ok(()) }
    }

    fn choice(&mut self) -> Result<Node, GrammarError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(too_large("levels of brackets and rules", self.depth, MAX_DEPTH));
        }
        self.take("|");
        let mut nodes = vec![self.sequence()?];
        while self.take("|") {
            nodes.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Choice(nodes) })
    }

    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        loop {
            if self.take("->") {
                // Name of a tree node.
                self.name(self.at).ok_or_else(|| self.unexpected())?;
                self.at += 1;
                break;
            }
            let Some(node) = self.atom()? else { break };
            nodes.push(self.repeated(node)?);
        }
        Ok(Node::Sequence(nodes))
    }

    /// Parses a name, string, expression, range or group; `None` at the end of a sequence.
    fn atom(&mut self) -> Result<Option<Node>, GrammarError> {
        let Some(token) = self.tokens.get(self.at).cloned() else { return Ok(None) };
        let node = match token.word {
            Word::Name(_) if self.defines(self.at) => return Ok(None),
            Word::Name(name) => Node::Name(name),
            Word::Regex(regex) => Node::Regex(regex),
            Word::Text(first, any_case) => match self.tokens.get(self.at + 2).map(|token| &token.word) {
                Some(Word::Text(last, _)) if self.sign(self.at + 1) == Some("..") => {
                    let range =
                        format!("[{}-{}]", character(&first, token.line)?, character(last, token.line)?);
                    self.at += 2;
                    Node::Regex(range)
                }
                _ => Node::Regex(literal(&first, any_case)),
            },
            Word::Sign(open @ ("(" | "[")) => {
                self.at += 1;
                let inner = self.choice()?;
                self.expect(if open == "(" { ")" } else { "]" })?;
                let optional = |inner| Node::Repeated(Box::new(inner), "?".to_owned());
                return Ok(Some(if open == "(" { inner } else { optional(inner) }));
            }
            // The tree shape of the next rule, at the start of a line.
            Word::Sign("?" | "!") if self.defines(self.at + 1) => return Ok(None),
            Word::Sign("|" | ")" | "]" | "->") | Word::Directive(_) => return Ok(None),
            Word::Sign(_) => return Err(self.unexpected()),
        };
        self.at += 1;
        Ok(Some(node))
    }

    /// Parses the repetition of a node.
    fn repeated(&mut self, node: Node) -> Result<Node, GrammarError> {
        let times = match self.sign(self.at) {
            // It may belong to the next rule.
            Some("?") if self.begins_line() && self.defines(self.at + 1) => return Ok(node),
            Some(sign @ ("?" | "*" | "+")) => {
                self.at += 1;
                sign.to_owned()
            }
            Some(sign @ ("~" | "{")) => {
                self.at += 1;
                let (between, mut bounds) = (if sign == "~" { ".." } else { "," }, [None, None]);
                bounds[0] = self.number();
                let is_range = self.take(between);
                bounds[1] = if is_range { self.number() } else { bounds[0] };
                if sign == "{" {
                    self.expect("}")?;
                }
                match bounds {
                    [None, None] => return Err(self.unexpected()),
                    [least, Some(most)] => format!("{{{},{most}}}", least.unwrap_or(0)),
                    [Some(least), None] => format!("{{{least},}}"),
                }
            }
            _ => return Ok(node),
        };
        Ok(Node::Repeated(Box::new(node), times))
    }

    fn begins_line(&self) -> bool {
        self.at > 0 && self.tokens[self.at].line > self.tokens[self.at - 1].line
    }

    fn number(&mut self) -> Option<u16> {
        let number = self.name(self.at)?.parse().ok();
        self.at += usize::from(number.is_some());
        number
    }
}

/// The single character at the end of a range, escaped for brackets.
fn character(text: &str, line: usize) -> Result<String, GrammarError> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) if c.is_ascii_punctuation() => Ok(format!("\\{c}")),
        (Some(c), None) => Ok(c.to_string()),
        _ => Err(at(line, "each end of a range must be one character")),
    }
}
