//! Lists the module's exports on Windows, because zig's linker would otherwise export everything.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("TARGET").expect("cargo sets it").ends_with("windows-gnu") {
        let list = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("module.def");
        std::fs::write(&list, "LIBRARY _sterna.pyd\nEXPORTS\nPyInit__sterna\n").expect("OUT_DIR is there");
        println!("cargo::rustc-cdylib-link-arg=-fvisibility=hidden");
        println!("cargo::rustc-cdylib-link-arg={}", list.display());
    }
}
