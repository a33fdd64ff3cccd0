// SPDX-License-Identifier: Apache-2.0
// What DeviceAllocator::Malloc is asked for: one block, for whom, and what
// history should remember of the asker.
//
// A plain value: the caller fills it in without any lock held. `context` is
// gathered before the call because gathering may need Python's GIL, which no
// thread may take under the device lock.
#ifndef STRATALLOC_ALLOCATOR_MALLOC_REQUEST_H_
#define STRATALLOC_ALLOCATOR_MALLOC_REQUEST_H_

#include <memory>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/observer.h"

namespace stratalloc {

// Where in the program something happened: the bridge's (a stack of frames),
// opaque here, null while nothing is recorded. Counted; the last reference may
// go under the device lock, so letting go must neither wait nor take the GIL.
using HistoryContext = std::shared_ptr<void>;

struct MallocRequest {
  Bytes size = 0;
  StreamId stream = kDefaultStream;
  LifetimeClass lifetime = LifetimeClass::kTransient;
  Charge charge = {};
  HistoryContext context = {};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MALLOC_REQUEST_H_
