//! Parser of GBNF: rules, literals, classes, groups, repetition, comments, tokens.

use std::collections::HashMap;

use super::super::at_most;
use super::{Choices, GrammarError, Item, Repeated, Rule};

/// Maximum number of rules, groups included. llguidance walks them recursively.
const MAX_RULES: usize = 4000;
const MAX_GROUPS: usize = 64;
/// Largest repetition count.
const MAX_TIMES: u32 = 10_000;

pub struct Reader<'t> {
    text: &'t str,
    at: usize,
    find: &'t dyn Fn(&str) -> Option<u32>,
    n_vocab: usize,
    rules: Vec<Rule>,
    /// Index of each rule by name, and the position of its first use.
    names: HashMap<String, (usize, usize)>,
    /// True for each defined rule, in the order of `rules`.
    defined: Vec<bool>,
    groups: usize,
}

impl<'t> Reader<'t> {
    pub fn new(text: &'t str, find: &'t dyn Fn(&str) -> Option<u32>, n_vocab: usize) -> Self {
        let (rules, names, defined) = (Vec::new(), HashMap::new(), Vec::new());
        Self { text, at: 0, find, n_vocab, rules, names, defined, groups: 0 }
    }

    /// Returns the rules and the index of `root`.
    pub fn read(mut self) -> Result<(Vec<Rule>, usize), GrammarError> {
        self.space(true);
        while self.peek().is_some() {
            self.rule()?;
            self.space(true);
        }
        let missing =
            self.names.values().filter(|(index, _)| !self.defined[*index]).min_by_key(|(_, at)| *at);
        if let Some(&(index, at)) = missing {
            return Err(self.wrong_at(at, format!("the rule `{}` is not defined", self.rules[index].name)));
        }
        match self.names.get("root") {
            Some(&(root, _)) => Ok((self.rules, root)),
            None => Err(self.wrong("the rule `root`, where the grammar starts, is missing")),
        }
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let start = self.at;
        let name = self.name();
        if name.is_empty() {
            return Err(self.expected("a rule's name"));
        }
        self.space(false);
        if !self.take("::=") {
            return Err(self.expected("`::=`"));
        }
        self.space(true);
        let index = self.index(name, start)?;
        if self.defined[index] {
            return Err(self.wrong_at(start, format!("the rule `{name}` is defined twice")));
        }
        self.defined[index] = true;
        let choices = self.choices(false)?;
        self.rules[index].choices = choices;
        match self.peek() {
            None | Some('\n' | '\r') => Ok(()),
            Some(_) => Err(self.expected("the end of the line")),
        }
    }

    fn index(&mut self, name: &str, at: usize) -> Result<usize, GrammarError> {
        if let Some((index, _)) = self.names.get(name) {
            return Ok(*index);
        }
        let index = self.add(name.to_owned(), Choices::new())?;
        self.names.insert(name.to_owned(), (index, at));
        Ok(index)
    }

    fn add(&mut self, name: String, choices: Choices) -> Result<usize, GrammarError> {
        at_most("rules and groups", self.rules.len() + 1, MAX_RULES)?;
        self.rules.push(Rule { name, choices });
        self.defined.push(false);
        Ok(self.rules.len() - 1)
    }

    fn choices(&mut self, in_group: bool) -> Result<Choices, GrammarError> {
        let mut choices = vec![self.sequence(in_group)?];
        loop {
            // A line that begins with `|` continues the rule.
            let line_end = self.at;
            self.space(true);
            if !self.take("|") {
                if !in_group {
                    self.at = line_end;
                }
                return Ok(choices);
            }
            self.space(true);
            choices.push(self.sequence(in_group)?);
        }
    }

