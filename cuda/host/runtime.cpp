#include "runtime.h"

#include "bulk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// Stores the callee-saved registers and the stack pointer of the running fiber, and loads those of another
// (switch.cpp).
extern "C" void sterna_simt_switch(void** save, void* load);

namespace simt {

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr uint32_t kMaxThreads = 1024;
// Blocks of a launch that start before the previous launch has ended. Each keeps its stacks meanwhile.
constexpr uint64_t kEarlyBlocks = 4;

const Entry* entries = nullptr;
const Constant* constants = nullptr;

struct Allocation {
    const uint8_t* begin;
    size_t bytes;
};

// A bulk copy that has not landed.
struct BulkCopy {
    CopyBarrier* barrier;
    void* to;
    const void* from;
    uint32_t bytes;
};

struct Waited {
    const CopyBarrier* barrier;
    uint32_t generation;
};

// What the warps that have arrived at a barrier of copies knew about each warp's barriers.
struct Arrived {
    const CopyBarrier* barrier;
    uint32_t known[kMaxWarps];
};

// State of one worker thread, with which it runs a block.
struct Workspace {
    uint8_t* stacks = nullptr;
    std::vector<Fiber> fibers{kMaxThreads};
    std::vector<Copies> copies{kMaxThreads};
    std::vector<Warp> warps{kMaxThreads / 32};
    std::vector<BulkCopy> bulk_copies;
    std::vector<Arrived> arrived;
    // Phases of barriers of copies that threads wait for.
    std::vector<Waited> waited;
    // Used if the block's accesses are counted.
    std::vector<Log> logs{kMaxThreads};
    // The block's threads in execution order, the number of them that have not ended, and the state of the
    // random numbers.
    std::vector<uint32_t> order;
    uint32_t left = 0;
    uint64_t random = 0;
    bool shuffled = false;
    // A round resumes every thread that can run once: the thread that it began with, the number of threads
    // visited, and true if any of them ran.
    uint32_t first = 0, turns = 0;
    bool progress = false;
    // Stack pointer of run_block while fibers run.
    void* scheduler = nullptr;

    Workspace() {
        void* at = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return;
        stacks = static_cast<uint8_t*>(at);
        // Stacks grow downwards, so the lowest page of each is the guard page.
        size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        for (uint32_t i = 0; i < kMaxThreads; i++) mprotect(stacks + i * kStackBytes, page, PROT_NONE);
    }
    Workspace(const Workspace&) = delete;
    ~Workspace() {
        if (stacks) munmap(stacks, kMaxThreads * kStackBytes);
    }
};

thread_local Workspace* workspace = nullptr;

// Unused workspaces. They are kept, because creating one takes a thousand system calls.
std::mutex idle_mutex;
std::vector<Workspace*> idle;

Workspace* take_workspace() {
    std::lock_guard<std::mutex> guard(idle_mutex);
    if (idle.empty()) return new Workspace;
    Workspace* ws = idle.back();
    idle.pop_back();
    return ws;
}

void give_back(Workspace* ws) {
    std::lock_guard<std::mutex> guard(idle_mutex);
    idle.push_back(ws);
}

// A block that has started early.
struct Started {
    Workspace* ws;
    Block block;
};

}  // namespace

struct Launch {
    uint32_t cores = 1;
    const std::vector<Allocation>* allocations;
    const Entry* entry;
    // In 64-bit words, for alignment.
    std::vector<uint64_t> params;
    Index grid;
    uint32_t threads;
    size_t shared_bytes;
    uint64_t seed;
    std::atomic<uint64_t> next_block{0};
    std::atomic<bool> failed{false};
    bool counted = false;
    SimtCounts counts = {};
    GlobalRaces* globals = nullptr;
    // `early`: the previous kernel may still run; `previous_ended` changes when it has ended.
    bool early = false;
    uint32_t previous_ended = 0;
    std::vector<Started> started;
    std::mutex mutex;
    char error[512] = "";

