//! Multi-head latent attention: the products, RoPE and KV write, and the projections of each head's vector by
//! a matrix of its own, which the head's blocks find in a table.

use super::adapters;
use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::kv;
use super::linear::geometry::{self, WARPS, Work};
use super::linear::layers::Layers;
use super::linear::matmul::Matmul;
use super::linear::shared::shared_bytes;
use super::linear::{self, Input};
use super::mixture::shares;
use super::op::{Op, Ops};
use super::params::{
    HeadProjParams, InputParams, LATENT_IN_THREADS, LATENT_MAX_RANK, LINEAR_THREADS, LatentInParams,
};
use super::weight::{Products, WeightFormat};
use crate::Macs;
use sterna_program::{HeadProj, LatentIn, Linear, Program, RowsOf};

/// The kernel that follows the products.
pub const KERNEL: KernelName = KernelName::single("latent_in");

/// The stage of heads with a matrix each, in the names of its kernels.
pub const HEADS: &str = "head_proj";

/// RoPE of queries and keys, the norm of latent vectors, and the KV write.
struct Finish<'a> {
    s: &'a LatentIn,
    keys: Place,
    parts: Place,
}

/// The products of the heads' parts of each row with a matrix each. Parts and outputs are these numbers of
/// elements apart.
struct Heads<'a> {
    layers: &'a [Linear],
    x: Place,
    x_pitch: usize,
    out: Place,
    out_pitch: usize,
}

pub fn lower<'a>(p: &Program, s: &'a LatentIn, adapted: bool) -> Ops<'a> {
    let LatentIn { x, ref norm, ref q_latent, ref wq, ref wk, ref wkv, kv_norm: _, rope: _, kv, q } = *s;
    let (head_dim, part) = (p.kv_decl(kv).head_dim, p.weight_decl(wq.w).rows / wk.len());
    let (keys, parts) = (Place::Kept(0), Place::Kept(head_dim));
    let latent = Place::Kept(head_dim + p.weight_decl(wq.w).rows);
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let first = match q_latent {
        Some((wa, _)) => (wa, latent),
        None => (wq, parts),
    };
    let of =
        |layers, input, from| Layers { stage: "latent_in", layers, input, from, soft_cap: None, fused: None };
    // The plan rejects pairs of the heads' matrices.
    let of_adapters = |layers: Vec<(&'a Linear, Place)>, input, from| match adapted {
        true => adapters::lower_from(layers, input, from),
        false => Vec::new(),
    };
    let layers = vec![first, (wkv, keys)];
    let mut ops: Ops<'a> = vec![Box::new(of(layers.clone(), input, None))];
    ops.extend(of_adapters(layers, input, None));
    if let Some((_, norm)) = q_latent {
        let input = Input { norm: Some(norm), ..input };
        ops.push(Box::new(of(vec![(wq, parts)], input, Some(latent))));
        ops.extend(of_adapters(vec![(wq, parts)], input, Some(latent)));
    }
    ops.push(Box::new(Finish { s, keys, parts }));
    ops.push(Box::new(Heads {
        layers: wk,
        x: parts,
        x_pitch: part,
        out: Place::Buf(q),
        out_pitch: head_dim,
    }));
    ops
}

pub fn lower_heads<'a>(p: &Program, s: &'a HeadProj) -> Ops<'a> {
    let HeadProj { x, ref w, out } = *s;
    let [x_pitch, out_pitch] = [x, out].map(|buf| p.buf_decl(buf).cols / w.len());
    vec![Box::new(Heads { layers: w, x: Place::Buf(x), x_pitch, out: Place::Buf(out), out_pitch })]
}

