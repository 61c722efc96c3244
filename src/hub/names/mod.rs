//! Names of models on the hub, and the choice of a repository's files by name.

use std::fmt;

use super::error::HubError;

/// A repository: `USER/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repo {
    user: String,
    name: String,
}

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The repository.
    pub repo: Repo,
    /// Branch, tag or commit; `main` if not given.
    pub revision: Option<String>,
    /// Choice of files.
    pub choice: Choice,
}

/// Choice of files in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The GGUF file with the first of [`DEFAULTS`] that exists, or else the first GGUF file.
    Default,
    /// The first GGUF file whose path contains this, such as `Q4_K_M`, as a whole word.
    Tag(String),
    /// One file by its path.
    File(String),
    /// The files that are converted to GGUF: safetensors, configuration, vocabulary, chat template, card.
    Checkpoint,
}

/// Types in the order in which [`Choice::Default`] looks for them: ternary types first, then llama.cpp's
/// order.
pub const DEFAULTS: &[&str] = &["I2_S", "TQ2_0", "TQ1_0", "Q2_0", "Q4_K_M", "Q8_0"];

/// Prefixes that mark a name of the hub.
const PREFIXES: &[&str] = &[
    "hf://",
    "https://huggingface.co/",
    "https://hf.co/",
    "http://huggingface.co/",
    "http://hf.co/",
    "huggingface.co/",
    "hf.co/",
];

/// Parts of the names of GGUF files that are not models: image projectors, importance matrices, heads of
/// speculative decoding.
const OTHERS: &[&str] = &["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

impl Repo {
    /// Parses `USER/NAME`.
    ///
    /// # Errors
    /// [`HubError::Name`] if one of the two is missing or is not a valid name on the hub: letters, digits,
    /// `-`, `_` and `.`, at most 96 of them, no `-` or `.` at either end, and none of these twice in a row.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let wrong = |why: &str| HubError::Name { name: text.to_owned(), why: why.to_owned() };
        let (user, name) = text.split_once('/').ok_or_else(|| wrong("want USER/REPOSITORY"))?;
        for part in [user, name] {
            let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let at_end = ['-', '.'];
            if part.is_empty() || part.len() > 96 || !part.chars().all(is_known) {
                return Err(wrong("want USER/REPOSITORY, of letters, digits, `-`, `_` and `.`"));
            }
            if part.starts_with(at_end)
                || part.ends_with(at_end)
                || part.contains("--")
                || part.contains("..")
            {
                return Err(wrong("names on the hub do not start or end with `-` or `.`, nor repeat them"));
            }
        }
        Ok(Self { user: user.to_owned(), name: name.to_owned() })
    }

    /// Folder of the repository in the cache: `models--USER--NAME`.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.user, self.name)
    }

    /// The repository of a folder in the cache, the inverse of [`folder`](Self::folder).
    pub fn of_folder(folder: &str) -> Option<Self> {
        let (user, name) = folder.strip_prefix("models--")?.split_once("--")?;
        Self::new(&format!("{user}/{name}")).ok()
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.choice {
            Choice::Default | Choice::Checkpoint => Ok(()),
            Choice::Tag(tag) => write!(f, ":{tag}"),
            Choice::File(file) => write!(f, "/{file}"),
        }
    }
}