    ~Launch() {
        if (kFindsRaces) race_free(globals);
    }
    uint64_t blocks() const { return uint64_t(grid.x) * grid.y * grid.z; }
};

__thread Fiber* current = nullptr;

namespace {

uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void begin_round(Workspace& ws) {
    ws.turns = 0;
    ws.progress = false;
    // Each round begins with another thread.
    if (ws.shuffled) {
        ws.random = mix(ws.random);
        ws.first = static_cast<uint32_t>(ws.random % ws.order.size());
    }
}

// Next thread of this round or the next one; null if no thread can run.
Fiber* next_fiber(Workspace& ws) {
    auto n = static_cast<uint32_t>(ws.order.size());
    for (;;) {
        while (ws.turns < n) {
            uint32_t at = ws.first + ws.turns++;
            Fiber& fiber = ws.fibers[ws.order[at < n ? at : at - n]];
            if (fiber.done || (fiber.generation && *fiber.generation == fiber.seen)) continue;
            fiber.generation = nullptr;
            ws.progress = true;
            return &fiber;
        }
        if (ws.left == 0 || !ws.progress) return nullptr;
        begin_round(ws);
    }
}

// Switches to the next thread that can run, or to run_block if there is none or the launch has failed. All
// switches between threads come from one place, which helps the return predictor.
__attribute__((noinline)) void give_way() {
    Fiber* from = current;
    Fiber* to = from->block->launch->failed ? nullptr : next_fiber(*workspace);
    if (to) current = to;
    sterna_simt_switch(&from->stack_pointer, to ? to->stack_pointer : workspace->scheduler);
}

void fiber_main() {
    const Launch* launch = current->block->launch;
    launch->entry->run(launch->params.data());
    if (current->async->n_copies > 0) fail("the thread ends with asynchronous copies in flight");
    current->done = true;
    workspace->left--;
    give_way();
    abort();
}

void* first_stack_pointer(uint8_t* stack, uint32_t thread) {
    // Stack tops at power-of-two distances would compete for a few cache lines.
    void** top = reinterpret_cast<void**>(stack + kStackBytes - thread % 16 * (17 * 64));
#if defined(__x86_64__)
    // Six registers and the return address; on function entry the stack pointer is 8 below a multiple of 16.
    top -= 2;
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
#else
    top -= 20;
    for (int i = 0; i < 20; i++) top[i] = nullptr;
    top[11] = reinterpret_cast<void*>(&fiber_main);
#endif
    return top;
}

void set_error(Launch& launch, const char* message) {
    std::lock_guard<std::mutex> guard(launch.mutex);
    if (!launch.failed.exchange(true)) snprintf(launch.error, sizeof launch.error, "%s", message);
}

void start_block(Launch& launch, Workspace& ws, Block& block) {
    uint32_t n = launch.threads, n_warps = (n + 31) / 32;
    memset(block.barriers, 0, sizeof block.barriers);
    block.met = 0;
    for (uint32_t w = 0; w < n_warps; w++) {
        Warp& warp = ws.warps[w];
        warp.arrived = warp.generation = warp.barriers = warp.syncs = 0;
        memset(warp.known, 0, sizeof warp.known);
    }
    if (kFindsRaces) {
        race_forget(block.cells, block.shared_bytes);
        race_forget(block.fixed_cells, kStaticBytes);
    }
    // NaN as floats and -1 as integers, so that uninitialised memory shows.
    memset(block.shared, 0xff, block.shared_bytes);
    block.fixed.used = 0;
    block.fixed.n = 0;
    block.warps = ws.warps.data();
    ws.bulk_copies.clear();
    ws.arrived.clear();
    ws.waited.clear();
    for (uint32_t i = 0; i < n; i++) {
        Fiber& fiber = ws.fibers[i];
        fiber.stack_pointer = first_stack_pointer(ws.stacks + i * kStackBytes, i);
        fiber.block = &block;
        fiber.index = {i, 0, 0};
        fiber.warp = &ws.warps[i / 32];
        fiber.lane = static_cast<int>(i % 32);
        fiber.done = false;
        fiber.generation = nullptr;
        fiber.async = &ws.copies[i];
        fiber.async->n_copies = fiber.async->n_groups = fiber.async->n_open = 0;
        fiber.log = launch.counted ? &ws.logs[i] : nullptr;
        ws.logs[i].clear();
    }
    ws.order.resize(n);
    for (uint32_t i = 0; i < n; i++) ws.order[i] = i;
    ws.left = n;
    ws.shuffled = launch.seed != 0;
    ws.first = 0;
    ws.random = mix(launch.seed + block.index.x);
    for (uint32_t i = n - 1; ws.shuffled && i > 0; i--) {
        ws.random = mix(ws.random);
        std::swap(ws.order[i], ws.order[ws.random % (i + 1)]);
    }
}

// Runs the block until all threads have ended, or, in an early launch, wait for the previous kernel.
void run_block(Launch& launch, Workspace& ws) {
    workspace = &ws;
    begin_round(ws);
    if (Fiber* fiber = next_fiber(ws)) {
        current = fiber;
        sterna_simt_switch(&ws.scheduler, fiber->stack_pointer);
    }
    char message[256];
    const Index& at = ws.fibers[0].block->index;
    if (ws.left == 0 && !ws.bulk_copies.empty()) {
        snprintf(message, sizeof message, "%s: block (%u, %u, %u) ends with bulk copies in flight",
                 launch.entry->name, at.x, at.y, at.z);
        set_error(launch, message);
    }
    if (ws.left == 0 || launch.failed || launch.early) return;
    uint32_t waiting = 0;
    while (ws.fibers[waiting].done) waiting++;
    snprintf(message, sizeof message,
             "%s: thread %u of block (%u, %u, %u) waits forever at a barrier or warp exchange: "
             "%u of %u threads have ended",
             launch.entry->name, waiting, at.x, at.y, at.z, launch.threads - ws.left, launch.threads);
    set_error(launch, message);
}

void make_block(Launch& launch, Block& block) {
    block = {};
    block.launch = &launch;
    block.grid = launch.grid;
    block.threads = {launch.threads, 1, 1};
    block.shared_bytes = launch.shared_bytes;
    block.shared = static_cast<uint8_t*>(aligned_alloc(16, std::max<size_t>(launch.shared_bytes, 16)));
    block.fixed.memory = static_cast<uint8_t*>(aligned_alloc(16, kStaticBytes));
    if (kFindsRaces) {
        block.globals = launch.globals;
        block.cells = race_cells(block.shared_bytes);
        block.fixed_cells = race_cells(kStaticBytes);
    }
}

void free_block(Block& block) {
    free(block.shared);
    free(block.fixed.memory);
    if (kFindsRaces) {
        race_free(block.cells);
        race_free(block.fixed_cells);
    }
    workspace = nullptr;
    current = nullptr;
}

// Takes the next block; false after the last one.
bool take_block(Launch& launch, Block& block) {
    uint64_t total = launch.blocks(), at = launch.next_block++;
    if (at >= (launch.counted ? 1 : total) || launch.failed) return false;
    if (launch.seed % 2 == 1 && !launch.counted) at = total - 1 - at;
    block.index = {static_cast<uint32_t>(at % launch.grid.x),
                   static_cast<uint32_t>(at / launch.grid.x % launch.grid.y),
                   static_cast<uint32_t>(at / launch.grid.x / launch.grid.y)};
    return true;
}

void work(Launch& launch, Workspace& ws) {
    Block block;
    make_block(launch, block);
    while (take_block(launch, block)) {
        start_block(launch, ws, block);
        run_block(launch, ws);
        if (launch.counted) count_accesses(ws.logs, launch.threads, launch.counts);
    }
    free_block(block);
}

}  // namespace

