// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: the climb, and what the rungs of the ladder ask of it.
#include "allocator/ladder_device.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/device_allocator.h"
#include "allocator/ladder.h"
#include "allocator/operator_thread.h"
#include "allocator/settings.h"

namespace stratalloc {

class DeviceAllocator::ForLadder final : public LadderDevice {
 public:
  explicit ForLadder(DeviceAllocator& device) : device_(device) {}

  // ---- searches -----------------------------------------------------------

  bool Search(MallocAttempt& attempt, Reach reach) override {
    MutexLock lock(device_.mutex_);
    return ServeLocked(attempt, TryLocked(attempt, LimitLocked(reach)));
  }

  bool SearchFirst(MallocAttempt& attempt) override {
    MutexLock lock(device_.mutex_);
    if (device_.routes_.MayRoute()) FollowRouteLocked(attempt);
    if (attempt.key.owner.is_private()) {
      attempt.key.lifetime = LifetimeClass::kTransient;  // never evicted
    }
    device_.blocks_.Process();
    device_.SettleArrivalsLocked();
    if (attempt.key.kind == PoolKind::kLarge) device_.plain_.NoteSearch();
    Block* block = TryLocked(attempt, LimitLocked(Reach::kCached));
    if (block != nullptr) device_.MaybeSignalPressureLocked();
    return ServeLocked(attempt, block);
  }

  bool Grow(MallocAttempt& attempt) override {
    MutexLock lock(device_.mutex_);
    Bytes limit = LimitLocked(attempt.reach());
    if (const double threshold = Settings::Get().collection_threshold();
        threshold > 0 && device_.limit_.fraction() < 1.0) {
      const auto hard_limit = static_cast<double>(device_.limit_.Now());
      limit = std::min(limit, static_cast<Bytes>(threshold * hard_limit));
    }
    Block* block = TryLocked(attempt, limit);
    if (block != nullptr) device_.MaybeSignalPressureLocked();
    return ServeLocked(attempt, block);
  }

  bool SearchReleased(MallocAttempt& attempt, bool collected) override {
    MutexLock lock(device_.mutex_);
    Block* block = TryLocked(attempt, LimitLocked(attempt.reach()));
    if (block != nullptr && collected && !device_.captures_.UnderWay()) {
      device_.pages_.ReleaseFree(device_.captures_.AskStreams());
    }
    return ServeLocked(attempt, block);
  }

  bool SearchBeyondEmergency(MallocAttempt& attempt) override {
    MutexLock lock(device_.mutex_);
    Block* block = TryLocked(attempt, LimitLocked(Reach::kEmergency));
    if (block == nullptr) {
      block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    }
    return ServeLocked(attempt, block);
  }

  bool SearchAgain(MallocAttempt& attempt, bool is_retry) override {
    MutexLock lock(device_.mutex_);
    if (is_retry) CountRetryLocked(attempt);
    Block* block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    if (block != nullptr) CountRetryLocked(attempt);
    return ServeLocked(attempt, block);
  }

  std::uint64_t Releases() override {
    MutexLock lock(device_.mutex_);
    return device_.releases_;
  }

  bool SearchAfterReleases(MallocAttempt& attempt, std::uint64_t seen,
                           bool* came_free) override {
    MutexLock lock(device_.mutex_);
    while (device_.releasing_ > 0) device_.released_.Wait(device_.mutex_);
    Block* block = TryLocked(attempt, LimitLocked(Reach::kLimit));
    *came_free = device_.releases_ != seen;
    return ServeLocked(attempt, block);
  }

  // ---- memory -------------------------------------------------------------

  bool FetchPlain(MallocAttempt& attempt) override {
    PlainSegments::Fetch fetch;  // its source may end with it: after the lock
    {
      MutexLock lock(device_.mutex_);
      fetch = device_.plain_.BeginFetch(attempt.key, attempt.size);
    }
    if (fetch.source == nullptr) return false;
    Result<Address> address = fetch.Ask();
    if (IsNoMemory(address) && ReleaseFree() > 0) address = fetch.Ask();
    MutexLock lock(device_.mutex_);
    if (address) {
      Pool& pool = device_.placement_.PoolOf(attempt.key);
      Block* const block = device_.plain_.Add(pool, fetch, *address);
      return ServeLocked(attempt, HandOutLocked(attempt, block));
    }
    device_.plain_.EndFetch(fetch);
    if (IsNoMemory(address)) return false;
    attempt.failed = address.error();
    return attempt.EndFailed();
  }

  bool IsPlain(const PoolKey& key) override {
    MutexLock lock(device_.mutex_);
    return device_.plain_.IsCudaMalloc(key);
  }

  bool Borrow(MallocAttempt& attempt) override {
    MutexLock lock(device_.mutex_);
    Block* block = device_.placement_.Borrow(attempt.key, attempt.size);
    return block != nullptr &&
           ServeLocked(attempt, HandOutLocked(attempt, block));
  }

  void CollectOld() override {
    std::vector<std::unique_ptr<PlainMemory>> old;  // destroyed after the lock
    MutexLock lock(device_.mutex_);
    device_.slow_.Set(SlowReason::kCollection, device_.plain_.CollectsOld());
    const Bytes wanted = device_.plain_.AboveThreshold();
    if (wanted == 0 || device_.captures_.UnderWay()) return;
    device_.blocks_.EmptyBins();
    for (HandleRef handle : device_.plain_.Old(wanted)) {
      // cudaFree waits for whoever may still use it.
      device_.free_handles_.GiveUp({handle}, /*fenced=*/true);
    }
    old = device_.plain_.TakeEmpty();
  }

  Bytes AboveCollectionThreshold(Bytes size) override {
    return device_.AboveCollectionThreshold(size);
  }

