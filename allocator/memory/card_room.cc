// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/card_room.h"

#include <algorithm>

namespace stratalloc {
namespace {

constexpr Bytes kHeadroomFraction = 64;
constexpr Bytes kMostHeadroom = 512 * kMiB;

}  // namespace

Bytes CardRoom::HeadroomOf(Bytes capacity, Bytes granularity) {
  if (granularity == 0) return 0;
  return RoundDown(std::min(capacity / kHeadroomFraction, kMostHeadroom),
                   granularity);
}

bool CardRoom::IsDue(bool refused) {
  const bool first = most_ == ~Bytes{0};
  return ++needs_ >= kLookEvery || refused || first || taken_;
}

void CardRoom::Look(Bytes ours, Bytes free) {
  most_ = ours + free;
  taken_ = false;
  needs_ = 0;
}

Bytes CardRoom::Room() const {
  if (taken_ || most_ == ~Bytes{0}) return most_;
  return most_ - std::min(most_, headroom_);
}

bool CardRoom::Take() {
  if (Room() == most_) return false;
  taken_ = true;
  return true;
}

}  // namespace stratalloc
