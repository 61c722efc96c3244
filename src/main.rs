//! The `sterna` command, a thin wrapper of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ask_no_desktop();
    ExitCode::from(sterna::cli::main(std::env::args_os()))
}

/// Disables Mesa's Vulkan device-select layer, which prints an error to stderr if there is no desktop
/// session, as in a container.
#[allow(unsafe_code)]
fn ask_no_desktop() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: `main` has not started any thread yet, so no other thread reads the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
