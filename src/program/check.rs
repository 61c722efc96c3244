//! Verifies a program once, before anything is allocated: every handle and every shape.

use std::ops::Range;

use ggml_types::{Act, KvForm, types};

use super::part::{Named, named};
use super::{
    AddVector, AltUpCorrect, AltUpPredict, Attend, AttnIn, Basis, BasisId, Buf, BufDecl, Clamp, Conv, Delta,
    Embed, Expert, Experts, FfnIn, GateAct, Groups, HeadProj, Kv, KvDecl, LatentIn, Linear, Logits, Lora,
    Mamba, Norm, NormAdd, NormKind, PAGE, Program, ProjAdd, ProjIn, QkNorm, Rescale, RopeId, Routing, Row,
    RowsOf, STREAMS, Sample, Stage, State, StateDecl, Step, Weight, WeightDecl,
};

/// A program that cannot run: a bug of the model that created it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage {label}: {detail}")]
pub struct CheckError {
    /// Label of the stage.
    pub label: String,
    /// Expected and actual values.
    pub detail: String,
}

impl Program {
    /// Verifies every handle and shape.
    ///
    /// # Errors
    /// [`CheckError`] for the first invalid stage.
    pub fn check(&self) -> Result<(), CheckError> {
        let fail = |label: &str, detail: String| CheckError { label: label.to_owned(), detail };
        let limits = self.limits;
        if [limits.rows, limits.outputs, limits.seqs, limits.pages].contains(&0) {
            return Err(fail("limits", format!("every limit must be at least 1: {limits:?}")));
        }
        if self.is_windowed() && limits.exact_pages == 0 {
            return Err(fail("limits", "a windowed KV codec needs exact pages".into()));
        }
        if self.sliding().is_some() && limits.sliding_pages == 0 {
            return Err(fail("limits", "caches of sliding windows need pages".into()));
        }
        if !self.states.is_empty() && limits.states < limits.seqs {
            return Err(fail("limits", "every sequence needs a slot of recurrent states".into()));
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            if rope.inv_freq.is_empty()
                || !rope.inv_freq.iter().all(|f| f.is_finite())
                || !rope.magnitude.is_finite()
            {
                return Err(fail(
                    "ropes",
                    format!("rope {i} has no pairs, or frequencies that are not finite"),
                ));
            }
            if rope.axes.as_ref().is_some_and(|axes| axes.len() != rope.inv_freq.len()) {
                return Err(fail("ropes", format!("rope {i} does not have one axis per pair")));
            }
        }
        let mut labels = std::collections::HashSet::new();
        for (label, stage) in &self.stages {
            if !labels.insert(label) {
                return Err(fail(label, "the label is taken".into()));
            }
            self.check_stage(stage).map_err(|detail| fail(label, detail))?;
        }
        Ok(())
    }

    /// Verifies that every declaration is used by a stage: a model that reads a tensor but does not compute
    /// with it is wrong. `by_host` are weights that the host reads. Not part of [`check`](Self::check),
    /// because programs that share one set of weights each use only some of them.
    /// # Errors
    /// [`CheckError`] for the first declaration that no stage uses.
    pub fn check_all_named(&self, by_host: &[Weight]) -> Result<(), CheckError> {
        let mut weights = vec![false; self.weights.len()];
        let (mut bufs, mut kvs) = (vec![false; self.bufs.len()], vec![false; self.kvs.len()]);
        let (mut states, mut ropes) = (vec![false; self.states.len()], vec![false; self.ropes.len()]);
        let mut bases = vec![false; self.bases.len()];
        by_host.iter().for_each(|w| weights[w.0 as usize] = true);
        for (_, stage) in &self.stages {
            for named in named(&mut stage.clone()) {
                let (of_kind, at) = match named {
                    Named::Weight(w) => (&mut weights, w.0),
                    Named::In(buf) | Named::Out(buf) => (&mut bufs, buf.0),
                    Named::Kv(kv) => (&mut kvs, kv.0),
                    Named::State(state) => (&mut states, state.0),
                    Named::Rope(rope) => (&mut ropes, rope.0),
                    Named::Basis(basis) => (&mut bases, basis.0),
                };
                of_kind[at as usize] = true;
            }
        }
        let unnamed = |of_kind: &[bool]| of_kind.iter().position(|is_named| !is_named);
        let weight = unnamed(&weights).map(|at| format!("weight {}", self.weights[at].name));
        let buf = || unnamed(&bufs).map(|at| format!("buffer `{}`", self.bufs[at].name));
        let others = [("KV cache", &kvs), ("state", &states), ("rope", &ropes), ("basis", &bases)];
        let other =
            || others.iter().find_map(|(kind, of_kind)| unnamed(of_kind).map(|at| format!("{kind} {at}")));
        match weight.or_else(buf).or_else(other) {
            Some(unnamed) => {
                let detail = format!("{unnamed} is declared, but no stage uses it");
                Err(CheckError { label: "declarations".to_owned(), detail })
            }
            None => Ok(()),
        }
    }

