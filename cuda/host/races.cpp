// Race detector for kernels compiled with -fsanitize=thread (build.rs): the compiler's hooks for loads and
// stores call this file instead of the sanitizer's own library.
//
// Two accesses to a byte of a block's shared memory race if at least one is a store, they come from different
// threads, and nothing orders them: a barrier that both warps reached in between, directly or through other
// warps, or, within a warp, __syncwarp. As on a GPU, shuffles and warp-level products order nothing. The
// order in which threads run makes no difference: a race is found in any order.
//
// For global memory only the stores of a launch are recorded, so a store races with a later load or store; a
// load followed by a store is found in the opposite block order, which half of the seeds use. Between blocks
// arrive() orders accesses: what a block did before its last barrier comes before what later blocks at the
// same counter do after their next barrier. Atomic accesses never race.
#ifdef STERNA_SIMT_RACES

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "runtime.h"

namespace simt {

namespace {

// An access to a byte: the thread, the counts of its warp, and the code address. Several unordered loads are
// merged: the first thread, the latest barrier of any of their warps, `alone` = false, and a bit mask of the
// warps.
struct Seen {
    uint16_t thread;
    bool alone;
    uint32_t warps, barriers, syncs;
    const void* site;
};

}  // namespace

struct RaceCell {
    Seen write, read;
};

namespace {

constexpr size_t kGranule = 256;

uint32_t number_of(const Block& block) {
    return block.index.x + block.grid.x * (block.index.y + block.grid.y * block.index.z);
}

struct Store {
    uint32_t block;
    Seen seen;
};

// A block's arrival at a counter, with what the arriving thread knew about the block's warps.
struct Arrival {
    uint32_t block, thread, syncs, known[kMaxWarps];

