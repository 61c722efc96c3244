//! Writes GBNF rules as Lark.
//!
//! A rule that is not recursive and uses no token becomes a terminal (`T3`); other rules stay rules (`r3`).
//! In a rule, neighbouring items that could be a terminal are combined into one.

use std::fmt::Write;

use super::super::{at_most, quote};
use super::{GrammarError, Item, Repeated, Rule};

/// Deepest nesting of terminals and rules: the parser walks them recursively.
const MAX_LEVELS: usize = 1000;

/// # Errors
/// [`GrammarError::TooLarge`] if rules refer to others through too many levels.
pub fn write(rules: &[Rule], root: usize) -> Result<String, GrammarError> {
    let is_word = words(rules)?;
    let mut writer = Writer { rules, is_word, out: String::new(), n_runs: 0, runs: String::new() };
    writer.out += "start: ";
    let name = writer.name(root);
    writer.out += &name;
    writer.out.push('\n');
    for index in reached(rules, root) {
        writer.rule(index);
    }
    Ok(writer.out + &writer.runs)
}

struct Writer<'r> {
    rules: &'r [Rule],
    is_word: Vec<bool>,
    out: String,
    n_runs: usize,
    /// Terminals built from neighbouring items of a rule.
    runs: String,
}

impl Writer<'_> {
    fn name(&self, index: usize) -> String {
        format!("{}{index}", if self.is_word[index] { 'T' } else { 'r' })
    }

    fn rule(&mut self, index: usize) {
        let rules = self.rules;
        let choices = &rules[index].choices;
        let is_word = self.is_word[index];
        let line = choices.iter().map(|parts| match is_word {
            true => self.word(parts),
            false => self.sequence(parts),
        });
        let line = line.collect::<Vec<_>>().join(" | ");
        let name = self.name(index);
        // The original name, for messages of the parser.
        let note = match rules[index].name.as_str() {
            "" => String::new(),
            name => format!("  // {name}"),
        };
        self.out += &format!("{name}: {line}{note}\n");
    }

    /// Writes a sequence in a terminal.
    fn word(&self, parts: &[Repeated]) -> String {
        match parts {
            [] => "\"\"".to_owned(),
            parts => parts.iter().map(|part| self.part(part)).collect::<Vec<_>>().join(" "),
        }
    }

    /// Writes a sequence in a rule.
    fn sequence(&mut self, parts: &[Repeated]) -> String {
        let mut items = Vec::new();
        let both = |a: &Repeated, b: &Repeated| self.is_part_of_word(a) && self.is_part_of_word(b);
        let runs: Vec<&[Repeated]> = parts.chunk_by(both).collect();
        for run in runs {
            let text = self.word(run);
            let is_named = matches!(run, [Repeated { item: Item::Rule(_), least: 1, most: Some(1) }]);
            if is_named || !self.is_part_of_word(&run[0]) {
                items.push(text);
                continue;
            }
            let name = format!("W{}", self.n_runs);
            self.n_runs += 1;
            writeln!(self.runs, "{name}: {text}").expect("writing to a string cannot fail");
            items.push(name);
        }
        if items.is_empty() { "\"\"".to_owned() } else { items.join(" ") }
    }

    fn is_part_of_word(&self, part: &Repeated) -> bool {
        match part.item {
            Item::Rule(index) => self.is_word[index],
            Item::Token { .. } => false,
            Item::Text(_) | Item::Class { .. } | Item::Any => true,
        }
    }

    fn part(&self, part: &Repeated) -> String {
        let item = match &part.item {
            Item::Text(text) => quote(text),
            Item::Any => "/./s".to_owned(),
            Item::Class { ranges, negated } => class(ranges, *negated),
            Item::Rule(index) => self.name(*index),
            Item::Token { id, negated } => format!("<[{}{id}]>", if *negated { "^" } else { "" }),
        };
        match (part.least, part.most) {
            (1, Some(1)) => item,
            (_, Some(0)) => "\"\"".to_owned(),
            (0, None) => format!("{item}*"),
            (1, None) => format!("{item}+"),
            (0, Some(1)) => format!("{item}?"),
            (least, None) => format!("{item}{{{least},}}"),
            (least, Some(most)) => format!("{item}{{{least},{most}}}"),
        }
    }
}

/// Writes a class as a regular expression. Characters are numeric, so none needs an escape.
fn class(ranges: &[(char, char)], negated: bool) -> String {
    let mut out = String::from(if negated { "/[^" } else { "/[" });
    for (first, last) in ranges {
        write!(out, "\\x{{{:X}}}-\\x{{{:X}}}", u32::from(*first), u32::from(*last))
            .expect("writing to a string cannot fail");
    }
    out + "]/"
}

fn named(rule: &Rule) -> impl Iterator<Item = usize> {
    rule.choices.iter().flatten().filter_map(|part| match part.item {
        Item::Rule(index) => Some(index),
        _ => None,
    })
}

fn reached(rules: &[Rule], root: usize) -> Vec<usize> {
    let mut seen = vec![false; rules.len()];
    let mut open = vec![root];
    let mut order = Vec::new();
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut seen[index], true) {
            order.push(index);
            open.extend(named(&rules[index]));
        }
    }
    order.sort_unstable();
    order
}

/// For each rule, whether it can be a terminal: it uses no token, and only rules that can be terminals, thus
/// not itself.
/// Works level by level, starting from rules that use no others.
fn words(rules: &[Rule]) -> Result<Vec<bool>, GrammarError> {
    let mut named_by = vec![Vec::new(); rules.len()];
    let mut n_open: Vec<usize> = vec![0; rules.len()];
    for (index, rule) in rules.iter().enumerate() {
        for other in named(rule) {
            named_by[other].push(index);
            n_open[index] += 1;
        }
    }
    let has_token =
        |rule: &Rule| rule.choices.iter().flatten().any(|part| matches!(part.item, Item::Token { .. }));
    let is_free = |&index: &usize| n_open[index] == 0 && !has_token(&rules[index]);
    let mut level: Vec<usize> = (0..rules.len()).filter(is_free).collect();
    let mut is_word = vec![false; rules.len()];
    let mut n_levels = 0;
    while !level.is_empty() {
        n_levels += 1;
        at_most("levels of rules", n_levels, MAX_LEVELS)?;
        let mut next = Vec::new();
        for index in level {
            is_word[index] = true;
            for &other in &named_by[index] {
                n_open[other] -= 1;
                if n_open[other] == 0 && !has_token(&rules[other]) {
                    next.push(other);
                }
            }
        }
        level = next;
    }
    Ok(is_word)
}
