// SPDX-License-Identifier: Apache-2.0
// What DeviceAllocator::Malloc is asked for: one block, and for whom. A plain
// value: the caller fills it in without any lock held. What history should
// remember of the asker comes by the thread (history.h).
#ifndef STRATALLOC_ALLOCATOR_VALUES_MALLOC_REQUEST_H_
#define STRATALLOC_ALLOCATOR_VALUES_MALLOC_REQUEST_H_

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

struct MallocRequest {
  Bytes size = 0;
  StreamId stream = kDefaultStream;
  LifetimeClass lifetime = LifetimeClass::kTransient;
  Charge charge = {};
  // A bare pointer that no operator will name; goes with kTransient. Takes the
  // whole way, since its block is marked.
  bool raw = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_MALLOC_REQUEST_H_
