//! Convolution with gates, row by row.

use sterna::program::{Act, Buf, Conv, Step};

use super::value::SUM;
use super::{Near, Oracle, activated};

impl Oracle<'_> {
    pub(super) fn conv(&mut self, s: &Conv, step: &Step<'_>) {
        let Conv { u, before, after, state, w, bias, silu, out } = *s;
        let taps = self.p.state_decl(state).taps;
        self.each_run(state.0 as usize, step, |oracle, state, row| {
            let gated = |gate: Option<Buf>, x: Vec<Near>| match gate {
                None => x,
                Some(gate) => {
                    x.into_iter().zip(oracle.row(gate, row)).map(|(x, gate)| x.times(*gate)).collect()
                }
            };
            let sums = state.convolve(
                gated(before, oracle.row(u, row).to_vec()),
                &oracle.weights[w.0 as usize],
                taps,
            );
            let biased = sums.into_iter().enumerate().map(|(channel, sum)| match bias {
                None => sum,
                Some(bias) => {
                    let bias = oracle.weights[bias.0 as usize][channel];
                    // The bias may be the first term of the sum.
                    Near { v: sum.v + bias, err: sum.err + SUM * bias.abs() }
                }
            });
            let act = |sum: Near| if silu { activated(Act::Silu, sum) } else { sum };
            let y = gated(after, biased.map(act).collect());
            oracle.set_row(out, row, &y);
        });
    }
}
