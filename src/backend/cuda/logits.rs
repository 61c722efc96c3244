//! Final norm and output head, for the rows that request logits.

use super::adapters;
use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::linear::Input;
use super::linear::layers::Layers;
use super::op::{Op, Ops};
use super::params::{SOFT_CAP_THREADS, SoftCapParams};
use sterna_program::{Buf, Logits, Program, RowsOf};

/// The kernel of a soft cap that is applied after adapters.
pub const SOFT_CAP: KernelName = KernelName::single("soft_cap");

pub fn lower(s: &Logits, adapted: bool) -> Ops<'_> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Outputs };
    let layers = vec![(w, Place::Buf(logits))];
    let products = |soft_cap| Layers {
        stage: "logits",
        layers: layers.clone(),
        input,
        from: None,
        soft_cap,
        fused: None,
    };
    if !adapted {
        return vec![Box::new(products(soft_cap))];
    }
    let mut ops: Ops<'_> = vec![Box::new(products(None))];
    ops.extend(adapters::lower(layers.clone(), input));
    ops.extend(soft_cap.map(|cap| Box::new(SoftCap { logits, cap }) as Box<dyn Op>));
    ops
}

/// A soft cap of logits that have been written.
struct SoftCap {
    logits: Buf,
    cap: f32,
}

impl Op for SoftCap {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![SOFT_CAP])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { logits, cap } = *self;
        let cols = cx.p.buf_decl(logits).cols as u32;
        let params = SoftCapParams { step: cx.tables(), logits: cx.buf(logits), cols, cap };
        vec![Launch {
            kernel: cx.kernel(SOFT_CAP),
            grid: [cols.div_ceil(SOFT_CAP_THREADS), 1, cx.shape.outputs as u32],
            threads: SOFT_CAP_THREADS,
            shared_bytes: 0,
            params: words(&params),
        }]
    }
}