/// True if a text has a prefix that distinguishes hub names from paths: `hf://`, `hf.co/` and the like.
pub fn is_prefixed(text: &str) -> bool {
    PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

impl Name {
    /// Parses `USER/REPO[@REVISION][:TAG | /FILE]`, with or without one of the prefixes of [`is_prefixed`]; a
    /// tag that ends in `.gguf` is a file, and `latest` is ignored. URLs of the hub's pages are accepted too.
    ///
    /// # Errors
    /// [`HubError::Name`], with the reason.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = |why: &str| HubError::Name { name: text.to_owned(), why: why.to_owned() };
        let prefix = PREFIXES.iter().find(|prefix| text.starts_with(**prefix));
        let rest = prefix.map_or(text, |prefix| &text[prefix.len()..]);
        let rest = match prefix.is_some_and(|prefix| prefix.starts_with("http")) {
            true => rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/'),
            false => rest,
        };
        let (user, rest) = rest.split_once('/').ok_or_else(|| {
            wrong("want USER/REPOSITORY of the Hugging Face hub, which has other names than ollama's library")
        })?;
        let end = rest.find(['@', ':', '/']).unwrap_or(rest.len());
        let repo = Repo::new(&format!("{user}/{}", &rest[..end]))?;
        let mut rest = &rest[end..];
        let mut revision = None;
        if let Some(after) = rest.strip_prefix('@') {
            let (said, left) = split_revision(after);
            revision = Some(check_revision(said)?.to_owned());
            rest = left;
        }
        // URL of a page: /blob/REVISION/FILE, /resolve/REVISION/FILE, /tree/REVISION.
        let page = ["/blob/", "/resolve/", "/tree/"].iter().find_map(|page| rest.strip_prefix(page));
        if let (Some(_), Some(after), None) = (prefix, page, &revision) {
            let (said, left) = split_revision(after);
            revision = Some(check_revision(said)?.to_owned());
            rest = left;
        }
        let choice = match rest.split_at_checked(1) {
            None => Choice::Default,
            Some(("/", file)) => Choice::File(check_path(file)?.to_owned()),
            Some((_, "latest")) => Choice::Default,
            Some((_, file)) if is_gguf(file) => Choice::File(check_path(file)?.to_owned()),
            Some((_, tag)) => Choice::Tag(check_tag(tag).ok_or_else(|| wrong("want a tag such as Q4_K_M"))?),
        };
        Ok(Self { repo, revision, choice })
    }

    /// The same name with another file.
    ///
    /// # Errors
    /// [`HubError::Path`] if it is not a path inside a repository.
    pub fn with_file(self, file: &str) -> Result<Self, HubError> {
        Ok(Self { choice: Choice::File(check_path(file)?.to_owned()), ..self })
    }

    /// The same name at another revision.
    ///
    /// # Errors
    /// [`HubError::Path`] for an invalid revision.
    pub fn at(self, revision: &str) -> Result<Self, HubError> {
        Ok(Self { revision: Some(check_revision(revision)?.to_owned()), ..self })
    }

    /// The revision, or the default branch.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

/// Splits a text after its revision; `refs/pr/N` and `refs/convert/NAME` contain slashes.
fn split_revision(text: &str) -> (&str, &str) {
    let n_slashes = if text.starts_with("refs/pr/") || text.starts_with("refs/convert/") { 2 } else { 0 };
    let end = text.match_indices('/').nth(n_slashes).map(|(at, _)| at);
    let end = end.into_iter().chain(text.find(':')).min().unwrap_or(text.len());
    text.split_at(end)
}

fn check_tag(tag: &str) -> Option<String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (!tag.is_empty() && tag.chars().all(is_known)).then(|| tag.to_owned())
}

/// A revision becomes the path of a file in `refs/`, so the same rules apply.
fn check_revision(revision: &str) -> Result<&str, HubError> {
    check_path(revision)
}

/// True for a commit: 40 hexadecimal digits.
pub fn is_commit(revision: &str) -> bool {
    is_hex(revision, 40)
}

/// True if a text is `n` lower-case hexadecimal digits.
pub fn is_hex(text: &str, n: usize) -> bool {
    text.len() == n && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Checks a path inside a repository before it is used on disk: relative, inside its folder, and a valid name
/// on every system.
///
/// # Errors
/// [`HubError::Path`].
pub fn check_path(path: &str) -> Result<&str, HubError> {
    const RESERVED: &[&str] = &["CON", "PRN", "AUX", "NUL"];
    let is_reserved = |part: &str| {
        let stem = part.split('.').next().unwrap_or_default().to_ascii_uppercase();
        let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
        let is_port = port.is_some_and(|n| n.len() == 1 && n != "0" && n.chars().all(|c| c.is_ascii_digit()));
        RESERVED.contains(&stem.as_str()) || is_port
    };
    let is_fine = |part: &str| {
        let is_char = |c: char| !c.is_control() && !"\\:*?\"<>|".contains(c);
        let is_name = !part.is_empty() && part.len() <= 255 && !part.ends_with(['.', ' ']);
        is_name && part.chars().all(is_char) && !is_reserved(part)
    };
    match path.len() <= 1024 && path.split('/').all(is_fine) {
        true => Ok(path),
        false => Err(HubError::Path { path: path.to_owned() }),
    }
}

/// True for the path of a GGUF file.
pub fn is_gguf(path: &str) -> bool {
    path.len() > 5 && path.as_bytes()[path.len() - 5..].eq_ignore_ascii_case(b".gguf")
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// One part of a split model: the path without `-00002-of-00005.gguf`, and both numbers.
fn part(path: &str) -> Option<(&str, usize, usize)> {
    let stem = path.get(..path.len().checked_sub(5)?).filter(|_| is_gguf(path))?;
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    let (rest, n) = stem.rsplit_once("-of-")?;
    let (name, k) = rest.rsplit_once('-')?;
    Some((name, number(k)?, number(n)?))
}

/// True if `word` is a whole word of `path`: `F16` is not in `BF16`, nor `Q4_K` in `Q4_K_M`. With
/// `underscores`, an underscore also separates it from the previous word, as in `model_Q4_0`.
fn has_word(path: &str, word: &str, underscores: bool) -> bool {
    let (path, word) = (path.to_ascii_lowercase(), word.to_ascii_lowercase());
    path.match_indices(&word).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let after = path[at + word.len()..].chars().next();
        let ends = |c: char| "-./ ".contains(c);
        let starts = before.is_none_or(|c| ends(c) || (underscores && c == '_'));
        starts && after.is_none_or(ends)
    })
}

