// SPDX-License-Identifier: Apache-2.0
#include "tests/system/planner/scope_trace.h"

#include <unordered_set>
#include <utility>

namespace stratalloc {

void ScopeTrace::Learn(Step step, std::vector<Address> used, Step next) {
  Learned& learned = steps_[step];
  learned.used = std::move(used);
  learned.next = next;
}

std::vector<Address> ScopeTrace::Expect(Step step, std::size_t max_handles,
                                        std::size_t max_steps) const {
  std::vector<Address> expected;
  std::unordered_set<Address> seen;
  for (std::size_t i = 0; i < max_steps && step != kNoStep; ++i) {
    auto it = steps_.find(step);
    if (it == steps_.end()) break;
    for (Address handle : it->second.used) {
      if (!seen.insert(handle).second) continue;
      expected.push_back(handle);
      if (expected.size() >= max_handles) return expected;
    }
    step = it->second.next;
  }
  return expected;
}

}  // namespace stratalloc
