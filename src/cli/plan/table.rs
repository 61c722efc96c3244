//! A plan as a text table.

use std::io::{self, Write};

use ggml_types::KvCodec;

use super::{Cell, Shown, Streamed, pair_name};
use crate::backend::{CardRates, DeviceMemory, MemoryKind};
use crate::engine::error::binary_units as binary;
use crate::engine::fit::Room;
use crate::engine::speed::{Bound, SpeedWithHost};

pub fn write(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    let Shown { hyper, options, .. } = shown;
    // Strings from a file may contain anything, including terminal escapes.
    let name = hyper.name.as_deref().unwrap_or("unnamed").escape_debug();
    writeln!(out, "file      {}, {}", shown.source, binary(shown.file_bytes))?;
    writeln!(
        out,
        "model     {name} ({}), {} layers, trained with {} positions",
        hyper.architecture, hyper.n_layers, hyper.n_ctx_train
    )?;
    let pair = pair_name([options.cache_type_k, options.cache_type_v]);
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
        writeln!(out, "\ntotal     {}", verdict(shown.fits()))?;
    }
    write_speed(shown, out)?;
    write_contexts(shown, out)?;
    write_best(shown, out)
}

fn verdict(fits: Option<bool>) -> &'static str {
    match fits {
        Some(true) => "fits",
        Some(false) => "does not fit",
        None => "the free memory is unknown",
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
            line("", "  total", device.bytes_of(kind), "")?;
        }
    }
    for (i, part) in device.overhead.iter().enumerate() {
        let note = format!("about: {}", part.source);
        line(if i == 0 { "driver" } else { "" }, &part.name, part.bytes, &note)?;
    }
    if device.file_bytes > 0 {
        line("file", "weights read in every step", device.file_bytes, "not in memory")?;
    }
    if room.margin_bytes > 0 {
        line("margin", "left free", room.margin_bytes, "")?;
    }
    let total = room.need_bytes.saturating_add(room.margin_bytes);
    let said = match (room.free_bytes, room.short_bytes()) {
        (None, _) => "the free memory is unknown".to_owned(),
        (Some(free), 0) => {
            format!("of {} free: fits, {} left", binary(free), binary(room.left_bytes().unwrap_or(0)))
        }
        (Some(free), short) => format!("of {} free: short by {}", binary(free), binary(short)),
    };
    line("total", "", total, &said)
}

/// Upper bound of the speed with all layers on a GPU and, if these do not fit, with some offloaded.
fn write_speed(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    let n_ctx = shown.options.n_ctx.unwrap_or_default();
    let tokens = |bound: &Bound| {
        let [decode, prompt] = [bound.decode, bound.prompt].map(figure);
        format!("{decode} tokens/s at a depth of {n_ctx}, prompts {prompt}")
    };
    if let (Some(bound), [(device, _)]) = (&shown.bound, &shown.devices[..])
        && let Some(CardRates { memory_bytes, link_bytes, .. }) = device.rates
    {
        let (of, bytes) =
            if device.streamed_layers > 0 { ("link", link_bytes) } else { ("memory", memory_bytes) };
        writeln!(out, "\nspeed     upper bound, computed: {}", tokens(bound))?;
        writeln!(out, "          {:.1} GB/s of {of}, without launch overhead", bytes as f64 / 1e9)?;
    }
    if let (Some(with_cpu), [(device, _)]) = (&shown.with_cpu, &shown.devices[..]) {
        write_ways(shown, device, shown.bound.as_ref(), with_cpu, out)?;
    }
    let Some(Streamed { device, room, bound, with_cpu }) = &shown.streamed else { return Ok(()) };
    let stay = shown.hyper.n_layers.saturating_sub(device.streamed_layers);
    if device.file_bytes > 0 {
        return writeln!(
            out,
            "\nstreamed  {stay} of {} layers stay in memory, which then has {} in use;\n          {} are \
             read from the file in every step, at the speed of the disk",
            shown.hyper.n_layers,
            binary(room.need_bytes),
            binary(device.file_bytes)
        );
    }
    let how = match device.host_bytes {
        0 => "the weights of the others are never copied to it".to_owned(),
        bytes => match device.chosen_share {
            Some(share) => format!(
                "from {} of page-locked memory it reads the selected experts, {} per row",
                binary(bytes),
                binary((share * bytes as f64) as u64)
            ),
            None => format!("{} of page-locked memory are copied to it in each step", binary(bytes)),
        },
    };
    writeln!(
        out,
        "\nstreamed  -ngl auto: {stay} of {} layers stay on the GPU, which then has {} in \
         use;\n          {how}",
        shown.hyper.n_layers,
        binary(room.need_bytes)
    )?;
    if let (Some(bound), Some(rates)) = (bound, device.rates) {
        let link = rates.link_bytes as f64 / 1e9;
        writeln!(out, "          upper bound, computed: {}, over a link of {link:.1} GB/s", tokens(bound))?;
    }
    match with_cpu {
        Some(with_cpu) => write_ways(shown, device, bound.as_ref(), with_cpu, out),
        None => Ok(()),
    }
}

