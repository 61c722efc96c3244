//! Parses expressions with Jinja2's grammar and rewrites them: an operator that differs between Python and
//! minijinja, or that copies its operands, becomes a filter of `operators.rs`, or its operands are charged.

use minijinja::machinery::Token;
use minijinja::{Error, ErrorKind};

use super::methods;
use super::names::{CHARGE, COMPARED, CYCLED, FILLED, METHOD, NEGATIVE, POSITIVE, PRINTED, SLICED, TIMES};

/// Deepest nesting of brackets. Rewriting at most doubles it, and minijinja allows 150.
const MAX_DEPTH: usize = 64;

/// A token, and the bytes of the source that it covers.
pub struct At<'s> {
    pub token: Token<'s>,
    pub start: usize,
    pub end: usize,
}

pub struct Reader<'s> {
    source: &'s str,
    tokens: Vec<At<'s>>,
    at: usize,
    depth: usize,
}

/// Syntax that may follow a rewritten expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Binds {
    /// Nothing: the expression has operators.
    Loose,
    Filters,
    /// Attributes, subscripts, calls and filters.
    All,
}

pub struct Text {
    text: String,
    binds: Binds,
}

impl Text {
    /// Applies a filter to the expression; adds brackets if it has operators.
    pub fn filtered(self, name: &str, args: &str) -> Self {
        let mut text = if self.binds == Binds::Loose { self.enclosed().text } else { self.text };
        text.extend(["|", name]);
        if !args.is_empty() {
            text.extend(["(", args, ")"]);
        }
        Self { text, binds: Binds::Filters }
    }

    fn enclosed(self) -> Self {
        Self { text: format!("({})", self.text), binds: Binds::All }
    }

    fn loose(text: String) -> Self {
        Self { text, binds: Binds::Loose }
    }

    /// The expression as Jinja source.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Levels of operators, loosest binding first.
const OR: usize = 0;
const NOT: usize = 2;
const COMPARE: usize = 3;
const SUM: usize = 4;
const UNARY: usize = 8;

impl<'s> Reader<'s> {
    /// A reader at the beginning of the tokens of `source`.
    pub fn new(source: &'s str, tokens: Vec<At<'s>>) -> Self {
        Self { source, tokens, at: 0, depth: 0 }
    }

    /// Token at `ahead` positions after the next one.
    pub fn token(&self, ahead: usize) -> Option<&Token<'s>> {
        self.tokens.get(self.at + ahead).map(|item| &item.token)
    }

    pub fn is_word(&self, word: &str) -> bool {
        matches!(self.token(0), Some(Token::Ident(found)) if *found == word)
    }