    /// Verifies that a step may run through some of this program's stages.
    ///
    /// # Panics
    /// If the step exceeds the limits, or refers to a token, position, slot or page that does not exist.
    pub fn assert_fits(&self, stages: &[(String, Stage)], step: &Step<'_>) {
        let (limits, n_outputs) = (self.limits, step.n_outputs());
        assert!(step.rows.len() <= limits.rows, "{} rows, the limit is {}", step.rows.len(), limits.rows);
        assert!(n_outputs <= limits.outputs, "{n_outputs} outputs, the limit is {}", limits.outputs);
        let sampled = step.sampling.len();
        assert!(sampled == 0 || sampled == n_outputs, "{n_outputs} outputs, sampling for {sampled}");
        for row in step.rows {
            let seqs = limits.seqs.min(step.pages.n_seqs());
            assert!((row.seq as usize) < seqs, "sequence slot {}, there are {seqs}", row.seq);
            let (pages, wanted) = (step.pages.seq(row.seq), row.pos as usize / PAGE + 1);
            assert!(wanted <= pages.len(), "position {} needs page {wanted} of {}", row.pos, pages.len());
            for page in &pages[..wanted] {
                assert!((*page as usize) < limits.pages, "page {page}, there are {}", limits.pages);
            }
            if let Some(window) = self.sliding() {
                let (sliding, first) = (step.pages.sliding(row.seq), (row.pos + 1).saturating_sub(window));
                for i in first as usize / PAGE..wanted {
                    let (page, there) = (sliding.get(i).copied().flatten(), limits.sliding_pages);
                    let is_there = page.is_some_and(|page| (page as usize) < there);
                    assert!(
                        is_there,
                        "position {} sees page {i} of its window: {page:?} of {there}",
                        row.pos
                    );
                }
            }
            if self.is_windowed() {
                let exact = step.pages.exact(row.seq);
                for i in [0, wanted - 1] {
                    let there = exact.get(i).is_some_and(Option::is_some);
                    assert!(there, "position {} needs page {i} to be exact", row.pos);
                }
                for page in exact[..wanted].iter().flatten() {
                    let there = limits.exact_pages;
                    assert!((*page as usize) < there, "exact page {page}, there are {there}");
                }
            }
        }
        if !self.states.is_empty() {
            self.assert_states_fit(step);
        }
        if stages.iter().any(|(_, stage)| matches!(stage, Stage::Attend(s) if s.ahead > 0)) {
            assert_whole(step);
        }
        if stages.iter().any(|(_, stage)| matches!(stage, Stage::Attend(s) if s.whole_images)) {
            for (row, end) in step.rows.iter().zip(step.ends()) {
                let image = step.pages.image_at(row.seq, row.pos);
                let is_whole = image.is_none_or(|image| image.end() <= end + 1);
                assert!(is_whole, "slot {}: {image:?} is cut after position {end}", row.seq);
            }
        }
        let rows_of = |w: Weight| self.weight_decl(w).rows;
        for (_, stage) in stages {
            let Stage::Embed(s) = stage else { continue };
            let n_vocab = rows_of(s.table) / s.stride as usize;
            let n_ctx = s.positions.map_or(usize::MAX, rows_of);
            let n_types = s.types.map_or(0, rows_of);
            for row in step.rows {
                let token_type = step.pages.token_type(row.seq, row.pos) as usize;
                assert!(
                    s.types.is_none() || token_type < n_types,
                    "token type {token_type}, there are {n_types}"
                );
                if row.token == Row::PICKED {
                    let most = self.picked_from();
                    assert!(most <= n_vocab, "a token picked from {most}, there are {n_vocab}");
                } else {
                    assert!((row.token as usize) < n_vocab, "token {}, there are {n_vocab}", row.token);
                }
                assert!((row.pos as usize) < n_ctx, "position {}, there are {n_ctx}", row.pos);
            }
        }
    }

    /// [`assert_fits`](Self::assert_fits) for recurrent states.
    fn assert_states_fit(&self, step: &Step<'_>) {
        let there = self.limits.states;
        let slots = |run: &Range<usize>| step.pages.state(step.rows[run.start].seq);
        for (i, run) in step.runs().enumerate() {
            let rows = &step.rows[run.clone()];
            let Row { seq, pos, .. } = rows[0];
            let is_next = |pair: &[Row]| pair[1].pos == pair[0].pos + 1;
            assert!(rows.windows(2).all(is_next), "slot {seq}: rows skip positions");
            let Some(own) = slots(&run) else { panic!("slot {seq} has no state") };
            assert_eq!(own.from.is_none(), pos == 0, "slot {seq} at position {pos}: {own:?}");
            assert!(own.from.unwrap_or(0).max(own.to) < there as u32, "slot {seq}: {own:?} of {there}");
            for other in step.runs().skip(i + 1) {
                assert!(step.rows[other.start].seq != seq, "slot {seq}: its rows are not consecutive");
                let theirs = slots(&other).map(|theirs| (theirs.from, theirs.to));
                let apart = theirs
                    .is_none_or(|(from, to)| own.to != to && from != Some(own.to) && own.from != Some(to));
                assert!(apart, "slot {seq}: another sequence uses its state");
            }
        }
        self.assert_row_states_fit(step);
    }