Entry::Entry(const char* name, const char* unit, size_t params_bytes, uint32_t max_threads,
             void (*run)(const void*))
    : name(name), unit(unit), params_bytes(params_bytes), max_threads(max_threads), run(run), next(entries) {
    entries = this;
}

Constant::Constant(const char* name, const char* unit, void* at, size_t bytes)
    : name(name), unit(unit), at(at), bytes(bytes), next(constants) {
    constants = this;
}

void fail(const char* format, ...) {
    char detail[256], message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    const Block& block = *current->block;
    snprintf(message, sizeof message, "%s: thread %u of block (%u, %u, %u): %s", block.launch->entry->name,
             current->index.x, block.index.x, block.index.y, block.index.z, detail);
    set_error(*block.launch, message);
    current->done = true;
    give_way();
    abort();
}

void wait_for(const uint32_t* generation) {
    current->generation = generation;
    current->seen = *generation;
    give_way();
}

// Records that the warps of a mask have met at a barrier: each now knows what the others did before.
static void meet(Block& block, uint32_t mask) {
    uint32_t known[kMaxWarps] = {}, number = ++block.met;
    for (int w = 0; w < kMaxWarps; w++) {
        if (!(mask >> w & 1)) continue;
        Warp& warp = block.warps[w];
        warp.syncs++;
        known[w] = warp.barriers = number;
    }
    for (int w = 0; w < kMaxWarps; w++) {
        if (!(mask >> w & 1)) continue;
        for (int other = 0; other < kMaxWarps; other++)
            known[other] = std::max(known[other], block.warps[w].known[other]);
    }
    for (int w = 0; w < kMaxWarps; w++) {
        if (mask >> w & 1) memcpy(block.warps[w].known, known, sizeof known);
    }
}

