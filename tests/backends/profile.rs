//! Stage times of the CUDA backend.

use sterna::backend::Backend;
use sterna::backend::cuda::driver::{Driver, simt::Simt};
use sterna::backend::cuda::{Cuda, Profiling, split::Split};
use sterna::program::{Row, Step};
use support::case::model::SMALL;
use support::case::{limits, shuffled_pages};

fn card() -> Box<dyn Driver> {
    Box::new(Simt::new(2, 0))
}

/// Each stage of each run is timed once, by timestamps and by events, on one card and on two, without
/// changing the results.
#[test]
fn stage_timing_does_not_change_results() {
    let (case, logits) = SMALL.case("a small model", limits(9, 1, 1));
    let pages = shuffled_pages(1, 1);
    let two = || Split::on(vec![card(), card()], None).expect("cards that are connected");
    let (stamps, events) = (Some(Profiling::Stamps), Some(Profiling::Events));
    let backends: [(Box<dyn Backend>, bool); 6] = [
        (Box::new(Cuda::on(card())), false),
        (Box::new(Cuda::on(card()).profiled(stamps)), true),
        (Box::new(Cuda::on(card()).profiled(events)), true),
        (Box::new(two()), false),
        (Box::new(two().profiled(stamps)), true),
        (Box::new(two().profiled(events)), true),
    ];
    let mut rows_of_logits = Vec::new();
    for (mut backend, is_timed) in backends {
        let mut running = case.on(&mut *backend);
        let exec = running.exec;
        let mut pos = 0;
        for n in [9, 1, 1] {
            let row = |pos: u32| Row { token: 31 * pos % 300, pos, seq: 0, logits: pos + 1 == 11 };
            let rows: Vec<Row> = (pos..pos + n).map(row).collect();
            let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
            running.backend.run(exec, &step).expect("a run");
            pos += n;
        }
        rows_of_logits.push(running.read(logits, 1));
        let times = running.backend.stage_times(exec);
        assert_eq!(times.is_some(), is_timed);
        let Some(times) = times else { continue };
        assert_eq!(times.len(), case.p.stages.len());
        for ((label, _), time) in case.p.stages.iter().zip(&times) {
            assert_eq!(time.calls, 3, "{label}");
            assert!(time.nanoseconds > 0, "{label}");
        }
    }
    assert!(rows_of_logits.iter().all(|row| *row == rows_of_logits[0]));
}