impl Op for Finish<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let LatentIn { x: _, norm: _, q_latent, wq, wk, wkv: _, kv_norm: _, rope, kv, q: _ } = self.s;
        let rank = p.weight_decl(wk[0].w).rows;
        if rank > LATENT_MAX_RANK as usize {
            return Err(format!("latent vectors of {rank} elements (up to {LATENT_MAX_RANK} have kernels)"));
        }
        if q_latent.is_some() && wq.basis.is_some() {
            return Err("latent vectors of queries in a rotated basis".to_owned());
        }
        if p.ropes[rope.0 as usize].axes.is_some() {
            return Err("latent_in__rope_of_several_axes".to_owned());
        }
        kv::check(p.kv_decl(*kv))?;
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let LatentIn { x: _, norm: _, q_latent: _, ref wq, ref wk, wkv: _, ref kv_norm, rope, kv, q } =
            *self.s;
        let (first, n_heads) = (cx.p.weight_decl(wk[0].w), wk.len());
        let params = LatentInParams {
            step: cx.tables_for(kv),
            rope: cx.memory.ropes[rope.0 as usize],
            norm: linear::norm(cx, Some(kv_norm)),
            kv: cx.memory.kvs[kv.0 as usize].for_attn_in(0).0,
            keys: cx.address(self.keys),
            parts: cx.address(self.parts),
            q: cx.buf(q),
            n_heads: n_heads as u32,
            rank: first.rows as u32,
            part: (cx.p.weight_decl(wq.w).rows / n_heads) as u32,
            plain: first.cols as u32,
        };
        let warps = LATENT_IN_THREADS as usize / 32;
        vec![Launch {
            kernel: cx.kernel(KERNEL),
            grid: [(n_heads + 1).div_ceil(warps) as u32, 1, cx.shape.rows as u32],
            threads: LATENT_IN_THREADS,
            shared_bytes: 0,
            params: words(&params),
        }]
    }
}

impl Op for Heads<'_> {
    fn kernels(&self, p: &Program, limits: Limits) -> Result<Vec<KernelName>, String> {
        let (first, decl) = (&self.layers[0], p.weight_decl(self.layers[0].w));
        let missing = || format!("{HEADS}__{}", decl.ty.name());
        let products = Products::of(decl.ty, first.act).ok_or_else(missing)?;
        if WeightFormat::of(decl.ty).is_some_and(|format| format.ints) {
            return Err(missing());
        }
        let is_alike =
            |linear: &Linear| Products::of(p.weight_decl(linear.w).ty, linear.act) == Some(products);
        if !self.layers.iter().all(is_alike) {
            return Err("heads of different types".to_owned());
        }
        if self.layers.iter().any(|linear| linear.basis.is_some() || linear.clamp.is_some()) {
            return Err("heads with bounds or in a rotated basis".to_owned());
        }
        if !self.x_pitch.is_multiple_of(4) {
            return Err(format!("{HEADS} of heads of {}", self.x_pitch));
        }
        let bytes = shared_bytes(products, decl.cols, 1);
        if bytes > limits.shared_bytes as usize {
            return Err(format!("{HEADS} of {} columns", decl.cols));
        }
        Ok(vec![products.kernel(HEADS, Matmul::variants(products.mma)[0].kind())])
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        let macs = |linear: &Linear| (p.weight_decl(linear.w).rows * p.weight_decl(linear.w).cols) as u64;
        all.float += self.layers.iter().map(macs).sum::<u64>();
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { layers, x, x_pitch, out, out_pitch } = *self;
        let (first, decl) = (&layers[0], cx.p.weight_decl(layers[0].w));
        let products = Products::of(decl.ty, first.act).expect("it was uploaded");
        let (chunks, shared) = (products.chunks(decl.cols), shared_bytes(products, decl.cols, 1));
        let work = Work::new(decl.rows * layers.len(), false);
        let lanes_log2 = geometry::lanes_log2(cx.limits, chunks, work);
        let units = decl.rows.div_ceil(32 >> lanes_log2);
        let shares = shares(cx.limits, shared, cx.shape.rows * layers.len(), units.div_ceil(WARPS));
        let params = HeadProjParams {
            step: cx.tables(),
            in_: InputParams {
                x: cx.address(x),
                norm: linear::norm(cx, None),
                rounded: cx.memory.rounded,
                cols: decl.cols as u32,
                rounding: linear::rounding(first.act),
                of_outputs: 0,
                lanes_log2,
                row_bytes: products.act_bytes(decl.cols) as u32,
                part_chunks: chunks as u32,
            },
            table: cx.memory.heads.tables[cx.stage],
            out: cx.address(out),
            n_heads: layers.len() as u32,
            x_pitch: x_pitch as u32,
            out_pitch: out_pitch as u32,
            outputs: decl.rows as u32,
            chunks: chunks as u32,
            reserved: 0,
        };
        vec![Launch {
            kernel: cx.kernel(products.kernel(HEADS, Matmul::variants(products.mma)[0].kind())),
            grid: [shares as u32, layers.len() as u32, cx.shape.rows as u32],
            threads: LINEAR_THREADS,
            shared_bytes: shared as u32,
            params: words(&params),
        }]
    }
}
