// Sample: tokens[o] = a token picked by logits[o]; NaN is treated as minus infinity. Two kernels: the first
// finds the largest logits of parts of each row, the second compares these or draws.
//
// A row of logits is divided into lists, LISTS for each of `blocks` workgroups of the first kernel: block b
// has the stretches of THREADS logits whose number modulo `blocks` is b, and its list i the LANES logits from
// LANES i on of each.
#if best
#set lanes_type = "vec2<u32>"
#set reduce_lanes = [("largest_of_lanes", "larger")]
#else
#set reduce = [("reduce_best", "vec2<u32>", "larger")]
#endif
#include "lib/main.wgsl"

struct Params {
    n_vocab: u32,
    blocks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

const LISTS: u32 = THREADS / LANES;

// A logit and its id as a pair that is ordered by logit, and for equal logits by descending id. NaN is below
// all others.
fn candidate(logit_bits: u32, id: u32) -> vec2<u32> {
    var bits = logit_bits;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return vec2(0u, ~id);
    }
    // Both zeros are equal.
    if (bits == 0x80000000u) {
        bits = 0u;
    }
    if ((bits & 0x80000000u) != 0u) {
        return vec2(~bits, ~id);
    }
    return vec2(bits | 0x80000000u, ~id);
}

fn is_below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

fn larger(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (is_below(a, b)) {
        return b;
    }
    return a;
}

fn id_of(c: vec2<u32>) -> u32 {
    return ~c.y;
}

// The logit of a candidate. For NaN the result is unused, because its weight is 0.
fn logit_of(c: vec2<u32>) -> f32 {
    if ((c.x & 0x80000000u) != 0u) {
        return bitcast<f32>(c.x & 0x7fffffffu);
    }
    return bitcast<f32>(~c.x);
}

#if best
// First kernel: best[o, list] = the largest candidate of a list.
//
// A workgroup owns the lists of a block (x) of one row of logits (y), and a slot one of them. Reads the
// logits once.
@group(0) @binding(2) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read_write> best: array<vec2<u32>>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    var mine = vec2(0u);
    let first = workgroup.x * THREADS + slot_of() * LANES + lane_of();
    for (var id = first; id < params.n_vocab; id += workgroups.x * THREADS) {
        mine = larger(mine, candidate(logits[workgroup.y * params.n_vocab + id], id));
    }
    mine = largest_of_lanes(mine);
    if (lane_of() == 0u) {
        best[(workgroup.y * params.blocks + workgroup.x) * LISTS + slot_of()] = mine;
    }
}
#else
// Second kernel. A workgroup owns one row of logits (y).
//
// Greedy: the largest logit (the lowest id among equals) is one of the first kernel's candidates.
//
// A draw from the top_k largest: the top_k-th largest of the lists' largest logits is at most the top_k-th
// largest of the row, so all logits that reach it are collected. They are in the lists whose largest reaches
// it, about top_k of them: few more than top_k logits, unless many of the largest are in one list. Then they
// are found one by one. If there are fewer lists than a draw may need, each thread finds its largest logit,
// and all logits are read again. Top-p, min-p, temperature and the draw follow, as program/sampling.rs
// defines them; the first thread computes their sums in order, as pairs of floats.
#include "lib/floats.wgsl"

@group(0) @binding(2) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read> best: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> tokens: array<u32>;
// [seqs]: the input of later steps.
@group(0) @binding(5) var<storage, read_write> picked: array<u32>;

// Parameters that step.rs writes for a row of logits. `drawn` is the random number in [0, 1) as a pair of
// floats, `least` the logarithm of min_p.
struct How {
    top_k: u32,
    has_min_p: u32,
    temperature: f32,
    top_p: f32,
    least: f32,
    drawn: vec2<f32>,
    // The slot that stores the pick, or NO_SLOT.
    slot: u32,
}

const NO_SLOT: u32 = 0xffffffffu;

// Capacity for candidates of a draw, a power of two.
const ROOM: u32 = 1024u;
const MAX_TOP_K: u32 = 256u;
const ABOVE_ALL: vec2<u32> = vec2(0xffffffffu);

// Candidates; sorted in descending order after `collect`.
var<workgroup> kept: array<vec2<u32>, ROOM>;
var<workgroup> weights: array<f32, MAX_TOP_K>;
// Number of candidates that reach the bound, even beyond ROOM; `n_shared` broadcasts such a number to all
// threads.
var<workgroup> n_kept: atomic<u32>;
var<workgroup> n_shared: u32;
// Lists, modulo ROOM, that have a candidate, and their number.
var<workgroup> hits: array<u32, ROOM>;
var<workgroup> n_hits: atomic<u32>;