    bool covers(const Store& store) const {
        if (store.block != block) return false;
        uint32_t warp = store.seen.thread / 32;
        if (warp == thread / 32) return store.seen.thread == thread || syncs > store.seen.syncs;
        return known[warp] > store.seen.barriers;
    }
};

// Arrivals that a block has observed at a counter, and the barrier count of its warp at that time.
struct Acquired {
    uint32_t block, thread, barriers;
    std::vector<Arrival> arrivals;
};

}  // namespace

struct GlobalRaces {
    std::unordered_map<uintptr_t, std::unique_ptr<Store[]>> granules;
    std::map<const void*, std::vector<Arrival>> counters;
    std::vector<Acquired> acquired;
};

namespace {

bool ordered(const Seen& before, const Fiber& now) {
    if (!before.site || (before.alone && before.thread == now.index.x)) return true;
    uint32_t own = 1u << now.index.x / 32;
    if (before.warps == own) return now.warp->syncs > before.syncs;
    for (int w = 0; w < kMaxWarps; w++) {
        if (before.warps >> w & 1 && now.warp->known[w] <= before.barriers) return false;
    }
    return true;
}

// Formats a code address as function and line, if addr2line knows it; for inlined code the part in the
// kernel.
void describe(const void* site, char* to, size_t bytes) {
    Dl_info of = {};
    dladdr(site, &of);
    auto at = static_cast<const char*>(site) - static_cast<const char*>(of.dli_fbase) - 1;
    char command[512], line[256] = "";
    snprintf(command, sizeof command, "addr2line -sie '%s' %#tx 2>/dev/null", of.dli_fname, at);
    if (FILE* said = popen(command, "r")) {
        while (fgets(line, sizeof line, said) && strncmp(line, "simt_host.h", 11) == 0) {}
        line[strcspn(line, "\n")] = 0;
        pclose(said);
    }
    snprintf(to, bytes, "%s", line[0] && line[0] != '?' ? line : "an unknown location");
}

// A store of another block is ordered by counters, a store of the own block as in shared memory.
bool ordered(const GlobalRaces& globals, const Store& store, const Fiber& now) {
    uint32_t block = number_of(*now.block);
    if (!store.seen.site || store.block == block) return ordered(store.seen, now);
    for (const Acquired& acquired : globals.acquired) {
        if (acquired.block != block) continue;
        if (acquired.thread != now.index.x && now.warp->barriers <= acquired.barriers) continue;
        for (const Arrival& arrival : acquired.arrivals) {
            if (arrival.covers(store)) return true;
        }
    }
    return false;
}

[[noreturn]] void global_race(const Store& before, const char* now, const void* site) {
    char places[2][128];
    describe(before.seen.site, places[0], sizeof places[0]);
    describe(site, places[1], sizeof places[1]);
    fail("a race: global memory is written by thread %u of block %u of the grid at %s, and %s here at %s",
         before.seen.thread, before.block, places[0], now, places[1]);
}

void access_global(GlobalRaces& globals, const uint8_t* at, size_t bytes, bool store, const void* site) {
    const Fiber& now = *current;
    uint32_t warp = 1u << now.index.x / 32;
    Store own = {number_of(*now.block),
                 {static_cast<uint16_t>(now.index.x), true, warp, now.warp->barriers, now.warp->syncs, site}};
    for (const uint8_t* end = at + bytes; at < end; at++) {
        auto address = reinterpret_cast<uintptr_t>(at);
        auto found = globals.granules.find(address / kGranule);
        if (found == globals.granules.end()) {
            if (!store) continue;
            found = globals.granules.emplace(address / kGranule, new Store[kGranule]()).first;
        }
        Store& cell = found->second[address % kGranule];
        if (!ordered(globals, cell, now)) global_race(cell, store ? "written" : "read", site);
        if (store) cell = own;
    }
}

[[noreturn]] void race(const char* what, size_t at, const Seen& before, const char* now, const void* site) {
    char places[2][128];
    describe(before.site, places[0], sizeof places[0]);
    describe(site, places[1], sizeof places[1]);
    fail("a race: byte %zu of shared memory is %s by thread %u at %s, and %s here at %s", at, what,
         before.thread, places[0], now, places[1]);
}

void access_shared(RaceCell* cells, size_t at, size_t bytes, bool store, const void* site) {
    const Fiber& now = *current;
    uint32_t warp = 1u << now.index.x / 32;
    Seen seen = {static_cast<uint16_t>(now.index.x), true, warp, now.warp->barriers, now.warp->syncs, site};
    for (size_t i = at; i < at + bytes; i++) {
        RaceCell& cell = cells[i];
        if (!ordered(cell.write, now)) race("written", i, cell.write, store ? "written" : "read", site);
        if (store) {
            if (!ordered(cell.read, now)) race("read", i, cell.read, "written", site);
            cell.write = seen;
            cell.read.site = nullptr;
        } else if (ordered(cell.read, now)) {
            cell.read = seen;
        } else {
            cell.read.alone = false;
            cell.read.warps |= warp;
            cell.read.barriers = std::max(cell.read.barriers, seen.barriers);
        }
    }
}

}  // namespace

void race_access(const void* at, size_t bytes, bool store, const void* site) {
    if (!current) return;
    const Block& block = *current->block;
    size_t offset = static_cast<const uint8_t*>(at) - block.shared;
    if (offset < block.shared_bytes) {
        access_shared(block.cells, offset, bytes, store, site);
        return;
    }
    offset = static_cast<const uint8_t*>(at) - block.fixed.memory;
    if (offset < block.fixed.used) {
        access_shared(block.fixed_cells, offset, bytes, store, site);
        return;
    }
    auto global = static_cast<const uint8_t*>(at);
    // Most other accesses are to the thread's own stack.
    auto here = reinterpret_cast<const uint8_t*>(&offset);
    if (global < here + (64 << 10) && here < global + (64 << 10)) return;
    if (is_global(at)) access_global(*block.globals, global, bytes, store, site);
}

void race_arrive(const void* counter) {
    const Fiber& now = *current;
    GlobalRaces& globals = *now.block->globals;
    std::vector<Arrival>& before = globals.counters[counter];
    globals.acquired.push_back({number_of(*now.block), now.index.x, now.warp->barriers, before});
    Arrival arrival = {number_of(*now.block), now.index.x, now.warp->syncs, {}};
    memcpy(arrival.known, now.warp->known, sizeof arrival.known);
    before.push_back(arrival);
}

GlobalRaces* race_globals() { return new GlobalRaces; }
void race_free(GlobalRaces* globals) { delete globals; }

RaceCell* race_cells(size_t bytes) { return new RaceCell[bytes + 16]; }
void race_forget(RaceCell* cells, size_t bytes) { memset(cells, 0, sizeof(RaceCell) * bytes); }
void race_free(RaceCell* cells) { delete[] cells; }

}  // namespace simt

using simt::race_access;

#define SITE __builtin_return_address(0)
#define HOOKS(n)                                                                     \
    void __tsan_read##n(void* at) { race_access(at, n, false, SITE); }               \
    void __tsan_write##n(void* at) { race_access(at, n, true, SITE); }               \
    void __tsan_unaligned_read##n(void* at) { race_access(at, n, false, SITE); }     \
    void __tsan_unaligned_write##n(void* at) { race_access(at, n, true, SITE); }     \
    void __tsan_volatile_read##n(void* at) { race_access(at, n, false, SITE); }      \
    void __tsan_volatile_write##n(void* at) { race_access(at, n, true, SITE); }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* at, size_t bytes) { race_access(at, bytes, false, SITE); }
void __tsan_write_range(void* at, size_t bytes) { race_access(at, bytes, true, SITE); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Kernels do not rely on atomics for ordering within a block.
int32_t __tsan_atomic32_fetch_add(volatile int32_t* at, int32_t by, int) {
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
int64_t __tsan_atomic64_fetch_add(volatile int64_t* at, int64_t by, int) {
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
int64_t __tsan_atomic64_load(const volatile int64_t* at, int) {
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
int64_t __tsan_atomic64_compare_exchange_val(volatile int64_t* at, int64_t want, int64_t to, int, int) {
    __atomic_compare_exchange_n(at, &want, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return want;
}
int __tsan_atomic64_compare_exchange_strong(volatile int64_t* at, int64_t* want, int64_t to, int, int) {
    return __atomic_compare_exchange_n(at, want, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}

#endif