    /// Takes the next token, and returns it with the text before it; at the end, the rest of the source.
    pub fn take(&mut self) -> &'s str {
        let start = self.end_of_last();
        self.at += 1;
        &self.source[start..self.end_of_last().max(start)]
    }

    /// Skips the next token, and returns the text before it.
    pub fn skip(&mut self) -> &'s str {
        let start = self.end_of_last();
        let end = self.tokens.get(self.at).map_or(start, |item| item.start);
        self.at += 1;
        &self.source[start..end]
    }

    fn end_of_last(&self) -> usize {
        match self.at.checked_sub(1) {
            None => 0,
            Some(last) => self.tokens.get(last).map_or(self.source.len(), |item| item.end),
        }
    }

    /// Takes everything up to a `wanted` token or the end of the block.
    pub fn take_until(&mut self, wanted: impl Fn(&Token<'s>) -> bool) -> String {
        let mut text = String::new();
        while let Some(token) = self.token(0) {
            if wanted(token) || matches!(token, Token::BlockEnd | Token::VariableEnd) {
                break;
            }
            text += self.take();
        }
        text
    }

    /// Takes the next token, which must be `wanted`.
    pub fn expect(&mut self, wanted: impl Fn(&Token<'s>) -> bool) -> Result<&'s str, Error> {
        match self.token(0) {
            Some(token) if wanted(token) => Ok(self.take()),
            _ => Err(self.unexpected()),
        }
    }

    /// Error for an unexpected next token.
    pub fn unexpected(&self) -> Error {
        let at = self.tokens.get(self.at);
        let (found, before) = match at {
            Some(item) => (&self.source[item.start..item.end], &self.source[..item.start]),
            None => ("end", self.source),
        };
        let line = before.matches('\n').count() + 1;
        Error::new(ErrorKind::SyntaxError, format!("unexpected `{found}` in line {line}"))
    }

    pub fn expression(&mut self) -> Result<Text, Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::SyntaxError, "brackets are nested too deep"));
        }
        let text = self.conditional();
        self.depth -= 1;
        text
    }

    fn conditional(&mut self) -> Result<Text, Error> {
        let mut text = self.operation(OR)?;
        while self.is_word("if") {
            text.text += self.take();
            text.text += &self.operation(OR)?.text;
            if self.is_word("else") {
                text.text += self.take();
                text.text += &self.conditional()?.text;
            }
            text.binds = Binds::Loose;
        }
        Ok(text)
    }

    /// Parses an expression without a conditional.
    pub fn condition(&mut self) -> Result<Text, Error> {
        self.operation(OR)
    }

    /// Parses comma-separated expressions: a tuple, if there is a comma.
    pub fn tuple(&mut self, item: impl Fn(&mut Self) -> Result<Text, Error>) -> Result<Text, Error> {
        let first = item(self)?;
        if !matches!(self.token(0), Some(Token::Comma)) {
            return Ok(first);
        }
        let mut text = first.text;
        while matches!(self.token(0), Some(Token::Comma)) {
            text += self.take();
            if matches!(self.token(0), Some(Token::BlockEnd | Token::VariableEnd)) {
                break;
            }
            text += &item(self)?.text;
        }
        Ok(Text::loose(text).filtered(CHARGE, ""))
    }

    fn operation(&mut self, level: usize) -> Result<Text, Error> {
        match level {
            NOT if self.is_word("not") => {
                let not = self.take();
                return Ok(Text::loose(format!("{not}{}", self.operation(NOT)?.text)));
            }
            COMPARE => return self.comparison(),
            UNARY => return self.unary(true),
            _ => {}
        }
        let mut left = self.operation(level + 1)?;
        let mut is_first = true;
        while let Some(filter) = self.token(0).and_then(|token| operator(token, level)) {
            if matches!(filter, Some(TIMES | FILLED)) {
                left.text += self.skip();
                let right = self.operation(level + 1)?;
                left = left.filtered(filter.unwrap_or_default(), &right.text);
                continue;
            }
            // Results of the operators before are no larger than their operands, which were charged.
            if let (Some(filter), true) = (filter, is_first) {
                left = left.filtered(filter, "");
            }
            is_first = false;
            left.text += self.take();
            let right = self.operation(level + 1)?;
            left.text += &match filter {
                Some(filter) => right.filtered(filter, "").text,
                None => right.text,
            };
            left.binds = Binds::Loose;
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Text, Error> {
        let first = self.operation(SUM)?;
        let mut args = String::new();
        loop {
            let operator = match (self.token(0), self.token(1)) {
                (Some(Token::Eq), _) => "==",
                (Some(Token::Ne), _) => "!=",
                (Some(Token::Lt), _) => "<",
                (Some(Token::Lte), _) => "<=",
                (Some(Token::Gt), _) => ">",
                (Some(Token::Gte), _) => ">=",
                (Some(Token::Ident("in")), _) => "in",
                (Some(Token::Ident("not")), Some(Token::Ident("in"))) => "not in",
                _ => break,
            };
            if !args.is_empty() {
                args.push(',');
            }
            args += self.skip();
            if operator == "not in" {
                args += self.skip();
            }
            args += &format!("'{operator}',{}", self.operation(SUM)?.text);
        }
        Ok(if args.is_empty() { first } else { first.filtered(COMPARED, &args) })
    }

    fn unary(&mut self, takes_filters: bool) -> Result<Text, Error> {
        let sign = match self.token(0) {
            Some(Token::Minus) => Some(NEGATIVE),
            Some(Token::Plus) => Some(POSITIVE),
            _ => None,
        };
        let mut text = match sign {
            Some(sign) => {
                let gap = self.skip().to_owned();
                let operand = self.unary(false)?;
                Text { text: gap + &operand.text, ..operand }.filtered(sign, "")
            }
            None => self.primary()?,
        };
        text = self.postfix(text)?;
        if takes_filters { self.filters(text) } else { Ok(text) }
    }

    fn primary(&mut self) -> Result<Text, Error> {
        let mut text = String::new();
        match self.token(0) {
            Some(Token::Str(_) | Token::String(_)) => {
                while matches!(self.token(0), Some(Token::Str(_) | Token::String(_))) {
                    text += self.take();
                }
            }
            Some(Token::Ident(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_)) => {
                text += self.take();
            }
            Some(Token::ParenOpen | Token::BracketOpen | Token::BraceOpen) => {
                let is_paren = matches!(self.token(0), Some(Token::ParenOpen));
                text += self.take();
                let (mut n_items, mut has_comma) = (0, false);
                while !closes(self.token(0)) {
                    if n_items > 0 && !has_comma {
                        return Err(self.unexpected());
                    }
                    text += &self.expression()?.text;
                    if matches!(self.token(0), Some(Token::Colon)) {
                        text += self.take();
                        text += &self.expression()?.text;
                    }
                    n_items += 1;
                    has_comma = matches!(self.token(0), Some(Token::Comma));
                    if has_comma {
                        text += self.take();
                    }
                }
                text += self.take();
                if !(is_paren && n_items == 1 && !has_comma) {
                    return Ok(Text { text, binds: Binds::All }.filtered(CHARGE, ""));
                }
            }
            _ => return Err(self.unexpected()),
        }
        Ok(Text { text, binds: Binds::All })
    }

    /// Parses the attributes, subscripts and calls after a value.
    fn postfix(&mut self, mut text: Text) -> Result<Text, Error> {
        loop {
            if matches!(self.token(0), Some(Token::Dot | Token::BracketOpen | Token::ParenOpen))
                && text.binds != Binds::All
            {
                text = text.enclosed();
            }
            match (self.token(0), self.token(1), self.token(2)) {
                (Some(Token::Dot), Some(Token::Ident("cycle")), Some(Token::ParenOpen)) => {
                    text.text += self.skip();
                    text.text += self.skip();
                    let args = self.arguments()?;
                    text = Text { text: format!("{}|{CYCLED}{args}", text.text), binds: Binds::Filters };
                    text = text.enclosed();
                }
                (Some(Token::Dot), Some(&Token::Ident(name)), next)
                    if methods::OF_MAPS.contains(&name) && !matches!(next, Some(Token::ParenOpen)) =>
                {
                    text.text += self.skip();
                    text.text += self.skip();
                    text = text.filtered(METHOD, &format!("'{name}'")).enclosed();
                }
                (Some(Token::Dot), Some(Token::Ident(_) | Token::Int(_)), _) => {
                    text.text += self.take();
                    text.text += self.take();
                }
                (Some(Token::BracketOpen), ..) => text = self.subscript(text)?,
                (Some(Token::ParenOpen), ..) => text.text += &self.arguments()?,
                _ => return Ok(text),
            }
        }
    }

    fn subscript(&mut self, of: Text) -> Result<Text, Error> {
        let open = self.take();
        let (mut bounds, mut n_colons) = ([const { String::new() }; 3], 0);
        loop {
            match self.token(0) {
                Some(Token::BracketClose) => break,
                Some(Token::Colon) if n_colons < 2 => {
                    bounds[n_colons] += self.skip();
                    n_colons += 1;
                }
                _ if bounds[n_colons].is_empty() => bounds[n_colons] = self.expression()?.text,
                _ => return Err(self.unexpected()),
            }
        }
        if n_colons == 0 {
            return Ok(Text { text: of.text + open + &bounds[0] + self.take(), binds: Binds::All });
        }
        let bounds = bounds.map(|bound| if bound.trim().is_empty() { bound + "none" } else { bound });
        let args = bounds.join(",") + self.skip();
        Ok(of.filtered(SLICED, &args).enclosed())
    }

    /// Parses the arguments of a call, including the brackets.
    pub fn arguments(&mut self) -> Result<String, Error> {
        let mut text = self.expect(|token| matches!(token, Token::ParenOpen))?.to_owned();
        while !matches!(self.token(0), Some(Token::ParenClose)) {
            if matches!(self.token(0), Some(Token::Mul | Token::Pow)) {
                text += self.take();
            }
            text += &self.expression()?.text;
            if matches!(self.token(0), Some(Token::Assign)) {
                text += self.take();
                text += &self.expression()?.text;
            }
            if !matches!(self.token(0), Some(Token::ParenClose)) {
                text += self.expect(|token| matches!(token, Token::Comma))?;
            }
        }
        Ok(text + self.take())
    }

    /// Parses the filters and tests after a value.
    fn filters(&mut self, mut text: Text) -> Result<Text, Error> {
        loop {
            if matches!(self.token(0), Some(Token::Pipe)) {
                text.text += self.take();
                text.text += &self.filter()?;
            } else if self.is_word("is") {
                text.text += self.take();
                if self.is_word("not") {
                    text.text += self.take();
                }
                text.text += &self.name()?;
                text.text += &self.argument_of_test()?;
                // minijinja would parse a sign as an argument.
                if matches!(self.token(0), Some(Token::Plus | Token::Minus)) {
                    text = text.enclosed();
                }
            } else {
                return Ok(text);
            }
            text.binds = Binds::Filters;
        }
    }

    /// Parses the name of a filter and its arguments.
    pub fn filter(&mut self) -> Result<String, Error> {
        let name = self.name()?;
        Ok(match self.token(0) {
            Some(Token::ParenOpen) => name + &self.arguments()?,
            _ => name,
        })
    }

    /// Parses the name of a filter or test, which may contain dots.
    fn name(&mut self) -> Result<String, Error> {
        let mut name = String::new();
        loop {
            name += self.expect(|token| matches!(token, Token::Ident(_)))?;
            if !matches!(self.token(0), Some(Token::Dot)) {
                return Ok(name);
            }
            name += self.take();
        }
    }

    fn argument_of_test(&mut self) -> Result<String, Error> {
        match self.token(0) {
            Some(Token::ParenOpen) => self.arguments(),
            Some(Token::Ident("else" | "or" | "and" | "is")) => Ok(String::new()),
            Some(
                Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::BracketOpen
                | Token::BraceOpen,
            ) => {
                let operand = self.primary()?;
                let operand = self.postfix(operand)?;
                Ok(if operand.binds == Binds::All { operand } else { operand.enclosed() }.text)
            }
            _ => Ok(String::new()),
        }
    }
}

/// For an operator of this level: the filter that replaces it (`*` and `%`), or the one applied to its
/// operands.
fn operator(token: &Token<'_>, level: usize) -> Option<Option<&'static str>> {
    let (its_level, filter) = match token {
        Token::Ident("or") => (OR, None),
        Token::Ident("and") => (1, None),
        Token::Plus => (SUM, Some(CHARGE)),
        Token::Minus => (SUM, None),
        Token::Tilde => (5, Some(PRINTED)),
        Token::Mul => (6, Some(TIMES)),
        Token::Mod => (6, Some(FILLED)),
        Token::Div | Token::FloorDiv => (6, None),
        Token::Pow => (7, None),
        _ => return None,
    };
    (its_level == level).then_some(filter)
}

fn closes(token: Option<&Token<'_>>) -> bool {
    matches!(token, None | Some(Token::ParenClose | Token::BracketClose | Token::BraceClose))
}
