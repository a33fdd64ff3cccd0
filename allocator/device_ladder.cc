// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: the climb, and what the rungs of the ladder ask of it.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/device_allocator.h"
#include "allocator/ladder/ladder.h"
#include "allocator/ladder/ladder_device.h"
#include "allocator/state/settings.h"

namespace stratalloc {

class DeviceAllocator::ForLadder final : public LadderDevice {
 public:
  explicit ForLadder(DeviceAllocator& device) : device_(device) {}

  // ---- searches -----------------------------------------------------------

  bool Search(MallocAttempt& attempt, Reach reach) override {
    MutexLock lock(device_.p_.mutex);
    return ServeLocked(attempt, TryLocked(attempt, LimitLocked(reach)));
  }

  bool SearchFirst(MallocAttempt& attempt) override {
    MutexLock lock(device_.p_.mutex);
    if (device_.p_.routes.MayRoute()) FollowRouteLocked(attempt);
    if (attempt.key.owner.is_private()) {
      attempt.key.lifetime = LifetimeClass::kTransient;  // never evicted
    }
    device_.p_.blocks.Process();
    device_.p_.arrivals.Settle();
    if (!AdmitLocked(attempt, attempt.size))
      return ServeLocked(attempt, nullptr);
    if (attempt.key.kind == PoolKind::kLarge) device_.p_.unmanaged.NoteSearch();
    Block* block = TryLocked(attempt, LimitLocked(Reach::kCached));
    if (block != nullptr) device_.MaybeSignalPressureLocked();
    return ServeLocked(attempt, block);
  }

  bool Grow(MallocAttempt& attempt) override {
    MutexLock lock(device_.p_.mutex);
    Bytes limit = LimitLocked(attempt.reach());
    if (const double threshold = Settings::Get().collection_threshold();
        threshold > 0 && device_.p_.limit.fraction() < 1.0) {
      const auto hard_limit = static_cast<double>(device_.p_.limit.Now());
      limit = std::min(limit, static_cast<Bytes>(threshold * hard_limit));
    }
    Block* block = TryLocked(attempt, limit);
    if (block != nullptr) device_.MaybeSignalPressureLocked();
    return ServeLocked(attempt, block);
  }

  bool SearchReleased(MallocAttempt& attempt, bool collected) override {
    MutexLock lock(device_.p_.mutex);
    Block* block = TryLocked(attempt, LimitLocked(attempt.reach()));
    if (block != nullptr && collected && !device_.p_.captures.UnderWay()) {
      device_.p_.pages.ReleaseFree(device_.p_.captures.AskStreams());
    }
    return ServeLocked(attempt, block);
  }

  bool SearchBeyondEmergency(MallocAttempt& attempt) override {
    MutexLock lock(device_.p_.mutex);
    Block* block = TryLocked(attempt, LimitLocked(Reach::kEmergency));
    if (block == nullptr) {
      block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    }
    return ServeLocked(attempt, block);
  }

  bool SearchAgain(MallocAttempt& attempt, bool is_retry) override {
    MutexLock lock(device_.p_.mutex);
    if (is_retry) CountRetryLocked(attempt);
    Block* block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    if (block != nullptr) CountRetryLocked(attempt);
    return ServeLocked(attempt, block);
  }

  std::uint64_t Releases() override {
    MutexLock lock(device_.p_.mutex);
    return device_.waits_.releases();
  }

  bool SearchAfterReleases(MallocAttempt& attempt, std::uint64_t seen,
                           bool* came_free) override {
    MutexLock lock(device_.p_.mutex);
    device_.waits_.AwaitReleases();
    Block* block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    *came_free = device_.waits_.releases() != seen;
    return ServeLocked(attempt, block);
  }

  // ---- memory -------------------------------------------------------------

  bool FetchUnmanaged(MallocAttempt& attempt) override {
    UnmanagedSegments::Fetch
        fetch;  // its source may end with it: after the lock
    {
      MutexLock lock(device_.p_.mutex);
      fetch = device_.p_.unmanaged.BeginFetch(attempt.key, attempt.size);
    }
    if (fetch.source == nullptr) return false;
    Result<Address> address = fetch.Ask();
    if (IsNoMemory(address) && ReleaseFree() > 0) address = fetch.Ask();
    MutexLock lock(device_.p_.mutex);
    if (address) {
      Pool& pool = device_.p_.placement.PoolOf(attempt.key);
      Block* const block = device_.p_.unmanaged.Add(pool, fetch, *address);
      return ServeLocked(attempt, HandOutLocked(attempt, block));
    }
    device_.p_.unmanaged.EndFetch(fetch);
    if (IsNoMemory(address)) return false;
    attempt.failed = address.error();
    return attempt.EndFailed();
  }

  bool IsUnmanaged(const PoolKey& key) override {
    MutexLock lock(device_.p_.mutex);
    return device_.p_.unmanaged.IsCudaMalloc(key);
  }

