// Runs kernels on the host: each thread of a block is a fiber with a stack of its own that gives way at
// barriers and warp exchanges; blocks are spread over threads of the system.
//
// What goes wrong in a kernel (an access outside every allocation, a barrier that not everybody reaches) ends
// the launch with a message; it never ends the process.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <vector>

// What the accesses of a launch's first block take (count.cpp): sectors of global memory and passes of shared
// memory, and how few would do.
struct SimtCounts {
    uint64_t sectors, least_sectors, passes, least_passes;
};

namespace simt {

// Bytes that one lane puts into a warp exchange at most.
constexpr int kSlotBytes = 48;
constexpr int kBarriers = 16;

struct Index { uint32_t x, y, z; };

struct Barrier {
    uint32_t arrived, generation;
    // Those of the warps that have come.
    uint32_t warps;
};

// Warps of a block at most.
constexpr int kMaxWarps = 32;

struct Warp {
    // Two buffers in turn: a lane may be one exchange ahead of the slowest one, never two.
    alignas(16) uint8_t slots[2][32][kSlotBytes];
    uint32_t arrived, generation;
    // The number in its block of the last barrier that it has come to, and how many of these and of its own
    // exchanges there were; and of other warps, the number of theirs when it last met them (races.cpp).
    uint32_t barriers, syncs, known[kMaxWarps];
};

struct Launch;
struct RaceCell;
struct GlobalRaces;

// Static shared memory of a block: arrays that its kernel has asked for, each known by an address of its own.
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
    // Barriers that warps have met at so far.
    uint32_t met;
    Warp* warps;
    // What races.cpp knows of each byte of shared memory, dynamic and static.
    RaceCell *cells, *fixed_cells;
    // And of the launch's stores to global memory.
    GlobalRaces* globals;
};

struct Copy {
    void* to;
    const void* from;
};

// Asynchronous copies that a thread has not waited for, oldest first, and how many each group holds.
struct Copies {
    Copy copies[64];
    int n_copies, groups[16], n_groups, n_open;
};

// An access of a thread: the place in the kernel's text, and what of shared or global memory.
struct Access {
    const void* site;
    uint64_t at;
    uint32_t bytes;
    bool shared;
};
using Log = std::vector<Access>;

// Adds up what the accesses of a block's threads take.
void count_accesses(const std::vector<Log>& logs, uint32_t threads, SimtCounts& counts);

struct Fiber {
    void* stack_pointer;
    Block* block;
    Index index;
    Warp* warp;
    int lane;
    bool done;
    // Where it waits: until *generation is no longer `seen`. Null where it can run.
    const uint32_t* generation;
    uint32_t seen;
    // Not in here: a round of a block goes through all its fibers, and they should be near one another.
    Copies* async;
    // Of the thread's accesses, where they are counted.
    Log* log;
};

// Not `thread_local`, whose every access from another file asks first whether it has been initialised.
extern __thread Fiber* current;

// Waits until `threads` threads of the block have come.
void barrier(int id, uint32_t threads);
// Ends the launch where [at, at + bytes) is not aligned to `bytes` or lies outside every allocation and the
// block's shared memory.
void check_access(const void* at, size_t bytes);
// Ends the launch with a message about the current thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Gives way until *generation is another one.
void wait_for(const uint32_t* generation);

// Puts `bytes` into this lane's slot, waits for the warp, and returns the 32 slots.
inline const uint8_t* exchange(uint32_t mask, const void* value, int bytes) {
    if (mask != 0xffffffffu) fail("a warp exchange of the lanes %08x; kernels use whole warps", mask);
    if (bytes > kSlotBytes) fail("a warp exchange of %d bytes", bytes);
    Warp& warp = *current->warp;
    uint8_t(&slots)[32][kSlotBytes] = warp.slots[warp.generation % 2];
    if (bytes > 0) memcpy(slots[current->lane], value, static_cast<size_t>(bytes));
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.generation++;
        // Values that lanes exchange put no order between what they load and store.
        if (bytes == 0) warp.syncs++;
    } else {
        wait_for(&warp.generation);
    }
    return slots[0];
}

