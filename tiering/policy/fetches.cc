// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/fetches.h"

#include <algorithm>
#include <utility>

namespace stratalloc {

std::vector<Address> Fetches::Next(const Timeline& timeline,
                                   const Limits& limits,
                                   const std::function<State(Address)>& state) {
  std::vector<Address> fetched;
  if (!timeline.HasFuture()) return fetched;
  states_.clear();
  leaving_.assign(std::max<std::size_t>(limits.delay, 1), 0);
  // `room` after the uses looked at, and the least of it up to there.
  std::int64_t room = static_cast<std::int64_t>(limits.room), least = room;
  Bytes bytes = 0;
  const std::uint64_t uses =
      std::min<std::uint64_t>(timeline.Length(), limits.uses);
  for (std::uint64_t i = 0; i < uses && least > 0; ++i) {
    std::int64_t& leaving = leaving_[i % leaving_.size()];
    room += std::exchange(leaving, 0);
    const PageUse use = timeline.Expected(i);
    auto [it, is_new] = states_.try_emplace(use.page);
    State& page = it->second;
    if (is_new) page = state(use.page);
    const auto size = static_cast<std::int64_t>(page.bytes);
    // It takes room, whatever the page that had its place before does now. A
    // dead page that is mapped may serve it, or be taken for another page.
    if (use.made) page.where = Where::kFree;
    if (use.freed) {
      if (page.where == Where::kResident) leaving += size;
      page.where = Where::kFree;
      continue;
    }
    if (page.where != Where::kResident) {
      // A page that leaves before is evicted then, and cannot be fetched yet.
      if (is_new && page.where == Where::kEvicted) {
        if (size > least || bytes + page.bytes > limits.bytes) break;
        fetched.push_back(use.page);
        bytes += page.bytes;
        least -= size;
      }
      room -= size;
      least = std::min(least, room);
      page.where = Where::kResident;
    }
    if (use.leaves) {
      leaving += size;
      page.where = Where::kEvicted;
    }
  }
  return fetched;
}

}  // namespace stratalloc