  bool Borrow(MallocAttempt& attempt) override {
    MutexLock lock(device_.p_.mutex);
    Block* block = device_.p_.placement.Borrow(attempt.key, attempt.size);
    return block != nullptr &&
           ServeLocked(attempt, HandOutLocked(attempt, block));
  }

  void CollectOld() override {
    std::vector<std::unique_ptr<UnmanagedMemory>>
        old;  // destroyed after the lock
    MutexLock lock(device_.p_.mutex);
    device_.p_.slow.Set(SlowReason::kCollection,
                        device_.p_.unmanaged.CollectsOld());
    const Bytes wanted = device_.p_.unmanaged.AboveThreshold();
    if (wanted == 0 || device_.p_.captures.UnderWay()) return;
    device_.p_.blocks.EmptyBins();
    for (HandleRef handle : device_.p_.unmanaged.Old(wanted)) {
      // cudaFree waits for whoever may still use it.
      device_.p_.free_handles.GiveUp({handle}, /*fenced=*/true);
    }
    old = device_.p_.unmanaged.TakeEmpty();
  }

  Bytes AboveCollectionThreshold(Bytes size) override {
    return device_.AboveCollectionThreshold(size);
  }

  bool HasCollectionThreshold() override {
    return Settings::Get().collection_threshold() > 0;
  }

  Bytes ReleaseCached(Bytes wanted, PoolId only) override {
    return device_.waits_.ReleaseCached(wanted, only);
  }

  bool MayMove(PoolId owner) override {
    MutexLock lock(device_.p_.mutex);
    const PrivatePool* const own = device_.p_.private_pools.Find(owner);
    return own != nullptr && !own->addresses_kept;
  }

  void SynchronizePendingFrees() override {
    // What could not be waited for stays pending.
    (void)device_.waits_.SynchronizePendingFrees();
  }

  bool FreeMemory() override { return Settings::Get().FreeMemory(); }

  bool CouldHold(Bytes size) override { return device_.CouldHold(size); }

  bool CannotFit(Bytes size) override { return device_.CannotFit(size); }

  Address FindAwaySpace(const MallocAttempt& attempt) override {
    MutexLock lock(device_.p_.mutex);
    return device_.p_.residency.FindAwaySpace(
        device_.p_.placement.PoolOf(attempt.key),
        device_.p_.table.region(/*evictable=*/true, attempt.key.kind),
        attempt.size);
  }

  Error Refuse(MallocAttempt& attempt, bool fits_nowhere) override {
    Error refused = device_.OutOfMemory(attempt.requested, fits_nowhere);
    if (attempt.captured) {
      device_.reclaimer_->NotePressure(device_.p_.device.index());
    }
    MutexLock lock(device_.p_.mutex);
    CountRetryLocked(attempt);
    if (refused.code != ErrorCode::kOutOfMemory) return refused;
    if (IsRejectedLocked(attempt)) {
      refused.code = ErrorCode::kRejected;
      ++device_.p_.stats.num_oom_rejections;
    } else {
      ++device_.p_.stats.num_ooms;
    }
    return refused;
  }

  // ---- the Reclaimer --------------------------------------------------------

  // A capture that waits for this thread must not wait for those behind whom
  // it would queue, and who wait for the capture's end.
  bool IsCrowded() override {
    return device_.reclaimer_->IsCrowded() && !device_.MayCapture();
  }

  bool UnderPressure() override {
    return device_.reclaimer_->UnderPressure(device_.p_.device.index());
  }

  bool RestoreSpace(Address away) override {
    return device_.reclaimer_->RestoreSpace(device_.p_.device.index(), away);
  }

  void ReclaimCold(Bytes bytes) override {
    device_.reclaimer_->ReclaimCold(device_.p_.device.index(), bytes);
  }

  bool Reclaim(MemoryRequest& request) override {
    return device_.reclaimer_->Reclaim(device_.p_.device.index(), request);
  }

 private:
  static bool IsNoMemory(const Result<Address>& answer) {
    return !answer && answer.error().code == ErrorCode::kOutOfMemory;
  }
  // What is free here the driver has not.
  Bytes ReleaseFree() EXCLUDES(device_.p_.mutex) {
    MutexLock lock(device_.p_.mutex);
    if (device_.p_.captures.UnderWay()) return 0;
    return device_.p_.pages.ReleaseFree(device_.p_.captures.AskStreams());
  }
  // Native asks after the fraction that was set, which is an out of memory, and
  // before the driver. Here everything that could make room was tried first.
  bool IsRejectedLocked(const MallocAttempt& attempt) const
      REQUIRES(device_.p_.mutex) {
    const double share = Settings::Get().rejection_share();
    if (share <= 0) return false;
    const Bytes wanted =
        static_cast<Bytes>(device_.p_.stats.reserved_bytes.stats[0].current) +
        attempt.size;
    return wanted > device_.p_.limit.Share(share) &&
           (device_.p_.limit.fraction() >= 1.0 ||
            wanted <= device_.p_.limit.Share(device_.p_.limit.fraction()));
  }
  Bytes LimitLocked(Reach reach) const REQUIRES(device_.p_.mutex) {
    if (reach == Reach::kCached) return 0;
    const Bytes limit = device_.p_.limit.Now();
    if (reach == Reach::kLimit) return limit;
    return static_cast<Bytes>(static_cast<double>(limit) *
                              device_.p_.options.emergency_threshold);
  }

