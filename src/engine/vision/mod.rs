//! Images: the vision tower of an mmproj file, on a backend of its own. Pictures are encoded outside the
//! steps of the text model, on the thread of the caller.

pub(crate) mod picture;
mod pixels;
mod resize;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::Error;
use super::pool::RowNorm;
use super::upload::upload;
pub use picture::{ImageError, ImageRows, Picture, PlacedImage};
pub use pixels::Pixels;
use sterna_backend::{Backend, Exec};
use sterna_gguf::{Gguf, OpenOptions};
use sterna_model::ModelError;
pub use sterna_model::vision::TokenLimits;
use sterna_model::vision::{self as model, Half};
use sterna_program::{Buf, ImageSpan, PageTable, Program, Row, Step};

/// An mmproj file, and the options of its tower.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mmproj {
    /// The file.
    pub file: PathBuf,
    /// Limits on the tokens of an image.
    pub tokens: TokenLimits,
    /// True if the tower runs on the CPU, whatever the device of the text model is.
    pub on_cpu: bool,
}

/// A vision tower on a backend.
pub struct Vision {
    model: model::Vision,
    post_norm: Option<RowNorm>,
    on: Mutex<Compiled>,
    /// Rows of the last pictures with an id, newest last.
    known: Mutex<VecDeque<Arc<ImageRows>>>,
}

struct Compiled {
    backend: Box<dyn Backend>,
    tower: Exec,
    merger: Exec,
    deepstack: Vec<Exec>,
}

impl Vision {
    /// Reads an mmproj file for a text model.
    pub(super) fn read(mmproj: &Mmproj, options: OpenOptions) -> Result<model::Vision, Error> {
        Ok(model::Vision::read(&Gguf::open_with(&mmproj.file, options)?, mmproj.tokens)?)
    }

    /// Checks that a text model can read the rows of this tower.
    pub(super) fn check_text(
        model: &model::Vision,
        file: &Path,
        text: &Program,
        dim: usize,
        n_deepstack: usize,
    ) -> Result<(), Error> {
        let wrong = |key: &str, want: String, got: String| {
            let key = format!("{key} of {}", file.display());
            Err(ModelError::Metadata { key, want, got }.into())
        };
        if model.text_dim != dim {
            let want = format!("{dim}, the width of the text model");
            return wrong("clip.vision.projection_dim", want, model.text_dim.to_string());
        }
        if model.deepstack.len() != n_deepstack {
            let want = format!("{n_deepstack} layers, as many as the text model adds rows after");
            return wrong("clip.vision.is_deepstack_layers", want, model.deepstack.len().to_string());
        }
        let has_axes = text.ropes.iter().any(|rope| rope.axes.is_some());
        if (text.sees_whole_images(), has_axes) != (model.whole_images, model.axes) {
            let want = format!("a projector for a text model of architecture `{}`", text.name);
            return wrong("clip.projector_type", want, model.projector.clone());
        }
        Ok(())
    }

    /// Uploads the weights of a tower.
    pub(super) fn load(
        mut model: model::Vision,
        mut backend: Box<dyn Backend>,
        threads: usize,
    ) -> Result<Self, Error> {
        let mut compile = |half: &mut Half| -> Result<Exec, Error> {
            let weights = std::mem::take(&mut half.weights);
            let ids = upload(&mut *backend, weights, &half.program, threads, |_| ())?;
            Ok(backend.compile(&half.program, &ids)?)
        };
        let (tower, merger) = (compile(&mut model.tower)?, compile(&mut model.merger)?);
        let deepstack = model.deepstack.iter_mut().map(|deepstack| compile(&mut deepstack.merger));
        let deepstack = deepstack.collect::<Result<_, Error>>()?;
        let of_host =
            |model::RowNorm { kind, weight, bias, eps }| RowNorm { kind, weight, bias, eps: f64::from(eps) };
        let post_norm = model.post_norm.take().map(of_host);
        Ok(Self {
            model,
            post_norm,
            on: Mutex::new(Compiled { backend, tower, merger, deepstack }),
            known: Mutex::default(),
        })
    }

    /// Name of the projector in the mmproj file.
    pub fn projector(&self) -> &str {
        &self.model.projector
    }

    /// Texts before and after an image in a prompt.
    pub fn around(&self) -> [&'static str; 2] {
        [self.model.begin, self.model.end]
    }

    /// Resizes a picture to a size of the tower, and normalises it.
    ///
    /// # Errors
    /// [`ImageError::Ratio`].
    pub fn pixels(&self, picture: &Picture) -> Result<Pixels, ImageError> {
        pixels::pixels(&self.model, picture)
    }

    /// Number of tokens of a picture.
    ///
    /// # Errors
    /// [`ImageError::Ratio`].
    pub fn n_tokens(&self, picture: &Picture) -> Result<usize, ImageError> {
        let size = pixels::size(self.model.sizing, [picture.width(), picture.height()])?;
        let of_side = size.map(|side| side as usize / self.model.patch / self.model.merge.side());
        Ok(of_side[0] * of_side[1])
    }

