//! Rewrites a template so that minijinja renders it like Jinja2, within bounds.
//!
//! minijinja has no hook for operators, but a filter binds tighter than any operator. So operators that
//! Python defines differently become filters (`expression.rs`), and operations that copy or walk their input
//! are charged: operands, slices, and list, map and tuple literals (each nests a value deeper). Macros get
//! their defaults as in Jinja2 (`macros.rs`), and a block is replaced by its content. Line numbers do not
//! change.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::expression::{At, Reader};
use super::names::{CALLER, ITERATED, MACRO, MISSING};

pub struct Rewritten {
    pub source: String,
    /// Length of the longest run of plain text, in bytes.
    pub longest_text: usize,
}

/// Limit on nesting in one `{{ }}` or `{% %}`. minijinja walks expressions recursively, and the part between
/// two commas, including nested brackets, has at most as many levels as tokens.
const MAX_BLOCK_LEVELS: usize = 512;

/// Maximum number of `elif` in a template: each adds one level.
const MAX_ELIFS: usize = 128;

/// Maximum nesting of macros.
const MAX_MACROS: usize = 16;

/// Rewrites a template.
///
/// # Errors
/// If the source is not valid Jinja, or has blocks that are not supported in chat templates.
pub fn rewritten(source: &str, syntax: SyntaxConfig) -> Result<Rewritten, Error> {
    let mut tokens = Vec::new();
    let mut longest_text = 0;
    for item in tokenize(source, false, syntax) {
        let (token, span) = item?;
        if let Token::TemplateData(text) = token {
            longest_text = longest_text.max(text.len());
        }
        tokens.push(At { token, start: span.start_offset as usize, end: span.end_offset as usize });
    }
    refuse_long_expressions(&tokens)?;
    let reader = Reader::new(source, tokens);
    let mut template = Template {
        reader,
        out: String::with_capacity(2 * source.len()),
        open: Vec::new(),
        macros: Vec::new(),
        blocks: Vec::new(),
        open_blocks: Vec::new(),
        n_elifs: 0,
    };
    while template.reader.token(0).is_some() {
        template.next()?;
    }
    template.out += template.reader.take();
    Ok(Rewritten { source: template.out, longest_text })
}

/// A partly rewritten template.
struct Template<'s> {
    reader: Reader<'s>,
    out: String,
    /// Keywords of the open blocks.
    open: Vec<&'s str>,
    /// Text to write after the end of each open macro.
    macros: Vec<String>,
    /// Names of all blocks of the template.
    blocks: Vec<&'s str>,
    /// Names of the open blocks.
    open_blocks: Vec<&'s str>,
    n_elifs: usize,
}

impl<'s> Template<'s> {
    /// Rewrites one run of text, `{{ }}` or `{% %}`.
    fn next(&mut self) -> Result<(), Error> {
        let is_expression = matches!(self.reader.token(0), Some(Token::VariableStart));
        let is_statement = matches!(self.reader.token(0), Some(Token::BlockStart));
        let start = self.reader.take();
        if is_expression {
            self.out += start;
            self.out += &self.reader.tuple(Reader::expression)?.into_text();
            self.out += self.reader.expect(|token| matches!(token, Token::VariableEnd))?;
        } else if let (true, Some(&Token::Ident(word))) = (is_statement, self.reader.token(0)) {
            self.statement(start, word)?;
            self.take_until(|_| false);
            self.out += self.reader.expect(|token| matches!(token, Token::BlockEnd))?;
        } else {
            self.out += start;
        }
        Ok(())
    }

