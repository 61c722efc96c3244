//! The choice between two sets of kernels of a device ([`Backend::other_kernels`]): the other ones are
//! compared with the CPU and timed against the usual ones, over layers of a model.

use std::fmt;

use super::{Error, Line, compare, differs, load, n_tokens, of_each_kind, pages};
use sterna_backend::Backend;
use sterna_host::clock::Instant;
use sterna_model::Model;
use sterna_program::{Buf, Row, Sampling, StateSlots, Step};

/// Rows of the steps that are compared and timed: one kernel each. They fit in the pages of
/// [`LAYER_STEPS`](super::LAYER_STEPS).
const ROWS: [usize; 4] = [8, 16, 32, 64];

/// Runs of a step per measurement, and measurements, of which the shortest counts; fewer if they would take
/// longer than [`MOST_US`].
const RUNS: u32 = 8;
const TIMES: u32 = 5;
const MOST_US: f64 = 200_000.0;

/// The kernels that a device uses for a model, of two sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the other kernels.
    pub name: String,
    /// True if these are used.
    pub taken: bool,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = if self.taken { "used" } else { "not used" };
        write!(f, "kernels of {} {taken}: {}", self.name, self.why)
    }
}

/// Chooses the kernels for a model, of which `layers` contains one layer of each kind, and makes the backend
/// use them. `None` if it has no other kernels for these layers.
///
/// # Errors
/// If the device fails.
pub fn choose(layers: &Model, backend: &mut dyn Backend) -> Result<Option<Choice>, Error> {
    let Some(name) = backend.other_kernels(&layers.program) else { return Ok(None) };
    let choice = |taken, why| Some(Choice { name: name.to_owned(), taken, why });
    backend.use_other_kernels(true);
    let mut cpu = sterna_backend::open("cpu", sterna_backend::physical_cores())?;
    let stages = of_each_kind(&layers.program, backend.n_devices());
    let lines = compare((layers, backend), (layers, &mut *cpu), &stages, &ROWS)?;
    if let Some(line) = lines.iter().find(|line| !Line::is_right(line)) {
        backend.use_other_kernels(false);
        return Ok(choice(false, differs(line, "of this model")));
    }
    let others = time(layers, backend)?;
    backend.use_other_kernels(false);
    let usual = time(layers, backend)?;
    let [of_others, of_usual] = [others, usual].map(|times| times.iter().sum::<f64>());
    let taken = of_others < of_usual;
    backend.use_other_kernels(taken);
    let each = ROWS.iter().zip(others.iter().zip(&usual));
    let each = each.map(|(rows, (other, usual))| format!("{rows} rows {other:.0} us, otherwise {usual:.0}"));
    Ok(choice(taken, each.collect::<Vec<_>>().join("; ")))
}

/// Microseconds of a step of each size of [`ROWS`].
fn time(layers: &Model, backend: &mut dyn Backend) -> Result<[f64; ROWS.len()], Error> {
    let program = &layers.program;
    let weights = load(layers, backend)?;
    let e = backend.compile(program, &weights)?;
    let mut pages = pages(program);
    if program.limits.states > 0 {
        pages.set_state(0, Some(StateSlots { from: None, to: 0 }));
    }
    let (picks, n_tokens) = (program.sample().is_some(), n_tokens(program) as u32);
    let mut of_steps = [0.0; ROWS.len()];
    for (n, of_step) in ROWS.into_iter().zip(&mut of_steps) {
        let rows: Vec<Row> =
            (0..n as u32).map(|pos| Row { token: pos * 37 % n_tokens, pos, seq: 0, logits: picks }).collect();
        let sampling = vec![Some(Sampling::GREEDY); if picks { n } else { 0 }];
        let step = Step { rows: &rows, pages: &pages, sampling: &sampling, changes: &[] };
        let mut run = |times: u32| -> Result<f64, Error> {
            let start = Instant::now();
            (0..times).try_for_each(|_| backend.run(e, &step))?;
            // Waits for all of them.
            backend.read(e, Buf(0), 0, &mut vec![0.0; program.bufs[0].cols])?;
            Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
        };
        // The first run does work that is done once.
        run(1)?;
        *of_step = run(1)?;
        for _ in 0..TIMES {
            if *of_step * f64::from(TIMES * RUNS) < MOST_US {
                *of_step = of_step.min(run(RUNS)?);
            }
        }
    }
    Ok(of_steps)
}
