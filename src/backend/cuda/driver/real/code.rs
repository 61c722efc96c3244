//! The kernel images of this build, and the GPUs and drivers that they are for.

/// Machine code and PTX of every file in `cuda/`, by name. Empty if built without nvcc.
pub static FATBINS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Architectures for which the kernels have machine code, and the one of their PTX, as nvcc writes them;
/// `simt` if nvcc was not found and the images are only for tests (build.rs); empty if there are none.
const ARCHS: &str = env!("STERNA_CUDA_ARCHS");
const PTX: &str = env!("STERNA_CUDA_PTX");

/// Version of the nvcc that compiled them, such as `13.0`; empty if none did.
const TOOLKIT: &str = env!("STERNA_CUDA_TOOLKIT");

/// The message for a build without kernels, with the remedy.
fn no_kernels(archs: &str) -> &'static str {
    match archs {
        "none" => {
            "this build has no CUDA kernels, because STERNA_CUDA_ARCHS=none left them out; \
             build again without it, or use the x86-64 archive, which includes them"
        }
        _ => {
            "this build has no CUDA kernels, because nvcc was not found; \
             run scripts/setup-cuda and build again, or use the x86-64 archive, which includes them"
        }
    }
}

/// Identifies these kernels.
pub fn id() -> String {
    let sum = FATBINS.iter().fold(crc32fast::Hasher::new(), |mut sum, (_, image)| {
        sum.update(image);
        sum
    });
    format!("sterna {} with kernels {:08x}", env!("CARGO_PKG_VERSION"), sum.finalize())
}

/// The message if this build has no kernels at all, with the remedy.
pub fn missing() -> Option<&'static str> {
    FATBINS.is_empty().then(|| no_kernels(ARCHS))
}

/// The code that this build has, or the message that it has none.
pub fn kernels() -> String {
    missing().map_or_else(|| of_archs(ARCHS, PTX), str::to_owned)
}

fn of_archs(archs: &str, ptx: &str) -> String {
    match archs {
        "simt" => "this build only has kernels for the test driver (built without nvcc)".to_owned(),
        _ => format!("this build has sm_{}, and PTX from {ptx} on", archs.replace(',', ", ")),
    }
}

/// The code for a GPU with this compute capability and driver, or the reason why there is none and the
/// remedy.
pub fn code(compute: (i32, i32), driver: (i32, i32)) -> Result<String, String> {
    if let Some(missing) = missing() {
        return Err(missing.into());
    }
    let code = code_for(ARCHS, PTX, compute)?;
    match too_old(driver, TOOLKIT, code.starts_with("PTX")) {
        Some(lacking) => Err(lacking),
        None => Ok(code),
    }
}

fn version(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The code that a build with machine code for `archs` and PTX of `ptx` has for a GPU, or the message that it
/// has none. Machine code runs on later GPUs of its generation, and PTX on all later ones.
fn code_for(archs: &str, ptx: &str, compute: (i32, i32)) -> Result<String, String> {
    if archs == "simt" {
        return Ok("kernels for the test driver only (built without nvcc)".into());
    }
    let version = |arch: &str| arch.trim().parse().ok().map(|arch: i32| (arch / 10, arch % 10));
    let serves =
        |arch: &&str| version(arch).is_some_and(|(major, minor)| major == compute.0 && minor <= compute.1);
    match (archs.split(',').filter(serves).max_by_key(|arch| version(arch)), version(ptx)) {
        (Some(arch), _) => Ok(format!("machine code of sm_{arch}")),
        (None, Some(least)) if least <= compute => Ok(format!("PTX of compute_{ptx}, compiled on first use")),
        _ => {
            let has = of_archs(archs, ptx);
            let (major, minor) = compute;
            let way_out = match compute >= (7, 5) {
                true => format!("; STERNA_CUDA_ARCHS={archs},{major}{minor} adds it"),
                false => String::new(),
            };
            Err(format!("no code ({has}{way_out})"))
        }
    }
}

/// The error if the driver is older than the toolkit. Machine code runs on every driver of the toolkit's
/// major version and on later ones; PTX needs a driver that is no older than the toolkit.
fn too_old(driver: (i32, i32), toolkit: &str, is_ptx: bool) -> Option<String> {
    let made_by = version(toolkit)?;
    let least = if is_ptx { made_by } else { (made_by.0, 0) };
    if driver >= least {
        return None;
    }
    let series = match least.0 {
        12 => " (series 525 or later)",
        13 => " (series 580 or later)",
        _ => "",
    };
    Some(format!(
        "the driver is for CUDA {}.{}, older than the CUDA {toolkit} that the kernels of this build were \
         compiled with; install a driver for CUDA {}.{}{series}, or build with an nvcc of CUDA {}",
        driver.0, driver.1, least.0, least.1, driver.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_kernels_says_what_brings_them() {
        assert!(no_kernels("").contains("nvcc was not found; run scripts/setup-cuda and build again"));
        assert!(no_kernels("none").contains("STERNA_CUDA_ARCHS=none left them out; build again without it"));
        assert!(["", "none"].iter().all(|archs| no_kernels(archs).contains("or use the x86-64 archive")));
    }

    #[test]
    fn code_is_for_its_generation_and_ptx_for_later_ones() {
        let cases = [
            ((7, 0), Err("no code (this build has sm_80, 86, 90, 120, and PTX from 90 on)")),
            (
                (7, 5),
                Err("no code (this build has sm_80, 86, 90, 120, and PTX from 90 on; STERNA_CUDA_ARCHS=80,"),
            ),
            ((8, 0), Ok("machine code of sm_80")),
            ((8, 7), Ok("machine code of sm_86")),
            ((8, 9), Ok("machine code of sm_86")),
            ((9, 0), Ok("machine code of sm_90")),
            ((10, 0), Ok("PTX of compute_90")),
            ((12, 1), Ok("machine code of sm_120")),
        ];
        for (compute, want) in cases {
            let got = code_for("80,86,90,120", "90", compute);
            let matches = match (&got, want) {
                (Ok(got), Ok(want)) | (Err(got), Err(want)) => got.starts_with(want),
                _ => false,
            };
            assert!(matches, "{compute:?}: {got:?}");
        }
        assert_eq!(code_for("75,80", "80", (7, 5)), Ok("machine code of sm_75".into()));
    }

    #[test]
    fn a_driver_runs_what_toolkits_of_its_major_version_made() {
        assert_eq!(too_old((13, 0), "13.0", true), None);
        assert_eq!(too_old((13, 0), "13.1", false), None);
        assert_eq!(too_old((14, 0), "13.1", true), None);
        assert_eq!(too_old((12, 0), "", true), None, "nothing to run");
        let said = too_old((12, 8), "13.0", false).expect("an old driver");
        for part in ["CUDA 12.8", "CUDA 13.0", "series 580", "nvcc of CUDA 12"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(too_old((13, 0), "13.1", true).is_some_and(|said| said.contains("a driver for CUDA 13.1")));
    }

    #[test]
    fn images_are_aligned() {
        for (file, image) in FATBINS {
            assert_eq!(image.as_ptr() as usize % 64, 0, "{file}");
        }
    }
}
