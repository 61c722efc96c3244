//! Dependencies within a crate, parsed from its source: paths in `use` and in code, followed through
//! re-exports to the item that they name.
//!
//! There are two kinds of cycles. Sibling files that import each other, whichever items they use: the first
//! cannot be understood without the second. Or items that depend on each other, between a file with
//! submodules (`mod.rs`) and these submodules. Such a file is the front of its folder: it holds the shared
//! code and names the submodules, so imports in both directions are allowed, unless an item that a child
//! imports from its parent depends on that child.

use std::collections::{BTreeMap, BTreeSet};

/// An item of a file: a type with its `impl`s, a function, a constant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub file: String,
    pub item: String,
}

/// Dependency graph, with the line of the first mention.
pub struct Graph {
    edges: BTreeMap<(Node, Node), usize>,
    /// Files with submodules.
    fronts: BTreeSet<String>,
    /// Paths into the crate that cannot be resolved: `file:line: path`.
    pub unresolved: Vec<String>,
    /// Imports from other crates of this workspace: file, line, path.
    pub foreign: Vec<(String, usize, Vec<String>)>,
    /// Files that names are taken from, whether they define or re-export them: importing file, line, file.
    pub sources: BTreeSet<(String, usize, String)>,
}

struct Module {
    file: String,
    /// Code without comments and unit tests, line by line.
    lines: Vec<String>,
    path: Vec<String>,
    items: Vec<Item>,
    /// True if its content is written by the build script.
    is_generated: bool,
    /// Imported names and their paths; `*` for everything in a module.
    imports: Vec<Import>,
}

struct Item {
    /// First line, from 1.
    line: usize,
    name: String,
    is_impl: bool,
    is_enum: bool,
}

struct Import {
    name: String,
    path: Vec<String>,
    line: usize,
}

impl Graph {
    /// Builds the graph from the files of a crate, name and text, whose root is in `folder`.
    pub fn of(folder: &str, files: &[(String, String)]) -> Self {
        let read = |(file, text): &(String, String)| Module::read(folder, file, text);
        let modules: Vec<Module> = files.iter().filter_map(read).collect();
        let by_path = modules.iter().map(|module| (module.path.clone(), module)).collect();
        let tree = Modules { by_path };
        let is_front = |module: &&Module| {
            let below = |other: &Module| other.path.len() > module.path.len();
            modules.iter().any(|other| below(other) && other.path.starts_with(&module.path))
        };
        let fronts = modules.iter().filter(is_front).map(|module| module.file.clone()).collect();
        let (edges, unresolved, foreign, sources) = Default::default();
        let mut graph = Self { edges, fronts, unresolved, foreign, sources };
        for module in &modules {
            graph.add(&tree, module);
        }
        graph
    }

    fn add(&mut self, tree: &Modules<'_>, module: &Module) {
        let paths: Vec<_> = module.paths();
        let imports = module.imports.iter().map(|import| (import.line, &import.path));
        for (line, path) in imports.chain(paths.iter().map(|(line, path)| (*line, path))) {
            if let Some(from) = tree.source(&module.path, path).filter(|from| from.file != module.file) {
                self.sources.insert((module.file.clone(), line, from.file.clone()));
            }
        }
        for import in &module.imports {
            let found = tree.resolve(&module.path, &import.path, 0);
            if import.path[0].starts_with("sterna_") {
                self.foreign.push((module.file.clone(), import.line, import.path.clone()));
            }
            let into_crate = ["crate", "super", "self"].contains(&import.path[0].as_str());
            if found.is_none() && into_crate {
                let path = import.path.join("::");
                self.unresolved.push(format!("{}:{}: {path}", module.file, import.line));
            }
            // No item depends on this one, so it closes no cycle of items.
            let from = Node { file: module.file.clone(), item: "use".to_owned() };
            if let Some(Found::Item(to)) = found {
                self.edge(from, to, import.line);
            }
        }
        for (line, path) in paths {
            let found = tree.resolve(&module.path, &path, 0);
            if found.is_none() && path[0] == "crate" {
                self.unresolved.push(format!("{}:{line}: {}", module.file, path.join("::")));
            }
            if let Some(Found::Item(to)) = found {
                self.edge(module.node(line), to, line);
            }
        }
    }

    fn edge(&mut self, from: Node, to: Node, line: usize) {
        if from != to {
            self.edges.entry((from, to)).or_insert(line);
        }
    }

