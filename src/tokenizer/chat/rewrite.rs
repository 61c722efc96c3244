//! Puts charges into a template: `a ~ b` becomes `a|CHARGE ~ b|CHARGE`.
//!
//! minijinja has no hook in its operators, but a filter binds tighter than any operator, so charging an
//! operand is a matter of inserting text after its last token. Charged are the operands of operators that
//! copy or walk what they are given, slices, and list, map and tuple literals (each makes a value deeper).

use std::collections::BTreeSet;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Name of the filter that charges what it is given and gives it back.
pub const CHARGE: &str = "charge__";
/// Name of the filter for the operands of `*`.
pub const FACTOR: &str = "factor__";

/// Name of the filter for the operands of `~`.
pub const PRINTED: &str = "printed__";
/// Name of the filter for the operands of `<` and its like.
pub const ORDERED: &str = "ordered__";
/// Name of the filter for what a loop goes over.
pub const ITERATED: &str = "iterated__";

/// Name of the filter for `'text' % values`.
pub const FILLED: &str = "filled__";

/// A template with its charges.
pub struct Rewritten {
    /// Jinja.
    pub source: String,
    /// Bytes of the longest stretch of plain text.
    pub longest_text: usize,
}

/// Most levels of one `{{ }}` or `{% %}`. minijinja walks expressions recursively, and what is chained
/// between two commas, or nested in brackets there, has no more levels than tokens.
const MAX_BLOCK_LEVELS: usize = 512;

/// Most `elif` in a template: each is one level deeper.
const MAX_ELIFS: usize = 128;

/// Token, and the bytes of the source that it covers.
struct At<'s> {
    token: Token<'s>,
    start: usize,
    end: usize,
}

/// Inserts the charges.
///
/// # Errors
/// Where the source is not valid Jinja, or has blocks that no chat template needs and that could not be
/// bounded.
pub fn with_charges(source: &str, syntax: SyntaxConfig) -> Result<Rewritten, Error> {
    let mut tokens = Vec::new();
    let mut longest_text = 0;
    for item in tokenize(source, false, syntax) {
        let (token, span) = item?;
        if let Token::TemplateData(text) = token {
            longest_text = longest_text.max(text.len());
        }
        tokens.push(At { token, start: span.start_offset as usize, end: span.end_offset as usize });
    }
    refuse_blocks(&tokens)?;
    refuse_long_expressions(&tokens)?;
    refuse_chained_defaults(&tokens)?;
    let mut marks = BTreeSet::new();
    for at in 0..tokens.len() {
        mark_at(&tokens, at, &mut marks);
    }
    let mut out = String::with_capacity(source.len() + marks.len() * 16);
    let mut done = 0;
    for (offset, mark) in marks {
        let text = source.get(done..offset).ok_or_else(|| unbounded("this expression"))?;
        out.push_str(text);
        match mark {
            Mark::Charge => out.extend(["|", CHARGE]),
            Mark::Factor => out.extend(["|", FACTOR]),
            Mark::Printed => out.extend(["|", PRINTED]),
            Mark::Ordered => out.extend(["|", ORDERED]),
            Mark::CloseIterated => out.extend([")|", ITERATED]),
            Mark::Close => out.extend([")|", CHARGE]),
            Mark::Filled => out.extend(["|", FILLED, "("]),
            Mark::CloseFilled => out.push(')'),
            Mark::Open => out.push('('),
        }
        done = if mark == Mark::Filled { offset + 1 } else { offset };
    }
    out.push_str(&source[done..]);
    Ok(Rewritten { source: out, longest_text })
}

/// Insertion at an offset, in the order of several at one offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Charge,
    CloseFilled,
    Factor,
    Printed,
    Ordered,
    CloseIterated,
    Close,
    /// In place of `%`.
    Filled,
    Open,
}

