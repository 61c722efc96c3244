// Experts: the routing of rows to experts, and the sum of their products. Three kernels. `route` chooses the
// experts of each row, `group` sorts rows by expert; then the layers of the experts run (linear.wgsl), and
// `mix` adds their products.
//
// `routes`: 32-bit words, for a mixture of E experts with K experts per row and at most R rows:
//
//   [E + 1]: the first slot of each expert's rows
//   [R K]: the row of the step of each slot
//   [R K]: the experts of each row, in order
//   [R K]: their slots
//   [R K]: their weights
//   [R E]: the scores of all experts, as ordered bits; 0 if an expert cannot be chosen
//
// The rows of an expert keep their order in the step, so results do not depend on the scheduling of threads.
#if part == "route"
#set reduce = [("reduce_max", "u32", "max_bits"), ("reduce_sum", "f32", "add")]
#endif
#include "lib/main.wgsl"

struct Params {
    n_experts: u32,
    n_used: u32,
    // R K.
    slots: u32,
    dim: u32,
#if part == "route"
    // Scores: 0 the logits, whose softmax over the chosen experts are the weights; 1 their softmax over all
    // experts; 2 their sigmoid.
    gating: u32,
    normalise: u32,
    scale: f32,
    // Index in the constants of what is added to the scores, or ABSENT.
    bias: u32,
    group_size: u32,
    n_groups: u32,
    n_groups_used: u32,
    unused: u32,
#elif part == "mix"
    // 1 if the sum is added to `x`, 0 if it replaces it.
    adds: u32,
    unused_0: u32,
    unused_1: u32,
    unused_2: u32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;

fn rows_at(i: u32) -> u32 {
    return params.n_experts + 1u + i;
}

fn experts_at(i: u32) -> u32 {
    return rows_at(params.slots + i);
}

fn slots_at(i: u32) -> u32 {
    return rows_at(2u * params.slots + i);
}

fn weights_at(i: u32) -> u32 {
    return rows_at(3u * params.slots + i);
}
#if part == "route"
#include "lib/floats.wgsl"

// A workgroup owns one row of the step (y), a thread every THREADS-th expert, which it compares with all
// others. Reads the router's products [rows, E].
@group(0) @binding(2) var<storage, read> router: array<u32>;
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;
@group(0) @binding(4) var<storage, read> constants: array<f32>;

const ABSENT = 0xffffffffu;

fn scores_at(i: u32) -> u32 {
    return rows_at(4u * params.slots + i);
}

// One bit per expert.
var<workgroup> chosen: array<atomic<u32>, #{most_experts // 32}>;

// Bits that are ordered like floats, with NaN above all others.
fn ordered(bits: u32) -> u32 {
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn float_of(ordered: u32) -> f32 {
    return bitcast<f32>(select(~ordered, ordered & 0x7fffffffu, (ordered & 0x80000000u) != 0u));
}

fn max_bits(a: u32, b: u32) -> u32 {
    return max(a, b);
}

fn add(a: f32, b: f32) -> f32 {
    return a + b;
}

// Of a softmax, the exponential relative to the largest logit, divided by `total`.
fn probability(z: f32, largest: f32, total: f32) -> f32 {
    if (params.gating == 2u) {
        return 1.0 / (1.0 + exp_near(-z));
    }
    return divide_rounded(exp_near(z - largest), total);
}

// Sum of the two largest scores of a group; `of_row` is the first score of the row.
fn group_score(of_row: u32, group: u32) -> f32 {
    var two = vec2(0u);
    for (var i = 0u; i < params.group_size; i++) {
        let score = routes[scores_at(of_row + group * params.group_size + i)];
        two = select(vec2(two.x, max(two.y, score)), vec2(score, two.x), score > two.x);
    }
    return float_of(two.x) + float_of(two.y);
}

fn is_of_best_groups(of_row: u32, expert: u32) -> bool {
    let own = expert / params.group_size;
    let score = group_score(of_row, own);
    var better = 0u;
    for (var group = 0u; group < params.n_groups; group++) {
        let other = group_score(of_row, group);
        better += u32(other > score || (other == score && group < own));
    }
    return better < params.n_groups_used;
}

// The scores of THREADS experts, which all threads compare with their own.
var<workgroup> block: array<u32, THREADS>;

// The score of an expert, or 0 after the last.
fn score_of(of_row: u32, expert: u32) -> u32 {
    if (expert < params.n_experts) {
        return routes[scores_at(of_row + expert)];
    }
    return 0u;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let of_row = workgroup.y * params.n_experts;
    for (var i = thread; 32u * i < params.n_experts; i += THREADS) {
        atomicStore(&chosen[i], 0u);
    }
    var most = 0u;
    for (var expert = thread; expert < params.n_experts; expert += THREADS) {
        most = max(most, ordered(router[of_row + expert]));
    }
    let largest = float_of(reduce_max(most));
    var all = 1.0;
    if (params.gating == 1u) {
        var sum = 0.0;
        for (var expert = thread; expert < params.n_experts; expert += THREADS) {
            sum += exp_near(bitcast<f32>(router[of_row + expert]) - largest);
        }
        all = reduce_sum(sum);
    }
    for (var expert = thread; expert < params.n_experts; expert += THREADS) {
        var score = bitcast<f32>(router[of_row + expert]);
        if (params.gating != 0u) {
            score = probability(score, largest, all);
        }
        if (params.bias != ABSENT) {
            score += constants[params.bias + expert];
        }
        routes[scores_at(of_row + expert)] = ordered(bitcast<u32>(score));
    }
    storageBarrier();
    if (params.n_groups > 1u) {
        // First the bits of all experts outside the best groups, then their scores: other threads still read
        // these.
        for (var expert = thread; expert < params.n_experts; expert += THREADS) {
            if (!is_of_best_groups(of_row, expert)) {
                atomicOr(&chosen[expert / 32u], 1u << (expert % 32u));
            }
        }
        workgroupBarrier();
        for (var expert = thread; expert < params.n_experts; expert += THREADS) {
            let bit = 1u << (expert % 32u);
            if ((atomicAnd(&chosen[expert / 32u], ~bit) & bit) != 0u) {
                routes[scores_at(of_row + expert)] = 0u;
            }
        }
        workgroupBarrier();
        storageBarrier();
    }
    var sum = 0.0;
    for (var of_own = 0u; of_own < params.n_experts; of_own += THREADS) {
        let expert = of_own + thread;
        let mine = score_of(of_row, expert);
        var better = 0u;
        for (var first = 0u; first < params.n_experts; first += THREADS) {
            workgroupBarrier();
            block[thread] = score_of(of_row, first + thread);
            workgroupBarrier();
            for (var i = 0u; i < min(THREADS, params.n_experts - first); i++) {
                better += u32(block[i] > mine || (block[i] == mine && first + i < expert));
            }
        }
        if (expert < params.n_experts && better < params.n_used) {
            atomicOr(&chosen[expert / 32u], 1u << (expert % 32u));
            sum += probability(bitcast<f32>(router[of_row + expert]), largest, all);
        }
    }
    let of_chosen = reduce_sum(sum);
    let total = select(1.0, max(of_chosen, 1e-20), params.normalise == 1u);
    for (var expert = thread; expert < params.n_experts; expert += THREADS) {
        let word = atomicLoad(&chosen[expert / 32u]);
        if (((word >> (expert % 32u)) & 1u) == 1u) {
            // Number of chosen experts with a lower index.
            var before = countOneBits(word & ((1u << (expert % 32u)) - 1u));
            for (var i = 0u; i < expert / 32u; i++) {
                before += countOneBits(atomicLoad(&chosen[i]));
            }
            let at = workgroup.y * params.n_used + before;
            let weight = probability(bitcast<f32>(router[of_row + expert]), largest, all);
            routes[experts_at(at)] = expert;
            routes[weights_at(at)] = bitcast<u32>(divide_rounded(weight, total) * params.scale);
        }
    }
}
#elif part == "group"
// One workgroup; a thread owns neighbouring experts. The choices of all rows pass through workgroup memory, a
// block of THREADS at a time.
@group(0) @binding(2) var<storage, read_write> routes: array<u32>;

const NO_EXPERT: u32 = 0xffffffffu;

var<workgroup> block: array<u32, THREADS>;
var<workgroup> sums: array<u32, THREADS>;

// Loads the choices from `first` on; those after the last are no expert.
fn load_block(first: u32, choices: u32) {
    workgroupBarrier();
    block[thread] = NO_EXPERT;
    if (first + thread < choices) {
        block[thread] = routes[experts_at(first + thread)];
    }
    workgroupBarrier();
}

// Sum of the values of the threads before this one.
fn sum_before(own: u32) -> u32 {
    sums[thread] = own;
    workgroupBarrier();
    for (var apart = 1u; apart < THREADS; apart *= 2u) {
        var sum = sums[thread];
        if (thread >= apart) {
            sum += sums[thread - apart];
        }
        workgroupBarrier();
        sums[thread] = sum;
        workgroupBarrier();
    }
    return sums[thread] - own;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let choices = step_rows() * params.n_used;
    let each = (params.n_experts + THREADS - 1u) / THREADS;
    var own = 0u;
    for (var k = 0u; k < each; k++) {
        let expert = thread * each + k;
        var count = 0u;
        for (var first = 0u; first < choices; first += THREADS) {
            load_block(first, choices);
            for (var i = 0u; i < min(THREADS, choices - first); i++) {
                count += u32(block[i] == expert);
            }
        }
        own += count;
        if (expert < params.n_experts) {
            routes[expert + 1u] = own;
        }
    }
    if (thread == 0u) {
        routes[0] = 0u;
    }
    let before = sum_before(own);
    var slot = before;
    for (var k = 0u; k < each; k++) {
        let expert = thread * each + k;
        for (var first = 0u; first < choices; first += THREADS) {
            load_block(first, choices);
            for (var i = 0u; i < min(THREADS, choices - first); i++) {
                if (block[i] == expert) {
                    routes[rows_at(slot)] = (first + i) / params.n_used;
                    routes[slots_at(first + i)] = slot;
                    slot += 1u;
                }
            }
        }
        if (expert < params.n_experts) {
            routes[expert + 1u] += before;
        }
    }
}
#else
// x[r] += weighted sum of the products of the row's experts, in their order; or x[r] = the sum. A workgroup
// owns THREADS columns (x) of one row of the step (y).
@group(0) @binding(2) var<storage, read> products: array<f32>;
@group(0) @binding(3) var<storage, read> routes: array<u32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col >= params.dim) {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < params.n_used; i++) {
        let at = workgroup.y * params.n_used + i;
        let weight = bitcast<f32>(routes[weights_at(at)]);
        sum += weight * products[routes[slots_at(at)] * params.dim + col];
    }
    let at = workgroup.y * params.dim + col;
    x[at] = select(sum, x[at] + sum, params.adds == 1u);
}
#endif
