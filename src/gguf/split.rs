//! Models split over several files, `NAME-00001-of-00003.gguf`.

use std::path::Path;

use super::{GgufError, parse::GgufPart};

/// Number of parts, as u16.
pub(super) const COUNT_KEY: &str = "split.count";
/// Index of this part, from 0, as u16.
pub(super) const NUMBER_KEY: &str = "split.no";
/// Number of tensors of all parts together, as i32.
pub(super) const TENSORS_KEY: &str = "split.tensors.count";

/// The file name of a part, from 1: `NAME-00001-of-00003.gguf`.
pub fn part_name(name: &str, number: usize, n_parts: usize) -> String {
    format!("{name}-{number:05}-of-{n_parts:05}.gguf")
}

/// The file names of all parts in order, from the name of one part; `None` for any other name.
pub fn part_names(file_name: &str) -> Option<Vec<String>> {
    let (name, n_parts) = name_of(Path::new(file_name)).filter(|(_, n_parts)| *n_parts > 1)?;
    Some((1..=n_parts as usize).map(|number| part_name(&name, number, n_parts as usize)).collect())
}

/// Number of files of the model of `part`.
pub(super) fn count(part: &GgufPart) -> Result<u32, GgufError> {
    Ok(part.metadata.u32(COUNT_KEY)?.unwrap_or(1).max(1))
}

/// Parses a file and, if it is part of a split model, all the others next to it, in order. `read` parses one
/// file.
pub(super) fn open(
    path: &Path,
    read: impl Fn(&Path) -> Result<GgufPart, GgufError>,
) -> Result<Vec<GgufPart>, GgufError> {
    let read = |path: &Path| match read(path) {
        Ok(part) => Ok(GgufPart { path: Some(path.to_path_buf()), ..part }),
        Err(error) => Err(error.in_file(path)),
    };
    let given = read(path)?;
    let n_parts = count(&given).map_err(|error| error.in_file(path))?;
    if n_parts == 1 {
        return Ok(vec![given]);
    }
    let Some((prefix, n_named)) = name_of(path).filter(|(_, n_named)| *n_named == n_parts) else {
        let detail = format!(
            "one of {n_parts} parts, but its name does not end in -NNNNN-of-{n_parts:05}.gguf; rename it"
        );
        return Err(GgufError::Split { detail }.in_file(path));
    };
    let mut given = Some(given);
    let mut parts = Vec::new();
    for number in 1..=n_named {
        let part_path = path.with_file_name(part_name(&prefix, number as usize, n_named as usize));
        let part = match given.take_if(|_| part_path == path) {
            Some(part) => part,
            None => read(&part_path)?,
        };
        check_part(&part, number, n_parts).map_err(|error| error.in_file(&part_path))?;
        parts.push(part);
    }
    check_total(&parts).map_err(|error| error.in_file(path))?;
    Ok(parts)
}

/// Checks that the parts belong to one model, in order.
pub(super) fn check(parts: &[GgufPart]) -> Result<(), GgufError> {
    let n_parts = parts.len() as u32;
    if n_parts > 1 {
        (1..).zip(parts).try_for_each(|(number, part)| check_part(part, number, n_parts))?;
        return check_total(parts);
    }
    match parts.first().map_or(Ok(0), count)? {
        1 => Ok(()),
        n_parts => Err(GgufError::Split { detail: format!("one of {n_parts} parts, want a whole model") }),
    }
}

/// `NAME` and the number of parts in a path that ends in `NAME-00001-of-00003.gguf`.
fn name_of(path: &Path) -> Option<(String, u32)> {
    let number = |digits: &str| {
        let five = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        five.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, n_parts) = stem.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    number(part)?;
    Some((prefix.to_owned(), number(n_parts)?))
}

fn check_part(part: &GgufPart, number: u32, n_parts: u32) -> Result<(), GgufError> {
    let (found, found_count) = (part.metadata.require_u32(NUMBER_KEY)?, count(part)?);
    if (found, found_count) == (number - 1, n_parts) {
        return Ok(());
    }
    let detail = format!(
        "want {NUMBER_KEY} {} and {COUNT_KEY} {n_parts}, found {found} and {found_count}",
        number - 1
    );
    Err(GgufError::Split { detail })
}

fn check_total(parts: &[GgufPart]) -> Result<(), GgufError> {
    let found: usize = parts.iter().map(|part| part.tensors.len()).sum();
    match parts[0].metadata.usize(TENSORS_KEY)? {
        Some(want) if want != found => Err(GgufError::Split {
            detail: format!("want {want} tensors ({TENSORS_KEY}), the {} parts have {found}", parts.len()),
        }),
        _ => Ok(()),
    }
}
