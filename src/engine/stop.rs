//! Stop strings in streamed text: they may span pieces, and no part of one is shown.

/// Holds back the end of a stream while it may still become a stop string.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// True if the stop string that was found is shown.
    shown: bool,
    held: String,
}

impl StopStrings {
    /// Watches for `stops`; a stop string that is found is part of the text if `shown`. Ignores empty
    /// strings.
    pub fn new(stops: &[String], shown: bool) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, shown, held: String::new() }
    }

    /// Takes the next piece; returns the text to show now, and true if a stop string was found. Text after a
    /// stop string is dropped with it.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let met = |stop: &String| Some((self.held.find(stop.as_str())?, stop.len()));
        // Of two that begin at the same place, the shorter one is found first.
        if let Some((at, len)) = self.stops.iter().filter_map(met).min() {
            self.held.truncate(if self.shown { at + len } else { at });
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Returns the text that is still held back, at the end of the stream.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Stop strings that begin with a control token and continue with text, if control tokens are not shown:
/// holds back the text after such a token while it may still become a stop string.
#[derive(Clone, Debug, Default)]
pub struct ControlStops {
    /// Control tokens, and the text after each.
    stops: Vec<(u32, String)>,
    /// The last token, if it is one of these and all text after it may still become a stop string.
    begun: Option<u32>,
    held: String,
}

impl ControlStops {
    /// Watches for texts after control tokens.
    pub fn new(stops: Vec<(u32, String)>) -> Self {
        Self { stops, begun: None, held: String::new() }
    }

    /// Takes a control token that is not shown; returns the text that was held back.
    pub fn control(&mut self, id: u32) -> String {
        self.begun = self.stops.iter().any(|(token, _)| *token == id).then_some(id);
        std::mem::take(&mut self.held)
    }

    /// Takes a piece of text; returns the text to show now. If a stop string was found, returns its text
    /// after the control token as `Err`, and drops it with everything that follows.
    pub fn push(&mut self, piece: &str) -> Result<String, String> {
        let Some(begun) = self.begun else { return Ok(piece.to_owned()) };
        self.held.push_str(piece);
        let mut texts = self.stops.iter().filter(|(token, _)| *token == begun).map(|(_, text)| text);
        if let Some(met) = texts.clone().filter(|text| self.held.starts_with(text.as_str())).min() {
            return Err(met.clone());
        }
        if texts.any(|text| text.starts_with(&self.held)) {
            return Ok(String::new());
        }
        Ok(self.flush())
    }

    /// The control token at the beginning of the stop string that was found.
    pub fn begun(&self) -> Option<u32> {
        self.begun
    }

    /// Returns the text that is still held back, at the end of the stream.
    pub fn flush(&mut self) -> String {
        self.begun = None;
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest end of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| stop.is_char_boundary(n) && text.as_bytes().ends_with(&stop.as_bytes()[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut watch = StopStrings::new(&stops, false);
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = watch.push(piece);
            out += &text;
            if stopped {
                return (out, true);
            }
        }
        out += &watch.flush();
        (out, false)
    }

    #[test]
    fn a_stop_string_that_spans_pieces_is_not_shown() {
        assert_eq!(shown(&["User:"], &["Hello U", "se", "r", ": more"]), ("Hello ".into(), true));
    }

    #[test]
    fn what_only_began_like_a_stop_string_is_shown_after_all() {
        assert_eq!(shown(&["User:"], &["Hello U", "se", "ful"]), ("Hello Useful".into(), false));
        assert_eq!(shown(&["User:"], &["Hello Use"]), ("Hello Use".into(), false));
    }

    #[test]
    fn overlapping_beginnings_and_the_earliest_of_several() {
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b", "c"]), ("a".into(), true));
        assert_eq!(shown(&["world", "lo"], &["hello world"]), ("hel".into(), true));
        assert_eq!(shown(&["\n\n", "\nUser"], &["a\n", "b\n", "Us", "er"]), ("a\nb".into(), true));
    }

    #[test]
    fn characters_of_several_bytes() {
        assert_eq!(shown(&["→→"], &["a→", "b", "→", "→"]), ("a→b".into(), true));
        assert_eq!(shown(&["é"], &["caf", "é au lait"]), ("caf".into(), true));
        assert_eq!(shown(&["è"], &["café"]), ("café".into(), false));
    }

    #[test]
    fn the_stop_string_that_was_met_may_be_shown() {
        let mut watch = StopStrings::new(&["ends".into(), "end".into()], true);
        assert_eq!(watch.push("the en"), ("the ".into(), false));
        assert_eq!(watch.push("ds here"), ("end".into(), true));
    }

    #[test]
    fn text_after_a_control_token_is_held_back_until_it_is_a_stop() {
        let watch = || ControlStops::new(vec![(7, "\nUser".into()), (7, "\n\n".into()), (8, "x".into())]);
        let mut plain = watch();
        assert_eq!(plain.push("\nUser"), Ok("\nUser".into()));
        let mut met = watch();
        assert_eq!(
            (met.control(7), met.push("\n"), met.push("Us")),
            (String::new(), Ok("".into()), Ok("".into()))
        );
        assert_eq!(met.push("er: Hi"), Err("\nUser".into()));
        let mut other = watch();
        assert_eq!((other.control(7), other.push("\nU")), (String::new(), Ok("".into())));
        assert_eq!((other.push("nit"), other.push("\n\n")), (Ok("\nUnit".into()), Ok("\n\n".into())));
        let mut again = watch();
        assert_eq!((again.control(7), again.push("\n")), (String::new(), Ok("".into())));
        assert_eq!((again.control(9), again.push("x")), ("\n".into(), Ok("x".into())));
        assert_eq!((again.control(8), again.flush()), (String::new(), String::new()));
    }

    #[test]
    fn no_stop_strings_hold_nothing_back() {
        let mut watch = StopStrings::new(&[String::new()], false);
        assert_eq!(watch.push("abc"), ("abc".into(), false));
        assert_eq!(watch.flush(), "");
    }
}
