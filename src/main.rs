//! The `sterna` command, a thin wrapper of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ask_no_desktop();
    #[cfg(unix)]
    set_signals();
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

/// Ignores signals that would only end the process: SIGXFSZ, so that a limit on the size of files is an error
/// of the write, SIGUSR1 and SIGUSR2. Blocks SIGHUP, SIGINT and SIGTERM if they were ignored at the start, as
/// by nohup, so that the handler of ctrl-C does not get them.
#[cfg(unix)]
#[allow(unsafe_code)]
fn set_signals() {
    use libc::{SIG_BLOCK, SIG_IGN, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
    use std::{mem, ptr};

    // SAFETY: the structures are valid when zeroed, and no handler is installed. `main` has not started any
    // thread yet, so every thread inherits the mask.
    unsafe {
        let mut ignored: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut ignored);
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let mut action: libc::sigaction = mem::zeroed();
            libc::sigaction(signal, ptr::null(), &raw mut action);
            if action.sa_sigaction == SIG_IGN {
                libc::sigaddset(&raw mut ignored, signal);
            }
        }
        libc::pthread_sigmask(SIG_BLOCK, &raw const ignored, ptr::null_mut());
        for signal in [SIGXFSZ, SIGUSR1, SIGUSR2] {
            libc::signal(signal, SIG_IGN);
        }
    }
}