fn figure(n: f64) -> String {
    if n < 100.0 { format!("{n:.1}") } else { format!("{n:.0}") }
}

/// How decode and prompts handle the layers that do not fit on the GPU, and why.
fn write_ways(
    shown: &Shown,
    device: &DeviceMemory,
    bound: Option<&Bound>,
    with_cpu: &SpeedWithHost,
    out: &mut impl Write,
) -> io::Result<()> {
    let SpeedWithHost { host, decode, min_batch } = with_cpu;
    let computed = figure(*decode);
    let from = shown.min_batch.or(*min_batch).filter(|n| *n <= shown.options.batch);
    match bound.zip(from) {
        Some((bound, from)) => {
            let [copied, prompt] = [bound.decode, bound.prompt].map(figure);
            let (ways, way) = match device.chosen_share {
                Some(_) => ("the GPU reads the selected experts from host memory", "if read"),
                None => ("these layers are copied to the GPU", "if copied"),
            };
            match from {
                1 => writeln!(out, "  decode  {ways}: {copied} tokens/s; on the CPU {computed}")?,
                _ => writeln!(
                    out,
                    "  decode  the CPU computes these layers: {computed} tokens/s; {way} {copied}"
                )?,
            }
            let from = device.chosen_share.map_or(from, |_| from.max(device.in_place_rows + 1));
            let s = if from == 1 { "" } else { "s" };
            writeln!(
                out,
                "  prompt  copied to the GPU, as in all steps of at least {from} row{s}: {prompt} tokens/s"
            )?;
        }
        None => writeln!(
            out,
            "  decode  the CPU computes these layers: {computed} tokens/s\n  prompt  the same, as in all \
             steps"
        )?,
    }
    let (read, ops) = (host.memory_bytes / 1e9, figure(host.ops / 1e9));
    writeln!(
        out,
        "          measured: the CPU reads {read:.1} GB/s of such weights, {ops} Gop/s; {} of\n          \
         the file are also in memory (--op-offload-min-batch)",
        binary(device.shared_bytes)
    )
}

/// Memory by context and cache type. Types without kernels are left out, but not the first one, which may
/// have been requested.
fn write_contexts(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    let has_kernels = |i: usize| shown.rows.iter().any(|(_, cells)| cells[i].is_some());
    let columns: Vec<usize> = (0..shown.codecs.len()).filter(|i| *i == 0 || has_kernels(*i)).collect();
    let line = |out: &mut dyn Write, first: String, text: &dyn Fn(usize) -> String| -> io::Result<()> {
        write!(out, "{first:>10}")?;
        for &i in &columns {
            let width = 14.max(pair_name(shown.codecs[i]).len() + 2);
            write!(out, "{:>width$}", text(i))?;
        }
        writeln!(out)
    };
    writeln!(out, "\nsum of all devices, without the margin; !: does not fit, -: no kernels\n")?;
    line(out, "context".to_owned(), &|i| pair_name(shown.codecs[i]))?;
    for (n_ctx, cells) in &shown.rows {
        line(out, n_ctx.to_string(), &|i| cell_text(cells[i]))?;
    }
    if shown.longest.is_empty() {
        return Ok(());
    }
    line(out, "longest".to_owned(), &|i| match shown.longest[i] {
        Some(n) if n == shown.most_ctx => format!("{n} (all)"),
        Some(n) => n.to_string(),
        None => "none".to_owned(),
    })
}

fn cell_text(cell: Option<Cell>) -> String {
    match cell {
        None => "-".to_owned(),
        Some(Cell { bytes, fits: Some(false) }) => format!("! {}", binary(bytes)),
        Some(Cell { bytes, .. }) => binary(bytes),
    }
}

fn write_best(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    match (&shown.best, &shown.streamed) {
        (Some(best), _) => {
            let [k, v] = best.codecs.map(KvCodec::name);
            let flags = match k == v {
                true => format!("--kv-cache-type {k}"),
                false => format!("-ctk {k} -ctv {v}"),
            };
            writeln!(out, "\nbest      -c {} {flags}", best.n_ctx)
        }
        (None, _) if shown.longest.is_empty() => Ok(()),
        (None, Some(Streamed { device, .. })) => {
            let flag = if device.file_bytes > 0 { "" } else { " -ngl auto" };
            writeln!(out, "\nbest      -c {}{flag}", shown.options.n_ctx.unwrap_or_default())
        }
        (None, None) => writeln!(out, "\nbest      nothing fits"),
    }
}