fn mark_at(tokens: &[At<'_>], at: usize, marks: &mut BTreeSet<(usize, Mark)>) {
    let after_operand = at > 0 && ends_operand(tokens, at - 1);
    match tokens[at].token {
        Token::Plus | Token::Eq | Token::Ne if after_operand => {
            mark_operands(tokens, at, Mark::Charge, marks);
        }
        Token::Tilde if after_operand => mark_operands(tokens, at, Mark::Printed, marks),
        Token::Lt | Token::Lte | Token::Gt | Token::Gte if after_operand => {
            mark_operands(tokens, at, Mark::Ordered, marks);
        }
        Token::Mul if after_operand => mark_operands(tokens, at, Mark::Factor, marks),
        Token::Mod if is_lone_text(tokens, at) => {
            marks.insert((tokens[at].start, Mark::Filled));
            mark_operand(tokens, at + 1, Mark::CloseFilled, marks);
        }
        Token::Ident("in") if is_loop(tokens, at) => {
            let end = loop_end(tokens, at);
            if end > at + 1 {
                marks.insert((tokens[at + 1].start, Mark::Open));
                marks.insert((tokens[end - 1].end, Mark::CloseIterated));
            }
        }
        Token::Ident("in")
            if !matches!(tokens.get(at.wrapping_sub(1)), Some(At { token: Token::Dot, .. })) =>
        {
            mark_operand(tokens, at + 1, Mark::Charge, marks);
        }
        Token::BracketOpen | Token::BraceOpen | Token::ParenOpen => {
            let close = matching(tokens, at);
            let is_slice = matches!(tokens[at].token, Token::BracketOpen) && after_operand;
            let is_literal = !after_operand && !matches!(tokens[at].token, Token::ParenOpen);
            let is_tuple = matches!(tokens[at].token, Token::ParenOpen)
                && !after_operand
                && has_direct(tokens, at + 1, close, |token| matches!(token, Token::Comma));
            let slices = is_slice && has_direct(tokens, at + 1, close, |token| matches!(token, Token::Colon));
            if slices || is_literal || is_tuple {
                marks.insert((tokens[postfix_end(tokens, close)].end, Mark::Charge));
            }
        }
        // `{% set a = b, c %}` makes a tuple without brackets.
        Token::Assign => {
            let end = block_end(tokens, at);
            let starts = |item: &At<'_>| matches!(item.token, Token::BlockStart | Token::VariableStart);
            let start = tokens[..at].iter().rposition(starts).unwrap_or(0);
            let is_set = matches!(token(tokens, start + 1), Some(Token::Ident("set")));
            let direct = is_set && depth_between(tokens, start, at) == 0;
            if direct
                && end > at + 1
                && has_direct(tokens, at + 1, end, |token| matches!(token, Token::Comma))
            {
                marks.insert((tokens[at + 1].start, Mark::Open));
                marks.insert((tokens[end - 1].end, Mark::Close));
            }
        }
        _ => {}
    }
}

/// True if what stands before the `%` at `at` is a text, and no operand of what binds as `%` does.
fn is_lone_text(tokens: &[At<'_>], at: usize) -> bool {
    let before = at.checked_sub(2).and_then(|before| token(tokens, before));
    let begins = matches!(
        before,
        Some(
            Token::VariableStart
                | Token::ParenOpen
                | Token::BracketOpen
                | Token::BraceOpen
                | Token::Comma
                | Token::Colon
                | Token::Assign
                | Token::Plus
                | Token::Tilde
                | Token::Ident("if" | "elif" | "else" | "and" | "or" | "not" | "in")
        )
    );
    begins && matches!(tokens[at - 1].token, Token::Str(_) | Token::String(_))
}

/// Marks the ends of both operands of the operator at `at`.
fn mark_operands(tokens: &[At<'_>], at: usize, mark: Mark, marks: &mut BTreeSet<(usize, Mark)>) {
    marks.insert((tokens[at - 1].end, mark));
    mark_operand(tokens, at + 1, mark, marks);
}

/// True if the `in` at `at` is that of a `for` block, and not of an expression in one.
fn is_loop(tokens: &[At<'_>], at: usize) -> bool {
    let starts = |item: &At<'_>| matches!(item.token, Token::BlockStart | Token::VariableStart);
    let start = tokens[..at].iter().rposition(starts).unwrap_or(0);
    let is_in = |item: &At<'_>| matches!(item.token, Token::Ident("in"));
    matches!(token(tokens, start), Some(Token::BlockStart))
        && matches!(token(tokens, start + 1), Some(Token::Ident("for")))
        && !tokens[start..at].iter().any(is_in)
}

/// The end of what the loop with the `in` at `at` goes over: its condition, `recursive`, or the block's end.
fn loop_end(tokens: &[At<'_>], at: usize) -> usize {
    let block = block_end(tokens, at);
    let mut depth = 0;
    let ends = |item: &At<'_>| {
        depth += step(&item.token);
        depth == 0 && matches!(item.token, Token::Ident("if" | "recursive"))
    };
    tokens[at + 1..block].iter().position(ends).map_or(block, |from| at + 1 + from)
}

/// Marks the end of the operand that starts at `at`.
fn mark_operand(tokens: &[At<'_>], mut at: usize, mark: Mark, marks: &mut BTreeSet<(usize, Mark)>) {
    while matches!(token(tokens, at), Some(Token::Minus | Token::Ident("not"))) {
        at += 1;
    }
    let last = match token(tokens, at) {
        Some(Token::ParenOpen | Token::BracketOpen | Token::BraceOpen) => matching(tokens, at),
        Some(Token::Str(_) | Token::String(_)) => {
            let more = |item: &At<'_>| matches!(item.token, Token::Str(_) | Token::String(_));
            at + tokens[at..].iter().take_while(|item| more(item)).count() - 1
        }
        Some(Token::Ident(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_)) => at,
        // The template is wrong; minijinja says how.
        _ => return,
    };
    let end = postfix_end(tokens, last);
    if let Some(last) = tokens.get(end) {
        marks.insert((last.end, mark));
    }
}

/// The last token of the attributes, subscripts, calls and filters that follow an operand ending at `last`.
fn postfix_end(tokens: &[At<'_>], mut last: usize) -> usize {
    loop {
        last = match (token(tokens, last + 1), token(tokens, last + 2)) {
            (Some(Token::Dot), Some(Token::Ident(_) | Token::Int(_))) => last + 2,
            (Some(Token::Pipe), Some(Token::Ident(_))) => last + 2,
            (Some(Token::ParenOpen | Token::BracketOpen), _) => matching(tokens, last + 1),
            _ => return last,
        };
    }
}

fn token<'t, 's>(tokens: &'t [At<'s>], at: usize) -> Option<&'t Token<'s>> {
    tokens.get(at).map(|item| &item.token)
}

/// True if what ends with token `at` can be the left side of an operator.
fn ends_operand(tokens: &[At<'_>], at: usize) -> bool {
    match &tokens[at].token {
        Token::Ident(name) => {
            let word =
                matches!(*name, "and" | "or" | "not" | "in" | "is" | "if" | "else" | "elif" | "for" | "set");
            !word || matches!(token(tokens, at.wrapping_sub(1)), Some(Token::Dot))
        }
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => true,
        Token::ParenClose | Token::BracketClose | Token::BraceClose => true,
        _ => false,
    }
}

fn step(token: &Token<'_>) -> isize {
    match token {
        Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => 1,
        Token::ParenClose | Token::BracketClose | Token::BraceClose => -1,
        _ => 0,
    }
}

fn depth_between(tokens: &[At<'_>], from: usize, to: usize) -> isize {
    tokens[from..to].iter().map(|item| step(&item.token)).sum()
}

/// The bracket that closes the one at `open`, or the last token of the block.
fn matching(tokens: &[At<'_>], open: usize) -> usize {
    let end = block_end(tokens, open);
    let mut depth = 0;
    for (at, item) in tokens[..end].iter().enumerate().skip(open) {
        depth += step(&item.token);
        if depth == 0 {
            return at;
        }
    }
    end - 1
}

/// The end of the block that token `at` is in.
fn block_end(tokens: &[At<'_>], at: usize) -> usize {
    let ends = |item: &At<'_>| matches!(item.token, Token::BlockEnd | Token::VariableEnd);
    tokens[at..].iter().position(ends).map_or(tokens.len(), |from| at + from)
}

/// True if a token that is `wanted` stands in `from..to` outside all brackets in there.
fn has_direct(tokens: &[At<'_>], from: usize, to: usize, wanted: impl Fn(&Token<'_>) -> bool) -> bool {
    let mut depth = 0;
    tokens[from.min(to)..to].iter().any(|item| {
        depth += step(&item.token);
        depth == 0 && wanted(&item.token)
    })
}

/// A macro keeps what it was defined among, so macros made in a loop make a chain as long as the loop.
fn refuse_blocks(tokens: &[At<'_>]) -> Result<(), Error> {
    let (mut n_loops, mut n_elifs) = (0, 0);
    for pair in tokens.windows(2) {
        let (Token::BlockStart, Token::Ident(word)) = (&pair[0].token, &pair[1].token) else { continue };
        match *word {
            "for" => n_loops += 1,
            "endfor" => n_loops -= 1,
            "elif" if n_elifs == MAX_ELIFS => {
                return Err(unbounded(&format!("more than {MAX_ELIFS} `elif`")));
            }
            "elif" => n_elifs += 1,
            "macro" if n_loops > 0 => return Err(unbounded("a macro in a loop")),
            "call" | "include" | "import" | "from" | "extends" | "block" => {
                return Err(unbounded(&format!("`{word}`")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Jinja2 lets an argument of a macro stand in the default of a later one; minijinja would find nothing
/// there.
fn refuse_chained_defaults(tokens: &[At<'_>]) -> Result<(), Error> {
    for (start, pair) in tokens.windows(2).enumerate() {
        if !matches!(pair, [At { token: Token::BlockStart, .. }, At { token: Token::Ident("macro"), .. }]) {
            continue;
        }
        let (open, mut depth, mut names) = (start + 3, 0, BTreeSet::new());
        for at in open..block_end(tokens, start) {
            depth += step(&tokens[at].token);
            let (before, behind) = (token(tokens, at - 1), token(tokens, at + 1));
            match tokens[at].token {
                Token::Ident(name)
                    if depth == 1 && matches!(before, Some(Token::ParenOpen | Token::Comma)) =>
                {
                    names.insert(name);
                }
                Token::Ident(name)
                    if names.contains(name)
                        && !matches!(before, Some(Token::Dot))
                        && !matches!(behind, Some(Token::Assign)) =>
                {
                    return Err(unbounded(&format!("the argument `{name}` in the default of another")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn refuse_long_expressions(tokens: &[At<'_>]) -> Result<(), Error> {
    let starts = |item: &At<'_>| matches!(item.token, Token::BlockStart | Token::VariableStart);
    let mut blocks = tokens.chunk_by(|_, next| !starts(next));
    if blocks.any(|block| levels(block) > MAX_BLOCK_LEVELS) {
        return Err(unbounded(&format!(
            "an expression of more than {MAX_BLOCK_LEVELS} tokens without a comma"
        )));
    }
    Ok(())
}

/// Most tokens one inside the other in a block: of what stands between two commas, all tokens at that depth
/// and the deepest of the brackets among them.
fn levels(block: &[At<'_>]) -> usize {
    /// An open pair of brackets, or the block.
    #[derive(Default)]
    struct Open {
        /// Tokens since the last comma.
        own: usize,
        /// The deepest brackets since then.
        inner: usize,
        /// The most before it.
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
    // Brackets that are not closed.
    open.iter().map(Open::levels).sum()
}

fn unbounded(what: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not for chat templates"))
}
