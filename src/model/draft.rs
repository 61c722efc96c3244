//! Programs that draft tokens for a model from the model's own rows: its block for multi-token prediction
//! (MTP, [`mtp`](super::mtp)), or a file made for the model, which has the MTP block alone, an EAGLE-3 head,
//! or Gemma 4's assistant.
//!
//! All run on the pages of the model's sequences, and see the row of the position before each token. The
//! token table and the head are the model's where a file has none of its own.

use std::sync::Arc;

use super::ModelError;
use sterna_gguf::FileTensor;
use sterna_program::{Attend, AttnIn, Buf, Kv, Norm, PartOf, Program, Stage, Weight};

/// A program that drafts tokens. The caller writes [`DraftForm::hidden`] before each step.
#[derive(Clone, Debug)]
pub struct DraftBlock {
    /// The forward pass.
    pub program: Program,
    /// `weights[i]` is the file tensor for `program.weights[i]`, not yet read.
    pub weights: Vec<FileTensor>,
    /// Its inputs and outputs.
    pub form: DraftForm,
}

impl DraftBlock {
    /// True if a weight of the model with this name is the same tensor.
    pub fn is_lent(&self, name: &str) -> bool {
        match &self.form.lent {
            None => true,
            Some(lent) => lent.iter().any(|lent| name == lent || name.starts_with(&format!("{lent} as "))),
        }
    }
}

/// Inputs and outputs of a program that drafts.
#[derive(Clone, Debug)]
pub struct DraftForm {
    /// In: the hidden row of the position before each row, `[rows, cols]`: the model's last row after its
    /// norm, unless there is a [`Fusion`].
    pub hidden: Buf,
    /// Out: the hidden row for the next draft, before [`next_norm`](Self::next_norm), `[rows, cols]`.
    pub next: Buf,
    /// Norm of that row.
    pub next_norm: Option<Norm>,
    /// Number of first stages after which a step has written the program's own KV cache; 0 without one.
    pub n_fill: usize,
    /// Hidden rows from rows of several layers (EAGLE-3).
    pub fusion: Option<Fusion>,
    /// True if the KV caches are the model's, with the same numbers, which are only read. The rows of a draft
    /// then all run at the last cached position.
    pub reads_model: bool,
    /// The token of each row of the head; `None` if rows and tokens are the same.
    pub ids: Option<Arc<[u32]>>,
    /// Names of the model's tensors that the program uses; `None` if it is in the file of the model, so that
    /// all names are the same tensors.
    pub lent: Option<Vec<String>>,
}

/// Hidden rows that a layer computes from rows of several layers of the model, and the input of attention,
/// which is a token's embedding and a hidden row, each normalised, one after the other. The caller joins the
/// two.
#[derive(Clone, Debug)]
pub struct Fusion {
    /// Layers of the model whose inputs are used; the number of layers is the output of the last.
    pub layers: Vec<usize>,
    /// In: these inputs, one after the other, `[rows, layers * dim]`.
    pub rows: Buf,
    /// Out: the hidden rows of the model's rows, `[rows, cols]`.
    pub fused: Buf,
    /// Number of first stages that compute them; the next stage is the embedding.
    pub n_stages: usize,
    /// Out: the embedding of each row's token, `[rows, cols]`.
    pub embedding: Buf,
    /// Norm of the embedding.
    pub embedding_norm: Norm,
    /// Norm of the hidden row.
    pub hidden_norm: Norm,
    /// In: both, `[rows, 2 * cols]`.
    pub joined: Buf,
    /// True if the residual stream begins with the normalised hidden row.
    pub residual_is_normed: bool,
}

impl DraftBlock {
    /// Limits the head to some tokens, in ascending order: a smaller product, and drafts of these alone. A
    /// head that has only some tokens already is left as it is.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the rows of the head's type depend on each other.
    pub fn limit_head(&mut self, tokens: &[u32]) -> Result<(), ModelError> {
        let head = self.program.logits().cloned().expect("a program that drafts has a head");
        if self.form.ids.is_some() {
            return Ok(());
        }
        let whole = &self.weights[head.w.w.0 as usize];
        let decl = self.program.weight_decl(head.w.w).clone();
        let row_bytes = decl.ty.row_bytes(decl.cols).unwrap_or(0);
        if decl.ty.rows_together() != 1
            || decl.ty.byte_len(decl.rows, decl.cols).ok() != Some(decl.rows * row_bytes)
        {
            let want = "a type with independent rows, to draft with some of them".to_owned();
            return Err(ModelError::Tensor { tensor: decl.name, want, got: decl.ty.name().to_owned() });
        }
        let runs = tokens.chunk_by(|a, b| a + 1 == *b);
        let rows: Vec<_> = runs.map(|run| run[0] as usize..run[run.len() - 1] as usize + 1).collect();
        let name = format!("{} of {} tokens", decl.name, tokens.len());
        let limited = whole.gather(name.clone(), &rows);
        self.weights.push(limited);
        let w = self.program.weight(name, decl.ty, tokens.len(), decl.cols);
        self.program.weights[w.0 as usize].part_of = Some(PartOf { tensor: decl.tensor().to_owned(), rows });
        self.program.bufs[head.logits.0 as usize].cols = tokens.len();
        for (_, stage) in &mut self.program.stages {
            if let Stage::Logits(s) = stage {
                s.w.w = w;
            }
        }
        self.form.ids = Some(tokens.into());
        self.drop_unused(head.w.w);
        Ok(())
    }

    /// Removes a weight that no stage uses any more.
    fn drop_unused(&mut self, old: Weight) {
        if self.program.stages.iter().any(|(_, stage)| stage.weights().contains(&old)) {
            return;
        }
        // Its place is taken by the last one, which is the limited head.
        self.weights.swap_remove(old.0 as usize);
        self.program.weights.swap_remove(old.0 as usize);
        for (_, stage) in &mut self.program.stages {
            if let Stage::Logits(s) = stage {
                s.w.w = old;
            }
        }
    }

    /// Checks that every declaration is used.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let DraftForm { next_norm, fusion, reads_model, .. } = &self.form;
        let of_fusion = fusion.iter().flat_map(|fusion| [&fusion.embedding_norm, &fusion.hidden_norm]);
        let by_host: Vec<Weight> = next_norm.iter().chain(of_fusion).map(|norm| norm.weight).collect();
        let mut program = self.program.clone();
        if *reads_model {
            // It declares all caches of the model, and reads some.
            program.kvs.truncate(1);
            for (_, stage) in &mut program.stages {
                if let Stage::AttnIn(AttnIn { kv, .. }) | Stage::Attend(Attend { kv, .. }) = stage {
                    *kv = Kv(0);
                }
            }
        }
        Ok(program.check_all_named(&by_host)?)
    }
}