    /// [`assert_states_fit`](Self::assert_states_fit) for states after single rows.
    fn assert_row_states_fit(&self, step: &Step<'_>) {
        let mut used = Vec::new();
        for run in step.runs() {
            let seq = step.rows[run.start].seq;
            let kept = step.pages.row_states(seq);
            let end = if kept.slots.is_empty() { 0 } else { kept.first + kept.slots.len() };
            assert!(end < run.len(), "slot {seq}: states after {end} of {} rows", run.len());
            used.extend(
                step.pages.state(seq).into_iter().flat_map(|own| own.from.into_iter().chain([own.to])),
            );
        }
        for slot in step.runs().flat_map(|run| &step.pages.row_states(step.rows[run.start].seq).slots) {
            let is_there = (*slot as usize) < self.limits.states;
            assert!(is_there && !used.contains(slot), "state {slot} after a row: in use or not there");
            used.push(*slot);
        }
    }

    fn check_stage(&self, stage: &Stage) -> Result<(), String> {
        match stage {
            Stage::Embed(s) => self.check_embed(s),
            Stage::AttnIn(s) => self.check_attn_in(s),
            Stage::LatentIn(s) => self.check_latent_in(s),
            Stage::Attend(s) => self.check_attend(s),
            Stage::ProjIn(s) => self.check_proj_in(s),
            Stage::Conv(s) => self.check_conv(s),
            Stage::Mamba(s) => self.check_mamba(s),
            Stage::HeadProj(s) => self.check_head_proj(s),
            Stage::Delta(s) => self.check_delta(s),
            Stage::ProjAdd(s) => self.check_proj_add(s),
            Stage::NormAdd(s) => self.check_norm_add(s),
            Stage::AltUpPredict(s) => self.check_altup_predict(s),
            Stage::AltUpCorrect(s) => self.check_altup_correct(s),
            Stage::Rescale(s) => self.check_rescale(s),
            Stage::AddVector(s) => self.check_add_vector(s),
            Stage::FfnIn(s) => self.check_ffn_in(s),
            Stage::Experts(s) => self.check_experts(s),
            Stage::Logits(s) => self.check_logits(s),
            Stage::Sample(Sample { logits }) => self.want_buf("logits", *logits, RowsOf::Outputs).map(drop),
        }
    }

    fn check_embed(&self, s: &Embed) -> Result<(), String> {
        let Embed { table, stride, first, basis, scale, positions, types, ref lora, x } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let table = self.want_weight(table)?;
        want_factor("the embedding's factor", scale)?;
        if first >= stride || !table.rows.is_multiple_of(stride as usize) {
            return Err(format!("row {first} of {stride} per token, in a table of {} rows", table.rows));
        }
        self.want_basis(basis, table.cols)?;
        equal("x's columns", dim, &table.name, table.cols)?;
        if let Some(positions) = positions {
            let positions = self.want_weight(positions)?;
            equal("x's columns", dim, &positions.name, positions.cols)?;
        }
        if let Some(types) = types {
            let types = self.want_weight(types)?;
            equal("x's columns", dim, &types.name, types.cols)?;
        }
        if stride != 1 && !lora.is_empty() {
            return Err(format!("{}: an adapter for a table with {stride} rows per token", table.name));
        }
        self.want_lora(lora, dim, |a| (a.rows == table.rows).then_some(a.cols))
    }

    fn check_attn_in(&self, s: &AttnIn) -> Result<(), String> {
        let AttnIn {
            x,
            ref norm,
            ref wq,
            ref wk,
            ref wv,
            ref q_norm,
            ref k_norm,
            qk_norm,
            ref v_norm,
            rope,
            q_scale,
            kv,
            q,
            gate,
        } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let q_cols = self.want_buf("q", q, RowsOf::Step)?.cols;
        let kv = self.want_heads(kv, q_cols)?;
        if kv.values_are_keys {
            return Err("a cache whose keys are also the values, which latent_in writes".into());
        }
        let kv_cols = kv.n_kv_heads * kv.head_dim;
        if x == q {
            return Err("x and q are one buffer".into());
        }
        norm.as_ref().map_or(Ok(()), |norm| self.want_norm(norm, dim))?;
        if let Some(gate) = gate {
            equal("q's columns", q_cols, "gate", self.want_buf("gate", gate, RowsOf::Step)?.cols)?;
            self.want_apart(&[x, q, gate])?;
        }
        self.want_input_norm(wq, if gate.is_some() { 2 * q_cols } else { q_cols }, dim)?;
        for w in wk.iter().chain(wv) {
            self.want_input_norm(w, kv_cols, dim)?;
        }
        if wk.is_none() && (wv.is_some() || k_norm.is_some() || v_norm.is_some()) {
            return Err("values or norms of a stage without keys".into());
        }
        let of_rows = qk_norm == QkNorm::Rows;
        if of_rows && gate.is_some() {
            return Err("norms of whole rows of queries with a gate".into());
        }
        if qk_norm == QkNorm::Rotated
            && [q_norm, k_norm].into_iter().flatten().any(|norm| norm.kind != NormKind::Rms)
        {
            return Err("a norm after RoPE that is not an RMS norm".into());
        }
        for (norm, cols) in [(q_norm, q_cols), (k_norm, kv_cols)] {
            let cols = if of_rows { cols } else { kv.head_dim };
            norm.as_ref().map_or(Ok(()), |norm| self.want_norm(norm, cols))?;
        }
        v_norm.as_ref().map_or(Ok(()), |norm| self.want_norm(norm, kv.head_dim))?;
        if q_scale.is_some_and(|scale| scale.period == 0 || !scale.factor.is_finite()) {
            return Err(format!("a factor on queries of {q_scale:?}"));
        }
        if let Some(rope) = rope {
            let rotated = self.want_rope(rope)?;
            if rotated > kv.head_dim {
                return Err(format!("a rope of {} pairs rotates heads of {}", rotated / 2, kv.head_dim));
            }
        }
        Ok(())
    }

