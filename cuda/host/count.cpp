// Counts the memory transactions that a block's accesses would cause on a GPU, for simt_finish.
//
// Accesses are those seen by check_access: 16, 8 or 4 bytes. The n-th time that the threads of a warp reach
// an instruction is one request. A request to global memory moves whole sectors of 32 bytes. A request to
// shared memory is served 128 bytes at a time, and takes as many passes as the most used of the 32 banks (4
// bytes each) has different words.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime.h"

namespace simt {

namespace {

constexpr uint64_t kSectorBytes = 32, kBankBytes = 4, kBanks = 32;
constexpr uint32_t kBytesAtOnce = 128;

struct OfLane {
    int lane;
    uint64_t at;
    uint32_t bytes;
};

using Request = std::vector<OfLane>;

uint64_t distinct(std::vector<uint64_t>& all) {
    std::sort(all.begin(), all.end());
    return static_cast<uint64_t>(std::unique(all.begin(), all.end()) - all.begin());
}

void count_global(const Request& request, SimtCounts& counts) {
    std::vector<uint64_t> sectors, bytes;
    for (const OfLane& access : request) {
        for (uint64_t i = 0; i < access.bytes; i++) bytes.push_back(access.at + i);
        uint64_t first = access.at / kSectorBytes, last = (access.at + access.bytes - 1) / kSectorBytes;
        for (uint64_t sector = first; sector <= last; sector++) sectors.push_back(sector);
    }
    counts.sectors += distinct(sectors);
    counts.least_sectors += (distinct(bytes) + kSectorBytes - 1) / kSectorBytes;
}

void count_shared(const Request& request, SimtCounts& counts) {
    int at_once = static_cast<int>(kBytesAtOnce / request.front().bytes);
    for (int first = 0; first < 32; first += at_once) {
        std::vector<uint64_t> words;
        for (const OfLane& access : request) {
            if (access.lane < first || access.lane >= first + at_once) continue;
            uint64_t first = access.at / kBankBytes;
            for (uint64_t i = 0; i < access.bytes / kBankBytes; i++) words.push_back(first + i);
        }
        if (words.empty()) continue;
        uint64_t n = distinct(words), of_bank[kBanks] = {};
        for (uint64_t i = 0; i < n; i++) of_bank[words[i] % kBanks]++;
        counts.passes += *std::max_element(of_bank, of_bank + kBanks);
        counts.least_passes += (n + kBanks - 1) / kBanks;
    }
}

}  // namespace

void count_accesses(const std::vector<Log>& logs, uint32_t threads, SimtCounts& counts) {
    for (uint32_t warp = 0; warp < threads; warp += 32) {
        std::map<std::pair<const void*, uint32_t>, Request> global, shared;
        for (uint32_t lane = 0; lane < 32; lane++) {
            std::map<const void*, uint32_t> times;
            for (const Access& access : logs[warp + lane]) {
                auto& requests = access.shared ? shared : global;
                requests[{access.site, times[access.site]++}].push_back(
                    {static_cast<int>(lane), access.at, access.bytes}
                );
            }
        }
        for (const auto& request : global) count_global(request.second, counts);
        for (const auto& request : shared) count_shared(request.second, counts);
    }
}

}  // namespace simt
