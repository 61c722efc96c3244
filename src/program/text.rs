//! Formats a program as text: the output of `sterna inspect --program`, and the snapshots of the tests.

use std::fmt;

use ggml_types::{Act, ActQuant};

use super::{
    AddVector, AltUpCorrect, AltUpPredict, Attend, AttnIn, Buf, Clamp, Conv, Delta, Embed, Expert, Experts,
    FfnIn, GateAct, Gating, Groups, HeadProj, KvDecl, LatentIn, Linear, Logits, Lora, Mamba, Norm, NormAdd,
    NormKind, Program, ProjAdd, ProjIn, QkNorm, QueryScale, Rescale, Rope, RopeStyle, Routing, RowsOf,
    Sample, Stage, StateDecl, Weight,
};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits;
        writeln!(
            f,
            "program {}: {} rows, {} outputs, {} sequences, {} pages",
            self.name, limits.rows, limits.outputs, limits.seqs, limits.pages
        )?;
        for buf in &self.bufs {
            let rows = match buf.rows {
                RowsOf::Step => "rows",
                RowsOf::Outputs => "outputs",
            };
            writeln!(f, "buf    {} [{rows}, {}]", buf.name, buf.cols)?;
        }
        for (i, kv) in self.kvs.iter().enumerate() {
            // The exact window of a codec and the numbers of bases are not printed.
            let KvDecl { n_kv_heads, head_dim, k, v, basis: _, window: _, sliding, values_are_keys } = kv;
            let kept = sliding.map_or(String::new(), |n| format!(", of the last {n} positions"));
            let (k, v) = (k.name(), if *values_are_keys { "as k" } else { v.name() });
            writeln!(f, "kv     {i}: {n_kv_heads} heads of {head_dim}, k {k}, v {v}{kept}")?;
        }
        for (i, state) in self.states.iter().enumerate() {
            let StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps } = state;
            let matrices = match key_dim {
                0 => format!("{} channels", state.channels()),
                _ if key_dim == head_dim => format!("{n_heads} heads of {head_dim}, {n_key_heads} of keys"),
                _ => format!("{n_heads} heads of {head_dim}, {n_key_heads} of keys of {key_dim}"),
            };
            let taps = if *taps > 1 { format!(", {taps} taps") } else { String::new() };
            writeln!(f, "state  {i}: {matrices}{taps}, {} slots", limits.states)?;
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope   {i}: {rope}")?;
        }
        for (i, basis) in self.bases.iter().enumerate() {
            writeln!(f, "basis  {i}: {} elements in runs of {}", basis.signs.len(), basis.block)?;
        }
        for w in &self.weights {
            writeln!(f, "weight {} {} [{}, {}]", w.name, w.ty.name(), w.rows, w.cols)?;
        }
        self.stages.iter().try_for_each(|(label, stage)| writeln!(f, "{label}: {}", self.stage_text(stage)))
    }
}

impl fmt::Display for Rope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = match self.style {
            RopeStyle::Halves => "halves",
            RopeStyle::Adjacent => "adjacent",
        };
        let (first, last) = (self.inv_freq.first().unwrap_or(&0.0), self.inv_freq.last().unwrap_or(&0.0));
        write!(f, "{style}, {} pairs, {first:.6e} to {last:.6e} rad", self.inv_freq.len())?;
        if self.magnitude != 1.0 {
            write!(f, ", times {}", self.magnitude)?;
        }
        if self.axes.is_some() {
            write!(f, ", of several axes")?;
        }
        if self.ahead > 0 {
            write!(f, ", {} ahead", self.ahead)?;
        }
        Ok(())
    }
}