void barrier(int id, uint32_t threads) {
    if (id < 0 || id >= kBarriers) fail("no barrier %d: there are %d", id, kBarriers);
    Barrier& barrier = current->block->barriers[id];
    barrier.warps |= 1u << current->index.x / 32;
    if (++barrier.arrived >= threads) {
        barrier.arrived = 0;
        barrier.generation++;
        if (kFindsRaces) meet(*current->block, barrier.warps);
        barrier.warps = 0;
        return;
    }
    wait_for(&barrier.generation);
}

void* static_shared(const void* place, size_t bytes) {
    StaticShared& fixed = current->block->fixed;
    for (int i = 0; i < fixed.n; i++) {
        if (fixed.places[i] == place) return fixed.arrays[i];
    }
    size_t at = (fixed.used + 15) / 16 * 16;
    if (fixed.n == kStaticArrays) fail("more than %d arrays of static shared memory", kStaticArrays);
    if (at + bytes > kStaticBytes)
        fail("%zu bytes of static shared memory: at most %zu are available", at + bytes, kStaticBytes);
    uint8_t* array = fixed.memory + at;
    // Like dynamic shared memory.
    memset(array, 0xff, bytes);
    fixed.used = at + bytes;
    fixed.places[fixed.n] = place;
    fixed.arrays[fixed.n++] = array;
    return array;
}

// Last allocation that begins at or before an address.
static const Allocation* allocation_before(const uint8_t* at) {
    const std::vector<Allocation>& all = *current->block->launch->allocations;
    auto after = std::upper_bound(all.begin(), all.end(), at,
                                  [](const uint8_t* at, const Allocation& a) { return at < a.begin; });
    return after == all.begin() ? nullptr : &*(after - 1);
}

bool is_global(const void* at) {
    const Allocation* before = allocation_before(static_cast<const uint8_t*>(at));
    return before && at < before->begin + before->bytes;
}

