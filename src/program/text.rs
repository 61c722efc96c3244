//! A program as text: what `sterna inspect --program` prints and what the snapshot tests hold.

use std::fmt;

use super::{
    Act, ActQuant, Attend, Buf, Linear, Norm, NormKind, Program, Rope, RopeStyle, RowsOf, Stage, StateDecl,
    Weight,
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
            let kept = kv.sliding.map_or(String::new(), |n| format!(", of the last {n} positions"));
            writeln!(
                f,
                "kv     {i}: {} heads of {}, k {}, v {}{kept}",
                kv.n_kv_heads,
                kv.head_dim,
                kv.k.name(),
                kv.v.name()
            )?;
        }
        for (i, state) in self.states.iter().enumerate() {
            let StateDecl { n_heads, n_key_heads, head_dim, taps } = state;
            writeln!(
                f,
                "state  {i}: {n_heads} heads of {head_dim}, {n_key_heads} of keys, {taps} taps, {} slots",
                limits.states
            )?;
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
        Ok(())
    }
}

impl Program {
    fn stage_text(&self, stage: &Stage) -> String {
        match stage {
            Stage::Embed(s) => {
                let positions = s.positions.map_or(String::new(), |w| format!(" + {}[pos]", self.name_of(w)));
                let types = s.types.map_or(String::new(), |w| format!(" + {}[type]", self.name_of(w)));
                let scale = factor(s.scale);
                let back = s.basis.map_or("", |_| "turned back ");
                let table = self.name_of(s.table);
                format!("{} = {scale}{back}{table}[token]{positions}{types}", self.buf_name(s.x))
            }
            Stage::AttnIn(s) => {
                let n = self.norm_text(&s.norm, self.buf_name(s.x));
                let rope = s.rope.map_or(String::new(), |rope| format!(", rope {}", rope.0));
                let head_norm = |name: &str, norm: &Option<Norm>| {
                    norm.as_ref().map_or(String::new(), |norm| format!(", {}", self.norm_text(norm, name)))
                };
                let gate = s.gate.map_or(String::new(), |gate| format!(", {}", self.buf_name(gate)));
                format!(
                    "n = {n}; {}{gate} = {}; kv {} = ({}, {}){}{}{rope}",
                    self.buf_name(s.q),
                    self.linear_text(&s.wq, "n"),
                    s.kv.0,
                    self.linear_text(&s.wk, "n"),
                    self.linear_text(&s.wv, "n"),
                    head_norm("q", &s.q_norm),
                    head_norm("k", &s.k_norm),
                )
            }
            Stage::Attend(s) => {
                let window = s.window.map_or(String::new(), |window| format!(", window {window}"));
                let ahead = match s.ahead {
                    0 => String::new(),
                    Attend::ALL => ", all ahead".to_owned(),
                    n => format!(", {n} ahead"),
                };
                let sinks = s.sinks.map_or(String::new(), |w| format!(", sinks {}", self.name_of(w)));
                let gate =
                    s.gate.map_or(String::new(), |gate| format!("sigmoid({}) * ", self.buf_name(gate)));
                format!(
                    "{} = {gate}attend({}, kv {}, scale {}{window}{ahead}{sinks})",
                    self.buf_name(s.out),
                    self.buf_name(s.q),
                    s.kv.0,
                    s.scale
                )
            }
            Stage::DeltaIn(s) => {
                let n = self.norm_text(&s.norm, self.buf_name(s.x));
                let products = [(&s.wu, s.u), (&s.wz, s.z), (&s.wa, s.a), (&s.wb, s.b)];
                let products = products.map(|(linear, buf)| {
                    format!("; {} = {}", self.buf_name(buf), self.linear_text(linear, "n"))
                });
                format!("n = {n}{}", products.concat())
            }
            Stage::Delta(s) => {
                let [u, z, a, b] = [s.u, s.z, s.a, s.b].map(|buf| self.buf_name(buf));
                let [conv, decay, dt] = [s.conv, s.decay, s.dt].map(|w| self.name_of(w));
                let o =
                    format!("delta({u}, {a}, {b}, state {}, {conv}, {decay}, {dt}, {:e})", s.state.0, s.eps);
                let norm = self.norm_text(&s.norm, "o");
                let grouped = if s.grouped { ", grouped" } else { "" };
                format!("o = {o}; {} = {norm} * silu({z}){grouped}", self.buf_name(s.out))
            }
            Stage::ProjAdd(s) => {
                let product = self.linear_text(&s.w, self.buf_name(s.y));
                let product = s.post.as_ref().map_or(product.clone(), |post| self.norm_text(post, &product));
                let x = self.buf_name(s.x);
                match &s.residual {
                    Some(norm) => format!("{x} = {} + {product}", self.norm_text(norm, x)),
                    None => format!("{x} += {product}"),
                }
            }
            Stage::FfnIn(s) => {
                let act = act_text(s.act);
                let n = self.norm_text(&s.norm, self.buf_name(s.x));
                let up = self.linear_text(&s.up, "n");
                let h = match &s.gate {
                    Some(gate) => format!("{act}({}) * {up}", self.linear_text(gate, "n")),
                    None => format!("{act}({up})"),
                };
                let share = s.share.as_ref();
                let share =
                    share.map_or(String::new(), |w| format!("sigmoid({}) * ", self.linear_text(w, "n")));
                format!("n = {n}; {} = {share}{h}", self.buf_name(s.h))
            }
            Stage::Experts(s) => {
                let x = self.buf_name(s.x);
                let n = self.norm_text(&s.norm, x);
                let (act, first) = (act_text(s.act), &s.experts[0]);
                let [gate, up] = [&first.gate, &first.up].map(|layer| self.linear_text(layer, "n"));
                let down = self.linear_text(&first.down, &format!("({act}({gate}) * {up})"));
                let router = self.linear_text(&s.router, "n");
                let (used, of) = (s.n_used, s.experts.len());
                format!("n = {n}; {x} += {used} of {of} experts by {router}, the first being {down}")
            }
            Stage::Logits(s) => {
                let n = self.norm_text(&s.norm, self.buf_name(s.x));
                let logits = self.linear_text(&s.w, &n);
                let logits = s.soft_cap.map_or(logits.clone(), |cap| format!("soft_cap({logits}, {cap})"));
                format!("{} = {logits}", self.buf_name(s.logits))
            }
            Stage::Sample(s) => format!("token = sample({})", self.buf_name(s.logits)),
        }
    }

