//! Human-readable names from the names of folders and repositories, and the components of such names.

use std::path::Path;

use regex::Regex;

/// Components of a name, by the rules of llama.cpp's converter (`gguf-py`,
/// `Metadata.get_model_id_components`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Components {
    /// The name after the organization.
    pub name: Option<String>,
    pub organization: Option<String>,
    /// The family: `bitnet-b1.58`.
    pub basename: Option<String>,
    /// Kind of finetune: `Instruct`.
    pub finetune: Option<String>,
    pub version: Option<String>,
    pub size_label: Option<String>,
}

/// Kind of a part of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Basename,
    SizeLabel,
    Finetune,
    Version,
    /// Type of the weights, for which there is no key.
    Type,
}

struct NamePart {
    text: String,
    kinds: Vec<Kind>,
}

impl NamePart {
    fn is(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }
}

/// True if a part matches a pattern, ignoring case.
fn has_form(text: &str, form: &str) -> bool {
    Regex::new(&format!("^(?i:{form})$")).expect("a form of ours").is_match(text)
}

impl Components {
    /// Components of `name` or `organization/name`, for a model of `n_weights` weights.
    pub fn of(id: &str, n_weights: u64) -> Self {
        if id.contains(' ') {
            // A sentence, not an id.
            return Self { name: Some(id.to_owned()), ..Self::default() };
        }
        let (organization, name) = match id.split_once('/') {
            // In a relative path, the first part is not an organization.
            Some((organization, name)) => {
                (Some(organization).filter(|organization| !organization.starts_with('.')), name)
            }
            None => (None, id),
        };
        let parts = name.split('-').filter(|part| !part.is_empty());
        let mut parts: Vec<NamePart> =
            parts.enumerate().map(|(i, part)| annotated(i, part, n_weights)).collect();
        // A size in digits is more precise than one in words.
        let is_size =
            |part: &NamePart, of: fn(char) -> bool| part.is(Kind::SizeLabel) && part.text.chars().any(of);
        if parts.iter().any(|part| is_size(part, |c| c.is_ascii_digit())) {
            let in_words = parts.iter_mut().filter(|part| part.text.chars().all(char::is_alphabetic));
            in_words.for_each(|part| part.kinds.retain(|kind| *kind != Kind::SizeLabel));
        }
        let mut at_start = true;
        for part in &mut parts {
            let is_word = part.kinds.is_empty() && part.text.starts_with(char::is_alphabetic);
            at_start &= is_word || part.is(Kind::Version);
            match at_start {
                true => part.kinds.push(Kind::Basename),
                false if part.kinds.is_empty() => part.kinds.push(Kind::Finetune),
                false => {}
            }
        }
        let versions_at_the_end =
            parts.iter_mut().rev().take_while(|part| part.is(Kind::Basename) && part.kinds.len() > 1);
        versions_at_the_end.for_each(|part| part.kinds.retain(|kind| *kind != Kind::Basename));
        let those = |is_it: &dyn Fn(&NamePart) -> bool| -> Vec<&str> {
            parts.iter().filter(|part| is_it(part)).map(|part| part.text.as_str()).collect()
        };
        let joined = |texts: Vec<&str>| Some(texts.join("-")).filter(|joined| !joined.is_empty());
        let finetune = joined(those(&|part| part.is(Kind::Finetune)));
        let version = joined(those(&|part| part.is(Kind::Version) && !part.is(Kind::Basename)));
        let mut sizes: Vec<&str> = Vec::new();
        for size in those(&|part| part.is(Kind::SizeLabel)) {
            if !sizes.contains(&size) {
                sizes.push(size);
            }
        }
        let size_label = joined(sizes);
        // Without any of them, the end of the family's name is unknown.
        let is_clear = size_label.is_some() || finetune.is_some() || version.is_some();
        let basename = joined(those(&|part| part.is(Kind::Basename)));
        Self {
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            organization: organization.filter(|text| !text.is_empty()).map(str::to_owned),
            basename: basename.filter(|_| is_clear),
            finetune,
            version,
            size_label,
        }
    }
}