    fn sequence(&mut self, in_group: bool) -> Result<Vec<Repeated>, GrammarError> {
        let mut parts = Vec::new();
        loop {
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next();
                    Item::Any
                }
                Some('(') => self.group()?,
                Some('<' | '!') => self.token()?,
                Some(c) if is_name(c) => {
                    let at = self.at;
                    let name = self.name();
                    Item::Rule(self.index(name, at)?)
                }
                _ => return Ok(parts),
            };
            self.space(in_group);
            let mut part = Repeated { item, least: 1, most: Some(1) };
            while let Some((least, most)) = self.times(in_group)? {
                if (part.least, part.most) != (1, Some(1)) {
                    let rule = self.add(String::new(), vec![vec![part]])?;
                    part = Repeated { item: Item::Rule(rule), least, most };
                }
                (part.least, part.most) = (least, most);
            }
            parts.push(part);
        }
    }

    fn group(&mut self) -> Result<Item, GrammarError> {
        self.groups += 1;
        at_most("nested groups", self.groups, MAX_GROUPS)?;
        self.next();
        self.space(true);
        let choices = self.choices(true)?;
        self.space(true);
        if !self.take(")") {
            return Err(self.expected("`)`"));
        }
        self.groups -= 1;
        Ok(Item::Rule(self.add(String::new(), choices)?))
    }

    /// Parses the repetition of the previous item, if there is one.
    fn times(&mut self, in_group: bool) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let times = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.next();
                let times = self.braces(in_group)?;
                self.space(in_group);
                return Ok(Some(times));
            }
            _ => return Ok(None),
        };
        self.next();
        self.space(in_group);
        Ok(Some(times))
    }

    fn braces(&mut self, in_group: bool) -> Result<(u32, Option<u32>), GrammarError> {
        self.space(in_group);
        let start = self.at;
        let least = self.number()?;
        self.space(in_group);
        let most = if self.take(",") {
            self.space(in_group);
            self.number()?
        } else {
            match least {
                Some(least) => Some(least),
                None => return Err(self.expected("a number")),
            }
        };
        self.space(in_group);
        if !self.take("}") {
            return Err(self.expected("`}`"));
        }
        let least = least.unwrap_or(0);
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong_at(start, "the second number is less than the first".to_owned()));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarError> {
        let start = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse() {
            Ok(number) if number <= MAX_TIMES => Ok(Some(number)),
            _ => Err(self.wrong_at(start, format!("at most {MAX_TIMES} repetitions, found {digits}"))),
        }
    }

    fn literal(&mut self) -> Result<Item, GrammarError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => {
                    self.next();
                    return Ok(Item::Text(text));
                }
                Some(_) => text.push(self.character()?),
                None => return Err(self.expected("`\"` at the end of the literal")),
            }
        }
    }

    fn class(&mut self) -> Result<Item, GrammarError> {
        self.next();
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(']') => {
                    self.next();
                    break;
                }
                None => return Err(self.expected("`]` at the end of the class")),
                Some(_) => {}
            }
            let at = self.at;
            let first = self.character()?;
            // A `-` at the end is literal.
            let is_range = self.peek() == Some('-') && !self.text[self.at + 1..].starts_with(']');
            let last = if is_range {
                self.next();
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.wrong_at(at, "the range ends before it begins".to_owned()));
            }
            ranges.push((first, last));
        }
        match (ranges.is_empty(), negated) {
            (true, true) => Ok(Item::Any),
            (true, false) => Err(self.wrong("the class has no characters")),
            (false, _) => Ok(Item::Class { ranges, negated }),
        }
    }

    /// Parses a character of a literal or class, possibly escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let at = self.at;
        let Some(c) = self.next() else { return Err(self.expected("a character")) };
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            _ => {
                let known = "an escape: \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH";
                return Err(self.wrong_at(at, format!("want {known}")));
            }
        };
        let hex = self.text.get(self.at..self.at + digits).unwrap_or_default();
        let code = if hex.len() == digits && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            u32::from_str_radix(hex, 16).ok()
        } else {
            None
        };
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => Err(self.wrong_at(at, format!("want {digits} hexadecimal digits of a character"))),
        }
    }

    /// Parses `<name>` or `<[id]>`, optionally after `!`.
    fn token(&mut self) -> Result<Item, GrammarError> {
        let start = self.at;
        let negated = self.take("!");
        let rest = &self.text[self.at..];
        let end = rest.find('>').filter(|end| !rest[..*end].contains('\n'));
        let Some(end) = end.filter(|_| rest.starts_with('<')) else {
            return Err(self.expected("a token: `<name>` or `<[id]>`"));
        };
        let name = &rest[..=end];
        self.at += name.len();
        let number = name.strip_prefix("<[").and_then(|rest| rest.strip_suffix("]>"));
        let id = match number {
            Some(number) => number.parse().ok().filter(|id| (*id as usize) < self.n_vocab),
            None => (self.find)(name),
        };
        match id {
            Some(id) => Ok(Item::Token { id, negated }),
            None => Err(self.wrong_at(start, format!("the vocabulary has no token {name}"))),
        }
    }

    fn name(&mut self) -> &'t str {
        self.take_while(is_name)
    }

    /// Skips whitespace and comments, and newlines if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => _ = self.next(),
                '\n' | '\r' if lines => _ = self.next(),
                '#' => _ = self.take_while(|c| c != '\n' && c != '\r'),
                _ => return,
            }
        }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn take(&mut self, word: &str) -> bool {
        let is_there = self.text[self.at..].starts_with(word);
        if is_there {
            self.at += word.len();
        }
        is_there
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn expected(&self, what: &str) -> GrammarError {
        let found = self.peek().map_or("the end".to_owned(), |c| format!("{c:?}"));
        self.wrong(&format!("want {what}, found {found}"))
    }

    fn wrong(&self, detail: &str) -> GrammarError {
        self.wrong_at(self.at, detail.to_owned())
    }

    fn wrong_at(&self, at: usize, detail: String) -> GrammarError {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        GrammarError::Gbnf { line, column, detail }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
