//! Memory of the process.
#![allow(unsafe_code)]

/// Returns freed memory to the system. glibc keeps what threads that have ended had allocated: without this,
/// a process that loads and frees a model in a loop grows to ten times the model.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it has no preconditions, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
