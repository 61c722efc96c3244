//! Alternating updates (AltUp): there are no kernels, and the plan rejects them by name.

use sterna_program::{AltUpCorrect, AltUpPredict, Rescale};

pub const MISSING: &str = "altup: models with AltUp (Gemma 3n) run only on the CPU (backend cpu)";

pub fn missing_predict(s: &AltUpPredict) -> Vec<String> {
    let AltUpPredict { c: _, w: _, x: _, active: _, out: _, y: _ } = s;
    vec![MISSING.to_owned()]
}

pub fn missing_correct(s: &AltUpCorrect) -> Vec<String> {
    let AltUpCorrect { c: _, w: _, y: _, predicted: _, active: _, x: _, factors: _, scaled: _ } = s;
    vec![MISSING.to_owned()]
}

pub fn missing_rescale(s: &Rescale) -> Vec<String> {
    let Rescale { like: _, y: _, floor: _, mean: _ } = s;
    vec![MISSING.to_owned()]
}
