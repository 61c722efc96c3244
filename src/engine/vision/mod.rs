//! Images: the vision tower of an mmproj file, on a backend of its own. Pictures are encoded outside the
//! steps of the text model, on the thread of the caller.

pub(crate) mod picture;
mod pixels;
mod resize;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::Error;
use super::pool::RowNorm;
use super::upload::upload;
pub use picture::{ImageError, ImageRows, Picture, PlacedImage};
pub use pixels::{Cut, Pixels};
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
    n_encoded: AtomicU64,
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
            n_encoded: AtomicU64::new(0),
        })
    }

    /// Name of the projector in the mmproj file.
    pub fn projector(&self) -> &str {
        &self.model.projector
    }

    /// Number of pictures that were encoded. Those whose rows were still known are not among them.
    pub fn n_encoded(&self) -> u64 {
        self.n_encoded.load(Ordering::Relaxed)
    }

    /// Texts before and after an image in a prompt.
    pub fn around(&self) -> [&'static str; 2] {
        [self.model.begin, self.model.end]
    }

    /// Resizes a picture to a size of the tower, cuts it into tiles if the tower has some, and normalises the
    /// parts.
    ///
    /// # Errors
    /// [`ImageError::Ratio`], [`ImageError::Positions`].
    pub fn pixels(&self, picture: &Picture) -> Result<Cut, ImageError> {
        pixels::cut(&self.model, picture)
    }

    /// Number of tokens of a picture. `ids` are the tokens of a text.
    ///
    /// # Errors
    /// [`Error::Image`], and those of `ids`.
    pub(super) fn n_tokens(
        &self,
        picture: &Picture,
        ids: impl Fn(&str) -> Result<Vec<u32>, Error>,
    ) -> Result<usize, Error> {
        let (grid, sizes) = pixels::sizes(&self.model, picture)?;
        let mut n_tokens = 0;
        for (at, size) in sizes.into_iter().enumerate() {
            let [cols, rows] = size.map(|side| side as usize / self.model.patch / self.model.merge.side());
            let n_ends = if self.model.row_end.is_some() { rows - 1 } else { 0 };
            n_tokens += cols * rows + n_ends + self.mark(grid, at, &ids)?.len();
        }
        Ok(n_tokens)
    }

    /// The tokens before the rows of a part of a picture.
    fn mark(
        &self,
        grid: [usize; 2],
        at: usize,
        ids: &impl Fn(&str) -> Result<Vec<u32>, Error>,
    ) -> Result<Vec<u32>, Error> {
        let mark = self.model.tiles.map_or_else(String::new, |tiles| (tiles.mark)(grid, at));
        if mark.is_empty() { Ok(Vec::new()) } else { ids(&mark) }
    }

    /// Encodes a picture, unless its rows are still known. Waits while another one is encoded. `ids` are the
    /// tokens of a text.
    ///
    /// # Errors
    /// [`Error::Image`], [`Error::Backend`], and those of `ids`.
    pub(super) fn encode(
        &self,
        picture: &Picture,
        ids: impl Fn(&str) -> Result<Vec<u32>, Error>,
    ) -> Result<Arc<ImageRows>, Error> {
        if let Some(rows) = picture.id().and_then(|id| self.known(&id)) {
            return Ok(rows);
        }
        let rows = self.encode_cut(&self.pixels(picture)?, ids)?;
        self.n_encoded.fetch_add(1, Ordering::Relaxed);
        let rows = Arc::new(ImageRows { id: picture.id(), ..rows });
        if rows.id.is_some() {
            self.keep(Arc::clone(&rows));
        }
        Ok(rows)
    }

    /// The rows of the picture with an id, if they are still known.
    pub(super) fn known(&self, id: &[u8; 32]) -> Option<Arc<ImageRows>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|rows| rows.id.as_ref() == Some(id))?;
        let rows = known.remove(at)?;
        known.push_back(Arc::clone(&rows));
        Some(rows)
    }

    fn keep(&self, rows: Arc<ImageRows>) {
        /// Rows that are kept, in elements: 128 MiB.
        const KEPT: usize = 1 << 25;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push_back(rows);
        while known.iter().map(|rows| rows.n_elems()).sum::<usize>() > KEPT {
            known.pop_front();
        }
    }

    /// Encodes the parts of a picture, with marks between them. `ids` are the tokens of a text.
    ///
    /// # Errors
    /// [`Error::Backend`], and those of `ids`.
    ///
    /// # Panics
    /// As [`encode_pixels`](Self::encode_pixels).
    pub fn encode_cut(
        &self,
        cut: &Cut,
        ids: impl Fn(&str) -> Result<Vec<u32>, Error>,
    ) -> Result<ImageRows, Error> {
        let dim = self.model.text_dim;
        let mut whole = ImageRows::default();
        for (at, pixels) in cut.pixels.iter().enumerate() {
            let marks = self.mark(cut.grid, at, &ids)?;
            let rows = self.encode_pixels(pixels)?;
            if cut.pixels.len() == 1 && marks.is_empty() {
                return Ok(rows);
            }
            let n_before = whole.values.len() / dim;
            whole.texts.extend((n_before..).zip(marks.iter().copied()));
            whole.values.resize((n_before + marks.len()) * dim, 0.0);
            whole.values.extend_from_slice(&rows.values);
        }
        whole.grid = [1, (whole.values.len() / dim) as u32];
        Ok(whole)
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
            run(backend, *tower, done..*end, &[grid])?;
            done = *end;
            backend.read(*tower, x, 0, &mut rows)?;
            let merged = pixels::merged(model.merge, &grid, rows.clone());
            further.push(merge(backend, *exec, &merger.program, n_tokens, &merged)?);
        }
        if let Some(windows) = &model.windows {
            let within = pixels::windows(&grid, windows.side);
            for stages in &windows.whole {
                run_within(backend, (*tower, x), done..stages.start, &within, &mut rows)?;
                run(backend, *tower, stages.clone(), &[grid])?;
                done = stages.end;
            }
            run_within(backend, (*tower, x), done..program.stages.len(), &within, &mut rows)?;
        } else {
            run(backend, *tower, done..program.stages.len(), &[grid])?;
        }
        backend.read(*tower, x, 0, &mut rows)?;
        self.post_norm.iter().for_each(|norm| norm.apply_to_rows(&mut rows));
        let mut rows = pixels::merged(model.merge, &grid, rows);
        model.affine.iter().for_each(|affine| pixels::apply(affine, &mut rows));

        let values = merge(backend, *merger, &model.merger.program, n_tokens, &rows)?;
        let grid = grid.grid.map(|n| n / side as u32);
        let (grid, values) = match &model.row_end {
            None => (grid, values),
            Some(row_end) => {
                let values = pixels::with_row_ends(values, grid[1] as usize, row_end);
                ([1, (values.len() / row_end.len()) as u32], values)
            }
        };
        Ok(ImageRows { grid, values, deepstack: further, ..ImageRows::default() })
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
    if let Some(sums) = program.buf_named("merged") {
        backend.write(exec, sums, 0, &vec![0.0; n * program.buf_decl(sums).cols])?;
    }
    backend.write(exec, out, 0, &rows)?;
    // A merger has no positions.
    let tokens = ImageSpan { start: 0, grid: [1, n as u32], block: 1 };
    run(backend, exec, 0..program.stages.len(), &[tokens])?;
    backend.read(exec, out, 0, &mut rows)?;
    Ok(rows)
}

