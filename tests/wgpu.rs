//! What the wgpu backend says where a device, a limit or memory is missing, and that it says so instead of waiting.
#![cfg(feature = "wgpu")]

mod case;
mod oracle;

use std::sync::Arc;

use case::model::SMALL;
use case::{Case, limits, shuffled_pages, ty};
use sterna::backend::wgpu::Wgpu;
use sterna::backend::wgpu::device::{Gpu, Options};
use sterna::backend::{Backend, auto, open_on};
use sterna::program::{ActQuant, Logits, NormKind, ProjAdd, Row, RowsOf, Step};

/// A device of this test's own; nothing where there is no adapter, which a line says.
fn gpu(options: &Options) -> Option<Arc<Gpu>> {
    case::wgpus().first().map(|_| Arc::new(Gpu::open(options).expect("it opened before")))
}

#[test]
fn a_lost_device_is_an_error_and_no_wait() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let mut backend = Wgpu::on(Arc::clone(&gpu));
    let (case, logits) = SMALL.case("a small model", limits(2, 1, 1));
    let mut running = case.on(&mut backend);
    let (pages, row) = (shuffled_pages(1, 1), Row { token: 1, pos: 0, seq: 0, logits: true });
    let step = Step { rows: &[row], pages: &pages, sampling: &[] };
    running.backend.run(running.exec, &step).expect("a run");
    assert!(running.read(logits, 1).iter().all(|x| x.is_finite()));
    gpu.lose();
    let run = running.backend.run(running.exec, &step).map(|()| String::new());
    let said = run.unwrap_or_else(|err| err.to_string());
    assert!(said.contains("the device was lost"), "{said}");
    let read = running.backend.read(running.exec, logits, 0, &mut [0.0; 4]);
    assert!(read.unwrap_err().to_string().contains("the device was lost"));
    assert!(running.backend.upload(&case.weights[0]).is_err());
}

#[test]
fn a_device_that_is_not_there_is_named_beside_those_that_are() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    for word in ["no such card", "99"] {
        let said = open_on("wgpu", Some(word), 1).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(&format!("no device `{word}`; there is 0: ")), "{said}");
    }
    let first = open_on("wgpu", Some("0"), 1).expect("the first device");
    let device = Wgpu::on(gpu).device();
    let name = device.split(" (").next().expect("a name").to_uppercase();
    assert!(first.device().to_uppercase().starts_with(&name) || open_on("wgpu", Some(&name), 1).is_ok());
    let said = open_on("cpu", Some("0"), 1).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("--device 0 is for --backend cuda and wgpu"), "{said}");
}

/// Software is what `--backend wgpu` takes where there is nothing else, with a note; `auto` leaves it alone.
#[test]
fn auto_takes_a_gpu_and_no_software() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let backend = Wgpu::on(gpu);
    let software = backend.device().contains("software on the processor");
    assert_eq!(backend.note().is_some_and(|note| note.contains("wgpu found no GPU")), software);
    let names: Vec<_> = auto(1).into_iter().flatten().map(|backend| backend.name()).collect();
    assert_eq!(names.contains(&"wgpu"), !software, "{names:?}");
    assert_eq!(names.last(), Some(&"cpu"));
}

#[test]
fn what_does_not_fit_a_buffer_is_named_before_anything_is_allocated() {
    let options = Options { max_part_bytes: Some(1000), ..Options::default() };
    let Some(gpu) = gpu(&options) else { return };
    let backend = Wgpu::on(gpu);
    let mut case = Case::new("a row that is too long", limits(1, 1, 1));
    let (y, x) = (case.buf("y", 512), case.buf("x", 3));
    let w = case.linear(ty("f32"), 3, 512, ActQuant::None);
    case.p.push("proj_add", ProjAdd { y, norm: None, w, x });
    let said = backend.plan(&case.p).unwrap_err().to_string();
    assert!(said.contains("a row of which takes 2048 bytes of the 1000"), "{said}");

    let mut case = Case::new("logits that are too many", limits(60_000, 1, 1000));
    let (x, logits) = (case.buf("x", 8), case.p.buf("logits", RowsOf::Outputs, 1_000_000));
    let norm = case.norm(NormKind::Rms, 8);
    let w = case.linear(ty("f16"), 1_000_000, 8, ActQuant::None);
    case.p.push("logits", Logits { x, norm, w, logits });
    let said = backend.plan(&case.p).unwrap_err().to_string();
    assert!(said.contains("logits of 60000 rows, 240000000000 bytes"), "{said}");
}
