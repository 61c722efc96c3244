//! A weight type registered by a program: the one of `examples/own_type.rs`.

use ggml_types::{QuantType, RegisterError, by_id, by_name, register, types};
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Gguf, GgufWriter, type_id};
use support::case::{cpus, simt, wgpus};
use support::golden;
use support::logits::all_logits;

#[path = "../../examples/own_type.rs"]
#[expect(dead_code, reason = "its `main` is a program's")]
mod example;

use example::{Cube8, quantised};

/// The same model with every tensor decoded to f32.
fn as_floats(gguf: &Gguf) -> Vec<u8> {
    let f32_id = type_id(&types::F32).expect("f32 has an id");
    let mut writer = GgufWriter::new(gguf.metadata().clone()).unwrap();
    let mut bytes = Vec::new();
    for info in gguf.tensors() {
        let tensor = gguf.host_tensor(info).unwrap();
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        for (row, out) in values.chunks_exact_mut(tensor.cols).enumerate() {
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, out).unwrap();
        }
        writer.tensor(&info.name, &info.dims, f32_id, 4 * values.len() as u64).unwrap();
        bytes.push(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    }
    let mut data = writer.begin(Vec::new()).unwrap();
    bytes.into_iter().for_each(|bytes| data.tensor([bytes]).unwrap());
    data.finish().unwrap()
}

#[test]
fn registered_types_run_only_on_the_cpu() {
    let path = golden("qwen3/tiny-f16.gguf").expect("it is in tests/data");
    assert!(by_name("cube8").is_none());
    register(&Cube8).unwrap();
    assert_eq!(register(&Cube8), Err(RegisterError::Name("cube8".to_owned())));
    let (dialect, id) = Cube8.ids()[0];
    assert!(by_id(dialect, id).is_some_and(|ty| ty.is(&Cube8)));

    let file = quantised(&Gguf::open(&path).unwrap()).unwrap();
    let gguf = || Gguf::from_bytes(file.clone()).unwrap();
    let of_type = gguf().tensors().iter().filter(|info| info.type_name == "cube8").count();
    assert_eq!(of_type, 1 + 2 * 7);
    let floats = as_floats(&gguf());
    let options = EngineOptions { outputs: 16, n_ctx: Some(64), ..EngineOptions::default() };
    let prompt = [(0..16).map(|i| i * 37 % 640).collect::<Vec<u32>>()];
    for (one, other) in cpus(&[2]).into_iter().zip(cpus(&[1])) {
        let device = one.device();
        let own = Engine::on_backend(gguf(), &options, one, |_| ()).unwrap();
        let plain = Gguf::from_bytes(floats.clone().into()).unwrap();
        let plain = Engine::on_backend(plain, &options, other, |_| ()).unwrap();
        // Rows are decoded and then multiplied as floats.
        assert!(all_logits(&own, &prompt) == all_logits(&plain, &prompt), "{device}");
    }
    for backend in wgpus().into_iter().take(1).chain(simt(1)) {
        let name = backend.name();
        let message =
            Engine::on_backend(gguf(), &options, backend, |_| ()).map(drop).unwrap_err().to_string();
        assert!(message.contains("__cube8"), "{name}: {message}");
    }
}

/// Invalid names, ids and block sizes.
#[test]
fn invalid_types_are_not_registered() {
    #[derive(Debug)]
    struct Other(&'static str, &'static [(ggml_types::Dialect, u32)], usize);
    impl QuantType for Other {
        fn name(&self) -> &'static str {
            self.0
        }
        fn ids(&self) -> &'static [(ggml_types::Dialect, u32)] {
            self.1
        }
        fn block_elems(&self) -> usize {
            self.2
        }
        fn row_bytes(&self, cols: usize) -> Result<usize, ggml_types::QuantError> {
            Ok(cols)
        }
        fn byte_len(&self, rows: usize, cols: usize) -> Result<usize, ggml_types::QuantError> {
            Ok(rows * cols)
        }
        fn decode_row(
            &self,
            _: &[u8],
            _: usize,
            _: usize,
            _: &mut [f32],
        ) -> Result<(), ggml_types::QuantError> {
            Ok(())
        }
        fn encode(&self, _: &[f32], _: usize, _: usize) -> Result<Vec<u8>, ggml_types::QuantError> {
            Ok(Vec::new())
        }
        fn error_bound(&self, _: f32) -> f32 {
            0.0
        }
    }
    use ggml_types::Dialect::{BitNet, Ggml};
    static WRONG: [(Other, &str); 5] = [
        (Other("q4_k", &[], 1), "a type q4_k exists already"),
        (Other("Own Type", &[], 1), "want a name of a to z"),
        (Other("own_a", &[(Ggml, 70_002), (Ggml, 12)], 1), "id 12 of Ggml is q4_k"),
        // Known, but not implemented.
        (Other("own_b", &[(BitNet, 38)], 1), "id 38 of BitNet is tl1"),
        (Other("own_c", &[], 0), "want blocks and rows of at least 1"),
    ];
    for (ty, want) in &WRONG {
        let message = register(ty).unwrap_err().to_string();
        assert!(message.contains(want), "{message}");
        assert!(by_name(ty.name()).is_none() || ty.name() == "q4_k");
    }
    assert!(by_id(Ggml, 70_002).is_none());
}
