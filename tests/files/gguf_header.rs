//! Models of which only the header is read, from the first bytes of a local or remote file.

use std::cell::Cell;
use std::io;
use std::path::Path;

use bytes::Bytes;
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Gguf, GgufError, Header, OpenOptions};
use sterna::synth::{Preset, Synth};

fn tiny() -> Bytes {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    std::fs::read(path).unwrap().into()
}

/// The offset of the first weight.
fn head_bytes(gguf: &Gguf) -> usize {
    gguf.tensors().iter().map(|tensor| tensor.start as usize).min().unwrap()
}

fn of_first(first: Bytes, file_bytes: usize) -> Result<Gguf, GgufError> {
    Gguf::from_headers(&[Header { first, file_bytes: file_bytes as u64 }], OpenOptions::default())
}

#[test]
fn header_alone_equals_that_of_the_whole_file() {
    let all = tiny();
    let whole = Gguf::from_bytes(all.clone()).unwrap();
    let gguf = of_first(all.slice(..head_bytes(&whole)), all.len()).unwrap();
    assert!(gguf.is_header() && !whole.is_header());
    let described = |gguf: &Gguf| {
        let metadata: Vec<_> = gguf.metadata().iter().collect();
        format!("{metadata:?} {:?} {:?}", gguf.tensors(), gguf.dialect())
    };
    assert!(described(&gguf) == described(&whole));
    assert_eq!(gguf.file_bytes().collect::<Vec<_>>(), [all.len() as u64]);
    // Weights that were not read are zero, and an engine refuses them.
    let zeros = |info| gguf.raw_bytes(info).unwrap().iter().all(|byte| *byte == 0);
    assert!(gguf.tensors().iter().all(zeros));
    let refused = Engine::from_gguf(gguf, &EngineOptions::default(), |_| ()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("only the header"), "{refused}");
}

/// Any prefix that is too short gives an error with the number of bytes that are needed. That number is never
/// too large, and requesting it repeatedly ends.
#[test]
fn short_prefixes_say_how_many_bytes_are_needed() {
    let all = tiny();
    let whole = Gguf::from_bytes(all.clone()).unwrap();
    let head = head_bytes(&whole);
    let mut have = 0;
    let mut n_asked = 0;
    let gguf = loop {
        match of_first(all.slice(..have), all.len()) {
            Ok(gguf) => break gguf,
            Err(GgufError::MoreOfHeader { have: said, need }) => {
                assert_eq!(said, have);
                assert!(need > have as u64 && need <= head as u64, "{have} bytes: {need}");
                have = need as usize;
            }
            Err(other) => panic!("{have} bytes: {other}"),
        }
        n_asked += 1;
    };
    assert!(n_asked > 100 && have <= head && gguf.tensors().len() == whole.tensors().len());
    for have in (0..head - 32).step_by(97) {
        let refused = of_first(all.slice(..have), all.len()).map(drop).unwrap_err();
        assert!(
            refused.to_string().contains(&format!("does not end in the first {have} bytes")),
            "{refused}"
        );
    }
    // If the whole file is not longer, it is broken.
    let refused = of_first(all.slice(..200), 200).map(drop).unwrap_err();
    assert!(!matches!(refused, GgufError::MoreOfHeader { .. }), "{refused}");
    // Weights beyond the end of the file.
    let refused = of_first(all.slice(..head), all.len() - 4096).map(drop).unwrap_err();
    assert!(matches!(refused, GgufError::Incomplete { .. }), "{refused}");
}