    fn check_latent_in(&self, s: &LatentIn) -> Result<(), String> {
        let LatentIn { x, ref norm, ref q_latent, ref wq, ref wk, ref wkv, ref kv_norm, rope, kv, q } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let q_cols = self.want_buf("q", q, RowsOf::Step)?.cols;
        self.want_apart(&[x, q])?;
        let cache = self.want_heads(kv, q_cols)?;
        let head_dim = cache.head_dim;
        if cache.n_kv_heads != 1 || !cache.values_are_keys {
            let n = cache.n_kv_heads;
            return Err(format!("{n} KV heads, want one whose keys are also the values"));
        }
        let Some(first) = wk.first() else { return Err("no heads".into()) };
        let WeightDecl { rows: rank, cols: plain, .. } = *self.want_weight(first.w)?;
        equal("q's columns", q_cols, "the heads", wk.len() * head_dim)?;
        let rotated = self.want_rope(rope)?;
        if rank + rotated > head_dim {
            return Err(format!("{rank} elements and {rotated} rotated ones in a head of {head_dim}"));
        }
        self.want_norm(norm, dim)?;
        let inputs = match q_latent {
            Some((linear, norm)) => {
                let q_rank = self.want_weight(linear.w)?.rows;
                self.want_plain(linear, q_rank, dim)?;
                self.want_norm(norm, q_rank)?;
                q_rank
            }
            None => dim,
        };
        self.want_plain(wq, wk.len() * (plain + head_dim - rank), inputs)?;
        wk.iter().try_for_each(|linear| self.want_plain(linear, rank, plain))?;
        self.want_plain(wkv, head_dim, dim)?;
        self.want_norm(kv_norm, rank)
    }

    fn check_head_proj(&self, s: &HeadProj) -> Result<(), String> {
        let HeadProj { x, ref w, out } = *s;
        let x_cols = self.want_buf("x", x, RowsOf::Step)?.cols;
        let out_cols = self.want_buf("out", out, RowsOf::Step)?.cols;
        self.want_apart(&[x, out])?;
        let Some(first) = w.first() else { return Err("no heads".into()) };
        let WeightDecl { rows, cols, .. } = *self.want_weight(first.w)?;
        if !x_cols.is_multiple_of(w.len()) || cols > x_cols / w.len() {
            return Err(format!("{cols} of each head's elements, of {x_cols} in {} heads", w.len()));
        }
        equal("the heads' rows", w.len() * rows, "out", out_cols)?;
        w.iter().try_for_each(|linear| self.want_plain(linear, rows, cols))
    }

    /// Elements of a head that a RoPE rotates.
    fn want_rope(&self, RopeId(id): RopeId) -> Result<usize, String> {
        let rope = self.ropes.get(id as usize).ok_or_else(|| format!("rope {id} is not declared"))?;
        Ok(2 * rope.inv_freq.len())
    }

    fn check_attend(&self, s: &Attend) -> Result<(), String> {
        let Attend { q, kv, scale, soft_cap, window, ahead, whole_images, sinks, gate, gate_act, out } = *s;
        let q_cols = self.want_buf("q", q, RowsOf::Step)?.cols;
        let out_cols = self.want_buf("out", out, RowsOf::Step)?.cols;
        let decl = self.want_heads(kv, q_cols)?;
        equal("q's columns", q_cols, "out", out_cols)?;
        if q == out {
            return Err("q and out are one buffer".into());
        }
        if let Some(gate) = gate {
            let cols = self.want_buf("gate", gate, RowsOf::Step)?.cols;
            let of_heads = gate_act == GateAct::Softplus && cols == q_cols / decl.head_dim;
            equal("q's columns", q_cols, "gate", if of_heads { q_cols } else { cols })?;
            self.want_apart(&[gate, out])?;
        }
        if window == Some(0) {
            return Err("a window of no position".into());
        }
        if let Some(kept) = decl.sliding
            && window.is_none_or(|window| window > kept)
        {
            let seen = window.map_or("all".to_owned(), |window| window.to_string());
            return Err(format!("it sees {seen} positions of a cache that keeps {kept}"));
        }
        if ahead > 0 || whole_images {
            if let Some((codec, _)) = decl.codecs().find(|(codec, _)| codec.windowed()) {
                return Err(format!("it sees ahead, which KV codec {} is not for", codec.name()));
            }
            if ahead > 0 && decl.sliding.is_some() {
                return Err("it sees ahead, in a cache that keeps a window".into());
            }
        }
        if let Some(sinks) = sinks {
            self.want_vector(sinks, q_cols / decl.head_dim)?;
        }
        want_soft_cap(soft_cap)?;
        want_factor("the scores' factor", scale)
    }

