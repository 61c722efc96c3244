//! Embedding of tokens, positions and token types: one thread per element.

use ggml_types::types;

use super::cx::{Cx, words};
use super::driver::{Launch, Limits};
use super::hadamard;
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{EMBED_THREADS, EmbedParams};
use super::weight::{NO_LINEAR, WeightFormat};
use sterna_program::{Embed, Program, Weight};

impl Op for &Embed {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let ty = p.weight_decl(self.table).ty.name();
        for (what, added) in [("positions", self.positions), ("token types", self.types)] {
            let Some(added) = added else { continue };
            let ty = p.weight_decl(added).ty;
            if self.basis.is_some() {
                return Err(format!("embed with {what} in a rotated basis"));
            }
            if !ty.is(&types::F32) {
                return Err(format!("embed with {what} of {}", ty.name()));
            }
        }
        let format = WeightFormat::of(p.weight_decl(self.table).ty).ok_or(format!("embed__{ty}"))?;
        Ok([kernel(format)].into_iter().chain(hadamard::basis_kernel(p, self.basis)?).collect())
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let back = self.basis.map(|basis| hadamard::back(cx, basis, self.x));
        [launch(cx, self)].into_iter().chain(back).collect()
    }
}

fn kernel(format: &WeightFormat) -> KernelName {
    KernelName::of("embed", format.kernels.name())
}

fn launch(cx: &Cx<'_>, s: &Embed) -> Launch {
    // The basis and adapters are handled by the next launches.
    let Embed { table, stride, first, basis: _, scale, positions, types, lora: _, x } = *s;
    let table = &cx.weights[table.0 as usize];
    let added = |w: Option<Weight>| w.map_or(NO_LINEAR, |w| cx.weights[w.0 as usize].params(1.0, None));
    let params = EmbedParams {
        step: cx.tables(),
        table: table.params(1.0, None),
        positions: added(positions),
        types: added(types),
        texts: cx.memory.step.texts(),
        picked: cx.memory.picks.newest(),
        x: cx.buf(x),
        cols: table.cols as u32,
        scale,
        stride,
        first,
    };
    let format = WeightFormat::of(table.ty).expect("it was uploaded");
    Launch {
        kernel: cx.kernel(kernel(format)),
        grid: [cx.shape.rows as u32, table.cols.div_ceil(EMBED_THREADS as usize) as u32, 1],
        threads: EMBED_THREADS,
        shared_bytes: 0,
        params: words(&params),
    }
}