    /// Encodes a picture, unless its rows are still known. Waits while another one is encoded.
    ///
    /// # Errors
    /// [`Error::Image`], [`Error::Backend`].
    pub fn encode(&self, picture: &Picture) -> Result<Arc<ImageRows>, Error> {
        /// Rows that are kept, in elements: 128 MiB.
        const KEPT: usize = 1 << 25;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |rows: &Arc<ImageRows>| rows.id.is_some() && rows.id == picture.id();
        let found = {
            let mut known = known();
            let at = known.iter().position(is_same);
            at.and_then(|at| known.remove(at))
        };
        let rows = match found {
            Some(rows) => rows,
            None => {
                let rows = self.encode_pixels(&self.pixels(picture)?)?;
                Arc::new(ImageRows { id: picture.id(), ..rows })
            }
        };
        if rows.id.is_some() {
            let mut known = known();
            known.push_back(Arc::clone(&rows));
            while known.iter().map(|rows| rows.n_elems()).sum::<usize>() > KEPT {
                known.pop_front();
            }
        }
        Ok(rows)
    }

    /// Encodes pixels of a size of the tower: a multiple of its blocks on both sides.
    ///
    /// # Errors
    /// [`Error::Backend`].
    ///
    /// # Panics
    /// If the size is not one of the tower's.
    pub fn encode_pixels(&self, pixels: &Pixels) -> Result<ImageRows, Error> {
        let (model, side) = (&self.model, self.model.merge.side());
        let grid = pixels::grid(model, pixels);
        let n_patches = grid.len() as usize;
        assert!((1..=model.max_patches()).contains(&n_patches), "{n_patches} patches");
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        let Compiled { backend, tower, merger, deepstack } = &mut *on;
        let backend = &mut **backend;

        let program = &model.tower.program;
        let x = buf(program, "x");
        backend.write(*tower, buf(program, "patches"), 0, &pixels::patches(model, pixels, &grid))?;
        backend.write(*tower, x, 0, &pixels::positions(&model.positions, &grid))?;
        let mut rows = vec![0.0; n_patches * program.buf_decl(x).cols];
        let n_tokens = n_patches / (side * side);
        let (mut done, mut further) = (0, Vec::with_capacity(deepstack.len()));
        for (model::Deepstack { end, merger }, exec) in model.deepstack.iter().zip(&*deepstack) {
            run(backend, *tower, done..*end, n_patches, Some(grid))?;
            done = *end;
            backend.read(*tower, x, 0, &mut rows)?;
            let merged = pixels::merged(model.merge, &grid, rows.clone());
            further.push(merge(backend, *exec, &merger.program, n_tokens, &merged)?);
        }
        run(backend, *tower, done..program.stages.len(), n_patches, Some(grid))?;
        backend.read(*tower, x, 0, &mut rows)?;
        self.post_norm.iter().for_each(|norm| norm.apply_to_rows(&mut rows));
        let mut rows = pixels::merged(model.merge, &grid, rows);
        model.affine.iter().for_each(|affine| pixels::apply(affine, &mut rows));

        let values = merge(backend, *merger, &model.merger.program, n_tokens, &rows)?;
        let grid = grid.grid.map(|n| n / side as u32);
        Ok(ImageRows { grid, values, deepstack: further, id: None })
    }
}

impl std::fmt::Debug for Vision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vision({})", self.model.projector)
    }
}

fn buf(program: &Program, name: &str) -> Buf {
    program.buf_named(name).expect("a buffer of every tower")
}

/// Runs a merger over the merged patches of `n` tokens, and returns the tokens' rows.
fn merge(
    backend: &mut dyn Backend,
    exec: Exec,
    program: &Program,
    n: usize,
    merged: &[f32],
) -> Result<Vec<f32>, Error> {
    let out = buf(program, "out");
    let mut rows = vec![0.0; n * program.buf_decl(out).cols];
    backend.write(exec, buf(program, "x"), 0, merged)?;
    backend.write(exec, out, 0, &rows)?;
    run(backend, exec, 0..program.stages.len(), n, None)?;
    backend.read(exec, out, 0, &mut rows)?;
    Ok(rows)
}

/// Runs stages of a program over `n` rows of one sequence.
fn run(
    backend: &mut dyn Backend,
    exec: Exec,
    stages: Range<usize>,
    n: usize,
    image: Option<ImageSpan>,
) -> Result<(), Error> {
    let n_pages = n.div_ceil(sterna_program::PAGE);
    let mut pages = PageTable::new(1, n_pages);
    pages.seq_mut(0).extend(0..n_pages as u32);
    pages.set_images(0, image);
    let rows: Vec<Row> = (0..n as u32).map(|pos| Row { token: 0, pos, seq: 0, logits: false }).collect();
    let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
    Ok(backend.run_stages(exec, stages, &step)?)
}
