//! Checkpoints made by the tests, and a safetensors reader that shares no code with ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

/// A tensor in the form of safetensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Raw {
    pub fn f32s(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: "F32".to_owned(), shape: shape.to_vec(), bytes }
    }

    pub fn bf16s(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
        Self { dtype: "BF16".to_owned(), shape: shape.to_vec(), bytes }
    }

    /// The values of an F32, F16 or BF16 tensor.
    pub fn values(&self) -> Vec<f32> {
        let halves = || self.bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        match self.dtype.as_str() {
            "F32" => self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            "BF16" => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
            "F16" => halves().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            other => panic!("{other} is not read here"),
        }
    }
}

/// The tensors of a safetensors file.
pub fn read(path: &Path) -> BTreeMap<String, Raw> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Json = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensor = |json: &Json| {
        let of = |key: &str| -> Vec<usize> {
            json[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let offsets = of("data_offsets");
        let bytes = file[8 + length + offsets[0]..8 + length + offsets[1]].to_vec();
        Raw { dtype: json["dtype"].as_str().unwrap().to_owned(), shape: of("shape"), bytes }
    };
    let entries = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    entries.map(|(name, json)| (name.clone(), tensor(json))).collect()
}

/// The bytes of a safetensors file with these tensors.
pub fn safetensors(tensors: &BTreeMap<String, Raw>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, raw) in tensors {
        let start = data.len();
        data.extend(&raw.bytes);
        let entry = json!({"dtype": raw.dtype, "shape": raw.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    with_header(&Json::Object(header), &data)
}

/// The bytes of a safetensors file with this header and this data.
pub fn with_header(header: &Json, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A checkpoint to be written.
#[derive(Clone, Debug)]
pub struct Folder {
    pub config: Json,
    pub tokenizer: Json,
    pub tensors: BTreeMap<String, Raw>,
}

impl Folder {
    /// Writes it in one file.
    pub fn write(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        self.write_to(dir.path());
        dir
    }

    pub fn write_to(&self, dir: &Path) {
        fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        fs::write(dir.join("tokenizer.json"), self.tokenizer.to_string()).unwrap();
        fs::write(dir.join("model.safetensors"), safetensors(&self.tensors)).unwrap();
    }

    /// Writes it in two files with an index.
    pub fn write_sharded(&self) -> tempfile::TempDir {
        let dir = self.write();
        fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let mut map = serde_json::Map::new();
        for (part, name) in names.iter().enumerate() {
            let tensors: BTreeMap<String, Raw> =
                self.tensors.clone().into_iter().skip(part).step_by(2).collect();
            map.extend(tensors.keys().map(|key| (key.clone(), json!(name))));
            fs::write(dir.path().join(name), safetensors(&tensors)).unwrap();
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        dir
    }
}

/// Numbers between -1 and 1 without a pattern.
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let one = |at: u64| {
        let x = (at + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x >> 33) % 2001) as f32 / 1000.0 - 1.0
    };
    (0..n as u64).map(one).collect()
}

/// A vocabulary of `n` tokens, single letters of byte-level BPE first.
pub fn tokenizer(n: usize) -> Json {
    let vocab: serde_json::Map<String, Json> = (0..n)
        .map(|id| {
            (if id < 26 { char::from(b'a' + id as u8).to_string() } else { format!("t{id}") }, json!(id))
        })
        .collect();
    json!({
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "post_processor": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// A Llama of one layer: dim 8, two query heads of 4, one KV head, FFN dim 16, 10 tokens.
pub fn llama() -> Folder {
    let shapes: [(&str, &[usize]); 11] = [
        ("model.embed_tokens.weight", &[10, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
    ];
    let tensors = shapes.iter().enumerate().map(|(at, (name, shape))| {
        ((*name).to_owned(), Raw::f32s(shape, &numbers(shape.iter().product(), at as u64 + 3)))
    });
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8,
        "intermediate_size": 16,
        "max_position_embeddings": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "vocab_size": 10,
    });
    Folder { config, tokenizer: tokenizer(10), tensors: tensors.collect() }
}
