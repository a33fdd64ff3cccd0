// SPDX-License-Identifier: Apache-2.0
// Engine: handles leave and return by batch, and the waits between their steps.
// How they leave and return is eviction.h's and restoration.h's.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tiering/engine/engine.h"
#include "tiering/engine/eviction.h"
#include "tiering/engine/restoration.h"

namespace stratalloc {
namespace {

// So long nothing becomes ready of what was chosen before others are chosen, or
// the caller is refused for now: kernels may run for longer, and a stream may
// wait for what another thread has yet to do.
constexpr std::int64_t kStandsStillNs = 100'000'000;

}  // namespace

class Engine::WithoutArbiter {
 public:
  // Not analysed: a destructor cannot name the lock that its caller knows.
  WithoutArbiter(Engine& engine, TieredDevice& state)
      STRATALLOC_TS(no_thread_safety_analysis)
      : engine_(engine),
        state_(state),
        reserve_open_(engine.lower_.reserve_is_open(*state.allocator)) {
    // The reserve is for what this thread does under the arbiter.
    engine_.lower_.OpenReserve(*state_.allocator, false);
    state_.arbiter.Unlock();
    if (turn_ != nullptr) turn_->BeginWait();
  }
  ~WithoutArbiter() STRATALLOC_TS(no_thread_safety_analysis) {
    if (turn_ != nullptr) turn_->EndWait();
    state_.arbiter.Lock();
    engine_.lower_.OpenReserve(*state_.allocator, reserve_open_);
  }
  WithoutArbiter(const WithoutArbiter&) = delete;
  WithoutArbiter& operator=(const WithoutArbiter&) = delete;

 private:
  Engine& engine_;
  TieredDevice& state_;
  const bool reserve_open_;
  Admission::Turn* const turn_ = Admission::Turn::mine;
};

Bytes Engine::ChooseLocked(TieredDevice& state,
                           const std::vector<HandleRef>& victims, Below below,
                           const std::shared_ptr<LeaveTally>& tally) {
  Status why;
  Bytes chosen = 0;
  {
    const WithoutArbiter waits(*this, state);
    chosen = LeaverOf(state).Choose(victims, below, tally, &why);
  }
  // Tiering may have been switched off meanwhile: what was chosen must stay.
  if (!CheckOn()) {
    LeaverOf(state).Stop();
    return 0;
  }
  if (!why) state.NoteStopped(why.error());
  if (chosen == 0) return 0;
  attentive_.store(true, std::memory_order_relaxed);
  // This thread may be refused and wait for its turn, which takes no steps.
  WakeMover(state);
  return chosen;
}

void Engine::WakeMover(const TieredDevice& state) {
  const auto index = static_cast<std::size_t>(&state - devices_.data());
  if (threads_[index] != nullptr) threads_[index]->Wake();
}

void Engine::FinishLeavingLocked(TieredDevice& state) {
  LeaverOf(state).Finish();
}

void Engine::FinishLeavingLocked(TieredDevice& state,
                                 std::span<const HandleRef> handles) {
  const Leaver& leaver = LeaverOf(state);
  const auto leaves = [&](HandleRef handle) {
    const HandleState at = handle.state();
    return (at == HandleState::kLeaving || at == HandleState::kCopyingOut) &&
           leaver.IsLeaving(handle);
  };
  if (std::any_of(handles.begin(), handles.end(), leaves)) {
    FinishLeavingLocked(state);
  }
}

bool Engine::AwaitLocked(TieredDevice& state) {
  const WithoutArbiter waits(*this, state);
  return LeaverOf(state).Await(kStandsStillNs);
}

void Engine::AwaitArbiterLocked(TieredDevice& state, Mutex& other) {
  const WithoutArbiter waits(*this, state);
  MutexLock lock(other);
}

Status Engine::AwaitSomeLocked(TieredDevice& state) {
  const WithoutArbiter waits(*this, state);
  return LeaverOf(state).AwaitSome();
}

Bytes Engine::EvictTheseLocked(TieredDevice& state,
                               const std::vector<HandleRef>& handles,
                               Below below) {
  const auto tally = std::make_shared<LeaveTally>();
  ChooseLocked(state, handles, below, tally);
  Leaver& leaver = LeaverOf(state);
  while (tally.use_count() > 1) {
    // The caller may have waited while tiering was switched off.
    if (Status on = CheckOn(); !on) {
      state.refusal = on.error().message;
      break;
    }
    leaver.Step();
    if (tally.use_count() == 1 || AwaitLocked(state)) continue;
    if (Status waited = AwaitSomeLocked(state); !waited) {
      state.refusal = waited.error().message;
      break;
    }
  }
  return tally->left.load();
}

Status Engine::RestoreBatchLocked(TieredDevice& state,
                                  const std::vector<HandleRef>& handles,
                                  Room room, const std::vector<Address>& keep,
                                  bool planned) {
  std::function<Bytes(Bytes, bool*)> make_room;
  if (room == Room::kEvict) {
    make_room = [&](Bytes target, bool* stood_still) {
      state.arbiter.AssertHeld();
      return EvictVictimsLocked(state, target, keep, Evictable::kAll,
                                stood_still);
    };
  }
  const bool may_wait = room == Room::kEvict;
  const auto some_leave = [&] { return may_wait && !LeaverOf(state).idle(); };
  return Restoration({state, lower_, std::move(make_room), planned, some_leave})
      .Run(handles);
}

}  // namespace stratalloc