impl Program {
    fn stage_text(&self, stage: &Stage) -> String {
        match stage {
            Stage::Embed(s) => {
                let Embed { table, stride, first, basis, scale, positions, types, ref lora, x } = *s;
                let positions = positions.map_or(String::new(), |w| format!(" + {}[pos]", self.name_of(w)));
                let types = types.map_or(String::new(), |w| format!(" + {}[type]", self.name_of(w)));
                let scale = factor(scale);
                let back = basis.map_or("", |_| "turned back ");
                let table = self.name_of(table);
                let row = if stride == 1 { "token".to_owned() } else { format!("{stride} token + {first}") };
                let lora = self.lora_text(lora, "token", |a, token| format!("{a}[{token}]"));
                format!("{} = {scale}{back}{table}[{row}]{positions}{types}{lora}", self.buf_name(x))
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
                    qk_norm,
                    v_norm,
                    rope,
                    q_scale,
                    kv,
                    q,
                    gate,
                } = s;
                let (n, norm) = self.input_text(norm.as_ref(), *x);
                let rope = rope.map_or(String::new(), |rope| format!(", rope {}", rope.0));
                let of_rows = match qk_norm {
                    QkNorm::Heads => "",
                    QkNorm::Rows => " of rows",
                    QkNorm::Rotated => " after rope",
                };
                let head_norm = |name: &str, norm: &Option<Norm>, of: &str| {
                    norm.as_ref()
                        .map_or(String::new(), |norm| format!(", {}{of}", self.norm_text(norm, name)))
                };
                let gate = gate.map_or(String::new(), |gate| format!(", {}", self.buf_name(gate)));
                let cache = wk.as_ref().map_or(String::new(), |wk| {
                    let v = wv.as_ref().unwrap_or(wk);
                    format!("; kv {} = ({}, {})", kv.0, self.linear_text(wk, n), self.linear_text(v, n))
                });
                let q_scale = q_scale.map_or(String::new(), |QueryScale { factor, period }| {
                    format!(", q * (1 + {factor} ln(1 + floor(pos / {period})))")
                });
                format!(
                    "{norm}{}{gate} = {}{cache}{}{}{}{rope}{q_scale}",
                    self.buf_name(*q),
                    self.linear_text(wq, n),
                    head_norm("q", q_norm, of_rows),
                    head_norm("k", k_norm, of_rows),
                    head_norm("v", v_norm, ""),
                )
            }
            Stage::LatentIn(s) => {
                let LatentIn { x, norm, q_latent, wq, wk, wkv, kv_norm, rope, kv, q } = s;
                let n = self.norm_text(norm, self.buf_name(*x));
                let a = q_latent.as_ref().map_or("n".to_owned(), |(linear, norm)| {
                    self.norm_text(norm, &self.linear_text(linear, "n"))
                });
                format!(
                    "n = {n}; (p, t) = {}; {} = ({} per head of {}, t); \
                     kv {} = (c, t) = {}, {}; rope {} of t",
                    self.linear_text(wq, &a),
                    self.buf_name(*q),
                    self.linear_text(&wk[0], "p"),
                    wk.len(),
                    kv.0,
                    self.linear_text(wkv, "n"),
                    self.norm_text(kv_norm, "c"),
                    rope.0,
                )
            }
            Stage::HeadProj(s) => {
                let HeadProj { x, ref w, out } = *s;
                let of_head = self.linear_text(&w[0], self.buf_name(x));
                format!("{} = {of_head} per head of {}", self.buf_name(out), w.len())
            }
            Stage::Attend(s) => {
                let Attend {
                    q,
                    kv,
                    scale,
                    soft_cap,
                    window,
                    ahead,
                    whole_images,
                    sinks,
                    gate,
                    gate_act,
                    out,
                } = *s;
                let soft_cap = soft_cap.map_or(String::new(), |cap| format!(", soft cap {cap}"));
                let window = window.map_or(String::new(), |window| format!(", window {window}"));
                let ahead = match ahead {
                    0 => String::new(),
                    Attend::ALL => ", all ahead".to_owned(),
                    n => format!(", {n} ahead"),
                };
                let images = if whole_images { ", whole images" } else { "" };
                let sinks = sinks.map_or(String::new(), |w| format!(", sinks {}", self.name_of(w)));
                let function = match gate_act {
                    GateAct::Sigmoid => "sigmoid",
                    GateAct::Softplus => "softplus",
                };
                let gate =
                    gate.map_or(String::new(), |gate| format!("{function}({}) * ", self.buf_name(gate)));
                format!(
                    "{} = {gate}attend({}, kv {}, scale {scale}{soft_cap}{window}{ahead}{images}{sinks})",
                    self.buf_name(out),
                    self.buf_name(q),
                    kv.0
                )
            }
            Stage::ProjIn(s) => {
                let ProjIn { x, ref norm, ref products } = *s;
                let n = self.norm_text(norm, self.buf_name(x));
                let products = products.iter().map(|(linear, buf)| {
                    format!("; {} = {}", self.buf_name(*buf), self.linear_text(linear, "n"))
                });
                format!("n = {n}{}", products.collect::<String>())
            }
            Stage::Conv(s) => {
                let Conv { u, before, after, state, w, bias, silu, out } = *s;
                let [before, after] = [before, after]
                    .map(|gate| gate.map_or(String::new(), |buf| format!("{} * ", self.buf_name(buf))));
                let bias = bias.map_or(String::new(), |w| format!(" + {}", self.name_of(w)));
                let (u, w) = (self.buf_name(u), self.name_of(w));
                let sum = format!("conv({before}{u}, state {}, {w}){bias}", state.0);
                let sum = if silu { format!("silu({sum})") } else { sum };
                format!("{} = {after}{sum}", self.buf_name(out))
            }
            Stage::Delta(s) => {
                let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
                let [u, z, a, b] = [u, z, a, b].map(|buf| self.buf_name(buf));
                let [conv, decay, dt] = [conv, decay, dt].map(|w| self.name_of(w));
                let o = format!("delta({u}, {a}, {b}, state {}, {conv}, {decay}, {dt}, {eps:e})", state.0);
                let norm = self.norm_text(norm, "o");
                let grouped = if grouped { ", grouped" } else { "" };
                format!("o = {o}; {} = {norm} * silu({z}){grouped}", self.buf_name(out))
            }
            Stage::Mamba(s) => {
                let Mamba { c, z, a, state, decay, dt, skip, ref norm, out } = *s;
                let [c, z, a] = [c, z, a].map(|buf| self.buf_name(buf));
                let [decay, dt, skip] = [decay, dt, skip].map(|w| self.name_of(w));
                let y = format!("mamba({c}, {a}, state {}, {decay}, {dt}, {skip})", state.0);
                let gated = format!("{y} * silu({z})");
                let gated = norm.as_ref().map_or(gated.clone(), |norm| self.norm_text(norm, &gated));
                format!("{} = {gated}", self.buf_name(out))
            }
            Stage::ProjAdd(s) => {
                let ProjAdd { y, ref w, ref post, ref residual, scale, x } = *s;
                let product = self.linear_text(w, self.buf_name(y));
                let product = post.as_ref().map_or(product.clone(), |post| self.norm_text(post, &product));
                let x = self.buf_name(x);
                let kept = residual.as_ref().map_or(x.to_owned(), |norm| self.norm_text(norm, x));
                match (residual, scale) {
                    (None, 1.0) => format!("{x} += {product}"),
                    (_, 1.0) => format!("{x} = {kept} + {product}"),
                    _ => format!("{x} = {scale} * ({kept} + {product})"),
                }
            }
            Stage::AddVector(s) => {
                let AddVector { x, v } = *s;
                format!("{} += {}", self.buf_name(x), self.name_of(v))
            }
            Stage::NormAdd(s) => {
                let NormAdd { y, ref norm, scale, x } = *s;
                let (x, normed) = (self.buf_name(x), self.norm_text(norm, self.buf_name(y)));
                match scale {
                    1.0 => format!("{x} += {normed}"),
                    _ => format!("{x} = {scale} * ({x} + {normed})"),
                }
            }
            Stage::AltUpPredict(s) => {
                let AltUpPredict { c, w, x, active, out, y } = *s;
                let (out, x) = (self.buf_names(&out), self.buf_names(&x));
                let (c, w, y) = (self.buf_name(c), self.name_of(w), self.buf_name(y));
                format!("({out}) = predict(({x}), {w} tanh({c})); {y} = stream {active}")
            }
            Stage::AltUpCorrect(s) => {
                let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = *s;
                let (x, predicted) = (self.buf_names(&x), self.buf_names(&predicted));
                let (c, w, y) = (self.buf_name(c), self.name_of(w), self.buf_name(y));
                let (scaled, factors) = (self.buf_name(scaled), self.name_of(factors));
                let change = format!("{y} - stream {active}");
                format!(
                    "({x}) = ({predicted}) + (1 + {w} tanh({c})) * ({change}); {scaled} = {factors} * stream \
                     {active}"
                )
            }
            Stage::Rescale(s) => {
                let Rescale { like, y, floor, mean } = *s;
                let (like, y) = (self.buf_name(like), self.buf_names(&y));
                let mean = mean
                    .map_or(String::new(), |mean| format!("; {} = mean({like}, {y})", self.buf_name(mean)));
                format!("({y}) = ({y}) with the magnitude of {like}, at least {floor:e}{mean}")
            }
            Stage::FfnIn(s) => {
                let FfnIn { x, ref norm, ref gate, ref up, act, ref share, times, cutoff, h } = *s;
                let act = act_text(act);
                let (n, norm) = self.input_text(norm.as_ref(), x);
                let up = self.linear_text(up, n);
                let hidden = match gate {
                    Some(gate) => {
                        let gate = self.linear_text(gate, n);
                        let cut = cutoff.map(|cutoff| format!("cutoff({gate}, {cutoff})"));
                        format!("{act}({}) * {up}", cut.unwrap_or(gate))
                    }
                    None => format!("{act}({up})"),
                };
                let share = share.as_ref().map(|w| format!("sigmoid({}) * ", self.linear_text(w, n)));
                let share = share.unwrap_or_default();
                let times = times.map_or(String::new(), |times| format!("{} * ", self.buf_name(times)));
                format!("{norm}{} = {times}{share}{hidden}", self.buf_name(h))
            }
            Stage::Experts(s) => {
                let Experts {
                    x,
                    ref norm,
                    ref router_norm,
                    ref router,
                    ref routing,
                    ref experts,
                    n_used,
                    act,
                    input,
                    out,
                } = *s;
                let x = self.buf_name(x);
                let n = self.norm_text(norm, x);
                let m = router_norm.as_ref().map(|norm| format!("m = {}; ", self.norm_text(norm, x)));
                let (act, Expert { gate, up, down }) = (act_text(act), &experts[0]);
                let into = input.map_or("n", |input| self.buf_name(input));
                let up = self.linear_text(up, into);
                let hidden = match gate {
                    Some(gate) => format!("({act}({}) * {up})", self.linear_text(gate, into)),
                    None => format!("{act}({up})"),
                };
                let down = self.linear_text(down, &hidden);
                let of_router = self.linear_text(router, if m.is_some() { "m" } else { "n" });
                let router = self.routing_text(routing, of_router);
                let (m, of) = (m.unwrap_or_default(), experts.len());
                let out = out.map_or(format!("{x} +="), |out| format!("{} =", self.buf_name(out)));
                format!("n = {n}; {m}{out} {n_used} of {of} experts by {router}, the first being {down}")
            }
            Stage::Logits(s) => {
                let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
                let n = self.norm_text(norm, self.buf_name(x));
                let product = self.linear_text(w, &n);
                let product = soft_cap.map_or(product.clone(), |cap| format!("soft_cap({product}, {cap})"));
                format!("{} = {product}", self.buf_name(logits))
            }
            Stage::Sample(Sample { logits }) => format!("token = sample({})", self.buf_name(*logits)),
        }
    }

    /// `product`, the router's, or what it is replaced by before experts are chosen.
    fn routing_text(&self, routing: &Routing, product: String) -> String {
        let Routing { gating, bias, groups, normalise, scale } = *routing;
        if routing.is_softmax_of_chosen() {
            return product;
        }
        let gating = match gating {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
        };
        let scale = if scale == 1.0 { String::new() } else { format!("{scale} * ") };
        let normalise = if normalise { "normalised " } else { "" };
        let bias = bias.map_or(String::new(), |bias| format!(", chosen with {}", self.name_of(bias)));
        let groups = groups
            .map_or(String::new(), |Groups { n, n_used }| format!(", from the best {n_used} of {n} groups"));
        format!("{scale}{normalise}{gating}({product}){bias}{groups}")
    }

    /// Name of a stage's input after its norm, and the text that defines it.
    fn input_text(&self, norm: Option<&Norm>, x: Buf) -> (&'static str, String) {
        let x = self.buf_name(x);
        norm.map_or((x, String::new()), |norm| ("n", format!("n = {}; ", self.norm_text(norm, x))))
    }

    fn name_of(&self, w: Weight) -> &str {
        &self.weight_decl(w).name
    }

    fn buf_name(&self, b: Buf) -> &'static str {
        self.buf_decl(b).name
    }

    fn buf_names(&self, bufs: &[Buf]) -> String {
        let names: Vec<&str> = bufs.iter().map(|buf| self.buf_name(*buf)).collect();
        names.join(", ")
    }

    fn norm_text(&self, norm: &Norm, x: &str) -> String {
        let Norm { kind, weight, bias, eps } = *norm;
        let kind = match kind {
            NormKind::Rms => "rms",
            NormKind::Layer => "layer_norm",
        };
        let bias = bias.map_or(String::new(), |bias| format!(", {}", self.name_of(bias)));
        format!("{kind}({x}, {}{bias}, {eps:e})", self.name_of(weight))
    }

    fn linear_text(&self, linear: &Linear, x: &str) -> String {
        let Linear { w, ref norm, bias, act, scale, basis, ref lora, clamp } = *linear;
        let normed = norm.as_ref().map(|norm| self.norm_text(norm, x));
        let x = normed.as_deref().unwrap_or(x);
        let lora = self.lora_text(lora, x, |a, x| format!("{a} {x}"));
        let rotated = basis.map(|basis| format!("turn {}({x})", basis.0));
        let x = rotated.as_deref().unwrap_or(x);
        let x = match act {
            ActQuant::None => x.to_owned(),
            ActQuant::I8PerToken => format!("i8({x})"),
            ActQuant::I8PerBlock => format!("i8_of_{}({x})", ActQuant::BLOCK),
        };
        let scale = factor(scale);
        let bias = bias.map_or(String::new(), |bias| format!(" + {}", self.name_of(bias)));
        match clamp {
            None => format!("{scale}{} {x}{bias}{lora}", self.name_of(w)),
            Some(Clamp { input, output }) => {
                let w = self.name_of(w);
                format!("clamp({scale}{w} clamp({x}, {input:?}){bias}{lora}, {output:?})")
            }
        }
    }

    /// The terms of adapters; `first` is the product with the first matrix.
    fn lora_text(&self, pairs: &[Lora], x: &str, first: impl Fn(&str, &str) -> String) -> String {
        let term = |pair: &Lora| {
            let Lora { adapter, a, b, scale } = pair;
            let (a, b) = (first(self.name_of(*a), x), self.name_of(*b));
            format!(" + s[{}] * {}{b} ({a})", self.adapters[*adapter as usize], factor(*scale))
        };
        pairs.iter().map(term).collect()
    }
}

fn act_text(act: Act) -> &'static str {
    match act {
        Act::Relu2 => "relu2",
        Act::Silu => "silu",
        Act::Gelu => "gelu",
        Act::GeluTanh => "gelu_tanh",
        Act::ClampedSwiglu => "clamped_swiglu",
        Act::Xielu(_) => "xielu",
    }
}

fn factor(scale: f32) -> String {
    if scale == 1.0 { String::new() } else { format!("{scale} * ") }
}
