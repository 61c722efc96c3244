// Changes the logits of a stretch of a row before sampling, as program::Sampling::changed defines.
#pragma once

#include "../params.h"
#include "../simt.h"

constexpr uint32_t NO_TOKEN = 0xffffffffu;

// True if logits of tokens that occurred are lowered.
DEVICE bool penalises(const StepSampling& how) {
    return how.repeat_penalty != 1.0f || how.presence_penalty != 0.0f || how.frequency_penalty != 0.0f;
}

DEVICE float changed(float logit, const TokenChange& by, const StepSampling& how) {
    logit += by.bias;
    if (by.count == 0) return logit;
    logit = logit <= 0.0f ? logit * how.repeat_penalty : logit / how.repeat_penalty;
    return logit - (static_cast<float>(by.count) * how.frequency_penalty + how.presence_penalty);
}

// Shared memory of a block, at offset 0.
struct Changes {
    TokenChange of_stretch[SAMPLE_CHANGES + 1];
    uint32_t n;
    // True if the newest token is in the list of changes.
    uint32_t has_newest;
};
static_assert(sizeof(Changes) <= SAMPLE_SHARED_BYTES, "the host asks for less");
static_assert(SAMPLE_CHANGES <= SAMPLE_THREADS, "a thread brings a change");

// Changes the logits of the stretch that starts at id `first`; a thread holds the ids first + threadIdx.x,
// first + threadIdx.x + SAMPLE_THREADS, ... `changes` is the row's list of `how.changes` entries without
// duplicate tokens. If `newest` is a token, it occurred once more than the list counts. All threads call it;
// shared memory is free again after the next barrier.
template <uint32_t kOwn>
DEVICE void change_logits(
    float (&own)[kOwn], uint32_t first, const StepSampling& how, const TokenChange* changes, uint32_t newest
) {
    Changes& shared = *reinterpret_cast<Changes*>(shared_memory());
    if (threadIdx.x == 0) shared.n = shared.has_newest = 0;
    __syncthreads();
    if (threadIdx.x < how.changes) {
        TokenChange change = changes[threadIdx.x];
        if (change.token == newest) {
            change.count++;
            shared.has_newest = 1;
        }
        if (change.token - first < SAMPLE_STRETCH) shared.of_stretch[atomicAdd(&shared.n, 1u)] = change;
    }
    __syncthreads();
    if (threadIdx.x == 0 && !shared.has_newest && newest - first < SAMPLE_STRETCH) {
        shared.of_stretch[shared.n++] = {newest, 1, 0.0f, 0};
    }
    __syncthreads();
    for (uint32_t i = 0; i < shared.n; i++) {
        const TokenChange& change = shared.of_stretch[i];
        uint32_t at = change.token - first;
        if (at % SAMPLE_THREADS != threadIdx.x) continue;
#pragma unroll
        for (uint32_t j = 0; j < kOwn; j++) {
            if (at / SAMPLE_THREADS == j) own[j] = changed(own[j], change, how);
        }
    }
}