    /// Imports between files, each with a line.
    pub fn imports(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        let edges = self.edges.iter().map(|((from, to), line)| (from.file.as_str(), to.file.as_str(), *line));
        edges.filter(|(from, to, _)| from != to)
    }

    /// Cycles: their files, and the edges that close them.
    pub fn cycles(&self) -> Vec<(BTreeSet<String>, String)> {
        let is_front = |node: &Node| self.fronts.contains(&node.file);
        let whole = |node: &Node| Node { file: node.file.clone(), item: String::new() };
        let siblings = self.edges.iter().filter(|((from, to), _)| !is_front(from) && !is_front(to));
        let files = siblings.map(|((from, to), line)| ((whole(from), whole(to)), *line)).collect();
        let mut found = cycles(&files);
        // Cycles of files are not reported again for their items.
        let mut of_items = cycles(&self.edges);
        of_items.retain(|(files, _)| !found.iter().any(|(known, _)| files.is_subset(known)));
        found.append(&mut of_items);
        found
    }
}

/// Finds cycles of more than one file.
fn cycles(edges: &BTreeMap<(Node, Node), usize>) -> Vec<(BTreeSet<String>, String)> {
    let nodes: BTreeSet<&Node> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
    let mut next: BTreeMap<&Node, Vec<&Node>> = BTreeMap::new();
    edges.keys().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let reached = |start| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(node) = open.pop() {
            let new = next.get(node).into_iter().flatten().filter(|to| seen.insert(**to));
            open.extend(new.copied().collect::<Vec<_>>());
        }
        seen
    };
    let reach: BTreeMap<&Node, BTreeSet<&Node>> = nodes.iter().map(|node| (*node, reached(*node))).collect();
    let mut found = BTreeMap::new();
    for node in nodes {
        let cycle: BTreeSet<&Node> =
            reach[node].iter().copied().filter(|other| reach[other].contains(node)).collect();
        let files: BTreeSet<String> = cycle.iter().map(|node| node.file.clone()).collect();
        if files.len() > 1 {
            let inside = edges
                .iter()
                .filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to) && from.file != to.file);
            let of =
                |node: &Node| if node.item.is_empty() { String::new() } else { format!(" ({})", node.item) };
            let text = inside.map(|((from, to), line)| {
                format!("  {}:{line}{} -> {}{}", from.file, of(from), to.file, of(to))
            });
            found.insert(files, text.collect::<Vec<_>>().join("\n"));
        }
    }
    found.into_iter().collect()
}

enum Found {
    Module,
    Item(Node),
}

struct Modules<'a> {
    by_path: BTreeMap<Vec<String>, &'a Module>,
}

impl Modules<'_> {
    /// The module that the name at the end of the modules of `path` is taken from.
    fn source(&self, at: &[String], path: &[String]) -> Option<&Module> {
        let Some((first, rest)) = path.split_first() else { return self.by_path.get(at).copied() };
        let child = [at, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => self.source(&[], rest),
            "self" => self.source(at, rest),
            "super" => self.source(&at[..at.len().checked_sub(1)?], rest),
            _ if self.by_path.contains_key(&child) => self.source(&child, rest),
            _ => self.by_path.get(at).copied(),
        }
    }

    /// Resolves `path` in the module `at`; `None` if it is not in this crate.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Option<Found> {
        let Some((first, rest)) = path.split_first() else { return Some(Found::Module) };
        // Re-exports that refer to each other would loop for ever.
        if depth > 16 {
            return None;
        }
        match first.as_str() {
            "crate" => return self.resolve(&[], rest, depth + 1),
            "self" => return self.resolve(at, rest, depth + 1),
            "super" => return self.resolve(&at[..at.len().checked_sub(1)?], rest, depth + 1),
            _ => {}
        }
        // Another crate: cargo checks these.
        if first.starts_with("sterna_") {
            return Some(Found::Module);
        }
        let child = [at, std::slice::from_ref(first)].concat();
        if self.by_path.contains_key(&child) {
            return self.resolve(&child, rest, depth + 1);
        }
        let module = self.by_path.get(at)?;
        if module.items.iter().any(|item| item.name == *first && !item.is_impl) {
            return Some(Found::Item(Node { file: module.file.clone(), item: first.clone() }));
        }
        if let Some(import) = module.imports.iter().find(|import| import.name == *first) {
            // Avoid a loop: `use regex::Regex` and `use crate::regex` both begin with a name.
            if import.path[0] == *first && import.path.len() == 1 {
                return None;
            }
            if import.path[0] == *first && !self.by_path.contains_key(&child) {
                return None;
            }
            return self.resolve(at, &[&import.path, rest].concat(), depth + 1);
        }
        if module.is_generated {
            return Some(Found::Item(Node { file: module.file.clone(), item: first.clone() }));
        }
        let globs = module.imports.iter().filter(|import| import.name == "*");
        globs.filter_map(|glob| self.resolve(at, &[&glob.path, path].concat(), depth + 1)).next()
    }
}

