//! Alternating updates (AltUp): prediction and correction of the residual streams, in which a thread takes
//! some columns of a row of all streams; equal magnitudes, and the cutoff of a gate, in which a block takes a
//! row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{
    ALTUP_ROW_THREADS, ALTUP_THREADS, AltUpCorrectParams, AltUpPredictParams, CutParams, RescaleParams,
};
use sterna_program::{AltUpCorrect, AltUpPredict, Program, Rescale};

const PREDICT: KernelName = KernelName::single("altup_predict");
const CORRECT: KernelName = KernelName::single("altup_correct");
const RESCALE: KernelName = KernelName::single("rescale");
const CUT: KernelName = KernelName::single("cut");

pub const KERNELS: [KernelName; 4] = [PREDICT, CORRECT, RESCALE, CUT];

impl Op for &AltUpPredict {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![PREDICT])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let AltUpPredict { c, w, x, active, out, y } = **self;
        let cols = cx.p.buf_decl(y).cols;
        let params = AltUpPredictParams {
            step: cx.tables(),
            c: cx.buf(c),
            w: cx.weights[w.0 as usize].data,
            x: x.map(|x| cx.buf(x)),
            out: out.map(|out| cx.buf(out)),
            y: cx.buf(y),
            cols: cols as u32,
            active: active as u32,
        };
        vec![of_columns(cx, PREDICT, cols, words(&params))]
    }
}

impl Op for &AltUpCorrect {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![CORRECT])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = **self;
        let cols = cx.p.buf_decl(y).cols;
        let [w, factors] = [w, factors].map(|w| cx.weights[w.0 as usize].data);
        let params = AltUpCorrectParams {
            step: cx.tables(),
            c: cx.buf(c),
            w,
            y: cx.buf(y),
            predicted: predicted.map(|predicted| cx.buf(predicted)),
            x: x.map(|x| cx.buf(x)),
            scaled: cx.buf(scaled),
            factors,
            cols: cols as u32,
            active: active as u32,
        };
        vec![of_columns(cx, CORRECT, cols, words(&params))]
    }
}

impl Op for &Rescale {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![RESCALE])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Rescale { like, y, floor, mean } = **self;
        let params = RescaleParams {
            step: cx.tables(),
            like: cx.buf(like),
            y: y.map(|y| cx.buf(y)),
            mean: mean.map_or(0, |mean| cx.buf(mean)),
            cols: cx.p.buf_decl(like).cols as u32,
            floor,
        };
        vec![of_rows(cx, RESCALE, words(&params))]
    }
}

/// Elements of a gate, `cols` per row, above the mean of the row and `cutoff` standard deviations; the others
/// become 0.
pub struct Cut {
    pub gate: Place,
    pub cols: usize,
    pub cutoff: f32,
}

impl Op for Cut {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![CUT])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { gate, cols, cutoff } = *self;
        let params = CutParams { step: cx.tables(), gate: cx.address(gate), cols: cols as u32, cutoff };
        vec![of_rows(cx, CUT, words(&params))]
    }
}

/// The launch of a kernel whose threads take some columns of a row.
fn of_columns(cx: &Cx<'_>, kernel: KernelName, cols: usize, params: Vec<u64>) -> Launch {
    Launch {
        kernel: cx.kernel(kernel),
        grid: [cols.div_ceil(ALTUP_THREADS as usize) as u32, 1, cx.shape.rows as u32],
        threads: ALTUP_THREADS,
        shared_bytes: 0,
        params,
    }
}

/// The launch of a kernel whose blocks take a row.
fn of_rows(cx: &Cx<'_>, kernel: KernelName, params: Vec<u64>) -> Launch {
    Launch {
        kernel: cx.kernel(kernel),
        grid: [cx.shape.rows as u32, 1, 1],
        threads: ALTUP_ROW_THREADS,
        shared_bytes: 0,
        params,
    }
}
