//! `--mmproj`: the vision tower of a model, and the images of a prompt.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::source::Source;
use super::units::count;
use super::{CliError, names};
use crate::engine::vision::TokenLimits;
use crate::engine::{Engine, Error, ImageError, ImageRows, Mmproj, PlacedImage};
use crate::gguf::Gguf;
use crate::tokenizer::Special;

/// The vision tower.
#[derive(Args, Clone, Debug, Default)]
pub struct MmprojArgs {
    /// mmproj file of the model, for images in prompts (also -mm) [default: the one next to the model]
    #[arg(long, value_name = "FILE")]
    #[arg(aliases = ["-mm", "LLAMA_ARG_MMPROJ"])]
    mmproj: Option<PathBuf>,
    /// Do not load the mmproj file next to the model
    #[arg(long, conflicts_with = "mmproj", alias = "no-mmproj-auto")]
    no_mmproj: bool,
    /// Run the vision tower on the CPU
    #[arg(long)]
    no_mmproj_offload: bool,
    /// Fewest tokens of an image, for models whose images have any size [default: by the model]
    #[arg(long, value_name = "N", value_parser = count)]
    #[arg(alias = "LLAMA_ARG_IMAGE_MIN_TOKENS")]
    image_min_tokens: Option<usize>,
    /// Most tokens of an image, for models whose images have any size [default: by the model]
    #[arg(long, value_name = "N", value_parser = count)]
    #[arg(alias = "LLAMA_ARG_IMAGE_MAX_TOKENS")]
    image_max_tokens: Option<usize>,
}

impl MmprojArgs {
    /// The given mmproj file, or the only one next to the model that fits it, and whether it was found.
    ///
    /// # Errors
    /// If there are several that fit.
    pub fn mmproj(&self, source: &Source) -> Result<Option<(Mmproj, bool)>, CliError> {
        let tokens = TokenLimits { min: self.image_min_tokens, max: self.image_max_tokens };
        let of = |file: PathBuf| Mmproj { file, tokens, on_cpu: self.no_mmproj_offload };
        if let Some(file) = &self.mmproj {
            return Ok(Some((of(file.clone()), false)));
        }
        let Source::File(model) = source else { return Ok(None) };
        if self.no_mmproj {
            return Ok(None);
        }
        let found = next_to(model);
        match <[PathBuf; 1]>::try_from(found) {
            Ok([file]) => Ok(Some((of(file), true))),
            Err(found) if found.is_empty() => Ok(None),
            Err(found) => {
                let files: Vec<_> = found.iter().map(|file| file.display().to_string()).collect();
                let files = files.join(", ");
                names::note("note", &format!("several mmproj files, of which --mmproj chooses one: {files}"));
                Ok(None)
            }
        }
    }
}

/// The files called `*mmproj*.gguf` in the folder of a model that are for its width. In the hub's cache, also
/// those in the nearest folder above it that has some.
fn next_to(model: &Path) -> Vec<PathBuf> {
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_snapshot =
        |folder: &Path| folder.parent().and_then(Path::file_name).is_some_and(|name| name == "snapshots");
    let n_above = folder.ancestors().position(is_snapshot).unwrap_or(0);
    let mut found = folder.ancestors().take(n_above + 1).map(|folder| in_folder(folder, model));
    found.find(|files| !files.is_empty()).unwrap_or_default()
}

fn in_folder(folder: &Path, model: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_named = |path: &PathBuf| {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        name.contains("mmproj") && name.ends_with(".gguf")
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_named).collect();
    if files.is_empty() {
        return files;
    }
    let number = |path: &Path, key: &dyn Fn(&Gguf) -> Option<String>| {
        let gguf = Gguf::open_header(path, crate::gguf::OpenOptions::default()).ok()?;
        gguf.metadata().usize(&key(&gguf)?).ok().flatten()
    };
    let width = number(model, &|gguf| {
        let architecture = gguf.metadata().str("general.architecture").ok()??;
        Some(format!("{architecture}.embedding_length"))
    });
    files.retain(|file| {
        let of_file = number(file, &|_| Some("clip.vision.projection_dim".to_owned()));
        width.is_some() && of_file == width
    });
    files.sort();
    files
}

/// Marker of an image in a prompt, as in llama.cpp.
const MARKER: &str = "<__media__>";

/// Decodes and encodes image files.
///
/// # Errors
/// If a file cannot be read or decoded; without a vision tower.
pub fn encoded(engine: &Engine, files: &[PathBuf]) -> Result<Vec<Arc<ImageRows>>, CliError> {
    let encode = |file: &PathBuf| {
        let fail = |err: &dyn std::fmt::Display| CliError::from(format!("{}: {err}", file.display()));
        let bytes = std::fs::read(file).map_err(|err| fail(&err))?;
        let picture = crate::image::decode(&bytes).map_err(|err| fail(&err))?;
        match engine.encode_image(&picture) {
            Err(Error::Image(err @ (ImageError::Ratio { .. } | ImageError::Positions { .. }))) => {
                Err(fail(&err))
            }
            rows => Ok(rows?),
        }
    };
    files.iter().map(encode).collect()
}

/// The tokens of a prompt with images at its markers, or before its text if it has none.
///
/// # Errors
/// If the numbers of markers and images differ; without a usable vocabulary.
pub fn prompt(
    engine: &Engine,
    text: &str,
    images: Vec<Arc<ImageRows>>,
) -> Result<(Vec<u32>, Vec<PlacedImage>), CliError> {
    let tokenizer = engine.tokenizer()?;
    let n_markers = text.matches(MARKER).count();
    let text = if n_markers == 0 { MARKER.repeat(images.len()) + text } else { text.to_owned() };
    if n_markers > 0 && n_markers != images.len() {
        return Err(format!("{n_markers} markers {MARKER} in the prompt, and {} images", images.len()).into());
    }
    let [begin, end] = engine.vision().map(|vision| vision.around()).unwrap_or_default();
    let text = text.replace(MARKER, &format!("{begin}{MARKER}{end}"));
    let (mut tokens, mut placed, mut images) = (Vec::new(), Vec::new(), images.into_iter());
    for (at, part) in text.split(MARKER).enumerate() {
        let image = if at > 0 { images.next() } else { None };
        placed.extend(image.map(|rows| PlacedImage::append(rows, &mut tokens)));
        tokens.extend(tokenizer.encode(part, Special::Parse, at == 0));
    }
    Ok((tokens, placed))
}
