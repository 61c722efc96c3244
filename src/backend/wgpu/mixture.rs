//! The layers and slots of a mixture of experts.

use sterna_program::{Expert, Experts, Linear, Program};

/// The layers of a mixture's experts: those of the gate, if they have one, of up and of down.
pub fn layers(s: &Experts) -> Vec<Vec<&Linear>> {
    let of = |layer: fn(&Expert) -> Option<&Linear>| s.experts.iter().filter_map(layer).collect::<Vec<_>>();
    let gates = of(|expert| expert.gate.as_ref());
    let others = [of(|expert| Some(&expert.up)), of(|expert| Some(&expert.down))];
    [gates].into_iter().filter(|gates| !gates.is_empty()).chain(others).collect()
}

/// Rows of a step times the experts of each.
pub fn slots(p: &Program, s: &Experts) -> usize {
    p.limits.rows.saturating_mul(s.n_used)
}