// The array of static shared memory that belongs to a place in the kernel's text.
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
// The current thread arrives at a counter of several blocks.
void race_arrive(const void* counter);
// Whether an address lies in an allocation.
bool is_global(const void* at);

// Waits, in a launch that simt_begin started early, until simt_finish says that what it waits for is done.
void wait_for_previous_kernel();

// Nanoseconds of a clock that only goes on.
uint64_t clock_ns();

void cp_async(void* to, const void* from);
void cp_async_commit();
void cp_async_wait(int left);

inline float float_of_half(uint16_t bits) {
    // Where the fraction of a float is, so that an exponent is too small by 112.
    uint32_t magnitude = uint32_t(bits & 0x7fffu) << 13, sign = uint32_t(bits & 0x8000u) << 16, out;
    float x;
    if (magnitude < 0x00800000u) {
        // Subnormal: 2^-14 is added as the exponent and taken off again.
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

// c plus the products of 16 halves, as tensor cores add them up (Fasi, Higham, Mikaitis and Pranesh,
// "Numerical behavior of NVIDIA tensor cores", 2021): all addends are aligned to the largest one, and what
// does not fit below it is cut off; so is what the sum has beyond a float. Two more bits are kept there than
// a float has, as on an H100.
float truncated_sum(float c, const float* a, const float* b);

// A kernel of the table, and the file that it comes from, by its STERNA_UNIT.
struct Entry {
    const char *name, *unit;
    size_t params_bytes;
    uint32_t max_threads;
    void (*run)(const void* params);
    const Entry* next;
    Entry(const char* name, const char* unit, size_t params_bytes, uint32_t max_threads,
          void (*run)(const void*));
};

// An array in constant memory, and the file that it belongs to.
struct Constant {
    const char *name, *unit;
    void* at;
    size_t bytes;
    const Constant* next;
    Constant(const char* name, const char* unit, void* at, size_t bytes);
};

}  // namespace simt

// What the Rust side calls. A device owns allocations; one launch runs at a time.
extern "C" {
struct SimtDevice;
struct SimtLaunch;
SimtDevice* simt_open(uint32_t cores);
void simt_close(SimtDevice* device);
// Zeroed memory; null where there is none left.
void* simt_alloc(SimtDevice* device, size_t bytes);
// From here on kernels must not access the allocation that begins there. Its bytes are overwritten, and stay
// where they are until the device is closed. False where none begins there.
bool simt_free(SimtDevice* device, void* at);

struct SimtKernel {
    // The STERNA_UNIT of its file.
    const char* unit;
    uint32_t max_threads;
    size_t params_bytes;
};
// False where there is no kernel of that name.
bool simt_find(const char* name, SimtKernel* kernel);
// Where an array in constant memory lies, of the file of a STERNA_UNIT, or of any where `unit` is null; false
// where there is none of that name. Every device has the same.
bool simt_constant(const char* name, const char* unit, void** at, size_t* bytes);

// One run of a kernel.
struct SimtConfig {
    const char* name;
    uint32_t grid[3];
    uint32_t threads;
    size_t shared_bytes;
    // The first blocks run at once up to where they wait for the kernel before. All others start when the
    // launch is finished.
    bool early;
    // The first block runs alone, and its accesses are counted.
    bool counted;
    // Picks the order in which threads run.
    uint64_t seed;
};
// Starts a run. Null, with what is wrong with it in `error`, where a card would refuse it.
SimtLaunch* simt_begin(SimtDevice* device, const SimtConfig* config, const void* params, char* error,
                       size_t error_bytes);
// Finishes it, by the same thread; 0, or not 0 with what went wrong in `error`. What was counted is added to
// `counts`.
int simt_finish(SimtLaunch* launch, SimtCounts* counts, char* error, size_t error_bytes);
}
