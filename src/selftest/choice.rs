//! The choice between sets of kernels of a device ([`Backend::other_kernels`]): each set is compared with the
//! CPU and timed against the usual kernels, over layers of a model.

use std::fmt;

use super::{Error, Line, compare, differs, load, n_tokens, of_each_kind, pages};
use sterna_backend::{Backend, OtherKernels};
use sterna_host::clock::Instant;
use sterna_model::Model;
use sterna_program::{Buf, Row, Sampling, StateSlots, Step};

/// Runs of a step per measurement, and measurements, of which the shortest counts; fewer if they would take
/// longer than [`MOST_US`].
const RUNS: u32 = 8;
const TIMES: u32 = 5;
const MOST_US: f64 = 200_000.0;

/// The choice between a set of kernels and the usual ones, for a model.
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
/// use them. One choice per set of other kernels for these layers, with the usual ones for the other sets.
///
/// # Errors
/// If the device fails.
pub fn choose(layers: &Model, backend: &mut dyn Backend) -> Result<Vec<Choice>, Error> {
    let sets = backend.other_kernels(&layers.program);
    let mut choices = Vec::with_capacity(sets.len());
    for set in &sets {
        choices.push(choose_between(layers, backend, *set)?);
        backend.use_other_kernels(*set, false);
    }
    sets.iter().zip(&choices).for_each(|(set, choice)| backend.use_other_kernels(*set, choice.taken));
    Ok(choices)
}

/// Chooses between a set of kernels and the usual ones.
fn choose_between(layers: &Model, backend: &mut dyn Backend, set: OtherKernels) -> Result<Choice, Error> {
    let choice = |taken, why| Choice { name: set.name.to_owned(), taken, why };
    backend.use_other_kernels(set, true);
    let mut cpu = sterna_backend::open("cpu", sterna_backend::physical_cores())?;
    let stages = of_each_kind(&layers.program, backend.n_devices());
    let lines = compare((layers, backend), (layers, &mut *cpu), &stages, set.rows)?;
    if let Some(line) = lines.iter().find(|line| !Line::is_right(line)) {
        return Ok(choice(false, differs(line, "of this model")));
    }
    let others = time(layers, backend, set.rows)?;
    backend.use_other_kernels(set, false);
    let usual = time(layers, backend, set.rows)?;
    let [of_others, of_usual] = [&others, &usual].map(|times| times.iter().sum::<f64>());
    let each = set.rows.iter().zip(others.iter().zip(&usual));
    let each = each.map(|(rows, (other, usual))| format!("{rows} rows {other:.0} us, otherwise {usual:.0}"));
    Ok(choice(of_others < of_usual, each.collect::<Vec<_>>().join("; ")))
}

/// Microseconds of a step of each number of rows.
fn time(layers: &Model, backend: &mut dyn Backend, rows: &[usize]) -> Result<Vec<f64>, Error> {
    let program = &layers.program;
    let weights = load(layers, backend)?;
    let e = backend.compile(program, &weights)?;
    let mut pages = pages(program);
    if program.limits.states > 0 {
        pages.set_state(0, Some(StateSlots { from: None, to: 0 }));
    }
    let (picks, n_tokens) = (program.sample().is_some(), n_tokens(program) as u32);
    let mut of_steps = vec![0.0; rows.len()];
    for (&n, of_step) in rows.iter().zip(&mut of_steps) {
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
