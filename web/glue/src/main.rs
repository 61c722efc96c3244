//! `sterna-glue MODULE.wasm FOLDER NAME`: does the same as the command `wasm-bindgen --target web`, in a
//! pinned version.

use wasm_bindgen_cli_support::Bindgen;

fn main() {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [module, folder, name] = args.as_slice() else { panic!("want MODULE.wasm FOLDER NAME") };
    let name = name.to_str().expect("a name in UTF-8");
    let mut glue = Bindgen::new();
    let written = glue.web(true).and_then(|glue| {
        glue.input_path(module)
            .out_name(name)
            .typescript(false)
            .remove_name_section(true)
            .remove_producers_section(true)
            .generate(folder)
    });
    written.expect("a module that wasm-bindgen can bind");
}
