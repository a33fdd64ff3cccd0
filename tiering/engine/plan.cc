// SPDX-License-Identifier: Apache-2.0
// Engine: the background half. Scope events teach the planner the order of
// use; the migration thread restores what the coming steps used last time and
// evicts when a threshold was crossed. The thread that enters a scope never
// waits here: it may hold the GIL.
#include <utility>

#include "allocator/base/check.h"
#include "tiering/engine/engine.h"
#include "tiering/engine/use_log.h"

namespace stratalloc {
namespace {

// Look this far ahead: enough to cover several modules without parameters,
// and at most a quarter of the device, so that what is expected never
// displaces what is in use.
constexpr std::size_t kLookAheadSteps = 48;
constexpr Bytes kLookAheadFraction = 4;
// Ticks after a relief that could free nothing of what is cold.
constexpr std::uint32_t kReliefPause = 1 << 12;

}  // namespace

void Engine::OnEnter(ScopeId scope) {
  if (learning_.load(std::memory_order_relaxed)) {
    OnScopeEvent(ScopeTrace::Entered(scope));
  }
}

void Engine::OnLeave(ScopeId scope) {
  if (learning_.load(std::memory_order_relaxed)) {
    OnScopeEvent(ScopeTrace::Left(scope));
  }
}

void Engine::OnBackward(ScopeId scope) {
  if (learning_.load(std::memory_order_relaxed)) {
    OnScopeEvent(ScopeTrace::Backward(scope));
  }
}

void Engine::OnScopeEvent(ScopeTrace::Step step) {
  if (off()) return;
  auto [ended, used] = UseLog::ThisThread().Begin(step);
  if (ended != ScopeTrace::kNoStep) {
    MutexLock lock(plan_mutex_);
    trace_.Learn(ended, std::move(used), step);
  }
  if (thread_ == nullptr) return;
  prefetch_after_.store(evicted_by_name_.load());
  thread_->AskPrefetch(step);
}

void Engine::Prefetch(ScopeTrace::Step step) {
  // What is expected must not take the room of who waits for some.
  if (off() || admission_.crowded()) return;
  for (TieredDevice* state : movers_) {
    DeviceAllocator& device = *state->allocator;
    const Bytes handle_bytes =
        device.table().region(true, PoolKind::kLarge).handle_bytes;
    std::vector<Address> expected;
    {
      MutexLock lock(plan_mutex_);
      expected = trace_.Expect(
          step, device.limit() / kLookAheadFraction / handle_bytes,
          kLookAheadSteps);
    }
    std::vector<HandleRef> missing;
    for (Address address : expected) {
      const HandleRef handle = device.table().RefOf(address);
      if (handle.region == nullptr) continue;  // another device's
      if (IsAway(handle.state())) missing.push_back(handle);
    }
    if (missing.empty()) continue;
    MutexLock arbiter(arbiter_);
    // Asked for before the program evicted by name, and late: it is over.
    if (prefetch_after_.load() != evicted_by_name_.load()) return;
    lower_.CollectDropped(device);
    // One by one, though that is a grant each: a batch has one event, and who
    // uses its first handle would wait for its last (32 MiB are copied in
    // 1.3 ms, granted in 0.04).
    for (HandleRef handle : missing) {
      const std::uint64_t before = counters_.restored_handles;
      Status status = RestoreBatchLocked(*state, {handle}, Room::kEvict,
                                         expected, /*planned=*/true);
      counters_.restored_before_use += counters_.restored_handles - before;
      // No room, or bytes that are lost: the guard will say so to whoever
      // needs them.
      if (!status) break;
    }
  }
}

void Engine::OnPressure(DeviceIndex device, Bytes allocated, Bytes limit) {
  TieredDevice& state = devices_[static_cast<int>(device)];
  if (thread_ == nullptr || off() ||
      !state.under_pressure.load(std::memory_order_relaxed)) {
    return;
  }
  if (static_cast<double>(allocated) <=
      options_.gpu_offload_threshold * static_cast<double>(limit)) {
    return;
  }
  // The last relief found nothing, and until then nothing can have turned cold.
  const std::uint32_t now = state.allocator->use_clock().load();
  if (static_cast<std::int32_t>(now - state.relief_from.load()) < 0) return;
  if (!state.relief_asked.exchange(true)) {
    thread_->AskRelief(static_cast<int>(device));
  }
}

void Engine::RelievePressure(TieredDevice& state) {
  if (off()) return;
  DeviceAllocator& device = *state.allocator;
  // Before looking: whoever crosses the threshold from here on asks again.
  state.relief_asked.store(false);
  MutexLock arbiter(arbiter_);
  lower_.CollectDropped(device);
  const Bytes goal = static_cast<Bytes>(options_.gpu_reload_threshold *
                                        static_cast<double>(device.limit()));
  const Bytes allocated = device.Allocated();
  if (allocated <= goal) return;
  if (EvictVictimsLocked(state, allocated - goal, {}, Whom::kCold) == 0) {
    // Cold or not, it could not leave: a tier is full, or a capture runs.
    const std::uint32_t now = device.use_clock().load();
    if (static_cast<std::int32_t>(state.relief_from.load() - now) <= 0) {
      state.relief_from = now + kReliefPause;
    }
  }
}

}  // namespace stratalloc