/// Reading the header of a file of gigabytes requests little more than the header.
#[test]
fn header_read_requests_little_more_than_the_header() {
    let spec = Preset::by_name("bitnet-2b-4t").unwrap().spec(None, None, 1).unwrap();
    let synth = Synth::new(&spec).unwrap();
    let file_bytes = synth.file_bytes();
    let head = Bytes::from(synth.descriptions().unwrap());
    assert!(file_bytes > 1_000_000_000 && head.len() > 1 << 20);
    let most = Cell::new(0);
    let header = Header::read(file_bytes, |n| {
        most.set(most.get().max(n));
        let mut first = head.to_vec();
        // The bytes after the header are ignored.
        first.resize(n.max(head.len()), 0xff);
        Ok(Bytes::from(first).slice(..n))
    })
    .unwrap();
    assert!(most.get() < 2 * head.len().next_power_of_two(), "{} of {}", most.get(), head.len());
    let gguf = Gguf::from_headers(&[header], OpenOptions::default()).unwrap();
    assert_eq!(gguf.file_bytes().sum::<u64>(), file_bytes);
    let program = sterna::engine::program(&gguf, &EngineOptions::default()).unwrap();
    assert_eq!(program.weights.len(), gguf.tensors().len());
}

#[test]
fn header_reader_errors_are_returned() {
    let all = tiny();
    let len = all.len() as u64;
    let broken = Header::read(len, |_| Err(io::Error::other("the line is dead"))).unwrap_err();
    assert!(broken.to_string().contains("the line is dead"), "{broken}");
    let short = Header::read(len, |n| Ok(all.slice(..n / 2))).unwrap_err();
    assert!(short.to_string().contains("of the first"), "{short}");
    let other = Header::read(100, |n| Ok(vec![b'<'; n].into())).unwrap_err();
    assert!(matches!(other, GgufError::NotGguf { .. }), "{other}");
    // A size larger than any address space: the header does not use it.
    assert_eq!(of_first(all, usize::MAX).unwrap().file_bytes().next(), Some(u64::MAX));
    let none = Gguf::from_headers(&[], OpenOptions::default()).map(drop).unwrap_err();
    assert!(matches!(none, GgufError::Split { .. }), "{none}");
}

#[test]
fn open_header_reads_files() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let gguf = Gguf::open_header(&path, OpenOptions::default()).unwrap();
    let whole = Gguf::open(&path).unwrap();
    assert_eq!(format!("{:?}", gguf.tensors()), format!("{:?}", whole.tensors()));
    assert_eq!(gguf.paths(), whole.paths());
    for (path, want) in
        [("/", "a directory"), ("/dev/null", "a pipe or a device"), ("/no such file", "cannot open")]
    {
        let refused = Gguf::open_header(Path::new(path), OpenOptions::default()).map(drop).unwrap_err();
        assert!(refused.to_string().contains(want), "{refused}");
    }
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.gguf");
    std::fs::write(&cut, &tiny()[..1000]).unwrap();
    let refused = Gguf::open_header(&cut, OpenOptions::default()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("cut.gguf"), "{refused}");
}

/// A file that is truncated anywhere after its header has the same header as the whole file.
#[test]
fn truncated_files_have_a_readable_header() {
    let all = tiny();
    let whole = Gguf::from_bytes(all.clone()).unwrap();
    let end = whole.tensors().iter().map(|tensor| tensor.start + tensor.n_bytes).max().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.gguf");
    for have in [head_bytes(&whole), all.len() / 2, end as usize - 1] {
        std::fs::write(&cut, &all[..have]).unwrap();
        let said = format!("cut.gguf: incomplete: {have} of {end} bytes; download it again");
        let refused = Gguf::open(&cut).map(drop).unwrap_err();
        assert!(refused.is_incomplete() && refused.to_string().ends_with(&said), "{refused}");
        let gguf = Gguf::open_header(&cut, OpenOptions::default()).unwrap();
        assert!(gguf.incomplete().is_some_and(|error| error.to_string().ends_with(&said)));
        assert_eq!(format!("{:?}", gguf.tensors()), format!("{:?}", whole.tensors()));
        let refused = Engine::from_gguf(gguf, &EngineOptions::default(), |_| ()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("only the header"), "{refused}");
    }
    std::fs::write(&cut, &all[..end as usize]).unwrap();
    assert!(Gguf::open_header(&cut, OpenOptions::default()).unwrap().incomplete().is_none());
}
