//! Weight types on CUDA: whole models of a type, or of two that a file mixes, beside the CPU; and several
//! rows at once beside the same rows one by one.

use sterna::backend::cpu::Cpu;
use sterna::program::{ActQuant, ProjAdd, Row, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, limits, rows, shuffled_pages, simt, ty};

use super::stage_diff::{first_difference, prompt};

/// Types of one set of kernels each, with one that shares its launches or has others.
const MIXES: [(&str, Option<&str>); 8] = [
    ("q4_k", Some("q6_k")),
    ("q5_k", Some("q4_k")),
    ("q5_1", None),
    ("q5_0", Some("q4_1")),
    ("q3_k", Some("q2_k")),
    ("q2_0", Some("q1_0")),
    ("q1_0", None),
    ("iq4_xs", Some("mxfp4")),
];

#[test]
fn models_of_every_set_of_kernels_compute_what_the_cpu_does() {
    for (weights, other) in MIXES {
        let model = Model { weights, other, ffn_dim: 512, kv: "f32", ..SMALL };
        let (case, _) = model.case("a small model", limits(20, 1, 1));
        for n in [1, 5, 20] {
            let Some(mut simt) = simt(1) else { return };
            let mut cpu = Cpu::new(2).expect("threads");
            let mut both = [case.on(&mut cpu), case.on(&mut *simt)];
            // Products on tensor cores keep 22 bits of an activation.
            let found = first_difference(&case, &shuffled_pages(1, 1), &prompt(n), 1e-5, &mut both);
            assert_eq!(found, None, "{weights} and {other:?}, {n} tokens");
        }
    }
}

/// Fewer rows than tensor cores are worth: each has the sums that it has alone.
#[test]
fn a_row_among_several_has_the_bits_that_it_has_alone() {
    let (n_rows, outputs, cols) = (5, 40, 512);
    for name in ["q4_k", "q5_k", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q2_0", "q1_0", "iq4_nl", "iq4_xs"] {
        let mut case = Case::new(name, limits(n_rows, 1, 1));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear_with_bias(ty(name), outputs, cols, ActQuant::None);
        case.p.push("proj_add", ProjAdd { y, norm: None, w, post: None, x });
        let inputs = case.numbers.values(n_rows * cols);
        let pages = shuffled_pages(1, 1);
        let Some(mut backend) = simt(1) else { return };
        let mut running = case.on(&mut *backend);
        let mut products = |rows: &[Row], inputs: &[f32]| {
            running.write(y, inputs);
            running.write(x, &vec![0.0; rows.len() * outputs]);
            running.run(0..1, &Step { rows, pages: &pages, sampling: &[] });
            running.read(x, rows.len())
        };
        let together = products(&rows(0, 0..n_rows as u32), &inputs);
        for (input, together) in inputs.chunks(cols).zip(together.chunks(outputs)) {
            assert_eq!(products(&rows(0, 0..1), input), together, "{name}");
        }
    }
}