    fn take_until(&mut self, wanted: impl Fn(&Token<'s>) -> bool) {
        self.out += &self.reader.take_until(wanted);
    }

    /// Rewrites the block that starts with `start` and `word`, up to the part that can be copied.
    fn statement(&mut self, start: &str, word: &'s str) -> Result<(), Error> {
        let reader = &mut self.reader;
        self.out += start;
        let closes = word.strip_prefix("end").is_some_and(|of| self.open.last() == Some(&of));
        if closes {
            self.open.pop();
        }
        match word {
            "endmacro" | "endcall" | "endblock" if !closes => return Err(reader.unexpected()),
            "include" | "import" | "from" | "extends" | "autoescape" => {
                return Err(refused(&format!("`{word}`")));
            }
            "macro" | "call" if self.macros.len() == MAX_MACROS => {
                return Err(refused("macros nested too deep"));
            }
            "for" | "macro" | "call" | "with" => self.open.push(word),
            _ => {}
        }
        match word {
            "block" => return self.block(),
            "call" => {
                let gap = reader.skip();
                return self.call(gap);
            }
            "endcall" => {
                self.out.extend([reader.skip(), "endmacro"]);
                self.out += &self.macros.pop().unwrap_or_default();
                return Ok(());
            }
            "endblock" => {
                let gap = reader.skip();
                self.out.extend([gap, "endwith"]);
                let name = self.open_blocks.pop();
                if let Some(&Token::Ident(found)) = reader.token(0) {
                    if name != Some(found) {
                        return Err(reader.unexpected());
                    }
                    self.out += reader.skip();
                }
                return Ok(());
            }
            _ => self.out += reader.take(),
        }
        match word {
            "for" => {
                let target = reader.take_until(|token| matches!(token, Token::Ident("in")));
                self.out += &target;
                self.out += reader.expect(|token| matches!(token, Token::Ident("in")))?;
                let is_taken_apart = if target.contains(',') { "true" } else { "" };
                let items = reader.tuple(Reader::condition)?.filtered(ITERATED, is_taken_apart);
                self.out += &items.into_text();
                if reader.is_word("if") {
                    self.out += reader.take();
                    self.out += &reader.expression()?.into_text();
                }
            }
            "elif" if self.n_elifs == MAX_ELIFS => {
                return Err(refused(&format!("more than {MAX_ELIFS} `elif`")));
            }
            "if" | "elif" => {
                self.n_elifs += usize::from(word == "elif");
                self.out += &reader.tuple(Reader::condition)?.into_text();
            }
            "set" => {
                let target = reader.take_until(|token| matches!(token, Token::Assign | Token::Pipe));
                self.out += &target;
                match self.reader.token(0) {
                    Some(Token::Assign) => {
                        self.out += self.reader.take();
                        let value = self.reader.tuple(Reader::expression)?;
                        // Python also unpacks strings.
                        let is_tuple = target.contains(',');
                        let value = if is_tuple { value.filtered("list", "") } else { value };
                        self.out += &value.into_text();
                    }
                    Some(Token::Pipe) => {
                        self.out += self.reader.take();
                        self.filters()?;
                    }
                    _ => {}
                }
            }
            "with" => self.with()?,
            "filter" => self.filters()?,
            "do" => self.out += &reader.expression()?.into_text(),
            "macro" => {
                let name = reader.expect(|token| matches!(token, Token::Ident(_)))?;
                self.out += name;
                let made = self.signature(true)?;
                self.macros.push(format!(" %}}{{% set{name} = {}|{made}", name.trim()));
            }
            "endmacro" => {
                self.out += &self.macros.pop().unwrap_or_default();
            }
            _ => {}
        }
        Ok(())
    }

    /// Rewrites the variables of a `with` block. Their values do not see each other.
    fn with(&mut self) -> Result<(), Error> {
        let reader = &mut self.reader;
        let (mut targets, mut values) = (Vec::new(), Vec::new());
        while !matches!(reader.token(0), None | Some(Token::BlockEnd)) {
            if !targets.is_empty() {
                reader.expect(|token| matches!(token, Token::Comma))?;
            }
            targets.push(reader.take_until(|token| matches!(token, Token::Assign)));
            reader.expect(|token| matches!(token, Token::Assign))?;
            values.push(reader.expression()?.into_text());
        }
        self.out += &match targets.len() {
            0 => String::new(),
            1 => format!("{} ={}", targets[0], values[0]),
            _ => format!(" ({}) = ({})", targets.join(","), values.join(",")),
        };
        Ok(())
    }

    fn filters(&mut self) -> Result<(), Error> {
        loop {
            self.out += &self.reader.filter()?;
            if !matches!(self.reader.token(0), Some(Token::Pipe)) {
                return Ok(());
            }
            self.out += self.reader.take();
        }
    }

    /// Replaces a block by its content, in its own scope: no template extends another one.
    fn block(&mut self) -> Result<(), Error> {
        let reader = &mut self.reader;
        let gap = reader.skip();
        self.out.extend([gap, "with"]);
        let name = match reader.token(0) {
            Some(Token::Ident(name)) => *name,
            _ => return Err(reader.unexpected()),
        };
        self.out += reader.skip();
        let is_scoped = reader.is_word("scoped");
        while reader.is_word("scoped") || reader.is_word("required") {
            if reader.is_word("required") {
                return Err(refused("a required block"));
            }
            self.out += reader.skip();
        }
        // The block would not see the surrounding variables.
        if !is_scoped && self.open.iter().any(|open| *open != "block") {
            return Err(refused("a block in a loop, a macro or `with`"));
        }
        if self.blocks.contains(&name) {
            return Err(refused(&format!("a second block `{name}`")));
        }
        self.open.push("block");
        self.blocks.push(name);
        self.open_blocks.push(name);
        Ok(())
    }

    /// Rewrites the arguments of a macro, including brackets. Defaults move into its body, where they see the
    /// arguments before them. Returns the filter that turns minijinja's macro into one of Jinja2.
    fn signature(&mut self, has_arguments: bool) -> Result<String, Error> {
        let mentions = ["varargs", "kwargs"].map(|name| (name, self.is_mentioned(name)));
        let reader = &mut self.reader;
        let (mut names, mut n_required, mut defaults) = (Vec::new(), 0, String::new());
        self.out +=
            if has_arguments { reader.expect(|token| matches!(token, Token::ParenOpen))? } else { "(" };
        while has_arguments && !matches!(reader.token(0), Some(Token::ParenClose)) {
            let Some(&Token::Ident(arg)) = reader.token(0) else { return Err(reader.unexpected()) };
            names.push(arg);
            self.out += reader.take();
            if matches!(reader.token(0), Some(Token::Assign)) {
                self.out += reader.skip();
                let default = reader.expression()?.into_text();
                defaults += &format!(" %}}{{% set {arg} = ({default}) if {arg} is {MISSING} else {arg}");
            } else if defaults.is_empty() && arg != "caller" {
                n_required += 1;
            } else {
                return Err(reader.unexpected());
            }
            if matches!(reader.token(0), Some(Token::Comma)) {
                self.out += reader.take();
                if !matches!(reader.token(0), Some(Token::Ident(_))) {
                    return Err(reader.unexpected());
                }
            }
        }
        let close = if has_arguments { reader.take() } else { ")" };
        let mut made = format!("{MACRO}({n_required}");
        for (special, is_mentioned) in mentions {
            if is_mentioned && !names.contains(&special) {
                self.out.extend([if self.out.ends_with('(') { "" } else { "," }, special]);
                made += &format!(",'{special}'");
            }
        }
        self.out.extend([close, &defaults]);
        Ok(made + ")")
    }

    /// Turns a call block into a macro, which is passed to the call as `caller`.
    fn call(&mut self, gap: &str) -> Result<(), Error> {
        self.out.extend([gap, "macro ", CALLER]);
        let made = self.signature(matches!(self.reader.token(0), Some(Token::ParenOpen)))?;
        let call = self.reader.expression()?.into_text();
        let open = call.strip_suffix(')').ok_or_else(|| self.reader.unexpected())?;
        let comma = if open.trim_end().ends_with(['(', ',']) { "" } else { "," };
        let call = format!("{open}{comma}caller={CALLER}|{made})");
        self.macros.push(format!(" %}}{{{{{call}}}}}{{% set {CALLER} = none"));
        Ok(())
    }

    /// True if the body of the macro that begins here uses the variable.
    fn is_mentioned(&self, name: &str) -> bool {
        let mut n_open = 1;
        let mut before: Option<&Token<'s>> = None;
        for ahead in 0.. {
            let Some(token) = self.reader.token(ahead) else { break };
            match (before, token) {
                (Some(Token::BlockStart), Token::Ident("macro" | "call")) => n_open += 1,
                (Some(Token::BlockStart), Token::Ident("endmacro" | "endcall")) => n_open -= 1,
                (Some(Token::Dot), _) => {}
                (_, Token::Ident(found)) if *found == name => return true,
                _ => {}
            }
            if n_open == 0 {
                break;
            }
            before = Some(token);
        }
        false
    }
}

fn refuse_long_expressions(tokens: &[At<'_>]) -> Result<(), Error> {
    let starts = |item: &At<'_>| matches!(item.token, Token::BlockStart | Token::VariableStart);
    let mut blocks = tokens.chunk_by(|_, next| !starts(next));
    if blocks.any(|block| levels(block) > MAX_BLOCK_LEVELS) {
        return Err(refused(&format!(
            "an expression of more than {MAX_BLOCK_LEVELS} tokens without a comma"
        )));
    }
    Ok(())
}

/// Upper bound for the nesting of tokens in a block: for each part between commas, its number of tokens at
/// that depth plus the depth of the deepest bracket in it.
fn levels(block: &[At<'_>]) -> usize {
    /// An open bracket, or the block.
    #[derive(Default)]
    struct Open {
        /// Tokens since the last comma.
        own: usize,
        /// Levels of the deepest bracket since then.
        inner: usize,
        /// Maximum over the parts before that comma.
        most: usize,
    }
    impl Open {
        fn levels(&self) -> usize {
            self.most.max(self.own + self.inner)
        }
    }
    let mut open = vec![Open::default()];
    for item in block {
        match step(&item.token) {
            1 => open.push(Open::default()),
            -1 if open.len() > 1 => {
                let closed = open.pop().map_or(0, |closed| closed.levels());
                if let Some(around) = open.last_mut() {
                    around.inner = around.inner.max(closed);
                }
            }
            _ => {}
        }
        let top = open.last_mut().expect("the block itself is never closed");
        match item.token {
            Token::Comma => *top = Open { most: top.levels(), ..Open::default() },
            _ => top.own += 1,
        }
    }
    // Unclosed brackets.
    open.iter().map(Open::levels).sum()
}

fn step(token: &Token<'_>) -> isize {
    match token {
        Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => 1,
        Token::ParenClose | Token::BracketClose | Token::BraceClose => -1,
        _ => 0,
    }
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("not supported in chat templates: {what}"))
}
