//! Files of LoRA adapters.

use sterna::gguf::{Gguf, GgufWriter, Metadata};

/// Keys of an adapter for a model of an architecture.
pub fn keys(architecture: &str) -> [(&str, &str); 3] {
    [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", architecture)]
}

/// A file with these keys and an alpha of 1, and f32 tensors: name, dimensions, and the values, repeated.
pub fn file(keys: &[(&str, &str)], tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let mut metadata = Metadata::default();
    keys.iter().for_each(|(key, value)| metadata.set(*key, *value));
    metadata.set("adapter.lora.alpha", 1.0_f32);
    let mut writer = GgufWriter::new(metadata).expect("no alignment");
    for (name, dims, _) in tensors {
        writer.tensor(name, dims, 0, 4 * dims.iter().product::<usize>() as u64).expect("other names");
    }
    let mut bytes = Vec::new();
    let mut data = writer.begin(&mut bytes).expect("memory");
    for (_, dims, values) in tensors {
        let values = values.iter().cycle().take(dims.iter().product());
        data.tensor([values.flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()]).expect("memory");
    }
    bytes
}

/// An adapter of `bitnet/tiny-i2_s.gguf`, which changes its texts. Other factors give other adapters.
pub fn of_bitnet(factor: f32) -> Gguf {
    Gguf::from_bytes(of_bitnet_bytes(factor).into()).expect("a valid file")
}

/// The bytes of [`of_bitnet`].
pub fn of_bitnet_bytes(factor: f32) -> Vec<u8> {
    let a: Vec<f32> = (0..384).map(|i: u16| factor * (f32::from(i * 37 % 29) - 14.0) / 100.0).collect();
    let b: Vec<f32> = (0..31).map(|i: u16| (f32::from(i * 13 % 11) - 5.0) / 10.0).collect();
    let tensors: [(&str, &[usize], &[f32]); 2] =
        [("blk.0.ffn_up.weight.lora_a", &[2, 384], &a), ("blk.0.ffn_up.weight.lora_b", &[1024, 2], &b)];
    file(&keys("bitnet-b1.58"), &tensors)
}
