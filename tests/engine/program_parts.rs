//! Parts of a program, one per device.

use ggml_types::kv_by_name;
use sterna::program::{Buf, Kv, Part, Program};
use sterna::selftest::Subject;

fn program() -> Program {
    let f16 = kv_by_name("f16").expect("a codec");
    let subject = Subject { n_layers: 3, ..Subject::tiny("f16", f16, f16) };
    subject.model().expect("a model").program
}

#[test]
fn part_of_all_stages_is_the_whole_program() {
    let p = program();
    let part = p.part(0..p.stages.len());
    part.program.check().unwrap();
    assert_eq!((part.weights.len(), part.kvs.len()), (p.weights.len(), p.kvs.len()));
    // Declarations are in another order, so only the text of the stages is the same.
    let stages = |p: &Program| {
        let text = p.to_string();
        text.lines().filter(|line| line.starts_with("logits: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stages(&part.program), stages(&p));
    assert!(part.program.inputs().is_empty());
}

#[test]
fn parts_declare_what_their_stages_use() {
    let p = program();
    let starts = p.layer_starts();
    assert_eq!(starts.len(), 2);
    let cuts = [&[0][..], &starts, &[p.stages.len()]].concat();
    let parts: Vec<Part> = cuts.windows(2).map(|cut| p.part(cut[0]..cut[1])).collect();
    let x = p.buf_named("x").expect("a residual stream");
    for (i, part) in parts.iter().enumerate() {
        part.program.check().unwrap();
        assert_eq!(part.kvs, [Kv(i as u32)]);
        let inputs: Vec<Buf> = part.program.inputs().iter().map(|b| part.bufs[b.0 as usize]).collect();
        assert_eq!(inputs, if i == 0 { vec![] } else { vec![x] });
        for (decl, w) in part.program.weights.iter().zip(&part.weights) {
            assert_eq!(decl.name, p.weight_decl(*w).name);
        }
    }
    // The head is a separate weight, so no weight is in two parts.
    let n: usize = parts.iter().map(|part| part.weights.len()).sum();
    assert_eq!(n, p.weights.len());
    assert!(parts[0].buf(p.logits().unwrap().logits).is_none());
}
