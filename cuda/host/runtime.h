// Runs kernels on the host: each thread of a block is a fiber with its own stack, which yields at barriers
// and warp exchanges; blocks are distributed over OS threads.
//
// Errors in a kernel (an access outside every allocation, a barrier that not all threads reach) end the
// launch with a message; they never end the process.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vector>

// Memory transactions of a launch's first block (count.cpp): sectors of global memory and passes of shared
// memory, and the smallest possible numbers.
struct SimtCounts {
    uint64_t sectors, least_sectors, passes, least_passes;
};

namespace simt {

// Most bytes that a lane contributes to a warp exchange.
constexpr int kSlotBytes = 48;
constexpr int kBarriers = 16;

struct Index { uint32_t x, y, z; };

struct Barrier {
    uint32_t arrived, generation;
    // Bit mask of the warps that have arrived.
    uint32_t warps;
};

// Most warps per block.
constexpr int kMaxWarps = 32;

struct Warp {
    // Double-buffered: a lane may be one exchange ahead of the slowest, never two.
    alignas(16) uint8_t slots[2][32][kSlotBytes];
    uint32_t arrived, generation;
    // For races.cpp: the number of the last barrier of the block that it met at; the count of its barriers
    // and warp-level synchronisations; and for each other warp the latter's barrier number when they last
    // met.
    uint32_t barriers, syncs, known[kMaxWarps];
};

struct Launch;
struct RaceCell;
struct GlobalRaces;

// Static shared memory of a block: arrays requested by its kernel, each identified by a unique address.
constexpr size_t kStaticBytes = 48 << 10;
constexpr int kStaticArrays = 8;

struct StaticShared {
    uint8_t* memory;
    size_t used;
    int n;
    const void* places[kStaticArrays];
    uint8_t* arrays[kStaticArrays];
};

struct Block {
    Launch* launch;
    Index index, grid, threads;
    uint8_t* shared;
    size_t shared_bytes;
    StaticShared fixed;
    Barrier barriers[kBarriers];
    // Number of barriers that warps have met at so far.
    uint32_t met;
    Warp* warps;
    // State of races.cpp for each byte of dynamic and static shared memory.
    RaceCell *cells, *fixed_cells;
    // State of races.cpp for the launch's stores to global memory.
    GlobalRaces* globals;
};

struct Copy {
    void* to;
    const void* from;
};

// Asynchronous copies that a thread has not waited for, oldest first, and the number of copies per group.
struct Copies {
    Copy copies[64];
    int n_copies, groups[16], n_groups, n_open;
};

// A memory access of a thread: code address, memory address, size, and kind of memory.
struct Access {
    const void* site;
    uint64_t at;
    uint32_t bytes;
    bool shared;
};
using Log = std::vector<Access>;

// Adds the memory transactions of a block's threads to `counts`.
void count_accesses(const std::vector<Log>& logs, uint32_t threads, SimtCounts& counts);

struct Fiber {
    void* stack_pointer;
    Block* block;
    Index index;
    Warp* warp;
    int lane;
    bool done;
    // The fiber waits until *generation differs from `seen`; null if it can run.
    const uint32_t* generation;
    uint32_t seen;
    // Not stored here, to keep fibers compact: a round visits all fibers of a block.
    Copies* async;
    // Accesses of the thread, if they are counted.
    Log* log;
};

// Not `thread_local`: every access from another file would first check for initialisation.
extern __thread Fiber* current;

// Waits until `threads` threads of the block have arrived.
void barrier(int id, uint32_t threads);
// Ends the launch if [at, at + bytes) is not aligned to `bytes`, or is outside every allocation and the
// block's shared memory.
void check_access(const void* at, size_t bytes);
// Ends the launch with a message about the current thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Yields until *generation changes.
void wait_for(const uint32_t* generation);

// Writes `bytes` to this lane's slot, waits for the warp, and returns the 32 slots.
inline const uint8_t* exchange(uint32_t mask, const void* value, int bytes) {
    if (mask != 0xffffffffu) fail("a warp exchange of the lanes %08x; kernels use whole warps", mask);
    if (bytes > kSlotBytes) fail("a warp exchange of %d bytes", bytes);
    Warp& warp = *current->warp;
    uint8_t(&slots)[32][kSlotBytes] = warp.slots[warp.generation % 2];
    if (bytes > 0) memcpy(slots[current->lane], value, static_cast<size_t>(bytes));
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.generation++;
        // Exchanging values does not order loads and stores of the lanes.
        if (bytes == 0) warp.syncs++;
    } else {
        wait_for(&warp.generation);
    }
    return slots[0];
}