    fn check_proj_in(&self, s: &ProjIn) -> Result<(), String> {
        let ProjIn { x, ref norm, ref products } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        self.want_norm(norm, dim)?;
        if !(1..=ProjIn::MAX_PRODUCTS).contains(&products.len()) {
            return Err(format!("{} products, want 1 to {}", products.len(), ProjIn::MAX_PRODUCTS));
        }
        let bufs: Vec<Buf> = [x].into_iter().chain(products.iter().map(|(_, buf)| *buf)).collect();
        for (linear, buf) in products {
            self.want_plain(linear, self.want_buf("product", *buf, RowsOf::Step)?.cols, dim)?;
        }
        self.want_apart(&bufs)
    }

    fn check_conv(&self, s: &Conv) -> Result<(), String> {
        // With or without SiLU.
        let Conv { u, before, after, state, w, bias, silu: _, out } = *s;
        let decl = self.want_state(state)?;
        if decl.matrix_elems() > 0 {
            return Err("a state with matrices".into());
        }
        self.want_taps(decl)?;
        let channels = decl.channels();
        let bufs = [Some(u), before, after, Some(out)];
        for (name, buf) in ["u", "before", "after", "out"].into_iter().zip(bufs) {
            let Some(buf) = buf else { continue };
            equal("channels", channels, name, self.want_buf(name, buf, RowsOf::Step)?.cols)?;
        }
        self.want_apart(&bufs.into_iter().flatten().collect::<Vec<_>>())?;
        self.want_vector(w, channels * decl.taps)?;
        bias.map_or(Ok(()), |bias| self.want_vector(bias, channels))
    }

