use super::*;

fn parsed(text: &str) -> (String, Option<String>, Choice) {
    let Name { repo, revision, choice } = Name::parse(text).unwrap();
    (repo.to_string(), revision, choice)
}

fn chosen<'a>(name: &str, files: &[&'a str]) -> Vec<&'a str> {
    choose(&Name::parse(name).unwrap(), files).unwrap()
}

#[test]
fn names_are_read_as_llama_cpp_and_ollama_and_the_hub_write_them() {
    let tag = |tag: &str| Choice::Tag(tag.to_owned());
    let file = |file: &str| Choice::File(file.to_owned());
    let at = |revision: &str| Some(revision.to_owned());
    for (text, repo, revision, choice) in [
        ("a/b", "a/b", None, Choice::Default),
        ("a/b:Q4_K_M", "a/b", None, tag("Q4_K_M")),
        ("a/b:latest", "a/b", None, Choice::Default),
        ("a/b/x.gguf", "a/b", None, file("x.gguf")),
        ("a/b/c/x.gguf", "a/b", None, file("c/x.gguf")),
        ("hf.co/a/b:IQ3_M", "a/b", None, tag("IQ3_M")),
        ("huggingface.co/a/b:x-Q8_0.gguf", "a/b", None, file("x-Q8_0.gguf")),
        ("hf://a/b@v1.2/c/x.gguf", "a/b", at("v1.2"), file("c/x.gguf")),
        ("hf://a/b@refs/pr/3/x.gguf", "a/b", at("refs/pr/3"), file("x.gguf")),
        ("a/b@refs/pr/3:Q8_0", "a/b", at("refs/pr/3"), tag("Q8_0")),
        ("https://huggingface.co/a/b", "a/b", None, Choice::Default),
        ("https://huggingface.co/a/b/tree/main", "a/b", at("main"), Choice::Default),
        ("https://huggingface.co/a/b/blob/main/c/x.gguf", "a/b", at("main"), file("c/x.gguf")),
        ("https://hf.co/a/b/resolve/v1/x.gguf?download=true", "a/b", at("v1"), file("x.gguf")),
        ("a/b/blob/main/x.gguf", "a/b", None, file("blob/main/x.gguf")),
        ("1bitLLM/bitnet_b1_58-3B", "1bitLLM/bitnet_b1_58-3B", None, Choice::Default),
    ] {
        assert_eq!(parsed(text), (repo.to_owned(), revision, choice), "{text}");
    }
    for wrong in [
        "",
        "a",
        "a/",
        "/b",
        "a/b:",
        "a/b:q 4",
        "a/b@",
        "a/../c",
        "../b",
        "a/b/../x.gguf",
        "a/b//x",
        "a/b@../x",
        "a--b/c",
        "a/b/x\0",
        "-a/b",
        "a/b:../x.gguf",
        "a/b/C:\\x.gguf",
        "a/b@refs/../x",
        "hf://",
        "a b/c",
    ] {
        assert!(Name::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn folders_of_the_cache_are_repositories_and_back() {
    let repo = Repo::new("microsoft/bitnet-b1.58-2B-4T-gguf").unwrap();
    assert_eq!(repo.folder(), "models--microsoft--bitnet-b1.58-2B-4T-gguf");
    assert_eq!(Repo::of_folder(&repo.folder()), Some(repo));
    for other in ["datasets--a--b", "models--gpt2", "models--a--b--c", ".locks"] {
        assert_eq!(Repo::of_folder(other), None, "{other}");
    }
}

#[test]
fn a_tag_is_a_whole_word() {
    let files = ["m-BF16.gguf", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q4_K.gguf", "m-IQ4_XS.gguf", "m_Q4_0.gguf"];
    assert_eq!(chosen("a/b:F16", &files), ["m-F16.gguf"]);
    assert_eq!(chosen("a/b:q4_k", &files), ["m-Q4_K.gguf"]);
    assert_eq!(chosen("a/b:Q4_0", &files), ["m_Q4_0.gguf"]);
    let Err(HubError::NoTag { known, .. }) = choose(&Name::parse("a/b:Q4_XS").unwrap(), &files) else {
        panic!("IQ4_XS is not Q4_XS")
    };
    assert_eq!(known, files);
}

#[test]
fn without_a_tag_ternary_types_come_first_and_companions_never() {
    let files = ["mmproj-Q8_0.gguf", "imatrix.gguf", "a.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf"];
    assert_eq!(chosen("a/b", &files), ["m-Q4_K_M.gguf"]);
    assert_eq!(chosen("a/b", &[&files[..], &["ggml-model-i2_s.gguf"]].concat()), ["ggml-model-i2_s.gguf"]);
    assert_eq!(chosen("a/b", &["x-Q5_1.gguf", "x-Q6_K.gguf"]), ["x-Q5_1.gguf"]);
    let none = choose(&Name::parse("a/b").unwrap(), &["model.safetensors", "mmproj-F16.gguf"]);
    assert!(matches!(none, Err(HubError::NoGguf { has_checkpoint: true, .. })), "{none:?}");
}

#[test]
fn a_split_model_comes_whole_in_its_order() {
    let files =
        ["q/m-Q8_0-00002-of-00003.gguf", "q/m-Q8_0-00001-of-00003.gguf", "q/m-Q8_0-00003-of-00003.gguf"];
    let whole = [files[1], files[0], files[2]];
    for name in ["a/b", "a/b:Q8_0", "a/b/q/m-Q8_0-00002-of-00003.gguf"] {
        assert_eq!(chosen(name, &files), whole, "{name}");
    }
    let lacking = choose(&Name::parse("a/b").unwrap(), &files[..2]);
    assert!(matches!(lacking, Err(HubError::Shards { found: 2, wanted: 3, .. })), "{lacking:?}");
    let many = choose(&Name::parse("a/b").unwrap(), &["m-00001-of-99999.gguf"]);
    assert!(matches!(many, Err(HubError::Shards { found: 1, wanted: 99999, .. })), "{many:?}");
}

#[test]
fn a_chosen_path_may_not_leave_its_folder() {
    for path in
        ["../x.gguf", "a/../../x.gguf", "/etc/x.gguf", "a\\..\\x.gguf", "C:x.gguf", "nul.gguf", "a/./x.gguf"]
    {
        let name = Name { choice: Choice::Default, ..Name::parse("a/b").unwrap() };
        assert!(matches!(choose(&name, &[path]), Err(HubError::Path { .. })), "{path}");
    }
    // Other files are not checked.
    assert_eq!(chosen("a/b", &["../x.png", "m.gguf"]), ["m.gguf"]);
}

#[test]
fn a_checkpoint_is_what_a_converter_reads() {
    let files = [
        "README.md",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "original/model.safetensors",
        "tokenizer.model",
        "onnx/model.onnx",
    ];
    let name = Name { choice: Choice::Checkpoint, ..Name::parse("a/b").unwrap() };
    let chosen = choose(&name, &files).unwrap();
    assert_eq!(chosen, [files[0], files[1], files[2], files[3], files[4], files[7]]);
    assert!(matches!(choose(&name, &["m.gguf"]), Err(HubError::NoCheckpoint { .. })));
}

#[test]
fn the_mmproj_file_of_a_model_is_the_nearest() {
    for (model, files, want) in [
        (
            "m-Q4_K_M.gguf",
            &["mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"][..],
            Some("mmproj-F16.gguf"),
        ),
        ("m-Q8_0.gguf", &["mmproj-F16.gguf", "mmproj-m-Q8_0.gguf"], Some("mmproj-m-Q8_0.gguf")),
        ("m-F32.gguf", &["mmproj-F16.gguf", "mmproj-F32.gguf"], Some("mmproj-F32.gguf")),
        (
            "a/m-Q4_0.gguf",
            &["mmproj-F16.gguf", "a/mmproj-F32.gguf", "b/mmproj-F16.gguf"],
            Some("a/mmproj-F32.gguf"),
        ),
        ("a/m-Q4_0.gguf", &["b/mmproj-F16.gguf", "ab/mmproj-F16.gguf"], None),
        ("m.gguf", &["n.gguf", "mmproj.safetensors"], None),
    ] {
        assert_eq!(mmproj(model, files), want, "{model} {files:?}");
    }
}
