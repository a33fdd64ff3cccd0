// SPDX-License-Identifier: Apache-2.0
// Engine: tiering is switched off while the process runs.
//
// It is not switched on again: operators that begin while it is off pin nothing
// and note no use, so a later eviction could take what they still work on.
#include <algorithm>
#include <string>
#include <vector>

#include "tiering/engine/engine.h"
#include "tiering/engine/overlaps.h"

namespace stratalloc {

Status Engine::CheckOn() const {
  switch (off_.load(std::memory_order_relaxed)) {
    case Off::kNo:
      return {};
    case Off::kSwitched:
      return Fail(ErrorCode::kUnsupported,
                  "nothing is evicted: disable() has switched tiering off for "
                  "the rest of this process");
    case Off::kInFork:
      break;
  }
  return Fail(ErrorCode::kShutdown, "tiering is off in a fork");
}

namespace {

// The arbiters of all devices, in the order in which they lie in the engine.
class AllArbiters {
 public:
  explicit AllArbiters(const DeviceList& devices)
      STRATALLOC_TS(no_thread_safety_analysis)
      : held_(devices.begin(), devices.end()) {
    std::sort(held_.begin(), held_.end());
    for (TieredDevice* state : held_) state->arbiter.Lock();
  }
  ~AllArbiters() STRATALLOC_TS(no_thread_safety_analysis) {
    for (TieredDevice* state : held_) state->arbiter.Unlock();
  }
  AllArbiters(const AllArbiters&) = delete;
  AllArbiters& operator=(const AllArbiters&) = delete;

 private:
  std::vector<TieredDevice*> held_;
};

}  // namespace

Result<Bytes> Engine::SwitchOff() {
  if (switched_off()) return Bytes{0};
  STRATALLOC_RETURN_IF_ERROR(CheckOn());
  STRATALLOC_ASSIGN_OR_RETURN(const Bytes restored, SwitchOffUnderArbiters());
  admission_.NoteChange();
  return restored;
}

Result<Bytes> Engine::SwitchOffUnderArbiters() {
  MutexLock joining(joining_);
  const AllArbiters arbiters(movers_);
  if (switched_off()) return Bytes{0};
  STRATALLOC_RETURN_IF_ERROR(CheckNoCapture());
  Bytes restored = 0;
  for (TieredDevice* state : movers_) {
    state->arbiter.AssertHeld();
    const Bytes before = state->counters.restored_bytes;
    STRATALLOC_RETURN_IF_ERROR(BringBackLocked(*state));
    restored += state->counters.restored_bytes - before;
  }
  // Before it is off, so that a failure leaves it on.
  for (TieredDevice* state : movers_) {
    STRATALLOC_RETURN_IF_ERROR(lower_.GiveUpAll(*state->allocator));
  }
  // Evictions run under an arbiter and look at this first: none is under way,
  // and none begins.
  off_.store(Off::kSwitched, std::memory_order_seq_cst);
  for (TieredDevice* state : movers_) state->allocator->EndTiering();
  if (lower_.host() != nullptr) lower_.host()->Trim();
  return restored;
}

Status Engine::CheckNoCapture() {
  for (const TieredDevice* state : all_) {
    DeviceAllocator& device = *state->allocator;
    if (device.AwaitRoutes()) continue;
    return Fail(ErrorCode::kUnsupported,
                "a stream of GPU " +
                    std::to_string(static_cast<int>(device.device().index())) +
                    " captures a graph, and nothing may be copied meanwhile: "
                    "end the capture first");
  }
  return {};
}

Status Engine::BringBackLocked(TieredDevice& state) {
  DeviceAllocator& device = *state.allocator;
  LeaverOf(state).Stop();
  lower_.CollectDropped(device);
  STRATALLOC_RETURN_IF_ERROR(device.DrainArrivals());
  std::vector<HandleRef> evicted;
  for (const EvictableHandle& one : device.Evictable()) {
    if (one.state == HandleState::kPoisoned) {
      return Fail(ErrorCode::kCorrupt,
                  "the bytes of " + OwnersOf(device, one.handle) +
                      " on disk were damaged and are lost; free it first");
    }
    if (IsAway(one.state)) evicted.push_back(one.handle);
  }
  const Bytes before = state.counters.restored_bytes;
  Status status = RestoreBatchLocked(state, evicted, Room::kOnlyFree, {},
                                     /*planned=*/false);
  if (status) return device.DrainArrivals();
  if (status.error().code != ErrorCode::kOutOfMemory) return status;
  Bytes missing = 0;
  for (HandleRef handle : evicted) missing += handle.bytes();
  missing -= state.counters.restored_bytes - before;
  return Fail(ErrorCode::kOutOfMemory,
              "CUDA out of memory. " + FormatBytes(missing) +
                  " of evicted memory, in whole pages, have no room on GPU " +
                  std::to_string(static_cast<int>(device.device().index())) +
                  ": " + status.error().message +
                  ". Free that much and call disable() again; until then "
                  "tiering goes on");
}

}  // namespace stratalloc
