//! The log of a server: one line per event, as text or JSON.
//!
//! Events contain words of clients, such as names in a schema. A client must not begin a line of the log, nor
//! control the terminal that shows it, so control characters of all events are escaped here.

use std::fmt;

use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// A log that is written to `to`.
pub fn log<W>(to: W, level: Level, as_json: bool) -> Dispatch
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let log = tracing_subscriber::fmt().with_writer(to).with_max_level(level).with_ansi(false);
    // A log that cannot be written would be reported to stderr too, and panic there.
    let log = log.log_internal_errors(false);
    match as_json {
        false => log.with_target(false).map_event_format(|text| OneLine(text, text_escape)).finish().into(),
        true => {
            log.json().flatten_event(true).map_event_format(|json| OneLine(json, json_escape)).finish().into()
        }
    }
}

/// A format of events, and the escape for characters that could end a line or control a terminal.
struct OneLine<F>(F, fn(char) -> String);

fn text_escape(c: char) -> String {
    c.escape_debug().to_string()
}

/// The characters are all in strings of JSON.
fn json_escape(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}

/// True for control characters, line ends, and characters that change the order in which others are shown.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl<S, N, F> FormatEvent<S, N> for OneLine<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        for c in line.trim_end_matches('\n').chars() {
            match is_control(c) {
                true => writer.write_str(&(self.1)(c))?,
                false => writer.write_char(c)?,
            }
        }
        writer.write_char('\n')
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log of one event with words of a client.
    fn logged(word: &str, as_json: bool) -> String {
        let lines = Lines::default();
        let to = lines.clone();
        let dispatch = log(move || to.clone(), Level::INFO, as_json);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::warn!(field = word, shown = %word, "`{word}` is left out");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn words_of_clients_begin_no_line() {
        let words = [
            "a\n2026-01-01T00:00:00Z  INFO forged",
            "a\r\nb",
            "\u{1b}[2J",
            "\u{9b}2J\u{7f}",
            "\u{85}\u{2028}\u{202e}",
        ];
        for word in words {
            for as_json in [false, true] {
                let line = logged(word, as_json);
                let line = line.strip_suffix('\n').unwrap();
                assert!(!line.contains(is_control), "{line:?}");
            }
            let json: serde_json::Value = serde_json::from_str(&logged(word, true)).unwrap();
            assert_eq!(json["message"], format!("`{word}` is left out"));
            assert_eq!(json["field"], word);
        }
        let plain = "é 漢 \"quoted\" C:\\models";
        assert!(logged(plain, false).contains(&format!("`{plain}` is left out")));
    }
}