  // A block that is handed out, or nullptr, and then why.
  Block* TryLocked(MallocAttempt& attempt, Bytes limit)
      REQUIRES(device_.p_.mutex) {
    Placement::Found found = device_.p_.placement.Search(
        device_.p_.placement.PoolOf(attempt.key), attempt.size, limit);
    attempt.lacking = found.lacking;
    if (found.block != nullptr) return HandOutLocked(attempt, found.block);
    attempt.failed = std::move(found.error);
    return nullptr;
  }

  // May its scope own so much? Asked first, so that nothing leaves for what is
  // refused, and where it is charged, because others may have come between.
  bool AdmitLocked(MallocAttempt& attempt, Bytes size)
      REQUIRES(device_.p_.mutex) {
    if (attempt.forbidden) return false;
    Status admitted = device_.p_.accounts.Admit(attempt.charge, size);
    if (admitted) return true;
    attempt.forbidden = std::move(admitted).error();
    ++device_.p_.stats.num_ooms;
    return false;
  }

  Block* HandOutLocked(MallocAttempt& attempt, Block* block)
      REQUIRES(device_.p_.mutex) {
    if (!AdmitLocked(attempt,
                     device_.p_.blocks.HandedOutOf(*block, attempt.size))) {
      return nullptr;
    }
    return device_.p_.blocks.HandOut(block, attempt.size, attempt.requested,
                                     attempt.charge);
  }

  // A block that was handed out is the answer, and so is that it may not be;
  // false without either.
  bool ServeLocked(MallocAttempt& attempt, Block* block)
      REQUIRES(device_.p_.mutex) {
    if (attempt.forbidden) {
      attempt.answer = tl::unexpected(*attempt.forbidden);
      return true;
    }
    if (block == nullptr) return false;
    if (attempt.raw) block->raw = block->streams_noted = true;
    attempt.answer =
        device_.AnswerLocked(block->address, block->size, attempt.charge);
    return true;
  }

  // Once, whichever rung serves it.
  void CountRetryLocked(MallocAttempt& attempt) REQUIRES(device_.p_.mutex) {
    if (!std::exchange(attempt.retried, true)) {
      ++device_.p_.stats.num_alloc_retries;
    }
  }

  // To the private pool that its stream is routed to. While a stream captures
  // nothing is evicted, and the pool's addresses are a graph's. Who captures
  // would wait for itself; whoever else lacks memory waits for the end of that.
  void FollowRouteLocked(MallocAttempt& attempt) REQUIRES(device_.p_.mutex) {
    attempt.key.owner = device_.p_.captures.RouteOf(attempt.key.stream);
    device_.p_.captures.Settle();
    // Captures::UnderWay asks it.
    device_.p_.private_pools.NoteStream(attempt.key.stream);
    if (!device_.p_.captures.UnderWay()) return;
    if (device_.p_.captures.IsHere(attempt.key.stream)) {
      attempt.captured = std::exchange(attempt.may_reclaim, false);
    }
    if (PrivatePool* const own =
            device_.p_.private_pools.Find(attempt.key.owner)) {
      own->addresses_kept = true;
    }
  }

  DeviceAllocator& device_;
};

Result<AllocatedBlock> DeviceAllocator::ClimbLadder(
    const MallocRequest& request) {
  STRATALLOC_CHECK(request.size > 0, "Malloc of nothing");
  if (request.size >= kMaxRequest) {
    return tl::unexpected(OutOfMemory(request.size));
  }
  MallocAttempt attempt;
  attempt.requested = request.size;
  attempt.size = Settings::Get().Round(request.size);
  attempt.key = {request.stream, request.lifetime, KindOf(attempt.size)};
  // Without tiering nothing is ever away, so the classes may share handles.
  if (!p_.options.tiering) attempt.key.lifetime = LifetimeClass::kTransient;
  attempt.charge = request.charge;
  attempt.raw = request.raw;
  attempt.nested = OperatorThread::ThisThread().in_ladder;
  attempt.all_unmanaged = p_.unmanaged.has_all();
  attempt.may_reclaim = Asked() != nullptr && !attempt.nested;
  attempt.lacking = attempt.size;
  ForLadder device(*this);
  return Climb(attempt, device);
}

}  // namespace stratalloc
