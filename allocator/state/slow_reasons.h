// SPDX-License-Identifier: Apache-2.0
// Why malloc and free may not take the fast path just now: one word per
// device, tested once per call.
//
// A feature that must see every block (history, a private pool's filter, ...)
// or that changes how a block is found or given back sets its bit for as long
// as it is on. Word and fast path are under the device lock, so no call that
// missed the bit is under way when the lock is next free. With a bit of the
// last group set, Malloc and Free run whole. The first four only cost more on
// the way: the fast path looks after what is outstanding and records, and
// otherwise goes on.
//
// Device lock for everything here.
#ifndef STRATALLOC_ALLOCATOR_STATE_SLOW_REASONS_H_
#define STRATALLOC_ALLOCATOR_STATE_SLOW_REASONS_H_

#include <cstdint>

namespace stratalloc {

enum class SlowReason : std::uint32_t {
  kPendingFrees = 1u << 0,  // blocks wait for events of other streams
  kArrivals = 1u << 1,      // restores wait for their copies
  kHistory = 1u << 2,       // every allocation and free is recorded
  kSites = 1u << 3,         // a block keeps the line that asked for it

  kPoolFilter = 1u << 4,  // allocations may go to a private pool; capture
  kCollection = 1u << 5,  // garbage collection ages free blocks
  // Some scopes' bytes are limited: their mallocs run whole; frees do not.
  kScopeLimits = 1u << 6,
};

class SlowReasons {
 public:
  std::uint32_t word() const { return word_; }
  bool Has(SlowReason reason) const {
    return (word_ & static_cast<std::uint32_t>(reason)) != 0;
  }
  // The same reason is set by one owner only: it is a bit, not a count.
  void Set(SlowReason reason, bool on) {
    const auto bit = static_cast<std::uint32_t>(reason);
    word_ = on ? word_ | bit : word_ & ~bit;
  }

 private:
  std::uint32_t word_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_SLOW_REASONS_H_
