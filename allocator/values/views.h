// SPDX-License-Identifier: Apache-2.0
// What the allocator tells of its memory: copies, true when they were made
// under the device lock, and the caller's from then on.
#ifndef STRATALLOC_ALLOCATOR_VALUES_VIEWS_H_
#define STRATALLOC_ALLOCATOR_VALUES_VIEWS_H_

#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/values/block_state.h"
#include "allocator/values/charge_account.h"
#include "allocator/values/pool_id.h"
#include "allocator/values/size_rules.h"
#include "allocator/values/trace_event.h"

namespace stratalloc {

// What a malloc or a free answers.
struct AllocatedBlock {
  Address address = 0;
  Bytes bytes = 0;            // rounded
  Bytes allocated_bytes = 0;  // of the device, afterwards
  Bytes reserved_bytes = 0;
  Charge charge;
};

struct BlockView {
  Address address;
  Bytes bytes, requested;
  BlockState state;
  Charge charge;
  HistoryContext context = {};
  FrameId open_frame = 0;  // on whose end it is no more temporary
};

// One contiguous range of memory on the device, for snapshots.
struct SegmentView {
  Address address = 0;
  bool unmanaged = false;  // does not grow or shrink
  Bytes bytes = 0;
  StreamId stream = kDefaultStream;
  PoolKind kind = PoolKind::kSmall;
  PoolId owner;  // the private pool, if any
  HistoryContext context;
  std::vector<BlockView> blocks;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_VIEWS_H_
