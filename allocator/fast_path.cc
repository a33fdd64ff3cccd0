// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: malloc out of a bin, or else the best fit that is mapped;
// free into a bin (block_bins.h).
//
// Out of a bin and back: one exchange of the lock word, then a few loads and
// additions: a dozen cache lines in all, the lock, the counters and the account
// being shared by every thread of the device. Per-thread lists behind locks of
// their own were weighed: counters are exact at every moment, so every call
// writes shared lines under one lock anyway, and a second lock would be a
// second exchange (README.md, "The fast path").
#include <algorithm>

#include "allocator/base/planted.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/device_allocator.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

constexpr std::uint32_t Bit(SlowReason reason) {
  return static_cast<std::uint32_t>(reason);
}
// Reasons to do more than the least, but none to go the whole way.
constexpr std::uint32_t kOutstanding =
    Bit(SlowReason::kPendingFrees) | Bit(SlowReason::kArrivals);
constexpr std::uint32_t kServedFast =
    kOutstanding | Bit(SlowReason::kHistory) | Bit(SlowReason::kSites);
constexpr std::uint32_t kFreedFast =
    kServedFast | Bit(SlowReason::kScopeLimits);

}  // namespace

inline AllocatedBlock DeviceAllocator::HandedOutLocked(const Block& block,
                                                       Bytes size,
                                                       Charge charge) {
  if (__builtin_expect(p_.live.allocated_bytes() > p_.pressure_at, 0)) {
    MaybeSignalPressureLocked();
  }
  return AnswerLocked(block.address, size, charge);
}

// Apart, so that a malloc out of a bin saves no registers for it.
[[gnu::noinline]] bool DeviceAllocator::FastFitLocked(Pool& pool, Bytes size,
                                                      Bytes requested,
                                                      Charge charge,
                                                      AllocatedBlock* out) {
  Block* block = p_.placement.FindCached(pool, size);
  if (block == nullptr) return false;
  block = p_.blocks.HandOut(block, size, requested, charge);
  *out = HandedOutLocked(*block, block->size, charge);
  return true;
}

bool DeviceAllocator::FastMalloc(Bytes requested, StreamId stream,
                                 LifetimeClass lifetime, Charge charge,
                                 AllocatedBlock* out) {
  // 0 wraps; beyond kMaxRequest rounding could overflow.
  if (requested - 1 >= kMaxRequest - 1) return false;
  const Bytes size = Settings::Get().Round(requested);
  const PoolKind kind = KindOf(size);
  if (!p_.options.tiering) lifetime = LifetimeClass::kTransient;

  MutexLock lock(p_.mutex);
  if ((p_.slow.word() & ~kServedFast) != 0 &&
      ((p_.slow.word() & ~kFreedFast) != 0 || p_.accounts.IsLimited(charge))) {
    return false;
  }
  Pool* pool = p_.heap.RecentPool(stream, lifetime, kind);
  if (pool == nullptr) return false;
  Block* block = pool->bins().Take(size);
  // As every malloc does: what is done by now counts as free before this
  // block counts as handed out. It is out of its bin, so that nothing of this
  // can touch it.
  if (__builtin_expect((p_.slow.word() & kOutstanding) != 0, 0)) {
    if ((p_.slow.word() & Bit(SlowReason::kPendingFrees)) != 0) {
      p_.blocks.Process();
    }
    if ((p_.slow.word() & Bit(SlowReason::kArrivals)) != 0) {
      p_.arrivals.Settle();
    }
  }
  if (__builtin_expect(block == nullptr, 0)) {
    return FastFitLocked(*pool, size, requested, charge, out);
  }
  block->state = BlockState::kAllocated;
  block->requested = requested;
  if (IsEvictable(lifetime)) {
    // In the bin nothing began to leave, or the bin would be empty: the
    // handles are as the last hand-out left them, but for the clock.
    if (block->clock != p_.use_clock.load(std::memory_order_relaxed)) {
      p_.blocks.NoteHandedOut(*block);
    }
    OperatorThread& thread = OperatorThread::ThisThread();
    if (__builtin_expect(thread.KeepsWhatItAllocates(), 0)) {
      p_.blocks.PinForOperator(*block, thread);
    }
  }
  p_.live.HandOut(kind, size, requested);
  if (!(block->charge == charge)) {
    block->charge = charge;
    block->account = p_.accounts.Of(charge);
  }
  p_.blocks.Pay(*block);
  if (__builtin_expect(p_.slow.word() != 0, 0)) p_.blocks.Recall(*block);
  *out = HandedOutLocked(*block, size, charge);
  return true;
}

bool DeviceAllocator::FastFree(Address address, AllocatedBlock* out) {
  MutexLock lock(p_.mutex);
  if ((p_.slow.word() & ~kFreedFast) != 0) return false;
  Block* block = p_.heap.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated ||
      (block->streams_noted && !STRATALLOC_PLANTED(kBinnedInUse))) {
    return false;
  }
  Pool& pool = *block->segment->pool;
  // Something began to leave since the block was handed out: its handles may
  // be away, or have copies that its end makes worthless.
  if (pool.evictable() &&
      (block->epoch != p_.residency.epoch() ||
       p_.residency.changes().noting()) &&
      !STRATALLOC_PLANTED(kBinnedAway)) {
    return false;
  }
  if (!pool.has_bins()) return false;
  if (!pool.bins().Put(block)) {
    if (block->size > BlockBins::kMaxBytes) return false;
    // Full, or a size of the past is in its place: start again.
    p_.blocks.EmptyBins(pool);
    if (!pool.bins().Put(block)) return false;
  }
  if (__builtin_expect(p_.slow.word() != 0, 0) && p_.history.attentive()) {
    if (p_.traces.FreeAtOnce(*block)) p_.blocks.NoteHistory();
  }
  const Bytes size = block->size;
  p_.live.FreeAtOnce(pool.key().kind, size, block->requested);
  p_.blocks.PayBackHere(*block);
  block->requested = 0;
  block->state = BlockState::kBinned;
  *out = AnswerLocked(address, size, block->charge);
  return true;
}

}  // namespace stratalloc
