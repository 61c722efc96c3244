//! The `sterna` command: a thin user of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ask_no_desktop();
    ExitCode::from(sterna::cli::main(std::env::args_os()))
}

/// Mesa's Vulkan layer that puts the GPU of the desktop first writes an error to stderr where the process has
/// no desktop, as in a container. It is asked to stay out there.
#[allow(unsafe_code)]
fn ask_no_desktop() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: `main` has started no thread yet, so none reads the environment meanwhile.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
