//! Splits off stages of a program as a separate program, for models whose layers are on several devices.

use std::ops::Range;

use super::{
    AddVector, AltUpCorrect, AltUpPredict, Attend, AttnIn, BasisId, Buf, Conv, Delta, Embed, Expert, Experts,
    FfnIn, HeadProj, Kv, KvDecl, LatentIn, Linear, Logits, Lora, Mamba, Norm, NormAdd, Program, ProjAdd,
    ProjIn, Rescale, Rope, RopeId, Routing, Sample, Stage, State, Weight, WeightDecl,
};

/// Consecutive stages of a program as a separate program, with a mapping of its declarations to the whole.
#[derive(Clone, Debug)]
pub struct Part {
    /// The stages, with declarations of everything they use.
    pub program: Program,
    /// Range of these stages in the whole.
    pub stages: Range<usize>,
    /// Weight of the whole for each weight of the part.
    pub weights: Vec<Weight>,
    /// Buffer of the whole for each buffer of the part.
    pub bufs: Vec<Buf>,
    /// Cache of the whole for each cache of the part.
    pub kvs: Vec<Kv>,
    /// State of the whole for each state of the part.
    pub states: Vec<State>,
}

impl Part {
    /// The part's buffer for a buffer of the whole, if its stages use that one.
    pub fn buf(&self, of_whole: Buf) -> Option<Buf> {
        self.bufs.iter().position(|buf| *buf == of_whole).map(|at| Buf(at as u32))
    }
}

/// A layer of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its stages.
    pub stages: Range<usize>,
    /// The weights of its linear layers, each once, except those that a stage outside the layer also uses.
    pub matrices: Vec<Weight>,
}

/// Selects `k` of `n` items, spread evenly: the last one of each share.
///
/// # Panics
/// If `k` exceeds `n`.
pub fn spread(n: usize, k: usize) -> Vec<bool> {
    assert!(k <= n, "{k} of {n}");
    let mut taken = vec![false; n];
    (1..=k).for_each(|j| taken[j * n / k - 1] = true);
    taken
}

