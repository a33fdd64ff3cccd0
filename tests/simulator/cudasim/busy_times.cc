// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/busy_times.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace cudasim {
namespace {

// What is left for an operation in any case.
constexpr double kLeastShare = 0.1;

// Sums of doubles that are whole but for rounding stay so.
VirtualNs RoundedUp(double ns) {
  return static_cast<VirtualNs>(std::ceil(ns - 1e-6));
}

}  // namespace

BusyTimes::Intervals::const_iterator BusyTimes::EndingAfter(
    VirtualNs at) const {
  auto next = busy_.upper_bound(at);
  if (next != busy_.begin() && std::prev(next)->second.end > at) --next;
  return next;
}

VirtualNs BusyTimes::EndOf(VirtualNs start, VirtualNs length,
                           const Shared& shared) {
  if (shared.other == nullptr) return start + length;
  const Intervals& others = shared.other->busy_;
  VirtualNs at = start;
  double left = static_cast<double>(length);
  for (auto one = shared.other->EndingAfter(start); one != others.end();
       ++one) {
    const auto alone = static_cast<double>(one->first - at);
    if (alone >= left) break;
    left -= std::max(alone, 0.0);
    at = std::max(at, one->first);
    const double share =
        std::clamp((shared.both_rates - one->second.rate) / shared.own_rate,
                   kLeastShare, 1.0);
    const double done = share * static_cast<double>(one->second.end - at);
    if (done >= left) return at + RoundedUp(left / share);
    left -= done;
    at = one->second.end;
  }
  return at + RoundedUp(left);
}

BusyTimes::Placed BusyTimes::Place(VirtualNs earliest, VirtualNs length,
                                   const Shared& shared) {
  if (length <= 0) return {earliest, earliest};
  Placed placed{earliest, EndOf(earliest, length, shared)};
  for (auto next = EndingAfter(earliest);
       next != busy_.end() && next->first < placed.end; ++next) {
    placed.start = next->second.end;
    placed.end = EndOf(placed.start, length, shared);
  }
  Add(placed.start, placed.end, shared.own_rate);
  return placed;
}

VirtualNs BusyTimes::FirstFit(VirtualNs earliest, VirtualNs length) const {
  VirtualNs start = earliest;
  for (auto next = EndingAfter(earliest);
       next != busy_.end() && next->first < start + length; ++next) {
    start = next->second.end;
  }
  return start;
}

BusyTimes::Displaced BusyTimes::Displace(std::vector<Placed>* spans) const {
  Displaced found;
  std::vector<Placed> left;
  for (Placed span : *spans) {
    for (auto one = EndingAfter(span.start);
         one != busy_.end() && one->first < span.end; ++one) {
      const VirtualNs from = std::max(one->first, span.start);
      const VirtualNs to = std::min(one->second.end, span.end);
      if (from > span.start) left.push_back({span.start, from});
      span.start = to;
      found.length += to - from;
      found.end = one->second.end;
    }
    if (span.start < span.end) left.push_back(span);
  }
  *spans = std::move(left);
  return found;
}

void BusyTimes::Add(VirtualNs start, VirtualNs end, double rate) {
  auto next = busy_.lower_bound(start);
  if (next != busy_.end() && next->first == end && next->second.rate == rate) {
    end = next->second.end;
    next = busy_.erase(next);
  }
  if (next != busy_.begin()) {
    Until& before = std::prev(next)->second;
    if (before.end == start && before.rate == rate) {
      before.end = end;
      return;
    }
  }
  busy_.emplace_hint(next, start, Until{end, rate});
}

void BusyTimes::Forget(VirtualNs now) {
  while (!busy_.empty() && busy_.begin()->second.end <= now) {
    busy_.erase(busy_.begin());
  }
}

}  // namespace cudasim