impl Module {
    fn read(folder: &str, file: &str, text: &str) -> Option<Self> {
        let below = file.strip_prefix(folder)?.strip_suffix(".rs")?;
        // A file that `#[path]` names may have hyphens.
        let mut path: Vec<String> = below.split('/').map(|part| part.replace('-', "_")).collect();
        if path.last().is_some_and(|last| last == "mod") || below == "lib" {
            path.pop();
        }
        if path.last().is_some_and(|last| last == "tests") {
            return None;
        }
        let mut lines = Vec::new();
        let mut code = text.lines().peekable();
        while let Some(line) = code.next() {
            let is_test = line == "#[cfg(test)]";
            if is_test && code.peek().is_some_and(|next| next.ends_with(" {")) {
                break;
            }
            lines.push(line.to_owned());
        }
        let lines: Vec<String> = code_of(&lines.join("\n")).lines().map(str::to_owned).collect();
        let mut in_macro = false;
        let item = |(at, line): (usize, &String)| {
            let begins = line.ends_with("! {") && !line.starts_with(' ');
            in_macro = begins || in_macro && line != "}";
            // An item defined in a macro call is indented by its braces.
            let line = line.strip_prefix("    ").filter(|_| in_macro).unwrap_or(line);
            Item::read(at + 1, line)
        };
        let items = lines.iter().enumerate().filter_map(item).collect();
        let imports = imports(&lines);
        let is_generated = lines.iter().any(|line| line.starts_with("include!("));
        Some(Self { file: file.to_owned(), lines, path, items, is_generated, imports })
    }

    fn item(&self, line: usize) -> Option<&Item> {
        self.items.iter().take_while(|item| item.line <= line).last()
    }

    fn node(&self, line: usize) -> Node {
        let name = match self.item(line) {
            // An `impl` for a type of another file is its own item.
            Some(item)
                if item.is_impl && !self.items.iter().any(|it| !it.is_impl && it.name == item.name) =>
            {
                format!("impl {}", item.name)
            }
            Some(item) => item.name.clone(),
            None => String::new(),
        };
        Node { file: self.file.clone(), item: name }
    }

    /// All names and paths in code outside `use`, with their lines.
    fn paths(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        let mut in_use = false;
        for (at, line) in self.lines.iter().enumerate() {
            in_use |= is_use(line);
            if !in_use {
                // An enum variant may have the name of a type.
                let is_enum = self.item(at + 1).is_some_and(|item| item.is_enum);
                let is_variant = is_enum
                    && line.strip_prefix("    ").is_some_and(|rest| rest.starts_with(char::is_uppercase));
                let paths = paths_of(line).into_iter().skip(usize::from(is_variant));
                found.extend(paths.map(|path| (at + 1, path)));
            }
            in_use &= !line.contains(';');
        }
        found
    }
}

/// Removes comments and the contents of string and character literals; line numbers do not change.
pub fn code_of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let is_raw = ["r\"", "r#\"", "br\"", "br#\""].iter().any(|start| rest.starts_with(start));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if is_raw && !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            let open = rest.find('"').expect("a raw string has a quote") + 1;
            let close = if rest[..open].contains('#') { "\"#" } else { "\"" };
            rest[open..].find(close).map_or(rest.len(), |at| open + at + close.len())
        } else if c == '"' {
            literal_len(rest, '"')
        } else if c == '\'' && (rest.starts_with("'\\") || rest.chars().nth(2) == Some('\'')) {
            literal_len(rest, '\'')
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..len].chars().filter(|c| *c == '\n'));
        rest = &rest[len..];
    }
    out
}

