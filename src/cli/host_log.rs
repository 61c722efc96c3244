//! Passes log messages and the progress of downloads to the program that this code is a part of.

use std::fmt::{Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub use tracing::Level;

/// Target of events that report the progress of a download.
pub const PROGRESS: &str = "sterna::progress";

/// The log of a host program.
pub trait HostLog: Send + Sync + 'static {
    /// True if messages of this level are wanted.
    fn wants(&self, level: Level) -> bool;
    /// Takes a message of the module `target`.
    fn log(&self, level: Level, target: &str, message: String);
    /// Takes the progress of a file: bytes downloaded so far, and in total.
    fn progress(&self, file: String, done: u64, total: u64);
}

/// Passes the messages of this process's engines to `log`, for as long as the process runs.
pub fn log_to(log: impl HostLog) {
    // A program that has set its own subscriber keeps it.
    let _ = tracing::subscriber::set_global_default(Forward(log));
}

struct Forward<L>(L);

impl<L: HostLog> Subscriber for Forward<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("sterna")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Self(log) = self;
        let (metadata, mut fields) = (event.metadata(), Fields::default());
        if metadata.target() == PROGRESS {
            event.record(&mut fields);
            return log.progress(fields.file, fields.done, fields.total);
        }
        if log.wants(*metadata.level()) {
            event.record(&mut fields);
            log.log(*metadata.level(), metadata.target(), fields.message + &fields.others);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// ` name=value` per further field.
    others: String,
    file: String,
    done: u64,
    total: u64,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "file" => value.clone_into(&mut self.file),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "done" => self.done = value,
            "total" => self.total = value,
            _ => self.record_debug(field, &value),
        }
    }
}