  bool HasCollectionThreshold() override {
    return Settings::Get().collection_threshold() > 0;
  }

  Bytes ReleaseCached(Bytes wanted, PoolId only) override {
    return device_.ReleaseCached(wanted, only);
  }

  bool MayMove(PoolId owner) override {
    MutexLock lock(device_.mutex_);
    const PrivatePool* const own = device_.private_pools_.Find(owner);
    return own != nullptr && !own->addresses_kept;
  }

  void SynchronizePendingFrees() override {
    // What could not be waited for stays pending.
    (void)device_.SynchronizePendingFrees();
  }

  bool FreeMemory() override { return Settings::Get().FreeMemory(); }

  bool CouldHold(Bytes size) override { return device_.CouldHold(size); }

  bool CannotFit(Bytes size) override { return device_.CannotFit(size); }

  Address FindAwaySpace(const MallocAttempt& attempt) override {
    MutexLock lock(device_.mutex_);
    return device_.residency_.FindAwaySpace(
        device_.placement_.PoolOf(attempt.key),
        device_.table_.region(/*evictable=*/true, attempt.key.kind),
        attempt.size);
  }

  Error Refuse(MallocAttempt& attempt, bool fits_nowhere) override {
    Error refused = device_.OutOfMemory(attempt.requested, fits_nowhere);
    if (attempt.captured) {
      device_.reclaimer_->NotePressure(device_.device_.index());
    }
    MutexLock lock(device_.mutex_);
    CountRetryLocked(attempt);
    device_.stats_.num_ooms += refused.code == ErrorCode::kOutOfMemory;
    return refused;
  }

  // ---- the Reclaimer --------------------------------------------------------

  bool IsCrowded() override { return device_.reclaimer_->IsCrowded(); }

  bool UnderPressure() override {
    return device_.reclaimer_->UnderPressure(device_.device_.index());
  }

  bool RestoreSpace(Address away) override {
    return device_.reclaimer_->RestoreSpace(device_.device_.index(), away);
  }

  void ReclaimCold(Bytes bytes) override {
    device_.reclaimer_->ReclaimCold(device_.device_.index(), bytes);
  }

  bool Reclaim(MemoryRequest& request) override {
    return device_.reclaimer_->Reclaim(device_.device_.index(), request);
  }

 private:
  static bool IsNoMemory(const Result<Address>& answer) {
    return !answer && answer.error().code == ErrorCode::kOutOfMemory;
  }
  // What is free here the driver has not.
  Bytes ReleaseFree() EXCLUDES(device_.mutex_) {
    MutexLock lock(device_.mutex_);
    if (device_.captures_.UnderWay()) return 0;
    return device_.pages_.ReleaseFree(device_.captures_.AskStreams());
  }
  Bytes LimitLocked(Reach reach) const REQUIRES(device_.mutex_) {
    if (reach == Reach::kCached) return 0;
    const Bytes limit = device_.limit_.Now();
    if (reach == Reach::kLimit) return limit;
    return static_cast<Bytes>(static_cast<double>(limit) *
                              device_.options_.emergency_threshold);
  }

  // A block that is handed out, or nullptr, and then why.
  Block* TryLocked(MallocAttempt& attempt, Bytes limit)
      REQUIRES(device_.mutex_) {
    Placement::Found found = device_.placement_.Search(
        device_.placement_.PoolOf(attempt.key), attempt.size, limit);
    attempt.lacking = found.lacking;
    if (found.block != nullptr) return HandOutLocked(attempt, found.block);
    attempt.failed = std::move(found.error);
    return nullptr;
  }

  Block* HandOutLocked(const MallocAttempt& attempt, Block* block)
      REQUIRES(device_.mutex_) {
    return device_.blocks_.HandOut(block, attempt.size, attempt.requested,
                                   attempt.charge);
  }

  // A block that was handed out is the answer; false without one.
  bool ServeLocked(MallocAttempt& attempt, Block* block)
      REQUIRES(device_.mutex_) {
    if (block == nullptr) return false;
    if (attempt.raw) block->raw = block->streams_noted = true;
    attempt.answer =
        device_.AnswerLocked(block->address, block->size, attempt.charge);
    return true;
  }

  // Once, whichever rung serves it.
  void CountRetryLocked(MallocAttempt& attempt) REQUIRES(device_.mutex_) {
    if (!std::exchange(attempt.retried, true)) {
      ++device_.stats_.num_alloc_retries;
    }
  }

  // To the private pool that its stream is routed to. While a stream captures
  // nothing is evicted, and the pool's addresses are a graph's. Who captures
  // would wait for itself; whoever else lacks memory waits for the end of that.
  void FollowRouteLocked(MallocAttempt& attempt) REQUIRES(device_.mutex_) {
    attempt.key.owner = device_.captures_.RouteOf(attempt.key.stream);
    device_.captures_.Settle();
    // Captures::UnderWay asks it.
    device_.private_pools_.NoteStream(attempt.key.stream);
    if (!device_.captures_.UnderWay()) return;
    if (device_.captures_.IsHere(attempt.key.stream)) {
      attempt.captured = std::exchange(attempt.may_reclaim, false);
    }
    if (PrivatePool* const own =
            device_.private_pools_.Find(attempt.key.owner)) {
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
  if (!options_.tiering) attempt.key.lifetime = LifetimeClass::kTransient;
  attempt.charge = request.charge;
  attempt.raw = request.raw;
  attempt.nested = OperatorThread::ThisThread().in_ladder;
  attempt.all_plain = plain_.has_all();
  attempt.may_reclaim =
      options_.tiering && reclaimer_ != nullptr && !attempt.nested;
  attempt.lacking = attempt.size;
  ForLadder device(*this);
  return Climb(attempt, device);
}

}  // namespace stratalloc