/// A handle that a stage uses.
pub(super) enum Named<'a> {
    Weight(&'a mut Weight),
    /// A buffer that the stage reads, and may then write.
    In(&'a mut Buf),
    /// A buffer that it only writes.
    Out(&'a mut Buf),
    Kv(&'a mut Kv),
    State(&'a mut State),
    Rope(&'a mut RopeId),
    Basis(&'a mut BasisId),
}

/// All handles of a stage, inputs before outputs.
pub(super) fn named(stage: &mut Stage) -> Vec<Named<'_>> {
    use Named::{In, Out};
    match stage {
        Stage::Embed(s) => {
            let Embed { table, stride: _, first: _, basis, scale: _, positions, types, lora, x } = s;
            let tables = [Some(table), positions.as_mut(), types.as_mut()].into_iter().flatten();
            let basis = basis.as_mut().map(Named::Basis);
            tables.map(Named::Weight).chain(basis).chain(of_lora(lora)).chain([Out(x)]).collect()
        }
        Stage::AttnIn(s) => {
            let AttnIn {
                x,
                norm,
                wq,
                wk,
                wv,
                q_norm,
                k_norm,
                qk_norm: _,
                v_norm,
                rope,
                q_scale: _,
                kv,
                q,
                gate,
            } = s;
            let mut all = vec![In(x)];
            all.extend([norm, q_norm, k_norm, v_norm].into_iter().flatten().flat_map(of_norm));
            all.extend([wq].into_iter().chain(wk).chain(wv).flat_map(of_linear));
            all.extend(rope.as_mut().map(Named::Rope));
            all.extend([Named::Kv(kv), Out(q)]);
            all.extend(gate.as_mut().map(Out));
            all
        }
        Stage::LatentIn(s) => {
            let LatentIn { x, norm, q_latent, wq, wk, wkv, kv_norm, rope, kv, q } = s;
            let mut all = vec![In(x)];
            all.extend(of_norm(norm).chain(of_norm(kv_norm)));
            if let Some((linear, norm)) = q_latent {
                all.extend(of_linear(linear).chain(of_norm(norm)));
            }
            all.extend([wq, wkv].into_iter().chain(wk).flat_map(of_linear));
            all.extend([Named::Rope(rope), Named::Kv(kv), Out(q)]);
            all
        }
        Stage::HeadProj(s) => {
            let HeadProj { x, w, out } = s;
            let mut all = vec![In(x)];
            all.extend(w.iter_mut().flat_map(of_linear));
            all.push(Out(out));
            all
        }
        Stage::ProjIn(s) => {
            let ProjIn { x, norm, products } = s;
            let mut all = vec![In(x)];
            all.extend(of_norm(norm));
            all.extend(products.iter_mut().flat_map(|(linear, buf)| of_linear(linear).chain([Out(buf)])));
            all
        }
        Stage::Conv(s) => {
            let Conv { u, before, after, state, w, bias, silu: _, out } = s;
            let mut all: Vec<_> =
                [Some(u), before.as_mut(), after.as_mut()].into_iter().flatten().map(In).collect();
            all.push(Named::State(state));
            all.extend([Some(w), bias.as_mut()].into_iter().flatten().map(Named::Weight));
            all.push(Out(out));
            all
        }
        Stage::Delta(s) => {
            let Delta { u, z, a, b, state, conv, decay, dt, eps: _, norm, grouped: _, out } = s;
            let mut all: Vec<_> = [u, z, a, b].map(In).into();
            all.push(Named::State(state));
            all.extend([conv, decay, dt].map(Named::Weight));
            all.extend(of_norm(norm));
            all.push(Out(out));
            all
        }
        Stage::Mamba(s) => {
            let Mamba { c, z, a, state, decay, dt, skip, norm, out } = s;
            let mut all: Vec<_> = [c, z, a].map(In).into();
            all.push(Named::State(state));
            all.extend([decay, dt, skip].map(Named::Weight));
            all.extend(norm.iter_mut().flat_map(of_norm));
            all.push(Out(out));
            all
        }
        Stage::Attend(s) => {
            let Attend {
                q,
                kv,
                scale: _,
                soft_cap: _,
                window: _,
                ahead: _,
                whole_images: _,
                sinks,
                gate,
                gate_act: _,
                out,
            } = s;
            let mut all = vec![In(q), Named::Kv(kv)];
            all.extend(sinks.as_mut().map(Named::Weight));
            all.extend(gate.as_mut().map(In));
            all.push(Out(out));
            all
        }
        Stage::ProjAdd(s) => {
            let ProjAdd { y, w, post, residual, scale: _, x } = s;
            let mut all = vec![In(y), In(x)];
            all.extend(post.iter_mut().chain(residual).flat_map(of_norm));
            all.extend(of_linear(w));
            all
        }
        Stage::AddVector(s) => {
            let AddVector { x, v } = s;
            vec![In(x), Named::Weight(v)]
        }
        Stage::NormAdd(s) => {
            let NormAdd { y, norm, scale: _, x } = s;
            let mut all = vec![In(y), In(x)];
            all.extend(of_norm(norm));
            all
        }
        Stage::AltUpPredict(s) => {
            let AltUpPredict { c, w, x, active: _, out, y } = s;
            let inputs = [c].into_iter().chain(x).map(In);
            inputs.chain([Named::Weight(w)]).chain(out.iter_mut().chain([y]).map(Out)).collect()
        }
        Stage::AltUpCorrect(s) => {
            let AltUpCorrect { c, w, y, predicted, active: _, x, factors, scaled } = s;
            let inputs = [c, y].into_iter().chain(predicted).map(In);
            let weights = [w, factors].map(Named::Weight);
            inputs.chain(weights).chain(x.iter_mut().chain([scaled]).map(Out)).collect()
        }
        Stage::Rescale(s) => {
            let Rescale { like, y, floor: _, mean } = s;
            [like].into_iter().chain(y).map(In).chain(mean.as_mut().map(Out)).collect()
        }
        Stage::FfnIn(s) => {
            let FfnIn { x, norm, gate, up, act: _, share, times, cutoff: _, h } = s;
            let mut all = vec![In(x)];
            all.extend(norm.iter_mut().flat_map(of_norm));
            all.extend(gate.iter_mut().chain([up]).chain(share).flat_map(of_linear));
            all.extend(times.as_mut().map(In));
            all.push(Out(h));
            all
        }
        Stage::Experts(s) => {
            let Experts { x, norm, router_norm, router, routing, experts, n_used: _, act: _, input, out } = s;
            let Routing { gating: _, bias, groups: _, normalise: _, scale: _ } = routing;
            let mut all = vec![In(x)];
            all.extend([norm].into_iter().chain(router_norm).flat_map(of_norm).chain(of_linear(router)));
            all.extend(bias.as_mut().map(Named::Weight));
            let layers =
                experts.iter_mut().flat_map(|Expert { gate, up, down }| gate.iter_mut().chain([up, down]));
            all.extend(layers.flat_map(of_linear));
            all.extend(input.as_mut().map(In));
            all.extend(out.as_mut().map(Out));
            all
        }
        Stage::Logits(s) => {
            let Logits { x, norm, w, soft_cap: _, logits } = s;
            let mut all = vec![In(x)];
            all.extend(of_norm(norm).chain(of_linear(w)));
            all.push(Out(logits));
            all
        }
        Stage::Sample(Sample { logits }) => vec![In(logits)],
    }
}

impl Stage {
    /// All weights that the stage reads.
    pub fn weights(&self) -> Vec<Weight> {
        let mut stage = self.clone();
        let weight = |named| if let Named::Weight(weight) = named { Some(*weight) } else { None };
        named(&mut stage).into_iter().filter_map(weight).collect()
    }
}

fn of_norm(norm: &mut Norm) -> impl Iterator<Item = Named<'_>> {
    let Norm { kind: _, weight, bias, eps: _ } = norm;
    [Some(weight), bias.as_mut()].into_iter().flatten().map(Named::Weight)
}

fn of_linear(linear: &mut Linear) -> impl Iterator<Item = Named<'_>> {
    let Linear { w, norm, bias, act: _, scale: _, basis, lora, clamp: _ } = linear;
    let weights = [Some(w), bias.as_mut()].into_iter().flatten().map(Named::Weight);
    let input = norm.iter_mut().flat_map(of_norm).chain(basis.as_mut().map(Named::Basis));
    weights.chain(input).chain(of_lora(lora))
}

fn of_lora(pairs: &mut [Lora]) -> impl Iterator<Item = Named<'_>> {
    pairs.iter_mut().flat_map(|Lora { adapter: _, a, b, scale: _ }| [a, b].map(Named::Weight))
}

/// The part's numbers for the handles of one kind.
#[derive(Default)]
struct Renaming {
    /// Number in the part, by the number in the whole.
    of_part: Vec<Option<u32>>,
    /// Number in the whole, by the number in the part.
    of_whole: Vec<u32>,
}

impl Renaming {
    /// The part's number for one of the whole; declares a new one if necessary.
    fn rename(&mut self, of_whole: u32, declare: impl FnOnce()) -> u32 {
        let at = of_whole as usize;
        if self.of_part.len() <= at {
            self.of_part.resize(at + 1, None);
        }
        *self.of_part[at].get_or_insert_with(|| {
            declare();
            self.of_whole.push(of_whole);
            self.of_whole.len() as u32 - 1
        })
    }

    fn handles<T>(self, handle: fn(u32) -> T) -> Vec<T> {
        self.of_whole.into_iter().map(handle).collect()
    }
}

impl Program {
    /// A range of stages as a separate program, with the limits of the whole.
    ///
    /// # Panics
    /// If the stages do not exist, or use something that is not declared.
    pub fn part(&self, stages: Range<usize>) -> Part {
        self.of_stages(stages.clone(), stages)
    }

    fn of_stages(&self, numbers: impl IntoIterator<Item = usize>, stages: Range<usize>) -> Part {
        let mut program = Program::new(self.name.clone(), self.limits);
        program.adapters.clone_from(&self.adapters);
        let [mut weights, mut bufs, mut kvs, mut states, mut ropes, mut bases] =
            std::array::from_fn(|_| Renaming::default());
        for (label, stage) in numbers.into_iter().map(|at| &self.stages[at]) {
            let mut stage = stage.clone();
            for named in named(&mut stage) {
                match named {
                    Named::Weight(w) => {
                        let declare = || program.weights.push(self.weight_decl(*w).clone());
                        *w = Weight(weights.rename(w.0, declare));
                    }
                    Named::In(b) | Named::Out(b) => {
                        let declare = || program.bufs.push(self.buf_decl(*b).clone());
                        *b = Buf(bufs.rename(b.0, declare));
                    }
                    Named::Kv(kv) => {
                        let declare = || program.kvs.push(self.kv_decl(*kv).clone());
                        *kv = Kv(kvs.rename(kv.0, declare));
                    }
                    Named::State(state) => {
                        let declare = || program.states.push(*self.state_decl(*state));
                        *state = State(states.rename(state.0, declare));
                    }
                    Named::Rope(rope) => {
                        let declare = || program.ropes.push(self.ropes[rope.0 as usize].clone());
                        *rope = RopeId(ropes.rename(rope.0, declare));
                    }
                    Named::Basis(basis) => {
                        let declare = || program.bases.push(self.bases[basis.0 as usize].clone());
                        *basis = BasisId(bases.rename(basis.0, declare));
                    }
                }
            }
            program.push(label.clone(), stage);
        }
        Part {
            program,
            stages,
            weights: weights.handles(Weight),
            bufs: bufs.handles(Buf),
            kvs: kvs.handles(Kv),
            states: states.handles(State),
        }
    }

    /// Start of each layer except the first: a program is split between two devices at these stages. Layers
    /// that share a cache are not separated, and all embeddings are on the first device, which alone knows
    /// the tokens that the last one picks.
    pub fn layer_starts(&self) -> Vec<usize> {
        let of_caches = self.uses_of_caches();
        let embeds = self.stages.iter().rposition(|(_, stage)| matches!(stage, Stage::Embed(_)));
        let is_apart = |at: &usize| {
            embeds.is_none_or(|last| last < *at)
                && !of_caches.iter().any(|uses| uses.start < *at && *at < uses.end)
        };
        (0..self.stages.len()).filter(|at| self.begins_layer(*at)).skip(1).filter(is_apart).collect()
    }

    /// From the first stage that uses each cache to the last.
    fn uses_of_caches(&self) -> Vec<Range<usize>> {
        let uses = |kv: Kv| {
            let of_stage = move |(_, stage): &(String, Stage)| match stage {
                Stage::AttnIn(s) => s.kv == kv,
                Stage::LatentIn(s) => s.kv == kv,
                Stage::Attend(s) => s.kv == kv,
                _ => false,
            };
            let first = self.stages.iter().position(of_stage);
            let last = self.stages.iter().rposition(of_stage);
            first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
        };
        (0..self.kvs.len() as u32).map(|kv| uses(Kv(kv))).collect()
    }

    /// True for the first stage of a layer. In a layer with attention and a recurrent part, attention comes
    /// first, and its output is projected at the end.
    fn begins_layer(&self, at: usize) -> bool {
        match self.stages[at].1 {
            Stage::AttnIn(_) | Stage::LatentIn(_) => true,
            Stage::ProjIn(_) => !matches!(self.stages[..at].last(), Some((_, Stage::Attend(_)))),
            _ => false,
        }
    }

    /// The layers in order: each from its first stage to the next one's, or to the head.
    pub fn layers(&self) -> Vec<Layer> {
        let is_head = |(_, stage): &(String, Stage)| matches!(stage, Stage::Logits(_));
        let end = self.stages.iter().position(is_head).unwrap_or(self.stages.len());
        let starts = (0..end).filter(|at| self.begins_layer(*at));
        let cuts: Vec<usize> = starts.chain([end]).collect();
        let layers: Vec<Range<usize>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        let rest = [0..cuts[0], end..self.stages.len()];
        // The only range that names a weight, or `None` after a second one.
        let mut named_by = vec![Some(usize::MAX); self.weights.len()];
        for (i, stages) in layers.iter().cloned().chain(rest).enumerate() {
            for (_, stage) in &self.stages[stages] {
                for handle in named(&mut stage.clone()) {
                    if let Named::Weight(w) = handle {
                        let by = &mut named_by[w.0 as usize];
                        *by = by.filter(|by| [usize::MAX, i].contains(by)).map(|_| i);
                    }
                }
            }
        }
        let mut of = |stages: Range<usize>| {
            let mut matrices: Vec<Weight> = Vec::new();
            for linear in self.stages[stages.clone()].iter().flat_map(|(_, stage)| stage.linears().1) {
                // Taken once.
                if named_by[linear.w.0 as usize].take().is_some() {
                    matrices.push(linear.w);
                }
            }
            Layer { stages, matrices }
        };
        layers.into_iter().map(&mut of).collect()
    }

    /// Describes the computation of a stage with its types, sizes and caches: stages of one kind run the same
    /// kernels.
    pub fn kind(&self, stage: usize) -> String {
        let mut stage = self.stages[stage].1.clone();
        let n_experts = match &mut stage {
            // All experts have the same shape.
            Stage::Experts(s) => s.experts.drain(1..).len() + 1,
            _ => 0,
        };
        stage.linears_mut().for_each(|linear| linear.scale = 1.0);
        let mut of = vec![format!("{n_experts} experts")];
        for named in named(&mut stage) {
            of.push(match named {
                Named::Weight(w) => {
                    let WeightDecl { ty, rows, cols, .. } = self.weight_decl(*w);
                    *w = Weight(0);
                    format!("{} [{rows}, {cols}]", ty.name())
                }
                Named::In(buf) | Named::Out(buf) => {
                    let cols = self.buf_decl(*buf).cols;
                    *buf = Buf(0);
                    cols.to_string()
                }
                Named::Kv(kv) => {
                    let KvDecl { n_kv_heads, head_dim, k, v, basis: _, window, sliding, values_are_keys } =
                        self.kv_decl(*kv);
                    *kv = Kv(0);
                    let codecs = [k.name(), v.name()];
                    let shared = if *values_are_keys { ", values are keys" } else { "" };
                    format!("{n_kv_heads} heads of {head_dim}, {codecs:?}, {window:?}, {sliding:?}{shared}")
                }
                Named::State(state) => {
                    let decl = self.state_decl(*state);
                    *state = State(0);
                    format!("{decl:?}")
                }
                Named::Rope(rope) => {
                    let Rope { style, axes, .. } = &self.ropes[rope.0 as usize];
                    *rope = RopeId(0);
                    format!("{style:?}, axes {}", axes.is_some())
                }
                Named::Basis(basis) => {
                    let block = self.bases[basis.0 as usize].block;
                    *basis = BasisId(0);
                    format!("runs of {block}")
                }
            });
        }
        format!("{stage:?} with {}", of.join(", "))
    }

    /// A program with some of the layers and everything before and after the layers: the first layer of each
    /// kind with the layers whose caches they read, and more until there are `least`, if there are that many.
    /// `stages` are those of the whole.
    pub fn layers_of_each_kind(&self, least: usize) -> Part {
        let layers: Vec<Range<usize>> = self.layers().into_iter().map(|layer| layer.stages).collect();
        let all = 0..self.stages.len();
        let (Some(first), Some(last)) = (layers.first(), layers.last()) else { return self.part(all) };
        let kinds: Vec<Vec<String>> =
            layers.iter().map(|stages| stages.clone().map(|stage| self.kind(stage)).collect()).collect();
        let is_new = |at: &usize| !kinds[..*at].contains(&kinds[*at]);
        let new: Vec<usize> = (0..layers.len()).filter(is_new).collect();
        let of_caches = self.uses_of_caches();
        let writes_for = |at: &usize| {
            let reads = |uses: &Range<usize>| {
                let reads =
                    |layer: &usize| uses.start < layers[*layer].start && layers[*layer].start < uses.end;
                layers[*at].contains(&uses.start) && new.iter().any(reads)
            };
            new.contains(at) || of_caches.iter().any(reads)
        };
        let (new, known): (Vec<_>, Vec<_>) = (0..layers.len()).partition(writes_for);
        let more = least.saturating_sub(new.len()).min(known.len());
        let mut taken = [&new[..], &known[..more]].concat();
        taken.sort_unstable();
        let taken = taken.into_iter().flat_map(|at| layers[at].clone());
        self.of_stages((0..first.start).chain(taken).chain(last.end..all.end), all)
    }

    /// Buffers that a stage reads before any stage of this program has written them.
    pub fn inputs(&self) -> Vec<Buf> {
        let (mut inputs, mut written) = (Vec::new(), Vec::new());
        for (_, stage) in &self.stages {
            for named in named(&mut stage.clone()) {
                match named {
                    Named::In(buf) if !written.contains(buf) && !inputs.contains(buf) => inputs.push(*buf),
                    Named::Out(buf) => written.push(*buf),
                    _ => {}
                }
            }
        }
        inputs
    }
}
