//! Recognises the pre-tokenizer of a `tokenizer.json` by its structure, not by a hash of its output.

use serde_json::Value as Json;

use sterna_tokenizer::PreTokenizer;

/// GPT-2's expression, which `ByteLevel` applies unless told otherwise.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// Characters that `Punctuation` splits off.
const PUNCTUATION: &str = r"[\p{P}$+<=>^~|`]+";

/// The pre-tokenizer that a `tokenizer.json` describes.
///
/// # Errors
/// Unsupported steps, or expressions that no known pre-tokenizer has.
pub fn pre_tokenizer(tokenizer: &Json) -> Result<PreTokenizer, String> {
    let steps = steps(tokenizer.get("pre_tokenizer").unwrap_or(&Json::Null))?;
    let steps: Vec<String> = steps.iter().map(|step| canonical(step)).collect();
    let is_it = |patterns: &[String]| {
        let same = |(pattern, step): (&String, &String)| {
            let (pattern, one_by_one) = (canonical(pattern), r"\p{N}");
            // Falcon-E's digits are spelled in two ways.
            pattern == *step || (pattern == "[0-9]" && step == one_by_one)
        };
        patterns.len() == steps.len() && patterns.iter().zip(&steps).all(same)
    };
    // Some pre-tokenizers differ only in this, which older files do not contain.
    let ignores = tokenizer["model"]["ignore_merges"].as_bool();
    let alike = || PreTokenizer::all().filter(|pre| is_it(&pre.published().collect::<Vec<_>>()));
    let found = alike().find(|pre| ignores == Some(pre.ignore_merges())).or(alike().next());
    found.ok_or_else(|| {
        let known: Vec<_> = PreTokenizer::all().map(PreTokenizer::name).collect();
        let known = known.join(", ");
        format!("its pre-tokenizer is not one of {known}: it splits by {}", steps.join("  then by  "))
    })
}

/// Note on a normaliser that is left out.
pub fn lost_normalizer(kind: &str) -> String {
    format!("GGUF has no key for the tokenizer's {kind} normaliser: some texts get other token ids")
}

/// The expressions by which a pre-tokenizer splits, in order.
fn steps(json: &Json) -> Result<Vec<String>, String> {
    let flag = |key: &str| json.get(key).and_then(Json::as_bool);
    let text = |key: &str| json.get(key).and_then(Json::as_str);
    match text("type") {
        Some("Sequence") => {
            let parts = json.get("pretokenizers").and_then(Json::as_array).cloned().unwrap_or_default();
            let parts: Result<Vec<_>, _> = parts.iter().map(steps).collect();
            Ok(parts?.concat())
        }
        Some("ByteLevel") => match (flag("add_prefix_space"), flag("use_regex")) {
            (Some(true), _) => {
                Err("its ByteLevel adds a space before each text, for which GGUF has no key".into())
            }
            (_, Some(false)) => Ok(Vec::new()),
            _ => Ok(vec![BYTE_LEVEL.to_owned()]),
        },
        Some("Digits") if flag("individual_digits") == Some(true) => Ok(vec![r"\p{N}".to_owned()]),
        Some("Digits") => Ok(vec![r"\p{N}+".to_owned()]),
        Some("Punctuation") => match text("behavior") {
            Some("Contiguous") => Ok(vec![PUNCTUATION.to_owned()]),
            _ => Ok(vec![PUNCTUATION.trim_end_matches('+').to_owned()]),
        },
        Some("Split") => {
            // The second keeps the matches and drops the text between them, which is empty here.
            match (text("behavior"), flag("invert").unwrap_or(false)) {
                (Some("Isolated"), _) | (Some("Removed"), true) => {}
                (behavior, invert) => {
                    let behavior = behavior.unwrap_or("none");
                    return Err(format!("its Split is {behavior} (invert {invert}), want Isolated"));
                }
            }
            let pattern = json.get("pattern").unwrap_or(&Json::Null);
            let regex = pattern.get("Regex").and_then(Json::as_str);
            match (regex, pattern.get("String").and_then(Json::as_str)) {
                (Some(regex), _) => Ok(vec![regex.to_owned()]),
                (None, Some(string)) => Ok(vec![regex::escape(string)]),
                (None, None) => Err("its Split has no pattern".to_owned()),
            }
        }
        Some(other) => Err(format!("its pre-tokenizer has an unknown step {other}")),
        None => {
            Err("it has no pre-tokenizer; for a SentencePiece vocabulary, add its tokenizer.model".to_owned())
        }
    }
}