/// Runs stages of a tower within windows. Their rows are put together for this; `rows` is space for those of
/// the buffer `x`.
fn run_within(
    backend: &mut dyn Backend,
    (exec, x): (Exec, Buf),
    stages: Range<usize>,
    windows: &[pixels::Window],
    rows: &mut [f32],
) -> Result<(), Error> {
    if stages.is_empty() {
        return Ok(());
    }
    let order: Vec<usize> = windows.iter().flat_map(|window| &window.patches).copied().collect();
    let grids: Vec<ImageSpan> = windows.iter().map(|window| window.grid).collect();
    let dim = rows.len() / order.len();
    // The first stage reads the patches, whose order is that of the picture.
    let of_patches = usize::from(stages.start == 0);
    let patches = ImageSpan { start: 0, grid: [1, order.len() as u32], block: 1 };
    run(backend, exec, 0..of_patches, &[patches])?;
    backend.read(exec, x, 0, rows)?;
    let mut together: Vec<f32> = order.iter().flat_map(|at| &rows[at * dim..][..dim]).copied().collect();
    backend.write(exec, x, 0, &together)?;
    run(backend, exec, stages.start + of_patches..stages.end, &grids)?;
    backend.read(exec, x, 0, &mut together)?;
    for (at, row) in order.iter().zip(together.chunks_exact(dim)) {
        rows[at * dim..][..dim].copy_from_slice(row);
    }
    Ok(backend.write(exec, x, 0, rows)?)
}

/// Runs stages of a program over grids of rows, each of which is a sequence.
fn run(
    backend: &mut dyn Backend,
    exec: Exec,
    stages: Range<usize>,
    grids: &[ImageSpan],
) -> Result<(), Error> {
    if stages.is_empty() {
        return Ok(());
    }
    let n_pages = |grid: &ImageSpan| (grid.len() as usize).div_ceil(sterna_program::PAGE);
    let mut pages = PageTable::new(grids.len(), grids.iter().map(n_pages).max().unwrap_or(0));
    let (mut rows, mut page) = (Vec::new(), 0);
    for (seq, grid) in (0..).zip(grids) {
        let end = page + n_pages(grid) as u32;
        pages.seq_mut(seq).extend(page..end);
        page = end;
        pages.set_images(seq, Some(*grid));
        rows.extend((0..grid.len()).map(|pos| Row { token: 0, pos, seq, logits: false }));
    }
    let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
    Ok(backend.run_stages(exec, stages, &step)?)
}
