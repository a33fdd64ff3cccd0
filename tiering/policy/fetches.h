// SPDX-License-Identifier: Apache-2.0
// The evicted pages that can be fetched now, in the expected order of use.
//
// A page that is fetched early takes room from now on. So it is fetched only
// if room is left at every point up to its use: for the pages that come back
// before it, for pages that are created, and behind those that leave. A page
// that leaves makes room `delay` uses later, because an operator needs all of
// its pages at once: the pages of the largest operator are a good delay.
//
// Thread-safety: none; the caller's lock over the timeline.
// Errors: none. Without a future nothing is fetched.
#ifndef STRATALLOC_TIERING_POLICY_FETCHES_H_
#define STRATALLOC_TIERING_POLICY_FETCHES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "allocator/base/bytes.h"
#include "tiering/policy/timeline.h"

namespace stratalloc {

class Fetches {
 public:
  enum class Where : std::uint8_t {
    kResident,  // or on its way in
    kEvicted,
    kFree,  // no block is on it: the next use creates it
  };
  struct State {
    Where where = Where::kFree;
    Bytes bytes = 0;
  };
  struct Limits {
    Bytes room = 0;                      // that is free now
    std::size_t delay = 1;               // uses
    std::size_t uses = ~std::size_t{0};  // to look ahead at most
    Bytes bytes = ~Bytes{0};             // to fetch at most
  };

  // Pages in the order in which they should be fetched. `state` is asked once
  // per page. O(1) per use that is looked at; it stops where no room is left,
  // at a limit, or after Length() uses.
  std::vector<Address> Next(const Timeline& timeline, const Limits& limits,
                            const std::function<State(Address)>& state);

 private:
  std::unordered_map<Address, State> states_;  // kept for its memory
  std::vector<std::int64_t> leaving_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_FETCHES_H_