/// Length of the literal at the start of a text, including its closing quote.
fn literal_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Names and paths in a line: `a::b::c` as three segments. A name after a dot is a field or method.
fn paths_of(line: &str) -> Vec<Vec<String>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found: Vec<Vec<String>> = Vec::new();
    let (mut rest, mut is_first) = (line, true);
    while let Some(start) = rest.find(is_name) {
        let end = rest[start..].find(|c| !is_name(c)).map_or(rest.len(), |at| start + at);
        let (between, name) = (&rest[..start], &rest[start..end]);
        rest = &rest[end..];
        // A function of the same file is called; a variable may have the same name.
        let is_called = ["(", "!", "::"].iter().any(|next| rest.starts_with(next));
        let is_variable = name.starts_with(char::is_lowercase) && !is_called;
        let is_field = between.ends_with('.') && !between.ends_with("..");
        match found.last_mut() {
            Some(path) if between == "::" && !is_first && !path.is_empty() => path.push(name.to_owned()),
            // An empty path marks anything else, so that no further segment is added to it.
            _ if is_field || is_variable || name.starts_with(char::is_numeric) => found.push(Vec::new()),
            _ => found.push(vec![name.to_owned()]),
        }
        is_first = false;
    }
    found.retain(|path| !path.is_empty());
    found
}

fn is_use(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or(scope, |(_, rest)| rest).trim_start(),
        None => rest.trim_start(),
    });
    line.starts_with("use ")
}

/// Expands imports, including groups.
fn imports(lines: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if !is_use(&lines[at]) {
            at += 1;
            continue;
        }
        let start = at;
        let mut text = String::new();
        while at < lines.len() {
            text += lines[at].trim();
            at += 1;
            if text.contains(';') {
                break;
            }
        }
        let tree = text.split_once("use ").map_or("", |(_, tree)| tree).trim_end_matches(';');
        let mut paths = Vec::new();
        expand(&[], tree, &mut paths);
        for mut path in paths {
            let last = path.pop().expect("a path has a segment");
            let (last, name) = match last.split_once(" as ") {
                Some((last, name)) => (last.to_owned(), name.to_owned()),
                None => (last.clone(), last),
            };
            let name = match last.as_str() {
                "self" => path.last().cloned().unwrap_or_default(),
                "*" => "*".to_owned(),
                _ => {
                    path.push(last);
                    name
                }
            };
            found.push(Import { name, path, line: start + 1 });
        }
    }
    found.retain(|import| !import.path.is_empty());
    found
}