fn how_of(o: u32) -> How {
    let at = step[4] + 8u * o;
    return How(
        step[at],
        step[at + 1u],
        bitcast<f32>(step[at + 2u]),
        bitcast<f32>(step[at + 3u]),
        bitcast<f32>(step[at + 4u]),
        vec2(bitcast<f32>(step[at + 5u]), bitcast<f32>(step[at + 6u])),
        step[at + 7u],
    );
}

// The largest candidate below `bound` among this thread's logits of a row.
fn largest_below(at: u32, bound: vec2<u32>) -> vec2<u32> {
    var mine = vec2(0u);
    for (var id = thread; id < params.n_vocab; id += THREADS) {
        let c = candidate(logits[at + id], id);
        if (is_below(c, bound)) {
            mine = larger(mine, c);
        }
    }
    return mine;
}

// Sorts the first `n` of `kept` in descending order, `n` a power of two (Batcher's bitonic network).
fn sort_kept(n: u32) {
    workgroupBarrier();
    for (var run = 2u; run <= n; run *= 2u) {
        for (var apart = run / 2u; apart > 0u; apart /= 2u) {
            for (var i = thread; i < n; i += THREADS) {
                let other = i ^ apart;
                if (other > i) {
                    let a = kept[i];
                    let b = kept[other];
                    if (((i & run) == 0u) == is_below(a, b)) {
                        kept[i] = b;
                        kept[other] = a;
                    }
                }
            }
            workgroupBarrier();
        }
    }
}

// Keeps a candidate that is at least `least`.
fn keep_from(least: vec2<u32>, c: vec2<u32>) {
    if (!is_below(c, least)) {
        let place = atomicAdd(&n_kept, 1u);
        if (place < ROOM) {
            kept[place] = c;
        }
    }
}

// The largest candidate of the lists i, i + ROOM and so on of row o.
fn largest_of_lists(o: u32, i: u32) -> vec2<u32> {
    let n_lists = params.blocks * LISTS;
    var mine = vec2(0u);
    for (var list = i; list < n_lists; list += ROOM) {
        mine = larger(mine, best[o * n_lists + list]);
    }
    return mine;
}

// Keeps all candidates of row o that reach the top_k-th largest of the lists' largest.
fn collect_from_lists(o: u32, top_k: u32) {
    for (var i = thread; i < ROOM; i += THREADS) {
        kept[i] = largest_of_lists(o, i);
    }
    sort_kept(ROOM);
    let least = kept[top_k - 1u];
    workgroupBarrier();
    for (var i = thread; i < ROOM; i += THREADS) {
        if (!is_below(largest_of_lists(o, i), least)) {
            hits[atomicAdd(&n_hits, 1u)] = i;
        }
    }
    workgroupBarrier();
    let n_lists = params.blocks * LISTS;
    let stretches = (params.n_vocab + THREADS - 1u) / THREADS;
    let rounds = (stretches + params.blocks - 1u) / params.blocks;
    // Logits of a list, and of all lists of a hit.
    let of_list = rounds * LANES;
    let of_hit = (n_lists + ROOM - 1u) / ROOM * of_list;
    let n_jobs = atomicLoad(&n_hits) * of_hit;
    for (var job = thread; job < n_jobs; job += THREADS) {
        let list = hits[job / of_hit] + job % of_hit / of_list * ROOM;
        let i = job % of_list;
        let stretch = list / LISTS + i / LANES * params.blocks;
        let id = stretch * THREADS + list % LISTS * LANES + i % LANES;
        if (list < n_lists && id < params.n_vocab) {
            keep_from(least, candidate(logits[o * params.n_vocab + id], id));
        }
    }
}

