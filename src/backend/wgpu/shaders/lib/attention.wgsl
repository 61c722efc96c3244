// What kernels of attention are told.
struct Params {
    cache: Cache,
    keys: Side,
    values: Side,
    // Query heads of one KV head, and workgroups for them.
    group: u32,
    tiles: u32,
    scale: f32,
    // Heads of a tile of many rows.
    tile_heads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// What no score is below; scores that no position has are it.
const LEAST: f32 = -3.0e38;