/// Expands a tree of `use` paths after `prefix`.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let segments = tree.split("::").map(|segment| segment.trim().to_owned());
        paths.push(prefix.iter().cloned().chain(segments).collect());
        return;
    };
    let segments = tree[..open].split("::").map(|segment| segment.trim().to_owned());
    let prefix: Vec<String> = prefix.iter().cloned().chain(segments.filter(|s| !s.is_empty())).collect();
    let inside = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inside[start..at].trim().is_empty() {
                    expand(&prefix, &inside[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

impl Item {
    /// Parses the item that begins on this line, as formatted by rustfmt.
    fn read(line: usize, text: &str) -> Option<Self> {
        if text.starts_with(|c: char| c.is_whitespace() || "#})]".contains(c)) {
            return None;
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let words = text.split(|c| !is_name(c));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let kinds = ["struct", "enum", "union", "trait", "type", "const", "static", "fn", "macro_rules"];
        let qualifiers = ["pub", "crate", "super", "self", "in", "unsafe", "async", "extern", "const"];
        for (i, word) in words.iter().enumerate() {
            if *word == "impl" {
                let head = text.split('{').next().unwrap_or_default();
                let ty = head.split_once(" for ").map_or_else(|| after_generics(head), |(_, ty)| ty);
                let ty = ty.trim_start_matches(|c: char| !is_name(c));
                let name = ty.split(|c| !is_name(c)).next().unwrap_or_default().to_owned();
                return Some(Self { line, name, is_impl: true, is_enum: false });
            }
            let next = words.get(i + 1).copied().unwrap_or_default();
            // `const fn` is a function.
            if kinds.contains(word) && !kinds.contains(&next) && !qualifiers.contains(&next) {
                let name = if next == "mut" { words[i + 2] } else { next }.to_owned();
                return Some(Self { line, name, is_impl: false, is_enum: *word == "enum" });
            }
            if !qualifiers.contains(word) && !kinds.contains(word) {
                return None;
            }
        }
        None
    }
}

/// Returns the text after `impl` and its generic parameters.
fn after_generics(head: &str) -> &str {
    let rest = head.split_once("impl").map_or("", |(_, rest)| rest);
    if !rest.starts_with('<') {
        return rest;
    }
    let mut depth = 0;
    let end = rest.find(|c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    });
    end.map_or("", |end| &rest[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files: Vec<_> =
            files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        let graph = Graph::of("src/", &files);
        assert!(graph.unresolved.is_empty(), "{:?}", graph.unresolved);
        graph
    }

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        graph(files).cycles().into_iter().map(|(files, _)| files.into_iter().collect()).collect()
    }

    const PARENT: (&str, &str) = ("src/a/mod.rs", "mod b;\nmod c;\npub use b::B;\npub struct A;\n");

    #[test]
    fn sibling_files_that_import_each_other_are_a_cycle() {
        let b = ("src/a/b.rs", "use super::c::C;\npub struct B(C);\npub fn free() {}\n");
        let c = ("src/a/c.rs", "use super::b::free;\npub struct C;\nfn f() {\n    free();\n}\n");
        assert_eq!(cycles(&[PARENT, b, c]), [["src/a/b.rs", "src/a/c.rs"]]);
        // Also by way of the parent's re-exports.
        let b = ("src/a/b.rs", "pub struct B(super::c::C);\n");
        let c = ("src/a/c.rs", "use crate::a::B;\npub struct C;\n");
        assert_eq!(cycles(&[PARENT, b, c]), [["src/a/b.rs", "src/a/c.rs"]]);
        let text = "// use crate::a::B;\npub struct C;\nfn f() {\n    ('\"', \"a \\\"crate::a::B\")\n}\n";
        assert!(cycles(&[PARENT, b, ("src/a/c.rs", text)]).is_empty());
    }

    #[test]
    fn parent_and_child_are_a_cycle_only_by_an_item() {
        let b = ("src/a/b.rs", "use super::A;\npub struct B(A);\n");
        let names_child =
            ("src/a/mod.rs", "mod b;\npub use b::B;\npub struct A;\nfn all() {\n    b::B;\n}\n");
        assert!(cycles(&[names_child, b]).is_empty());
        let needs_child =
            ("src/a/mod.rs", "mod b;\npub struct A;\nimpl A {\n    fn b(&self) -> b::B {}\n}\n");
        assert_eq!(cycles(&[needs_child, b]), [["src/a/b.rs", "src/a/mod.rs"]]);
        let by_macro = ("src/a/mod.rs", "mod b;\nmake! {\n    struct A {\n        b: b::B,\n    }\n}\n");
        assert_eq!(cycles(&[by_macro, b]), [["src/a/b.rs", "src/a/mod.rs"]]);
    }

    #[test]
    fn imports_resolve_to_their_definitions() {
        let lib = ("src/lib.rs", "mod a;\nmod d;\npub use a::B;\n");
        let b = ("src/a/b.rs", "pub enum B {\n    A(u8),\n}\n");
        let c = ("src/a/c.rs", "");
        let d =
            ("src/d.rs", "use crate::{\n    B as Other,\n    a::{self, A},\n};\nfn f(_: Other, _: A) {}\n");
        let graph = graph(&[lib, PARENT, b, c, d]);
        let imports: BTreeSet<_> = graph.imports().map(|(from, to, _)| (from, to)).collect();
        let of_d = [("src/d.rs", "src/a/b.rs"), ("src/d.rs", "src/a/mod.rs")];
        let want =
            BTreeSet::from([of_d[0], of_d[1], ("src/lib.rs", "src/a/b.rs"), ("src/a/mod.rs", "src/a/b.rs")]);
        assert_eq!(imports, want);
        let of_d: Vec<_> = graph.sources.iter().filter(|(file, ..)| file == "src/d.rs").collect();
        let want = ["src/a/mod.rs", "src/lib.rs"].map(|from| ("src/d.rs".to_owned(), 1, from.to_owned()));
        assert_eq!(of_d, want.iter().collect::<Vec<_>>());
        let lost = Graph::of("src/", &[("src/e.rs".to_owned(), "use crate::gone::G;\n".to_owned())]);
        assert_eq!(lost.unresolved, ["src/e.rs:1: crate::gone::G"]);
    }
}