/// Normalises an expression, so that equivalent spellings are equal.
fn canonical(pattern: &str) -> String {
    const ANY_CASE: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    const SPELLED: &str = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]";
    let pattern = pattern.replace(&format!("{ANY_CASE}|"), &format!("{SPELLED}|"));
    let pattern = pattern.replace(&format!("{ANY_CASE}?"), &format!("(?:{SPELLED})?"));
    // Possessive quantifiers have no effect if the alternatives exclude each other.
    let pattern = pattern.replace("++", "+").replace("]?+", "]?").replace("}?+", "}?");
    // Escapes literal newlines, and simplifies redundant counts and nested sets.
    let pattern = pattern.replace('\r', r"\r").replace('\n', r"\n").replace(r"\p{N}{1}", r"\p{N}");
    let pattern = match pattern.strip_prefix(r" ?[^(\s|[").and_then(|rest| rest.strip_suffix("])]+")) {
        Some(set) => format!(r" ?[^(\s|{set})]+"),
        None => pattern,
    };
    let pattern = pattern.replace(r"\s+(?!\S)|\s+", r"\s+").replace("[0-9][0-9][0-9]", "[0-9]{3}");
    pattern.replace(r"\s*[\r\n]|\s+", r"\s*[\r\n]+|\s+")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn name(steps: &Json) -> Result<&'static str, String> {
        pre_tokenizer(&json!({ "pre_tokenizer": steps })).map(PreTokenizer::name)
    }

    fn split(regex: &str) -> Json {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    }

    /// The spellings are those of published files.
    #[test]
    fn published_structures_have_names() {
        let llama = concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
            r"\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        assert_eq!(name(&split(llama)), Ok("llama-bpe"));
        assert_eq!(name(&split(&llama.replace("{1,3}", ""))), Ok("qwen2"));
        let qwen35 = concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        assert_eq!(name(&split(qwen35)), Ok("qwen35"));
        let gpt_4o = concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        assert_eq!(name(&split(gpt_4o)), Ok("gpt-4o"));
        let tekken = concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        assert_eq!(name(&split(tekken)), Ok("tekken"));
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
        assert_eq!(name(&byte_level), Ok("gpt-2"));
        let digits = json!({"type": "Digits", "individual_digits": true});
        let smollm = json!({"type": "Sequence", "pretokenizers": [digits, byte_level]});
        assert_eq!(name(&smollm), Ok("smollm"));
        let punctuation = json!({"type": "Punctuation", "behavior": "Contiguous"});
        let three = json!({"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated"});
        let falcon = json!({"type": "Sequence", "pretokenizers": [punctuation, byte_level, three]});
        assert_eq!(name(&falcon), Ok("falcon"));
        let falcon_e = json!({"type": "Sequence", "pretokenizers": [punctuation, byte_level, digits]});
        assert_eq!(name(&falcon_e), Ok("falcon_e"));
        // Llama 3's expression without `ignore_merges`.
        let with =
            |ignores: bool| json!({"pre_tokenizer": split(llama), "model": {"ignore_merges": ignores}});
        let name = |ignores| pre_tokenizer(&with(ignores)).map(PreTokenizer::name);
        assert_eq!([name(true), name(false)], [Ok("llama-bpe"), Ok("smaug-bpe")]);
    }

    #[test]
    fn published_sequences_have_names() {
        let digits = json!({"type": "Digits", "individual_digits": true});
        let sequence = |steps: &[Json]| json!({"type": "Sequence", "pretokenizers": steps});
        let one = |regex: &str| split(regex)["pretokenizers"][0].clone();
        let bytes = split("")["pretokenizers"][1].clone();
        let east = "[一-龥ࠀ-一가-\u{d7ff}]+";
        let letters =
            [one("[\r\n]"), one(r"\s?\p{L}+"), one(r"\s?\p{P}+"), one(east), digits.clone(), bytes.clone()];
        assert_eq!(name(&sequence(&letters)), Ok("deepseek-coder"));
        let main = concat!(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|",
            "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|",
            " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
        );
        let kana = "[一-龥\u{3040}-ゟ゠-ヿ]+";
        let v3 = [one(r"\p{N}{1,3}"), one(kana), one(main), bytes.clone()];
        assert_eq!(name(&sequence(&v3)), Ok("deepseek-v3"));
        let bloom = one(r" ?[^(\s|[.,!?…。，、।۔،])]+");
        assert_eq!(name(&sequence(&[bloom.clone(), bytes.clone()])), Ok("poro-chat"));
        assert_eq!(name(&sequence(&[bloom, digits, bytes])), Ok("viking"));
        let seed = concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|",
            r"\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        assert_eq!(name(&split(seed)), Ok("seed-coder"));
        // An expression for the end of a text is not one for any place.
        assert!(name(&split(r"\s+")).is_err());
    }

    #[test]
    fn anything_else_is_an_error_that_shows_it() {
        let said = name(&split(r"\w+|\W+")).unwrap_err();
        assert!(said.contains(r"\w+|\W+") && said.contains("llama-bpe"), "{said}");
        let prefixed = json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true});
        assert!(name(&prefixed).unwrap_err().contains("adds a space"));
        assert!(name(&Json::Null).unwrap_err().contains("tokenizer.model"));
        assert!(name(&json!({"type": "BertPreTokenizer"})).unwrap_err().contains("BertPreTokenizer"));
        let merged = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
        assert!(name(&merged).unwrap_err().contains("MergedWithPrevious"));
    }
}
