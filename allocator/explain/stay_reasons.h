// SPDX-License-Identifier: Apache-2.0
// The reason for which one handle, or one block that never leaves, is on the
// device (staying.h): found once for all, then asked for each.
//
// The caller holds the device lock, from the construction to the last question.
// Never fails.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_STAY_REASONS_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_STAY_REASONS_H_

#include <map>
#include <set>
#include <vector>

#include "allocator/explain/staying.h"
#include "allocator/requests/device_parts.h"

namespace stratalloc {

class StayReasons {
 public:
  // `workspaces`: addresses of what torch keeps for its libraries.
  StayReasons(DeviceParts& parts, const std::vector<Address>& workspaces);

  // REQUIRES: the handle is of an evictable segment.
  StayReason Of(HandleRef handle) const;
  // REQUIRES: the block is of another one.
  StayReason Of(const Block& block) const;

 private:
  const bool tiering_;
  std::set<Address> named_;               // the workspaces
  std::set<Address> kept_;                // handles under them
  std::set<const HandleUse*> nowhere_;    // no tier below may have them
  std::set<const HandleUse*> of_graphs_;  // captured graphs read them
  std::map<const HandleUse*, StayReason> pinned_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_STAY_REASONS_H_