    fn check_delta(&self, s: &Delta) -> Result<(), String> {
        // Either order of heads is valid.
        let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped: _, out } = *s;
        let decl = self.want_state(state)?;
        self.want_taps(decl)?;
        let (head_dim, step) = (decl.head_dim, StateDecl::HEAD_DIM_STEP);
        if !head_dim.is_multiple_of(step) || decl.key_dim != head_dim {
            return Err(format!("heads of {head_dim} and {}, want equal multiples of {step}", decl.key_dim));
        }
        let values = decl.n_heads * decl.head_dim;
        for (name, buf, cols) in [
            ("u", u, decl.channels()),
            ("z", z, values),
            ("a", a, decl.n_heads),
            ("b", b, decl.n_heads),
            ("out", out, values),
        ] {
            equal("columns", cols, name, self.want_buf(name, buf, RowsOf::Step)?.cols)?;
        }
        for (i, buf) in [u, z, a, b].into_iter().enumerate() {
            if buf == out {
                return Err(format!("out is one buffer with {}", ["u", "z", "a", "b"][i]));
            }
        }
        self.want_vector(conv, decl.channels() * decl.taps)?;
        self.want_vector(decay, decl.n_heads)?;
        self.want_vector(dt, decl.n_heads)?;
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(format!("an epsilon of {eps}"));
        }
        self.want_norm(norm, decl.head_dim)
    }

    fn check_mamba(&self, s: &Mamba) -> Result<(), String> {
        let Mamba { c, z, a, state, decay, dt, skip, ref norm, out } = *s;
        let decl = self.want_state(state)?;
        if decl.taps != 1 || decl.key_dim == 0 {
            return Err(format!("keys of {}, and a convolution of {} taps", decl.key_dim, decl.taps));
        }
        let values = decl.n_heads * decl.head_dim;
        let bufs =
            [("c", c, decl.channels()), ("z", z, values), ("a", a, decl.n_heads), ("out", out, values)];
        for (name, buf, cols) in bufs {
            equal("columns", cols, name, self.want_buf(name, buf, RowsOf::Step)?.cols)?;
        }
        self.want_apart(&bufs.map(|(_, buf, _)| buf))?;
        for vector in [decay, dt, skip] {
            self.want_vector(vector, decl.n_heads)?;
        }
        match norm {
            Some(norm) if norm.kind != NormKind::Rms => Err("a norm of groups that is no RMS norm".into()),
            Some(norm) => self.want_norm(norm, values),
            None => Ok(()),
        }
    }

    fn check_proj_add(&self, s: &ProjAdd) -> Result<(), String> {
        let ProjAdd { y, ref w, ref post, ref residual, scale, x } = *s;
        let cols = self.want_buf("y", y, RowsOf::Step)?.cols;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        if y == x {
            return Err("y and x are one buffer".into());
        }
        for norm in post.iter().chain(residual) {
            self.want_norm(norm, dim)?;
        }
        want_factor("the sum's factor", scale)?;
        if w.clamp.is_some() && post.is_none() {
            return Err("bounds of a product without a norm of its own".into());
        }
        self.want_linear(w, dim, cols)
    }

    fn check_norm_add(&self, s: &NormAdd) -> Result<(), String> {
        let NormAdd { y, ref norm, scale, x } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        equal("x's columns", dim, "y", self.want_buf("y", y, RowsOf::Step)?.cols)?;
        self.want_apart(&[y, x])?;
        want_factor("the sum's factor", scale)?;
        self.want_norm(norm, dim)
    }

    fn check_altup_predict(&self, s: &AltUpPredict) -> Result<(), String> {
        let AltUpPredict { c, w, x, active, out, y } = *s;
        self.want_streams(active, &[x.as_slice(), &out, &[y]].concat())?;
        self.want_apart(&[[c].as_slice(), &x, &out, &[y]].concat())?;
        equal("streams", STREAMS, "the router's product", self.want_buf("c", c, RowsOf::Step)?.cols)?;
        self.want_vector(w, STREAMS * STREAMS * STREAMS)
    }

    fn check_altup_correct(&self, s: &AltUpCorrect) -> Result<(), String> {
        let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = *s;
        let dim = self.want_streams(active, &[x.as_slice(), &predicted, &[y, scaled]].concat())?;
        self.want_apart(&[[c].as_slice(), &x, &predicted, &[y, scaled]].concat())?;
        equal("streams", STREAMS, "the router's product", self.want_buf("c", c, RowsOf::Step)?.cols)?;
        self.want_vector(w, STREAMS * STREAMS)?;
        self.want_vector(factors, dim)
    }

    fn check_rescale(&self, s: &Rescale) -> Result<(), String> {
        let Rescale { like, y, floor, mean } = *s;
        let bufs: Vec<Buf> = [like].into_iter().chain(y).chain(mean).collect();
        self.want_streams(0, &bufs)?;
        self.want_apart(&bufs)?;
        match floor.is_finite() && floor > 0.0 {
            true => Ok(()),
            false => Err(format!("a least mean square of {floor}")),
        }
    }

    /// Requires buffers of the same width, which it returns, and an active stream that exists.
    fn want_streams(&self, active: usize, bufs: &[Buf]) -> Result<usize, String> {
        let dim = self.want_buf("a stream", bufs[0], RowsOf::Step)?.cols;
        for buf in bufs {
            let cols = self.want_buf("a stream", *buf, RowsOf::Step)?.cols;
            equal("a stream's columns", dim, "another one", cols)?;
        }
        if active < STREAMS { Ok(dim) } else { Err(format!("stream {active} of {STREAMS} is active")) }
    }

    fn check_add_vector(&self, s: &AddVector) -> Result<(), String> {
        let AddVector { x, v } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        self.want_vector(v, dim)
    }

    fn check_ffn_in(&self, s: &FfnIn) -> Result<(), String> {
        let FfnIn { x, ref norm, ref gate, ref up, act, ref share, times, cutoff, h } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let ffn_dim = self.want_buf("h", h, RowsOf::Step)?.cols;
        norm.as_ref().map_or(Ok(()), |norm| self.want_norm(norm, dim))?;
        if let Some(times) = times {
            equal(
                "h's columns",
                ffn_dim,
                "its factors",
                self.want_buf("factors", times, RowsOf::Step)?.cols,
            )?;
            self.want_apart(&[x, times, h])?;
        }
        if let Some(gate) = gate {
            self.want_input_norm(gate, ffn_dim, dim)?;
        }
        if let Some(share) = share {
            self.want_plain(share, 1, dim)?;
        }
        if h == x {
            return Err("h and x are one buffer".into());
        }
        if gate.is_none() && act == Act::ClampedSwiglu {
            return Err("a clamped SwiGLU without a gate".into());
        }
        if cutoff.is_some_and(|cutoff| gate.is_none() || !cutoff.is_finite()) {
            return Err(format!("a cutoff of {cutoff:?}, or one without a gate"));
        }
        self.want_input_norm(up, ffn_dim, dim)
    }

    fn check_experts(&self, s: &Experts) -> Result<(), String> {
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
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let width = match input {
            Some(input) => self.want_buf("the experts' input", input, RowsOf::Step)?.cols,
            None => dim,
        };
        if let Some(out) = out {
            let cols = self.want_buf("the sum", out, RowsOf::Step)?.cols;
            equal("columns of the experts' input", width, "the sum", cols)?;
            self.want_apart(&[x, out])?;
        }
        if input.is_some_and(|input| out.is_none_or(|out| out == input)) {
            return Err("an input of experts without a buffer of its own for their sum".into());
        }
        for norm in [norm].into_iter().chain(router_norm) {
            self.want_norm(norm, dim)?;
        }
        let n_experts = experts.len();
        if !(1..=n_experts).contains(&n_used) {
            return Err(format!("{n_used} of {n_experts} experts are used"));
        }
        self.want_plain(router, n_experts, dim)?;
        self.check_routing(routing, n_experts, n_used)?;
        let ffn_dim = self.want_weight(experts[0].up.w)?.rows;
        let gated = experts[0].gate.is_some();
        if experts.iter().any(|expert| expert.gate.is_some() != gated) {
            return Err("experts with a gate and without".into());
        }
        if !gated && act == Act::ClampedSwiglu {
            return Err("a clamped SwiGLU without a gate".into());
        }
        for Expert { gate, up, down } in experts {
            gate.as_ref().map_or(Ok(()), |gate| self.want_plain(gate, ffn_dim, width))?;
            self.want_plain(up, ffn_dim, width)?;
            self.want_plain(down, width, ffn_dim)?;
        }
        Ok(())
    }

    fn check_routing(&self, routing: &Routing, n_experts: usize, n_used: usize) -> Result<(), String> {
        // Every gating may be normalised.
        let Routing { gating: _, bias, groups, normalise: _, scale } = *routing;
        want_factor("the experts' factor", scale)?;
        if let Some(bias) = bias {
            self.want_vector(bias, n_experts)?;
        }
        let Some(Groups { n, n_used: used }) = groups else { return Ok(()) };
        if n == 0 || !n_experts.is_multiple_of(n) || n_experts / n < 2 {
            return Err(format!("{n} groups of {n_experts} experts, want at least 2 experts in each"));
        }
        if !(1..=n).contains(&used) || n_used > used * (n_experts / n) {
            return Err(format!("{n_used} experts of {used} of {n} groups of {}", n_experts / n));
        }
        Ok(())
    }

    fn check_logits(&self, s: &Logits) -> Result<(), String> {
        let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
        let dim = self.want_buf("x", x, RowsOf::Step)?.cols;
        let n_vocab = self.want_buf("logits", logits, RowsOf::Outputs)?.cols;
        self.want_norm(norm, dim)?;
        want_soft_cap(soft_cap)?;
        self.want_input_norm(w, n_vocab, dim)
    }

    /// Requires that all buffers are different.
    fn want_apart(&self, bufs: &[Buf]) -> Result<(), String> {
        let again = |(i, buf): (usize, &Buf)| bufs[..i].contains(buf).then_some(*buf);
        match bufs.iter().enumerate().find_map(again) {
            Some(buf) => Err(format!("buffer `{}` is used for two operands", self.buf_decl(buf).name)),
            None => Ok(()),
        }
    }

    fn want_state(&self, state: State) -> Result<&StateDecl, String> {
        let decl = self.states.get(state.0 as usize);
        let decl = decl.ok_or_else(|| format!("state {} is not declared", state.0))?;
        // The stage checks the length of keys.
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps } = *decl;
        if n_key_heads == 0 || n_heads == 0 || !n_heads.is_multiple_of(n_key_heads) {
            return Err(format!("{n_heads} heads for {n_key_heads} key heads"));
        }
        if head_dim == 0 || taps == 0 {
            return Err(format!("heads of {head_dim}, a convolution of {taps} taps"));
        }
        Ok(decl)
    }

    fn want_taps(&self, decl: &StateDecl) -> Result<(), String> {
        match decl.taps {
            2..=StateDecl::MAX_TAPS => Ok(()),
            taps => Err(format!("a convolution of {taps} taps, want 2 to {}", StateDecl::MAX_TAPS)),
        }
    }

    fn want_weight(&self, w: Weight) -> Result<&WeightDecl, String> {
        let decl = self.weights.get(w.0 as usize).ok_or_else(|| format!("weight {} is not declared", w.0))?;
        decl.ty.byte_len(decl.rows, decl.cols).map_err(|err| format!("{}: {err}", decl.name))?;
        Ok(decl)
    }

    fn want_buf(&self, role: &str, b: Buf, rows: RowsOf) -> Result<&BufDecl, String> {
        let decl =
            self.bufs.get(b.0 as usize).ok_or_else(|| format!("{role}: buffer {} is not declared", b.0))?;
        if decl.rows != rows {
            return Err(format!(
                "{role}: want a buffer of {rows:?} rows, `{}` has {:?} rows",
                decl.name, decl.rows
            ));
        }
        if decl.cols == 0 {
            return Err(format!("{role}: buffer `{}` has no columns", decl.name));
        }
        Ok(decl)
    }

    /// Requires a cache whose KV heads divide the query heads in `q_cols`.
    fn want_heads(&self, kv: Kv, q_cols: usize) -> Result<&KvDecl, String> {
        let decl = self.kvs.get(kv.0 as usize).ok_or_else(|| format!("KV cache {} is not declared", kv.0))?;
        // Any window is valid; `check_attend` checks `sliding`.
        let &KvDecl { n_kv_heads, head_dim, k, v: _, ref basis, window: _, sliding: _, values_are_keys } =
            decl;
        let group = n_kv_heads.checked_mul(head_dim).filter(|&group| group > 0);
        if group.is_none_or(|group| !q_cols.is_multiple_of(group)) {
            return Err(format!(
                "{q_cols} query columns are not a multiple of {n_kv_heads} KV heads of {head_dim}"
            ));
        }
        if values_are_keys && !matches!(k.form(), KvForm::F16 | KvForm::F32) {
            return Err(format!("KV codec {}: not for keys that are also the values, use f16", k.name()));
        }
        for (codec, side) in decl.codecs() {
            if let Some(instead) = codec.instead(side) {
                return Err(format!("KV codec {}: not for {side:?}, use {}", codec.name(), instead.name()));
            }
            codec.vec_bytes(head_dim).map_err(|err| format!("KV codec {}: {err}", codec.name()))?;
        }
        if let Some(basis) = basis
            && (!k.form().has_basis()
                || basis.len() != n_kv_heads
                || basis.iter().any(|basis| basis.dim() != head_dim))
        {
            return Err(format!(
                "{} bases for {n_kv_heads} KV heads of {head_dim} with keys as {}",
                basis.len(),
                k.name()
            ));
        }
        Ok(decl)
    }

    /// Requires a layer without a norm of its own: it uses the input as normalised by the stage.
    fn want_plain(&self, linear: &Linear, rows: usize, cols: usize) -> Result<(), String> {
        if linear.norm.is_some() || linear.clamp.is_some() {
            let name = &self.weight_decl(linear.w).name;
            return Err(format!("{name}: a norm or bounds of its own, which no kernel supports"));
        }
        self.want_linear(linear, rows, cols)
    }

    /// Requires a layer that has no basis if it normalises its input again after the stage's norm.
    fn want_input_norm(&self, linear: &Linear, rows: usize, cols: usize) -> Result<(), String> {
        match (&linear.norm, linear.basis) {
            (Some(_), Some(_)) => {
                Err(format!("{}: a second norm before a basis", self.weight_decl(linear.w).name))
            }
            _ => self.want_linear(linear, rows, cols),
        }
    }

    /// Requires a layer of this shape; it may have a norm of its own and a basis.
    fn want_linear(&self, linear: &Linear, rows: usize, cols: usize) -> Result<(), String> {
        // Every quantisation and factor is valid.
        let Linear { w, ref norm, bias, act: _, scale: _, basis, ref lora, clamp } = *linear;
        let w = self.want_weight(w)?;
        if let Some(Clamp { input, output }) = clamp
            && ![input, output].iter().all(|[lower, upper]| lower <= upper)
        {
            return Err(format!("{}: bounds {input:?} and {output:?}", w.name));
        }
        if (w.rows, w.cols) != (rows, cols) {
            return Err(format!("{}: want [{rows}, {cols}], have [{}, {}]", w.name, w.rows, w.cols));
        }
        if let Some(norm) = norm {
            self.want_norm(norm, cols)?;
        }
        self.want_basis(basis, cols)?;
        if basis.is_some() && !lora.is_empty() {
            return Err(format!("{}: an adapter for weights in a rotated basis", w.name));
        }
        self.want_lora(lora, rows, |a| (a.cols == cols).then_some(a.rows))?;
        bias.map_or(Ok(()), |bias| self.want_vector(bias, rows))
    }

    /// Requires pairs of different adapters for `outputs` outputs. `rank` reads the rank from the first
    /// matrix, `None` if its shape is wrong.
    fn want_lora(
        &self,
        pairs: &[Lora],
        outputs: usize,
        rank: impl Fn(&WeightDecl) -> Option<usize>,
    ) -> Result<(), String> {
        for (i, Lora { adapter, a, b, scale }) in pairs.iter().enumerate() {
            let (a, b) = (self.want_weight(*a)?, self.want_weight(*b)?);
            let is_pair = rank(a).is_some_and(|rank| rank > 0 && (b.rows, b.cols) == (outputs, rank));
            if !is_pair {
                let [a, b] = [a, b].map(|w| format!("{} [{}, {}]", w.name, w.rows, w.cols));
                return Err(format!("{a} and {b} are no pair for {outputs} outputs"));
            }
            want_factor("the factor of an adapter", *scale)?;
            let is_again = pairs[..i].iter().any(|other| other.adapter == *adapter);
            if is_again || *adapter as usize >= self.adapters.len() {
                return Err(format!("adapter {adapter} of {}, or a second pair of it", self.adapters.len()));
            }
        }
        Ok(())
    }

    fn want_basis(&self, basis: Option<BasisId>, cols: usize) -> Result<(), String> {
        let Some(BasisId(id)) = basis else { return Ok(()) };
        let Basis { block, signs } =
            self.bases.get(id as usize).ok_or_else(|| format!("basis {id} is not declared"))?;
        if !block.is_power_of_two() || !cols.is_multiple_of(*block) || signs.len() != cols {
            return Err(format!("basis {id}: runs of {block} and {} signs for {cols} inputs", signs.len()));
        }
        Ok(())
    }

    fn want_norm(&self, norm: &Norm, cols: usize) -> Result<(), String> {
        // Every epsilon is valid.
        let Norm { kind, weight, bias, eps: _ } = *norm;
        self.want_vector(weight, cols)?;
        match (kind, bias) {
            (NormKind::Rms, Some(_)) => Err("an RMS norm has no bias".into()),
            (_, Some(bias)) => self.want_vector(bias, cols),
            (_, None) => Ok(()),
        }
    }

    fn want_vector(&self, w: Weight, cols: usize) -> Result<(), String> {
        let w = self.want_weight(w)?;
        if !w.ty.is(&types::F32) || (w.rows, w.cols) != (1, cols) {
            return Err(format!(
                "{}: want [{cols}] f32, have [{}, {}] {}",
                w.name,
                w.rows,
                w.cols,
                w.ty.name()
            ));
        }
        Ok(())
    }
}

