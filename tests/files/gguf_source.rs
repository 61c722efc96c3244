//! Models whose bytes come from readers: which bytes are read, and when.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sterna::gguf::{Access, FileSource, Gguf, GgufError, OpenOptions, PartLimit, Rewrite, Source};

/// Records the reads of a file, and fails from the byte `breaks_at` on.
struct Recording {
    bytes: Bytes,
    file_bytes: u64,
    breaks_at: u64,
    reads: Mutex<Vec<(u64, usize)>>,
}

impl Recording {
    fn new(bytes: Bytes) -> Self {
        let file_bytes = bytes.len() as u64;
        Self { bytes, file_bytes, breaks_at: u64::MAX, reads: Mutex::new(Vec::new()) }
    }

    fn n_read(&self) -> usize {
        self.reads.lock().unwrap().iter().map(|(_, len)| len).sum()
    }
}

impl Source for Recording {
    fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        assert!(at + into.len() as u64 <= self.file_bytes, "{} bytes at {at}", into.len());
        self.reads.lock().unwrap().push((at, into.len()));
        if at + into.len() as u64 > self.breaks_at {
            return Err(io::Error::other("the disk is gone"));
        }
        self.bytes.read_at(at, into)
    }
}

fn golden(path: &str) -> Bytes {
    std::fs::read(support::golden(path).expect("it is in tests/data")).unwrap().into()
}

fn open(source: &Arc<Recording>) -> Result<Gguf, GgufError> {
    Gguf::from_source(Arc::clone(source) as Arc<dyn Source>, OpenOptions::default())
}

fn same(one: &Gguf, two: &Gguf) {
    let described = |gguf: &Gguf| {
        let metadata: Vec<_> = gguf.metadata().iter().collect();
        format!("{metadata:?} {:?} {:?}", gguf.tensors(), gguf.dialect())
    };
    assert!(described(one) == described(two));
    for info in one.tensors() {
        assert!(one.raw_bytes(info).unwrap() == two.raw_bytes(info).unwrap(), "{}", info.name);
        if info.ty.is_some() {
            assert!(one.host_tensor(info).unwrap().bytes == two.tensor(&info.name).unwrap().bytes);
        }
    }
}

#[test]
fn reader_equals_memory_and_is_read_once() {
    for name in ["bitnet/tiny-i2_s.gguf", "gpt-oss/tiny-mxfp4.gguf", "qwen3/tiny-f16.gguf"] {
        let bytes = golden(name);
        let whole = Gguf::from_bytes(bytes.clone()).unwrap();
        let head = whole.tensors().iter().map(|tensor| tensor.start).min().unwrap();
        let source = Arc::new(Recording::new(bytes));
        let gguf = open(&source).unwrap();
        assert!(!gguf.is_header());
        assert!((head as usize..=head.max(1 << 20) as usize).contains(&source.n_read()), "{name}");
        // Describing a tensor reads nothing, and reading it reads each byte once.
        let before = source.n_read();
        let tensors: Vec<_> = gguf.tensors().iter().map(|info| gguf.file_tensor(info).unwrap()).collect();
        assert_eq!(source.n_read(), before);
        let all: usize = tensors.iter().map(|tensor| tensor.read().unwrap().bytes.len()).sum();
        assert_eq!(source.n_read(), before + all);
        same(&gguf, &whole);
    }
}

#[test]
fn files_are_mapped_locked_or_read() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("it is in tests/data");
    let open = |access| Gguf::open_with(&path, OpenOptions { access, ..OpenOptions::default() });
    let mapped = open(Access::Map).unwrap();
    let read = open(Access::Read).unwrap();
    same(&mapped, &read);
    assert_eq!(mapped.paths(), read.paths());
    match open(Access::Lock) {
        Ok(locked) => same(&mapped, &locked),
        // The system's limit is below the size of the file.
        Err(error) => assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}"),
    }
    for (path, want) in
        [("/", "a directory"), ("/dev/null", "a pipe or a device"), ("/no such file", "cannot open")]
    {
        for access in [Access::Map, Access::Lock, Access::Read] {
            let options = OpenOptions { access, ..OpenOptions::default() };
            let refused = Gguf::open_with(Path::new(path), options).map(drop).unwrap_err();
            assert!(refused.to_string().contains(want), "{refused}");
        }
    }
}

/// A file that another process truncates gives an error, not a signal.
#[test]
fn file_truncated_while_open_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let bytes = golden("bitnet/tiny-i2_s.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let options = OpenOptions { access: Access::Read, ..OpenOptions::default() };
    let gguf = Gguf::open_with(&path, options).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64 / 2).unwrap();
    let last = gguf.tensors().iter().max_by_key(|info| info.start).unwrap();
    let error = gguf.raw_bytes(last).unwrap_err().to_string();
    assert!(error.starts_with("cannot read: "), "{error}");
}

#[test]
fn split_model_is_read_from_one_reader_per_file() {
    let whole = Gguf::from_bytes(golden("bitnet/tiny-i2_s.gguf")).unwrap();
    let parts: Vec<Bytes> = Rewrite::parts(&whole, PartLimit::Tensors(9), false)
        .unwrap()
        .into_iter()
        .map(|part| {
            let mut out = Vec::new();
            part.write(&mut out, |_| std::ops::ControlFlow::Continue(())).unwrap();
            out.into()
        })
        .collect();
    assert!(parts.len() > 1);
    let sources = |parts: &[Bytes]| -> Vec<Arc<dyn Source>> {
        parts.iter().map(|part| Arc::new(part.clone()) as Arc<dyn Source>).collect()
    };
    let split = Gguf::from_sources(sources(&parts), OpenOptions::default()).unwrap();
    for info in whole.tensors() {
        assert!(split.tensor(&info.name).unwrap().bytes == whole.host_tensor(info).unwrap().bytes);
    }
    let one = Gguf::from_sources(sources(&parts[..1]), OpenOptions::default()).map(drop).unwrap_err();
    assert!(matches!(one, GgufError::Split { .. }), "{one}");
    let swapped = [parts[1].clone(), parts[0].clone()];
    assert!(Gguf::from_sources(sources(&swapped), OpenOptions::default()).is_err());
    assert!(Gguf::from_sources([], OpenOptions::default()).is_err());
}

#[test]
fn source_reader_errors_are_returned() {
    let bytes = golden("bitnet/tiny-i2_s.gguf");
    for breaks_at in [0, 100] {
        let broken = Arc::new(Recording { breaks_at, ..Recording::new(bytes.clone()) });
        let error = open(&broken).map(drop).unwrap_err().to_string();
        assert_eq!(error, "cannot read: the disk is gone");
    }
    let late = Arc::new(Recording { breaks_at: bytes.len() as u64 - 1, ..Recording::new(bytes.clone()) });
    let gguf = open(&late).unwrap();
    let failed = gguf.tensors().iter().filter(|info| gguf.host_tensor(info).is_err()).count();
    assert_eq!(failed, 1);
    // A length larger than any memory, in a file with a declared size that large.
    let mut hostile = bytes.to_vec();
    let key = hostile.windows(20).position(|at| at == b"general.architecture").unwrap();
    hostile[key + 24..key + 32].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    let vast = Arc::new(Recording { file_bytes: 1 << 61, ..Recording::new(hostile.into()) });
    assert!(open(&vast).is_err());
    // Files that end early.
    for len in [0, 4, 8, 100, 10_000] {
        let short = Arc::new(Recording::new(bytes.slice(..len)));
        assert!(open(&short).is_err(), "{len} bytes");
    }
    assert!(FileSource::open(Path::new("/nowhere")).is_err());
}