// Not inlined, so that its return address is in the kernel's code.
__attribute__((noinline)) void check_access(const void* at, size_t bytes) {
    const uint8_t* begin = static_cast<const uint8_t*>(at);
    if (reinterpret_cast<uintptr_t>(at) % bytes != 0)
        fail("%zu bytes at %p, not aligned to the access size", bytes, at);
    const Block& block = *current->block;
    auto is_in = [&](const uint8_t* memory, size_t size) {
        return begin >= memory && begin + bytes <= memory + size;
    };
    bool shared = is_in(block.shared, block.shared_bytes) || is_in(block.fixed.memory, block.fixed.used);
    // Prefetches (1 byte) always load whole lines, so they are not counted.
    if (current->log && bytes > 1) {
        auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(at));
        current->log->push_back({__builtin_return_address(0), address, static_cast<uint32_t>(bytes), shared});
    }
    if (shared) return;
    if (const Allocation* before = allocation_before(begin)) {
        const Allocation& a = *before;
        if (begin + bytes <= a.begin + a.bytes) return;
        if (begin <= a.begin + a.bytes + 4096) {
            fail("%zu bytes at offset %zu of an allocation of %zu bytes", bytes,
                 static_cast<size_t>(begin - a.begin), a.bytes);
        }
    }
    fail("%zu bytes at %p, outside every allocation", bytes, at);
}

void wait_for_previous_kernel() {
    const Launch& launch = *current->block->launch;
    if (launch.early) wait_for(&launch.previous_ended);
}

uint64_t clock_ns() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// A copy is done when it is waited for, so that reading too early shows; with shuffled orders some copies are
// also done at once, so that overwriting data that others still read shows. For the race detector it is a
// store at both times.
void cp_async(void* to, const void* from) {
    Copies& async = *current->async;
    if (async.n_copies == 64) fail("more than 64 asynchronous copies in flight");
    if (kFindsRaces) race_access(to, 16, true, __builtin_return_address(0));
    Workspace& ws = *workspace;
    if (ws.shuffled) {
        ws.random = mix(ws.random);
        if (ws.random % 2 == 1) memcpy(to, from, 16);
    }
    async.copies[async.n_copies++] = {to, from};
    async.n_open++;
}

void cp_async_commit() {
    Copies& async = *current->async;
    if (async.n_groups == 16) fail("more than 16 groups of asynchronous copies in flight");
    async.groups[async.n_groups++] = async.n_open;
    async.n_open = 0;
}

void cp_async_wait(int left) {
    Copies& async = *current->async;
    int groups = async.n_groups > left ? async.n_groups - left : 0;
    int copies = 0;
    for (int i = 0; i < groups; i++) copies += async.groups[i];
    for (int i = 0; i < copies; i++) {
        if (kFindsRaces) race_access(async.copies[i].to, 16, true, __builtin_return_address(0));
        memcpy(async.copies[i].to, async.copies[i].from, 16);
    }
    std::copy(async.copies + copies, async.copies + async.n_copies, async.copies);
    std::copy(async.groups + groups, async.groups + async.n_groups, async.groups);
    async.n_copies -= copies;
    async.n_groups -= groups;
}

bool has_bulk_copies() { return (current->block->launch->seed & 2) != 0; }

void barrier_init(CopyBarrier* at, uint32_t n) {
    check_access(at, sizeof *at);
    *at = {0, n, n, 0};
}

// Ends the phase if nothing is missing.
static void end_phase(CopyBarrier& at) {
    if (at.missing > 0 || at.units != 0) return;
    at.generation++;
    at.missing = at.n;
}

// What the current warp knows comes before what others do after they have waited for the barrier.
static void release(const CopyBarrier* at) {
    std::vector<Arrived>& all = workspace->arrived;
    auto found = std::find_if(all.begin(), all.end(), [at](const Arrived& a) { return a.barrier == at; });
    if (found == all.end()) found = all.insert(found, Arrived{at, {}});
    Warp& warp = *current->warp;
    warp.barriers = ++current->block->met;
    uint32_t own = current->index.x / 32;
    found->known[own] = warp.barriers;
    for (int other = 0; other < kMaxWarps; other++)
        found->known[other] = std::max(found->known[other], warp.known[other]);
}

void barrier_expect(CopyBarrier* at, uint32_t bytes) {
    if (kFindsRaces) release(at);
    if (at->missing == 0) fail("arrives at a barrier of copies at which all have arrived");
    at->missing--;
    at->units += static_cast<int32_t>(bytes / 16);
    end_phase(*at);
}