/// [`Program::assert_fits`] if rows see ahead: every sequence runs as a whole.
fn assert_whole(step: &Step<'_>) {
    for (i, run) in step.runs().enumerate() {
        let rows = &step.rows[run];
        let Row { seq, pos, .. } = rows[0];
        assert_eq!(pos, 0, "slot {seq}: rows see ahead, but the rows before position {pos} are missing");
        let is_next = |pair: &[Row]| pair[1].pos == pair[0].pos + 1;
        assert!(rows.windows(2).all(is_next), "slot {seq}: rows skip positions");
        let apart = step.runs().skip(i + 1).all(|other| step.rows[other.start].seq != seq);
        assert!(apart, "slot {seq}: its rows are not consecutive");
    }
}

fn want_soft_cap(cap: Option<f32>) -> Result<(), String> {
    let is_valid = cap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
    if is_valid { Ok(()) } else { Err(format!("a soft cap of {cap:?}")) }
}

fn want_factor(what: &str, factor: f32) -> Result<(), String> {
    if factor.is_finite() { Ok(()) } else { Err(format!("{what} is {factor}")) }
}

fn equal(what: &str, want: usize, name: &str, got: usize) -> Result<(), String> {
    if want == got { Ok(()) } else { Err(format!("{what}: {want}, columns of {name}: {got}")) }
}