/// Chooses files from `files`, which are in the order of the repository: the model first, then its other
/// parts.
///
/// # Errors
/// [`HubError::NoGguf`], [`HubError::NoTag`] with the existing models, [`HubError::NoFile`],
/// [`HubError::Shards`], [`HubError::Path`] if the path of a chosen file is unsafe.
pub fn choose<'a>(name: &Name, files: &[&'a str]) -> Result<Vec<&'a str>, HubError> {
    let repo = || name.repo.to_string();
    if name.choice == Choice::Checkpoint {
        let chosen: Vec<_> = files.iter().copied().filter(|file| is_of_checkpoint(file)).collect();
        if !chosen.iter().any(|file| file.ends_with(".safetensors")) {
            return Err(HubError::NoCheckpoint { repo: repo() });
        }
        chosen.iter().try_for_each(|file| check_path(file).map(drop))?;
        return Ok(chosen);
    }
    let is_model = |file: &&str| {
        let base = base(file).to_ascii_lowercase();
        let is_first = part(file).is_none_or(|(_, k, _)| k == 1);
        is_gguf(file) && is_first && !OTHERS.iter().any(|other| base.contains(other))
    };
    let models: Vec<&str> = files.iter().copied().filter(is_model).collect();
    let with = |word: &str| {
        let find = |underscores| models.iter().find(|file| has_word(file, word, underscores)).copied();
        find(false).or_else(|| find(true))
    };
    let chosen = match &name.choice {
        Choice::File(file) => {
            let found = files.iter().copied().find(|known| known == file);
            found.ok_or_else(|| HubError::NoFile {
                repo: repo(),
                file: file.clone(),
                known: models.iter().map(|model| (*model).to_owned()).collect(),
            })?
        }
        _ if models.is_empty() => {
            let has_checkpoint = files.iter().any(|file| file.ends_with(".safetensors"));
            return Err(HubError::NoGguf { repo: repo(), has_checkpoint });
        }
        Choice::Tag(tag) => with(tag).ok_or_else(|| HubError::NoTag {
            repo: repo(),
            tag: tag.clone(),
            known: models.iter().map(|model| (*model).to_owned()).collect(),
        })?,
        Choice::Default | Choice::Checkpoint => {
            DEFAULTS.iter().find_map(|word| with(word)).unwrap_or(models[0])
        }
    };
    let parts = match part(chosen) {
        None => vec![chosen],
        Some((stem, _, n)) => {
            let nth = |k: usize| files.iter().copied().find(|file| part(file) == Some((stem, k, n)));
            let found: Vec<&str> = (1..=n.min(files.len())).filter_map(nth).collect();
            if found.len() < n {
                return Err(HubError::Shards { file: chosen.to_owned(), found: found.len(), wanted: n });
            }
            found
        }
    };
    parts.iter().try_for_each(|file| check_path(file).map(drop))?;
    Ok(parts)
}

/// True for a file with the vision tower of a model.
pub fn is_mmproj(path: &str) -> bool {
    is_gguf(path) && base(path).to_ascii_lowercase().contains("mmproj")
}

/// The mmproj file for a model among `files`: one in its folder or above, in the deepest of these; then the
/// one whose weights have about as many bits.
pub fn mmproj<'a>(model: &str, files: &[&'a str]) -> Option<&'a str> {
    let fitting = files.iter().copied().filter(|path| {
        is_mmproj(path) && model.starts_with(&path[..folder_len(path)]) && check_path(path).is_ok()
    });
    let order = |path: &&str| (usize::MAX - folder_len(path), bits(path).abs_diff(bits(model)));
    fitting.min_by_key(order)
}

fn folder_len(path: &str) -> usize {
    path.len() - base(path).len()
}

/// Bits per weight by the type in a file's name, such as Q4_K_M or BF16; 16 if there is none.
fn bits(path: &str) -> u32 {
    let name = base(path).to_ascii_uppercase();
    let of_word = |word: &str| {
        let digits = ["BF", "F", "IQ", "TQ", "Q", "MXFP", "NVFP"].iter().find_map(|kind| {
            let digits: String = word.strip_prefix(*kind)?.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        digits.filter(|bits| (1..=64).contains(bits))
    };
    name.split(['-', '.', '_']).filter_map(of_word).next_back().unwrap_or(16)
}

/// True if a converter reads this file.
fn is_of_checkpoint(path: &str) -> bool {
    let is_of = |end: &str| path.ends_with(end);
    let texts = ["merges.txt", "vocab.txt", "README.md"];
    !path.contains('/')
        && ([".safetensors", ".json", ".jinja", ".model"].into_iter().any(is_of) || texts.contains(&path))
}

#[cfg(test)]
mod tests;