static void land(const BulkCopy& copy) {
    memcpy(copy.to, copy.from, copy.bytes);
    copy.barrier->units -= static_cast<int32_t>(copy.bytes / 16);
    end_phase(*copy.barrier);
}

void bulk_copy(CopyBarrier* at, void* to, const void* from, uint32_t bytes) {
    if (bytes == 0 || bytes % 16 != 0) fail("a bulk copy of %u bytes", bytes);
    for (uint32_t i = 0; i < bytes; i += 16) {
        check_access(static_cast<const uint8_t*>(from) + i, 16);
        check_access(static_cast<const uint8_t*>(to) + i, 16);
    }
    if (kFindsRaces) {
        race_access(to, bytes, true, __builtin_return_address(0));
        release(at);
    }
    Workspace& ws = *workspace;
    BulkCopy copy = {at, to, from, bytes};
    // If a thread already waits, nothing else makes the copy land.
    bool is_waited = std::any_of(ws.waited.begin(), ws.waited.end(), [at](const Waited& of) {
        return of.barrier == at && of.generation == at->generation;
    });
    if (is_waited) return land(copy);
    if (ws.shuffled) {
        ws.random = mix(ws.random);
        if (ws.random % 2 == 1) memcpy(to, from, bytes);
    }
    ws.bulk_copies.push_back(copy);
}

void barrier_wait(CopyBarrier* at, uint32_t parity) {
    Workspace& ws = *workspace;
    if (at->generation % 2 == parity) {
        auto is_here = [at](const BulkCopy& copy) { return copy.barrier == at; };
        auto rest = std::stable_partition(ws.bulk_copies.begin(), ws.bulk_copies.end(), is_here);
        std::vector<BulkCopy> here(ws.bulk_copies.begin(), rest);
        ws.bulk_copies.erase(ws.bulk_copies.begin(), rest);
        for (const BulkCopy& copy : here) land(copy);
        if (at->generation % 2 == parity) {
            ws.waited.push_back({at, at->generation});
            wait_for(&at->generation);
        }
    }
    if (!kFindsRaces) return;
    Warp& warp = *current->warp;
    warp.syncs++;
    for (const Arrived& arrived : ws.arrived) {
        if (arrived.barrier != at) continue;
        for (int other = 0; other < kMaxWarps; other++)
            warp.known[other] = std::max(warp.known[other], arrived.known[other]);
    }
}

uint16_t half_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return 0x7fffu;
    if (bits >= 0x477ff000u) return sign | 0x7c00u;
    if (bits < 0x38800000u) {
        // Subnormal f16: adding 0.5 aligns their last place with the float's last place, and rounds.
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
    }
    bits += 0xc8000fffu + (bits >> 13 & 1u);
    return static_cast<uint16_t>(sign | bits >> 13);
}

// Bits that a tensor core sum keeps, from the leading bit of the largest addend on: 25, or
// STERNA_SIMT_SUM_BITS to simulate other GPUs.
static int sum_bits() {
    static const int bits = [] {
        const char* set = getenv("STERNA_SIMT_SUM_BITS");
        return set ? atoi(set) : 25;
    }();
    return bits;
}

// With f64 and 64-bit integers, which hold all addends and any number of bits.
static float truncated_sum_of_any(float c, const float* a, const float* b) {
    double addends[17], largest = std::fabs(double(c)), plain = c;
    addends[16] = c;
    for (int k = 0; k < 16; k++) {
        addends[k] = double(a[k]) * b[k];
        plain += addends[k];
        largest = std::max(largest, std::fabs(addends[k]));
    }
    // NaN, infinity, or all zeros.
    if (!(std::fabs(plain) < HUGE_VAL) || largest == 0.0) return static_cast<float>(plain);
    // Scales the leading bit of the largest addend to 2^sum_bits, so that integer conversion truncates.
    // Floats and products of f16 are not subnormal as f64, nor is the scale.
    uint64_t exponent;
    memcpy(&exponent, &largest, 8);
    exponent = (2 * 1023 + sum_bits() - (exponent >> 52)) << 52;
    double scale;
    memcpy(&scale, &exponent, 8);
    int64_t sum = 0;
    for (double addend : addends) sum += static_cast<int64_t>(addend * scale);
    double whole = static_cast<double>(sum);
    uint64_t bits;
    memcpy(&bits, &whole, 8);
    // f64 has 29 more mantissa bits than f32.
    bits &= ~((uint64_t(1) << 29) - 1);
    memcpy(&whole, &bits, 8);
    return static_cast<float>(whole / scale);
}

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));

