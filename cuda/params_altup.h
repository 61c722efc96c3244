/* Parameters of alternating updates (AltUp) and of gates with a cutoff. Kernels that need them include this
 * file instead of params.h. */
#ifndef STERNA_PARAMS_ALTUP_H
#define STERNA_PARAMS_ALTUP_H

#include "params.h"

/* Threads of a block, and of one that owns a whole row. */
#define ALTUP_THREADS 256
#define ALTUP_ROW_THREADS 512

/* out[j] = x[j] + sum over i of (W tanh(c))[4 j + i] x[i]; y = out[active] */
struct AltUpPredictParams {
    struct StepTables step;
    /* [rows, 4] */
    POINTER(const float) c;
    /* [16, 4] */
    POINTER(const float) w;
    /* [rows, cols] each */
    POINTER(const float) x[4];
    POINTER(float) out[4];
    POINTER(float) y;
    uint32_t cols;
    uint32_t active;
};

/* x[j] = predicted[j] + (1 + (W tanh(c))[j]) (y - predicted[active]); scaled = factors x[active] */
struct AltUpCorrectParams {
    struct StepTables step;
    /* [rows, 4] */
    POINTER(const float) c;
    /* [4, 4] */
    POINTER(const float) w;
    /* [rows, cols] each */
    POINTER(const float) y;
    POINTER(const float) predicted[4];
    POINTER(float) x[4];
    POINTER(float) scaled;
    /* [cols] */
    POINTER(const float) factors;
    uint32_t cols;
    uint32_t active;
};

/* Gives rows of `y` the magnitude of those of `like`; then mean = the mean of all four, unless it is null. */
struct RescaleParams {
    struct StepTables step;
    /* [rows, cols] each */
    POINTER(const float) like;
    POINTER(float) y[3];
    POINTER(float) mean;
    uint32_t cols;
    /* Least mean square of a row of `y`. */
    float floor;
};

/* gate[r] = max(gate[r] - (mean + cutoff * standard deviation of the row), 0) */
struct CutParams {
    struct StepTables step;
    /* [rows, cols] */
    POINTER(float) gate;
    uint32_t cols;
    float cutoff;
};

#endif