/// Part `i` of a name, with its possible kinds.
fn annotated(i: usize, text: &str, n_weights: u64) -> NamePart {
    let part = |text: String, kind| NamePart { text, kinds: vec![kind] };
    if has_form(text, r"(v|iter)?\d+([.]\d+)*") {
        return part(text.to_owned(), Kind::Version);
    }
    if has_form(text, r"i?q\d(_\w)*|b?fp?(16|32)") {
        return part(text.to_uppercase(), Kind::Type);
    }
    if i > 0 && has_form(text, r"(A|\d+x)?\d+([._]\d+)?[KMBT]\d?|small|mini|medium|large|x?xl") {
        return sized(text, n_weights);
    }
    match i > 0 && has_form(text, "chat|instruct|vision|lora") {
        true => part(text.to_owned(), Kind::Finetune),
        false => NamePart { text: text.to_owned(), kinds: Vec::new() },
    }
}

/// A size, or another number if the model has a very different number of weights.
fn sized(text: &str, n_weights: u64) -> NamePart {
    let mut chars: Vec<char> = text.replace('_', ".").chars().collect();
    if let [before @ .., letter, digit] = &chars[..]
        && digit.is_ascii_digit()
    {
        // 7b1, as in BLOOM's name.
        chars = before.iter().chain(&['.', *digit, *letter]).copied().collect();
    }
    if let [.., before, letter] = &mut chars[..]
        && before.is_ascii_digit()
    {
        letter.make_ascii_uppercase();
    }
    let (number, letter) = chars.split_at(chars.len() - 1);
    let thousands = ['K', 'M', 'B', 'T'].iter().position(|known| known == &letter[0]);
    let number: Option<f64> = number.iter().collect::<String>().parse().ok();
    if let (Some(number), Some(at)) = (number, thousands) {
        let n_said = number * 1000_f64.powi(at as i32 + 1);
        if n_weights > 0 && (n_said - n_weights as f64).abs() > (7 * n_weights / 8) as f64 {
            let last = letter[0].to_ascii_lowercase();
            let text = chars[..chars.len() - 1].iter().chain([&last]).collect();
            return NamePart { text, kinds: vec![Kind::Finetune] };
        }
    }
    NamePart { text: chars.into_iter().collect(), kinds: vec![Kind::SizeLabel] }
}

/// Name of a folder, or `organization/name` if it is a repository's snapshot in the hub's cache.
pub fn id_of_folder(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let text = |path: Option<&Path>| path?.file_name()?.to_str().map(str::to_owned);
    let snapshots = folder.parent();
    let repository =
        snapshots.filter(|path| path.ends_with("snapshots")).and_then(|path| text(path.parent()));
    let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--"));
    let of_repository = repository.map(|name| name.replacen("--", "/", 1));
    of_repository.or(text(Some(&folder))).unwrap_or_else(|| "model".to_owned())
}

