// Parameters of attention over each layout of a cache.
#pragma once

#include "../params.h"

// The parameters that do not depend on the layout, then those of the cache.
template <class Params, class Cache>
struct OverCache : Params {
    Cache kv;
};

using AttendParams = OverCache<AttendRowsParams, KvParams>;
using AttendCodesParams = OverCache<AttendRowsParams, CodedKvParams>;
using AttendBlocksParams = OverCache<AttendRowsParams, BlockKvParams>;

using AttendMmaParams = OverCache<AttendTilesParams, KvParams>;
using AttendCodesMmaParams = OverCache<AttendTilesParams, CodedKvParams>;
using AttendBlocksMmaParams = OverCache<AttendTilesParams, BlockKvParams>;
