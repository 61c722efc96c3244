//! Watches the steps of engines: one that does not end is worth no more waiting. Nothing can be done for the
//! thread that it runs on, so the server fails, for its supervisor to start it again.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::app::App;
use super::error::ServeError;
use super::status::Phase;
use sterna_engine::Engine;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time for streams to say that they end here, before [`ServeOptions::on_hang`] is called.
///
/// [`ServeOptions::on_hang`]: super::options::ServeOptions::on_hang
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Least limit of a step.
const LEAST: Duration = Duration::from_secs(30);
/// Bytes and multiplications a second of machines slower than any in use. A step of the largest size
/// may take as long as there.
const RATES: (f64, f64) = (0.5e9, 2e9);

/// Longest step of `engine`: half a minute, and what the costs of its largest step take on a very
/// slow machine.
pub fn step_time(engine: &Engine) -> Duration {
    let cost = engine.most_cost();
    LEAST + Duration::from_secs_f64(cost.bytes() as f64 / RATES.0 + cost.macs as f64 / RATES.1)
}

/// Begins to watch the engines of `app`, until it is gone.
///
/// # Errors
/// If the system has no thread for it.
pub fn start(app: &Arc<App>) -> io::Result<()> {
    let app = Arc::downgrade(app);
    let watch = move || {
        while look(&app) {
            std::thread::sleep(INTERVAL);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).map(|_| ())
}

/// Looks once. `false` if there is nothing left to watch.
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