// Leaves the top_k largest candidates of row o at the beginning of `kept`.
fn collect(o: u32, top_k: u32) {
    let at = o * params.n_vocab;
    if (thread == 0u) {
        atomicStore(&n_kept, 0u);
        atomicStore(&n_hits, 0u);
    }
    if (params.blocks * LISTS >= 2u * MAX_TOP_K) {
        collect_from_lists(o, top_k);
    } else {
        kept[thread] = largest_below(at, ABOVE_ALL);
        sort_kept(THREADS);
        let least = kept[top_k - 1u];
        workgroupBarrier();
        for (var id = thread; id < params.n_vocab; id += THREADS) {
            keep_from(least, candidate(logits[at + id], id));
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        n_shared = atomicLoad(&n_kept);
    }
    let n = workgroupUniformLoad(&n_shared);
    if (n <= ROOM) {
        var size = 1u;
        while (size < n) {
            size *= 2u;
        }
        for (var i = n + thread; i < size; i += THREADS) {
            kept[i] = vec2(0u);
        }
        sort_kept(size);
        return;
    }
    var bound = ABOVE_ALL;
    for (var i = 0u; i < top_k; i++) {
        bound = reduce_best(largest_below(at, bound));
        if (thread == 0u) {
            kept[i] = bound;
        }
        workgroupBarrier();
    }
}

// weights[i] = exp((logit i - the largest) / temperature) of the first n.
fn weigh(n: u32, temperature: f32) {
    workgroupBarrier();
    let largest = logit_of(kept[0]);
    for (var i = thread; i < n; i += THREADS) {
        weights[i] = weight_of(kept[i], largest, temperature);
    }
    workgroupBarrier();
}

fn weight_of(c: vec2<u32>, largest: f32, temperature: f32) -> f32 {
    // NaN and minus infinity.
    if (c.x <= 0x007fffffu) {
        return 0.0;
    }
    return exp_near((logit_of(c) - largest) / temperature);
}

fn total(n: u32) -> vec2<f32> {
    var sum = vec2(0.0, 0.0);
    for (var i = 0u; i < n; i++) {
        sum = add_wide(sum, vec2(weights[i], 0.0));
    }
    return sum;
}

// Number of candidates, out of the first n in order, whose probabilities reach the mass; at least one.
fn nucleus(n: u32, mass: f32) -> u32 {
    let all = total(n);
    var sum = vec2(0.0, 0.0);
    for (var i = 0u; i < n; i++) {
        let p = divide_wide(vec2(weights[i], 0.0), all.x);
        // The effect of the total's low part is below the last place of p.
        sum = add_wide(sum, vec2(p.x * (1.0 - all.y / all.x), 0.0));
        if (sum.x > mass || (sum.x == mass && sum.y >= 0.0)) {
            return i + 1u;
        }
    }
    return n;
}

// Index of the candidate selected by the random number, among the first n.
fn draw(n: u32, drawn: vec2<f32>) -> u32 {
    let all = total(n);
    let whole = two_product(drawn.x, all.x);
    var left = add_wide(whole, vec2(drawn.x * all.y + drawn.y * all.x, 0.0));
    for (var i = 0u; i < n; i++) {
        left = add_wide(left, vec2(-weights[i], 0.0));
        if (left.x < 0.0) {
            return i;
        }
    }
    // After rounding, a little of the mass can remain; it belongs to the last candidate with a weight.
    var at = n - 1u;
    while (at > 0u && weights[at] <= 0.0) {
        at -= 1u;
    }
    return at;
}

fn keep(o: u32, how: How, token: u32) {
    tokens[o] = token;
    if (how.slot != NO_SLOT) {
        picked[how.slot] = token;
    }
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let o = workgroup.y;
    let how = how_of(o);
    if (how.top_k == 1u) {
        var mine = vec2(0u);
        for (var i = thread; i < ROOM; i += THREADS) {
            mine = larger(mine, largest_of_lists(o, i));
        }
        mine = reduce_best(mine);
        if (thread == 0u) {
            keep(o, how, id_of(mine));
        }
        return;
    }
    collect(o, how.top_k);
    let first = workgroupUniformLoad(&kept[0]);
    // With an infinite maximum there is no distribution to draw from.
    if ((first.x == 0xff800000u) || first.x <= 0x007fffffu) {
        if (thread == 0u) {
            // If every logit is minus infinity or NaN, the result is 0.
            keep(o, how, select(0u, id_of(first), first.x == 0xff800000u));
        }
        return;
    }
    var n = how.top_k;
    if (how.top_p < 1.0) {
        weigh(n, 1.0);
        if (thread == 0u) {
            n_shared = nucleus(n, how.top_p);
        }
        n = workgroupUniformLoad(&n_shared);
    }
    weigh(n, how.temperature);
    if (thread == 0u) {
        if (how.has_min_p == 1u) {
            while (n > 1u && logit_of(kept[n - 1u]) < logit_of(first) + how.least) {
                n -= 1u;
            }
        }
        keep(o, how, id_of(kept[draw(n, how.drawn)]));
    }
}
#endif
