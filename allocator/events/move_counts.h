// SPDX-License-Identifier: Apache-2.0
// What has moved between the tiers of one device, and how long it was waited
// for: counted whether or not events are recorded (move_events.h tells both).
// Whoever shows them to people over time takes them from here.
//
// Thread-safety: any thread. Locks: kMoves by Moved(), a leaf. Each number is
// whole and only grows, but for On(); they add up at quiescent points. Nothing
// here fails. Lifetime: the device's. From its opening on. Equation: On(tier) =
// bytes that moved to it, less those that moved from it or were dropped there;
// of whole handles.
#ifndef STRATALLOC_ALLOCATOR_EVENTS_MOVE_COUNTS_H_
#define STRATALLOC_ALLOCATOR_EVENTS_MOVE_COUNTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/events/covered_time.h"

namespace stratalloc {

class MoveCounts {
 public:
  struct Way {
    std::uint64_t moves = 0;
    Bytes bytes = 0;
    std::uint64_t ns = 0;  // in which at least one of them was under way
  };

  // `began`, `ended`: NowNs(), of the batch that it was in and of now.
  void Moved(Bytes bytes, TierId from, TierId to, std::int64_t began,
             std::int64_t ended) {
    Counted& way = ways_[Index(from)][Index(to)];
    Add(way.moves, 1);
    Add(way.bytes, bytes);
    way.time.Add(began, ended);
    Add(on_[Index(to)], bytes);
    Add(on_[Index(from)], -bytes);
  }
  void Dropped(Bytes bytes, TierId tier) { Add(on_[Index(tier)], -bytes); }
  void Stalled(std::uint64_t ns) {
    Add(stalls_, 1);
    Add(stall_ns_, ns);
  }
  void Late() { Add(late_, 1); }

  Way Of(TierId from, TierId to) const {
    const Counted& way = ways_[Index(from)][Index(to)];
    return {Read(way.moves), Read(way.bytes), way.time.ns()};
  }
  // REQUIRES: tier is not kDevice, to which more comes than what moves.
  Bytes On(TierId tier) const { return Read(on_[Index(tier)]); }
  std::uint64_t stalls() const { return Read(stalls_); }
  std::uint64_t stall_ns() const { return Read(stall_ns_); }
  // Restores that were asked for ahead and waited for.
  std::uint64_t late() const { return Read(late_); }

 private:
  using Number = std::atomic<std::uint64_t>;
  struct Counted {
    Number moves{0}, bytes{0};
    CoveredTime time;
  };

  static std::size_t Index(TierId tier) {
    return static_cast<std::size_t>(tier);
  }
  // relaxed: nobody concludes anything from one number about another.
  static void Add(Number& to, std::uint64_t n) {
    to.fetch_add(n, std::memory_order_relaxed);
  }
  static std::uint64_t Read(const Number& from) {
    return from.load(std::memory_order_relaxed);
  }

  std::array<std::array<Counted, kTiers>, kTiers> ways_{};
  std::array<Number, kTiers> on_{};
  Number stalls_{0}, stall_ns_{0}, late_{0};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EVENTS_MOVE_COUNTS_H_
