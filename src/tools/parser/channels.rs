//! Messages of gpt-oss, which consist of parts in channels: headers, and the marks between parts.

use super::super::head::{BEGINNERS, Header, Part, header};
use super::super::json::Object;
use super::{Delta, Parser, Stage, content};

impl Parser {
    pub(super) fn header(&mut self, out: &mut Vec<Delta>, at_end: bool) -> bool {
        let is_tool = |name: &str| self.options.tools.iter().any(|tool| tool.name == name);
        let (bytes, part) = match header(self.rest(), is_tool) {
            Header::More if !at_end => return false,
            // Drop a truncated header.
            Header::More if self.rest().starts_with("<|") => (self.rest().len(), None),
            Header::More => (0, None),
            Header::Part(bytes, part) => (bytes, Some(part)),
            Header::None => (0, None),
        };
        let passed = self.pass(bytes);
        self.stage = match part {
            Some(Part::Call(name)) => {
                self.begun_with.clear();
                Stage::Call(Box::new(Object::arguments_of(name, None)), false)
            }
            Some(Part::Thoughts) if self.options.thoughts.is_some() => Stage::Thoughts,
            Some(_) if self.options.thoughts.is_none() => {
                content(out, &passed);
                Stage::Text
            }
            Some(_) => Stage::Text,
            // A header that is too long is text.
            None => {
                let mark = self.pass(
                    BEGINNERS
                        .iter()
                        .find(|mark| self.rest().starts_with(**mark))
                        .map_or(0, |mark| mark.len()),
                );
                content(out, &mark);
                Stage::Text
            }
        };
        !self.rest().is_empty()
    }

    /// Ends a part in a channel; a mark that begins the next part belongs to its header.
    pub(super) fn end_part(&mut self, mark: &str) {
        if !BEGINNERS.contains(&mark) {
            self.pass(mark.len());
        }
        self.space = (if self.has_reasoned { "\n\n" } else { "" }).to_owned();
        self.stage = Stage::Header;
    }
}