// The same with floats and 32-bit integers, eight at a time: the product of two f16 is exact in f32, and the
// sum of 17 26-bit numbers fits in 32 bits.
float truncated_sum(float c, const float* a, const float* b) {
    constexpr int kBits = 25;
    Floats products[2];
    Ints largest = {};
    for (int half = 0; half < 2; half++) {
        Floats left, right;
        memcpy(&left, a + 8 * half, sizeof left);
        memcpy(&right, b + 8 * half, sizeof right);
        products[half] = left * right;
        Ints magnitude = (Ints)products[half] & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t most;
    memcpy(&most, &c, 4);
    most &= 0x7fffffff;
    for (int i = 0; i < 8; i++) most = std::max(most, largest[i]);
    int32_t exponent = most >> 23;
    if (exponent <= kBits || exponent == 255 || sum_bits() != kBits) return truncated_sum_of_any(c, a, b);
    int32_t scale_bits = (2 * 127 + kBits - exponent) << 23;
    float scale;
    memcpy(&scale, &scale_bits, 4);
    Ints sums = __builtin_convertvector(products[0] * scale, Ints);
    sums += __builtin_convertvector(products[1] * scale, Ints);
    int32_t sum = static_cast<int32_t>(c * scale);
    for (int i = 0; i < 8; i++) sum += sums[i];
    double whole = sum;
    uint64_t bits;
    memcpy(&bits, &whole, 8);
    // f64 has 29 more mantissa bits than f32.
    bits &= ~((uint64_t(1) << 29) - 1);
    memcpy(&whole, &bits, 8);
    return static_cast<float>(whole / scale);
}

}  // namespace simt

using namespace simt;

struct SimtDevice {
    uint32_t cores;
    std::vector<Allocation> allocations, freed;
};

struct SimtLaunch {
    Launch launch;
};

// Generated by build.rs: references every kernel file.
extern "C" void sterna_simt_units();

SimtDevice* simt_open(uint32_t cores) {
    sterna_simt_units();
    return new SimtDevice{std::max(cores, 1u), {}, {}};
}

void simt_close(SimtDevice* device) {
    for (const Allocation& a : device->allocations) free(const_cast<uint8_t*>(a.begin));
    for (const Allocation& a : device->freed) free(const_cast<uint8_t*>(a.begin));
    delete device;
}

void* simt_alloc(SimtDevice* device, size_t bytes) {
    size_t whole = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
    // Allocations end exactly at their size, so that the sanitizer and check_access find out-of-bounds
    // accesses.
    void* at = nullptr;
    if (whole < bytes || posix_memalign(&at, 256, std::max<size_t>(bytes, 1)) != 0) return nullptr;
    memset(at, 0, bytes);
    Allocation added{static_cast<uint8_t*>(at), bytes};
    auto place = std::upper_bound(device->allocations.begin(), device->allocations.end(), added,
                                  [](const Allocation& a, const Allocation& b) { return a.begin < b.begin; });
    device->allocations.insert(place, added);
    return at;
}

static const Entry* find(const char* name) {
    for (const Entry* entry = entries; entry; entry = entry->next) {
        if (strcmp(entry->name, name) == 0) return entry;
    }
    return nullptr;
}

bool simt_free(SimtDevice* device, void* at) {
    std::vector<Allocation>& all = device->allocations;
    auto is_it = [at](const Allocation& a) { return a.begin == at; };
    auto place = std::find_if(all.begin(), all.end(), is_it);
    if (place == all.end()) return false;
    memset(at, 0xff, place->bytes);
    device->freed.push_back(*place);
    all.erase(place);
    return true;
}