    fn name_of(&self, w: Weight) -> &str {
        &self.weight_decl(w).name
    }

    fn buf_name(&self, b: Buf) -> &'static str {
        self.buf_decl(b).name
    }

    fn norm_text(&self, norm: &Norm, x: &str) -> String {
        let kind = match norm.kind {
            NormKind::Rms => "rms",
            NormKind::Layer => "layer_norm",
        };
        let bias = norm.bias.map_or(String::new(), |bias| format!(", {}", self.name_of(bias)));
        format!("{kind}({x}, {}{bias}, {:e})", self.name_of(norm.weight), norm.eps)
    }

    fn linear_text(&self, linear: &Linear, x: &str) -> String {
        let normed = linear.norm.as_ref().map(|norm| self.norm_text(norm, x));
        let x = normed.as_deref().unwrap_or(x);
        let turned = linear.basis.map(|basis| format!("turn {}({x})", basis.0));
        let x = turned.as_deref().unwrap_or(x);
        let x = match linear.act {
            ActQuant::None => x.to_owned(),
            ActQuant::I8PerToken => format!("i8({x})"),
            ActQuant::I8PerBlock => format!("i8_of_{}({x})", ActQuant::BLOCK),
        };
        let scale = factor(linear.scale);
        let bias = linear.bias.map_or(String::new(), |bias| format!(" + {}", self.name_of(bias)));
        format!("{scale}{} {x}{bias}", self.name_of(linear.w))
    }
}

fn act_text(act: Act) -> &'static str {
    match act {
        Act::Relu2 => "relu2",
        Act::Silu => "silu",
        Act::Gelu => "gelu",
        Act::GeluTanh => "gelu_tanh",
        Act::ClampedSwiglu => "clamped_swiglu",
    }
}

fn factor(scale: f32) -> String {
    if scale == 1.0 { String::new() } else { format!("{scale} * ") }
}
