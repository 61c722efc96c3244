//! Watches the steps of engines. If a step hangs, its thread cannot be recovered, so the server fails, for
//! its supervisor to restart it.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::app::App;
use super::error::ServeError;
use super::status::Phase;
use sterna_engine::Engine;

/// Interval between checks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time for streams to be ended before [`ServeOptions::on_hang`] is called.
///
/// [`ServeOptions::on_hang`]: super::options::ServeOptions::on_hang
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Minimum time limit of a step.
const LEAST: Duration = Duration::from_secs(30);
/// Bytes and multiplications per second of a machine slower than any in use. The largest step may take as
/// long as on that machine.
const RATES: (f64, f64) = (0.5e9, 2e9);

/// Time limit of a step of `engine`: half a minute, plus the time of its largest step on a very slow machine.
pub fn step_time(engine: &Engine) -> Duration {
    let cost = engine.most_cost();
    LEAST + Duration::from_secs_f64(cost.bytes() as f64 / RATES.0 + cost.macs as f64 / RATES.1)
}

/// Starts to watch the engines of `app`, until it is dropped.
///
/// # Errors
/// The system cannot start a thread.
pub fn start(app: &Arc<App>) -> io::Result<()> {
    let app = Arc::downgrade(app);
    let watch = move || {
        while look(&app) {
            std::thread::sleep(INTERVAL);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).map(|_| ())
}

/// Checks once. `false` if there is nothing left to watch.
fn look(app: &Weak<App>) -> bool {
    let Some(app) = app.upgrade().filter(|app| app.life.phase() != Phase::Failed) else { return false };
    let hung = app.models.alive().into_iter().find_map(|instance| instance.status.hangs());
    let Some(limit) = hung else { return true };
    let failure = ServeError::Hung(limit);
    tracing::error!("{failure}");
    app.fail(failure);
    if let Some(on_hang) = app.options.on_hang {
        std::thread::sleep(LAST_WORDS);
        on_hang();
    }
    false
}