bool simt_find(const char* name, SimtKernel* kernel) {
    const Entry* entry = find(name);
    if (entry) *kernel = {entry->unit, entry->max_threads, entry->params_bytes};
    return entry != nullptr;
}

bool simt_constant(const char* name, const char* unit, void** at, size_t* bytes) {
    const Constant* found = nullptr;
    for (const Constant* constant = constants; constant; constant = constant->next) {
        if (strcmp(constant->name, name) != 0 || (unit && strcmp(constant->unit, unit) != 0)) continue;
        // Each kernel file has its own; without a unit it is not clear which one is meant.
        if (found) return false;
        found = constant;
    }
    if (!found) return false;
    *at = found->at;
    *bytes = found->bytes;
    return true;
}

SimtLaunch* simt_begin(SimtDevice* device, const SimtConfig* config, const void* params, char* error,
                       size_t error_bytes) {
    const Entry* entry = find(config->name);
    const uint32_t* grid = config->grid;
    uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    // Launches that a GPU refuses, too.
    if (!entry || blocks == 0 || grid[1] > 65535 || grid[2] > 65535 || config->threads == 0 ||
        config->threads % 32 != 0 || config->threads > entry->max_threads || config->shared_bytes % 16 != 0) {
        snprintf(error, error_bytes, "%s: invalid launch: %u x %u x %u blocks, %u threads, %zu bytes",
                 config->name, grid[0], grid[1], grid[2], config->threads, config->shared_bytes);
        return nullptr;
    }
    SimtLaunch* begun = new SimtLaunch;
    Launch& launch = begun->launch;
    // The race detector runs one block after the other.
    launch.cores = kFindsRaces ? 1 : device->cores;
    if (kFindsRaces) launch.globals = race_globals();
    launch.allocations = &device->allocations;
    launch.entry = entry;
    launch.params.resize((entry->params_bytes + 7) / 8);
    memcpy(launch.params.data(), params, entry->params_bytes);
    launch.grid = {grid[0], grid[1], grid[2]};
    launch.threads = config->threads;
    launch.shared_bytes = config->shared_bytes;
    launch.seed = config->seed;
    launch.counted = config->counted;
    launch.early = config->early;
    launch.started.resize(launch.early ? std::min(blocks, kEarlyBlocks) : 0);
    for (Started& started : launch.started) {
        started.ws = take_workspace();
        make_block(launch, started.block);
        if (!started.ws->stacks) set_error(launch, "no memory for stacks");
        if (!take_block(launch, started.block)) continue;
        start_block(launch, *started.ws, started.block);
        run_block(launch, *started.ws);
    }
    return begun;
}

int simt_finish(SimtLaunch* begun, SimtCounts* counts, char* error, size_t error_bytes) {
    std::unique_ptr<SimtLaunch> owned(begun);
    Launch& launch = begun->launch;
    launch.early = false;
    launch.previous_ended++;
    for (Started& started : launch.started) {
        if (!launch.failed) run_block(launch, *started.ws);
        free_block(started.block);
        give_back(started.ws);
    }
    auto run = [&launch] {
        Workspace* ws = take_workspace();
        if (ws->stacks) {
            work(launch, *ws);
        } else {
            set_error(launch, "no memory for stacks");
        }
        give_back(ws);
    };
    std::vector<std::thread> others;
    uint64_t blocks = launch.blocks() - std::min<uint64_t>(launch.started.size(), launch.blocks());
    uint64_t at_once = std::min<uint64_t>(launch.cores, blocks);
    for (uint64_t i = 1; i < at_once; i++) others.emplace_back(run);
    if (blocks > 0) run();
    for (std::thread& thread : others) thread.join();
    counts->sectors += launch.counts.sectors;
    counts->least_sectors += launch.counts.least_sectors;
    counts->passes += launch.counts.passes;
    counts->least_passes += launch.counts.least_passes;
    if (!launch.failed) return 0;
    snprintf(error, error_bytes, "%s", launch.error);
    return 1;
}