/// A name with spaces instead of hyphens, with lower-case words capitalised, as in llama.cpp's converter;
/// versions and numbers are unchanged.
pub fn title(name: &str) -> String {
    let word = |word: &str| {
        let is_small = word.chars().any(char::is_alphabetic) && !word.chars().any(char::is_uppercase);
        let is_version = word.strip_prefix('v').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit());
        if !is_small || is_version {
            return word.to_owned();
        }
        // As Python's title(): capitalises each letter that does not follow another one.
        let mut after_letter = false;
        let capital = |c: char| {
            let first = !std::mem::replace(&mut after_letter, c.is_alphabetic());
            if first { c.to_uppercase().collect::<String>() } else { c.to_string() }
        };
        word.chars().map(capital).collect()
    };
    name.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_upstreams() {
        assert_eq!(title("llama-ternary"), "Llama Ternary");
        assert_eq!(title("bitnet-b1.58-2B-4T"), "Bitnet B1.58 2B 4T");
        assert_eq!(title("Falcon3-7B-Instruct-1.58bit"), "Falcon3 7B Instruct 1.58bit");
        assert_eq!(title("tiny-v0.3"), "Tiny v0.3");
    }

    #[test]
    fn a_snapshot_is_named_after_its_repository() {
        let dir = std::env::temp_dir().join(format!("sterna-name-{}", std::process::id()));
        let snapshot = dir.join("models--org--Some-model/snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(id_of_folder(&snapshot), "org/Some-model");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Gguf-py's components of the same names.
    #[test]
    fn components_are_upstreams() {
        type Want = [Option<&'static str>; 5];
        let cases: [(&str, f64, Want); 27] = [
            (
                "Mistral-7B-Instruct-v0.2",
                7.24e9,
                [None, Some("Mistral"), Some("Instruct"), Some("v0.2"), Some("7B")],
            ),
            ("bitnet-b1.58-2B-4T", 2.41e9, [None, Some("bitnet-b1.58"), Some("4t"), None, Some("2B")]),
            ("bitnet-b1.58-2B-4T-bf16", 2.41e9, [None, Some("bitnet-b1.58"), Some("4t"), None, Some("2B")]),
            (
                "Falcon3-7B-Instruct-1.58bit",
                7.45e9,
                [None, Some("Falcon3"), Some("Instruct-1.58bit"), None, Some("7B")],
            ),
            (
                "Llama3-8B-1.58-100B-tokens",
                8.03e9,
                [None, Some("Llama3"), Some("100b-tokens"), Some("1.58"), Some("8B")],
            ),
            (
                "Meta-Llama-3.1-8B-Instruct",
                8.03e9,
                [None, Some("Meta-Llama-3.1"), Some("Instruct"), None, Some("8B")],
            ),
            ("Qwen2.5-0.5B", 4.94e8, [None, Some("Qwen2.5"), None, None, Some("0.5B")]),
            ("Qwen3-30B-A3B", 3.05e10, [None, Some("Qwen3"), None, None, Some("30B-A3B")]),
            (
                "Qwen3-30B-A3B-Instruct-2507",
                3.05e10,
                [None, Some("Qwen3"), Some("Instruct"), Some("2507"), Some("30B-A3B")],
            ),
            ("gpt2", 1.24e8, [None; 5]),
            ("gpt2-xl", 1.56e9, [None, Some("gpt2"), None, None, Some("xl")]),
            ("llama-ternary", 3e5, [None; 5]),
            (
                "Mixtral-8x7B-Instruct-v0.1",
                4.67e10,
                [None, Some("Mixtral"), Some("Instruct"), Some("v0.1"), Some("8x7B")],
            ),
            ("bloom-7b1", 7.07e9, [None, Some("bloom"), None, None, Some("7.1B")]),
            ("gemma-3-4b-it", 3.88e9, [None, Some("gemma-3"), Some("it"), None, Some("4B")]),
            ("SmolLM2-135M", 1.345e8, [None, Some("SmolLM2"), None, None, Some("135M")]),
            (
                "tiiuae/Falcon-E-3B-Instruct",
                3.05e9,
                [Some("tiiuae"), Some("Falcon-E"), Some("Instruct"), None, Some("3B")],
            ),
            ("Yi-34B-200K", 3.44e10, [None, Some("Yi"), Some("200k"), None, Some("34B")]),
            (
                "phi-3-mini-128k-instruct",
                3.82e9,
                [None, Some("phi-3"), Some("128k-instruct"), None, Some("mini")],
            ),
            ("model with spaces-7B", 7.0, [None; 5]),
            ("./x-1B", 1e9, [None, Some("x"), None, None, Some("1B")]),
            ("Llama-2-7b-chat-hf", 6.74e9, [None, Some("Llama-2"), Some("chat-hf"), None, Some("7B")]),
            ("a--b", 5.0, [None; 5]),
            ("bitnet_b1_58-3B", 3.3e9, [None, Some("bitnet_b1_58"), None, None, Some("3B")]),
            ("TriLM_3.9B_Unpacked", 3.9e9, [None; 5]),
            (
                "Phi-3-small-8k-instruct-small",
                7e9,
                [None, Some("Phi-3"), Some("8k-instruct"), None, Some("small")],
            ),
            ("small-7B-v1-v2", 7e9, [None, Some("small"), None, Some("v1-v2"), Some("7B")]),
        ];
        for (id, n_weights, want) in cases {
            let found = Components::of(id, n_weights as u64);
            let Components { name, organization, basename, finetune, version, size_label } = &found;
            let got = [organization, basename, finetune, version, size_label].map(Option::as_deref);
            assert_eq!(got, want, "{id}");
            let rest = id.strip_prefix("tiiuae/").or(id.strip_prefix("./")).unwrap_or(id);
            assert_eq!(name.as_deref(), Some(rest));
        }
        assert_eq!(Components::of("", 1), Components::default());
    }
}
