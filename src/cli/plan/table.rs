//! A plan as a table for people.

use std::io::{self, Write};

use super::{Cell, Shown, pair_name};
use crate::backend::{DeviceMemory, MemoryKind};
use crate::engine::error::binary_units as binary;
use crate::engine::fit::Room;

pub fn write(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    let Shown { hyper, options, .. } = shown;
    // A file's text may hold anything, terminal escapes included.
    let name = hyper.name.as_deref().unwrap_or("without a name").escape_debug();
    writeln!(out, "file      {}, {}", shown.source, binary(shown.file_bytes))?;
    writeln!(
        out,
        "model     {name} ({}), {} layers, trained with {} positions",
        hyper.architecture, hyper.n_layers, hyper.n_ctx_train
    )?;
    let pair = pair_name(&[options.cache_type_k.clone(), options.cache_type_v.clone()]);
    writeln!(
        out,
        "plan      {} positions, KV cache {pair}, steps of {} tokens, {} sequence{}",
        options.n_ctx.unwrap_or_default(),
        options.batch,
        options.n_seqs,
        if options.n_seqs == 1 { "" } else { "s" }
    )?;
    for (device, room) in &shown.devices {
        write_device(shown.backend, device, room, out)?;
    }
    if shown.devices.len() > 1 {
        writeln!(out, "\ntogether  {}", verdict(shown.fits()))?;
    }
    write_contexts(shown, out)?;
    write_best(shown, out)
}

fn verdict(fits: Option<bool>) -> &'static str {
    match fits {
        Some(true) => "fits",
        Some(false) => "does not fit",
        None => "nobody knows what is free",
    }
}

fn write_device(backend: &str, device: &DeviceMemory, room: &Room, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{backend}: {}", device.device)?;
    let mut line = |kind: &str, name: &str, bytes: u64, note: &str| {
        let note = if note.is_empty() { String::new() } else { format!("   {note}") };
        writeln!(out, "  {kind:<8} {name:<38} {:>11}{note}", binary(bytes))
    };
    for kind in MemoryKind::ALL {
        let parts: Vec<_> = device.parts.iter().filter(|part| part.kind == kind).collect();
        for (i, part) in parts.iter().enumerate() {
            line(if i == 0 { kind.name() } else { "" }, &part.name, part.bytes, "")?;
        }
        if parts.len() > 1 {
            line("", "  together", device.bytes_of(kind), "")?;
        }
    }
    for (i, part) in device.overhead.iter().enumerate() {
        let note = format!("about: {}", part.source);
        line(if i == 0 { "driver" } else { "" }, &part.name, part.bytes, &note)?;
    }
    if room.margin_bytes > 0 {
        line("margin", "stays free", room.margin_bytes, "")?;
    }
    let total = room.need_bytes.saturating_add(room.margin_bytes);
    let said = match (room.free_bytes, room.short_bytes()) {
        (None, _) => "nobody knows what is free".to_owned(),
        (Some(free), 0) => {
            format!("of {} free: fits, {} left", binary(free), binary(room.left_bytes().unwrap_or(0)))
        }
        (Some(free), short) => format!("of {} free: short by {}", binary(free), binary(short)),
    };
    line("total", "", total, &said)
}

/// Contexts by cache type.
fn write_contexts(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    const WIDTH: usize = 14;
    writeln!(out, "\nall devices together, without the margin; ! does not fit, - has no kernels\n")?;
    write!(out, "{:>10}", "context")?;
    for pair in &shown.codecs {
        write!(out, "{:>WIDTH$}", pair_name(pair))?;
    }
    writeln!(out)?;
    for (n_ctx, cells) in &shown.rows {
        write!(out, "{n_ctx:>10}")?;
        for cell in cells {
            write!(out, "{:>WIDTH$}", cell_text(*cell))?;
        }
        writeln!(out)?;
    }
    if shown.longest.is_empty() {
        return Ok(());
    }
    write!(out, "{:>10}", "longest")?;
    for longest in &shown.longest {
        let text = match longest {
            Some(n) if *n == shown.most_ctx => format!("{n} (all)"),
            Some(n) => n.to_string(),
            None => "none".to_owned(),
        };
        write!(out, "{text:>WIDTH$}")?;
    }
    writeln!(out)
}

fn cell_text(cell: Option<Cell>) -> String {
    match cell {
        None => "-".to_owned(),
        Some(Cell { bytes, fits: Some(false) }) => format!("! {}", binary(bytes)),
        Some(Cell { bytes, .. }) => binary(bytes),
    }
}

fn write_best(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    match &shown.best {
        Some(best) => {
            let pair = [best.cache_type_k.clone(), best.cache_type_v.clone()];
            let flags = match pair[0] == pair[1] {
                true => format!("--kv-cache-type {}", pair[0]),
                false => format!("-ctk {} -ctv {}", pair[0], pair[1]),
            };
            writeln!(out, "\nbest      -c {} {flags}", best.n_ctx)
        }
        None if shown.longest.is_empty() => Ok(()),
        None => writeln!(out, "\nbest      nothing that fits"),
    }
}
