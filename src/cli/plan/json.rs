//! A plan as JSON. docs/plan.md documents the fields, which are stable.

use serde_json::{Value as Json, json};

use super::{Shown, pair_name};
use crate::backend::{DeviceMemory, MemoryKind};
use crate::engine::fit::{Codecs, Room};
use crate::engine::speed::{Bound, SpeedWithHost};

pub fn table(shown: &Shown) -> Json {
    let Shown { hyper, options, .. } = shown;
    let contexts = shown.rows.iter().flat_map(|(n_ctx, cells)| {
        let of_cell = move |(pair, cell): (&Codecs, &Option<super::Cell>)| {
            json!({
                "n_ctx": n_ctx,
                "cache_type": pair_name(*pair),
                "has_kernels": cell.is_some(),
                "bytes": cell.map(|cell| cell.bytes),
                "fits": cell.and_then(|cell| cell.fits),
            })
        };
        shown.codecs.iter().zip(cells).map(of_cell)
    });
    let longest = shown.codecs.iter().zip(&shown.longest);
    let longest = longest.map(|(pair, n_ctx)| json!({"cache_type": pair_name(*pair), "n_ctx": n_ctx}));
    json!({
        "model": {
            "file": shown.source,
            "file_bytes": shown.file_bytes,
            "name": hyper.name,
            "architecture": hyper.architecture,
            "n_layers": hyper.n_layers,
            "n_ctx_train": hyper.n_ctx_train,
        },
        "options": {
            "n_ctx": options.n_ctx,
            "cache_type_k": options.cache_type_k.name(),
            "cache_type_v": options.cache_type_v.name(),
            "batch": options.batch,
            "parallel": options.n_seqs,
            "head_type": options.head_type.name(),
        },
        "backend": shown.backend,
        "devices": shown.devices.iter().map(|(device, room)| of_device(device, room)).collect::<Vec<_>>(),
        "bound": of_bound(shown.bound.as_ref()),
        "processor": of_processor(shown.with_cpu.as_ref()),
        "streamed": shown.streamed.as_ref().map(|streamed| json!({
            "streamed_layers": streamed.device.streamed_layers,
            "host_bytes": streamed.device.host_bytes,
            "device": of_device(&streamed.device, &streamed.room),
            "bound": of_bound(streamed.bound.as_ref()),
            "processor": of_processor(streamed.with_cpu.as_ref()),
        })),
        "fits": shown.fits(),
        "contexts": contexts.collect::<Vec<_>>(),
        "longest": longest.collect::<Vec<_>>(),
        "best": shown.best.as_ref().map(|best| json!({
            "n_ctx": best.n_ctx,
            "cache_type_k": best.codecs[0].name(),
            "cache_type_v": best.codecs[1].name(),
            "resident_layers": best.resident_layers,
        })),
    })
}

fn of_bound(bound: Option<&Bound>) -> Json {
    bound.map_or(Json::Null, |bound| json!({"decode": bound.decode, "prompt": bound.prompt}))
}

fn of_processor(with_cpu: Option<&SpeedWithHost>) -> Json {
    let of = |SpeedWithHost { host, decode, min_batch }: &SpeedWithHost| {
        let (memory_bytes, ops) = (host.memory_bytes, host.ops);
        json!({"memory_bytes": memory_bytes, "ops": ops, "decode": decode, "min_batch": min_batch})
    };
    with_cpu.map_or(Json::Null, of)
}

fn of_device(device: &DeviceMemory, room: &Room) -> Json {
    let parts = device
        .parts
        .iter()
        .map(|part| json!({"kind": part.kind.name(), "name": part.name, "bytes": part.bytes}));
    let overhead = device.overhead.iter().map(
        |part| json!({"name": part.name, "bytes": part.bytes, "is_estimate": true, "source": part.source}),
    );
    json!({
        "device": device.device,
        "parts": parts.collect::<Vec<_>>(),
        "weights_bytes": device.bytes_of(MemoryKind::Weights),
        "kv_bytes": device.bytes_of(MemoryKind::Kv),
        "buffers_bytes": device.bytes_of(MemoryKind::Buffers),
        "overhead": overhead.collect::<Vec<_>>(),
        "streamed_layers": device.streamed_layers,
        "file_bytes": device.file_bytes,
        "shared_bytes": device.shared_bytes,
        "chosen_share": device.chosen_share,
        "overhead_bytes": device.overhead_bytes(),
        "margin_bytes": room.margin_bytes,
        "total_bytes": room.need_bytes.saturating_add(room.margin_bytes),
        "free_bytes": room.free_bytes,
        "fits": room.fits(),
        "short_bytes": room.short_bytes(),
    })
}