// The array of static shared memory for a place in the kernel's code.
void* static_shared(const void* place, size_t bytes);

#ifdef STERNA_SIMT_RACES
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif
// Ends the launch if an access of the current thread races with another one.
void race_access(const void* at, size_t bytes, bool store, const void* site);
RaceCell* race_cells(size_t bytes);
void race_forget(RaceCell* cells, size_t bytes);
void race_free(RaceCell* cells);
GlobalRaces* race_globals();
void race_free(GlobalRaces* globals);
// Records that the current thread arrives at a counter shared by blocks.
void race_arrive(const void* counter);
// True if an address is in an allocation.
bool is_global(const void* at);

// In a launch that started early, waits until simt_finish signals that the previous kernel has ended.
void wait_for_previous_kernel();

uint64_t clock_ns();

void cp_async(void* to, const void* from);
void cp_async_commit();
void cp_async_wait(int left);

inline float float_of_half(uint16_t bits) {
    // Moved to the position of a float's mantissa; the exponent is too small by 112.
    uint32_t magnitude = uint32_t(bits & 0x7fffu) << 13, sign = uint32_t(bits & 0x8000u) << 16, out;
    float x;
    if (magnitude < 0x00800000u) {
        // Subnormal: adds and subtracts 2^-14.
        magnitude += 0x38800000u;
        memcpy(&x, &magnitude, 4);
        x -= 0x1p-14f;
        memcpy(&out, &x, 4);
    } else {
        out = magnitude < 0x0f800000u ? magnitude + 0x38000000u : magnitude | 0x7f800000u;
    }
    out |= sign;
    memcpy(&x, &out, 4);
    return x;
}

uint16_t half_of_float(float x);

// c plus the products of 16 f16, as tensor cores sum them (Fasi, Higham, Mikaitis and Pranesh, "Numerical
// behavior of NVIDIA tensor cores", 2021): all addends are aligned to the largest one and truncated, and so
// is the sum when it is rounded to f32. As on an H100, two more bits are kept than f32 has.
float truncated_sum(float c, const float* a, const float* b);

// A registered kernel, and its file, identified by STERNA_UNIT.
struct Entry {
    const char *name, *unit;
    size_t params_bytes;
    uint32_t max_threads;
    void (*run)(const void* params);
    const Entry* next;
    Entry(const char* name, const char* unit, size_t params_bytes, uint32_t max_threads,
          void (*run)(const void*));
};

// An array in constant memory, and its file.
struct Constant {
    const char *name, *unit;
    void* at;
    size_t bytes;
    const Constant* next;
    Constant(const char* name, const char* unit, void* at, size_t bytes);
};

}  // namespace simt

// Interface to Rust. A device owns allocations; one launch runs at a time.
extern "C" {
struct SimtDevice;
struct SimtLaunch;
SimtDevice* simt_open(uint32_t cores);
void simt_close(SimtDevice* device);
// Zeroed memory; null if out of memory.
void* simt_alloc(SimtDevice* device, size_t bytes);
// Frees the allocation that begins at `at`: kernels must not access it any more. Its bytes are overwritten,
// and remain mapped until the device is closed. False if no allocation begins there.
bool simt_free(SimtDevice* device, void* at);

struct SimtKernel {
    // STERNA_UNIT of its file.
    const char* unit;
    uint32_t max_threads;
    size_t params_bytes;
};
// False if there is no kernel of that name.
bool simt_find(const char* name, SimtKernel* kernel);
// Address of an array in constant memory of the file `unit`, or of any file if it is null; false if there is
// none of that name. All devices share it.
bool simt_constant(const char* name, const char* unit, void** at, size_t* bytes);

// Configuration of a launch.
struct SimtConfig {
    const char* name;
    uint32_t grid[3];
    uint32_t threads;
    size_t shared_bytes;
    // Runs the first blocks in simt_begin, until they wait for the previous kernel. All others start in
    // simt_finish.
    bool early;
    // Runs only the first block, and counts its accesses.
    bool counted;
    // Selects the order in which threads run.
    uint64_t seed;
};
// Starts a launch. Null, with a message in `error`, if a GPU would refuse it.
SimtLaunch* simt_begin(SimtDevice* device, const SimtConfig* config, const void* params, char* error,
                       size_t error_bytes);
// Finishes it, on the same thread. Returns 0, or nonzero with a message in `error`. Adds to `counts`.
int simt_finish(SimtLaunch* launch, SimtCounts* counts, char* error, size_t error_bytes);
}
