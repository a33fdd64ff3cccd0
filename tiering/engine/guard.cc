// SPDX-License-Identifier: Apache-2.0
// Engine: the op guard. The fast path pins and looks; everything else, from
// waiting for a copy in flight to bringing bytes back from disk, is Admit.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "accounting/scope_stack.h"
#include "allocator/base/check.h"
#include "allocator/base/clock.h"
#include "allocator/base/planted.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/events/move_events.h"
#include "tiering/engine/engine.h"
#include "tiering/engine/waiting.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

thread_local std::vector<GuardedHandle> guard_handles;
// What this thread's operators used since the last one left. An operator uses
// its pages at once; they count in the order of its operands.
struct NotedUse {
  PageUse use;
  int depth = 0;          // of the operator
  std::size_t place = 0;  // among its handles
};
thread_local std::vector<NotedUse> noted_uses;

// Pages that were made or freed since the last call, as uses.
std::vector<PageUse> ChangesOf(DeviceAllocator& device) {
  std::vector<PageUse> uses;
  if (!device.SomePageChanges()) return uses;
  for (const PageChange& change : device.TakePageChanges()) {
    uses.push_back({.page = change.page,
                    .written = change.made,
                    .made = change.made,
                    .freed = !change.made});
  }
  return uses;
}

// Bytes of the distinct handles on `device`.
Bytes BytesOf(const DeviceAllocator& device,
              std::span<const GuardedHandle> handles) {
  std::set<Address> seen;
  Bytes bytes = 0;
  for (const GuardedHandle& guarded : handles) {
    const HandleRef handle = guarded.handle;
    if (device.Contains(handle.address()) &&
        seen.insert(handle.address()).second) {
      bytes += handle.bytes();
    }
  }
  return bytes;
}

// Every use, of a burst too: a page that the plan has leave after its last use
// would leave between two operators of the burst. Not inlined: a program that
// fits does not come here.
[[gnu::noinline]] void NoteForPlan(HandleRef handle, bool written,
                                   std::size_t place) {
  noted_uses.push_back({{.page = handle.address(), .written = written},
                        OperatorThread::ThisThread().depth(),
                        place != 0 ? place : guard_handles.size()});
}

}  // namespace

// `place`: among the operator's handles, from 1 on; 0: the newest.
void Engine::NoteUse(HandleRef handle, std::uint64_t stream_bit, bool written,
                     std::uint32_t now, std::size_t place) {
  if (STRATALLOC_PLANTED(kLostDirty)) written = false;
  handle.use().NoteOperator(stream_bit, written, now, kBurstTicks);
  if (attentive_.load(std::memory_order_relaxed)) [[unlikely]] {
    NoteForPlan(handle, written, place);
  }
}

// The way through the accesses of one operator: what was found for the one
// before is tried first, since most operators stay on one device, and tensors
// of one layer share handles. Inlined, or its place would go through memory.
class Engine::AccessWalk {
 public:
  AccessWalk(Engine& engine, OperatorThread& thread, StreamId stream)
      : engine_(engine), thread_(thread), stream_(stream) {
    handles_.clear();
  }

  [[gnu::always_inline]] void Take(const Access& access) {
    if (!Find(access)) return;
    now_ += HandleUse::kTick;
    HandleRegion* const region = at_.region;
    Address end = access.address + access.bytes;
    if (end > region->base + region->bytes - region->handle_bytes) {
      end = std::min(end, region->AddressOf(region->count()));
    }
    for (std::uint64_t i = at_.index; region->AddressOf(i) < end; ++i) {
      Use({region, i}, access.written);
    }
    if (pinned_.region == region) at_ = pinned_;
  }
  [[gnu::always_inline]] void KeepTime() const {
    // A tick per access that is looked at. Two threads may take the same ones:
    // ages are for comparing, and an exchange per operator costs 6 ns.
    if (device_ != nullptr) {
      device_->use_clock().store(now_, std::memory_order_relaxed);
    }
  }

  // What is pinned, each once in a row; is all of it here?
  std::vector<GuardedHandle>& handles() const { return handles_; }
  bool all_resident() const { return all_resident_; }
  DeviceAllocator* device() const { return device_; }  // the last one

 private:
  // Where the access begins; false if nothing of it can leave.
  [[gnu::always_inline]] bool Find(const Access& access) {
    if (access.bytes == 0) return false;
    if (device_ == nullptr || !device_->Contains(access.address)) {
      DeviceAllocator* const other = engine_.DeviceOf(access.address);
      if (other == nullptr) return false;
      KeepTime();
      device_ = other;
      bit_ = std::uint64_t{1} << device_->streams().BitOf(stream_);
      now_ = device_->use_clock().load(std::memory_order_relaxed);
    }
    if (access.address >= device_->table().evictable_end()) return false;
    // Divisions are what this would cost, and neighbours lie together.
    if (at_.region == nullptr || !at_.region->Contains(access.address)) {
      at_ = device_->table().RefOf(access.address);
    } else if (access.address - at_.address() >= at_.region->handle_bytes) {
      at_.index = at_.region->IndexOf(access.address);
    }
    // An activation, all of it: one block, of one pool. It lives, so that this
    // does not change.
    return !at_.stays();
  }
  [[gnu::always_inline]] void Use(HandleRef handle, bool written) {
    if (handle == pinned_) {
      // Once is enough: it cannot leave before this operator does.
      handles_.back().written |= written;
    } else {
      pinned_ = handle;
      thread_.Pin(handle.use());
      handles_.push_back({handle, written});
      resident_ = handle.state() == HandleState::kResident;
      if (!resident_) all_resident_ = false;
    }
    if (resident_) engine_.NoteUse(handle, bit_, written, now_);
  }

  Engine& engine_;
  OperatorThread& thread_;
  const StreamId stream_;
  std::vector<GuardedHandle>& handles_ = guard_handles;
  bool all_resident_ = true;
  DeviceAllocator* device_ = nullptr;
  std::uint64_t bit_ = 0;  // of the stream, on this device
  std::uint32_t now_ = 0;  // by this device's clock
  HandleRef at_;           // where the last access began or ended
  HandleRef pinned_;       // the last one that was pinned
  bool resident_ = false;  // is it?
};

Status Engine::EnterOperator(StreamId stream, const char* name,
                             std::span<const Access> accesses) {
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  if (accesses.empty() || off()) return {};
  AccessWalk walk(*this, thread, stream);
  for (const Access& access : accesses) walk.Take(access);
  walk.KeepTime();
  const std::vector<GuardedHandle>& handles = walk.handles();
  if (!walk.all_resident() || (Queues(thread) && !handles.empty())) {
    for (const TieredDevice* state : all_) {  // before anything leaves
      if (state->allocator->MayCapture()) state->allocator->NoteCapture(stream);
    }
    if (Status status = Admit(stream, name, handles); !status) {
      thread.Leave();
      return status;
    }
  }
  bool kept = false;
  for (const TieredDevice* state : all_) {
    if (!state->allocator->MayCapture()) continue;
    kept |= KeepForRoutedCapture(*state->allocator, stream, thread);
  }
  // The default stream cannot capture: most operators ask the driver nothing.
  if (stream != kDefaultStream && !handles.empty() && !kept) {
    KeepForRawCapture(*walk.device(), stream, thread);
  }
  return {};
}

void Engine::LeaveOperator() {
  OperatorThread::ThisThread().Leave();
  if (attentive_.load(std::memory_order_relaxed)) NoteLeft();
}

void Engine::LeaveIntoCall() {
  OperatorThread::ThisThread().LeaveIntoCall();
  if (attentive_.load(std::memory_order_relaxed)) NoteLeft();
}

void Engine::LeaveCall() {
  OperatorThread::ThisThread().LeaveCall();
  if (attentive_.load(std::memory_order_relaxed)) NoteLeft();
}

void Engine::NoteLeft() {
  // Not in the child of a fork, whose locks may be held for ever.
  if (off()) return;
  if (admission_.crowded()) admission_.NoteChange();
  if (!noted_uses.empty()) PassUsesOn();
}

void Engine::PassUsesOn() {
  // In which order they were noted depends on which of them were here.
  std::sort(noted_uses.begin(), noted_uses.end(),
            [](const NotedUse& a, const NotedUse& b) {
              return std::tie(a.depth, a.place) < std::tie(b.depth, b.place);
            });
  for (const TieredDevice* state : movers_) {
    std::vector<PageUse> here = ChangesOf(*state->allocator);
    for (const NotedUse& noted : noted_uses) {
      if (state->allocator->Contains(noted.use.page)) here.push_back(noted.use);
    }
    if (here.empty()) continue;
    PlannerOf(*state).Note(here);
    WakeMover(*state);
  }
  noted_uses.clear();
}

bool Engine::Queues(const OperatorThread& thread) const {
  if (!admission_.crowded() || thread.depth() != 1) return false;
  // A capture that waits for another thread holds up everybody.
  return std::none_of(all_.begin(), all_.end(), [](const TieredDevice* state) {
    return state->allocator->MayCapture();
  });
}

DeviceAllocator* Engine::DeviceOf(Address address) const {
  for (const TieredDevice* state : movers_) {
    if (state->allocator->Contains(address)) return state->allocator;
  }
  return nullptr;
}

Result<bool> Engine::Accept(DeviceAllocator& device, StreamId stream,
                            std::span<const GuardedHandle> handles) {
  const std::uint64_t bit = std::uint64_t{1} << device.streams().BitOf(stream);
  const std::uint32_t now = device.use_clock().load();
  // A stream that captures cannot wait: Admit has the host wait for the copies.
  return device.Await(stream, handles, [&](const GuardedHandle& guarded) {
    // Again for what was resident at first: it may have left and returned while
    // this operator waited.
    NoteUse(guarded.handle, bit, guarded.written, now,
            static_cast<std::size_t>(&guarded - handles.data()) + 1);
  });
}

Status Engine::RestoreForLocked(TieredDevice& state, const char* name,
                                std::span<const GuardedHandle> handles,
                                Admission::Lack* lack) {
  DeviceAllocator& device = *state.allocator;
  lower_.CollectDropped(device);
  std::vector<HandleRef> wanted;
  for (const GuardedHandle& guarded : handles) {
    if (!device.Contains(guarded.handle.address())) continue;
    wanted.push_back(guarded.handle);
    if (guarded.handle.state() == HandleState::kPoisoned) {
      return Fail(ErrorCode::kCorrupt,
                  std::string(name) + " needs " +
                      OwnersOf(device, guarded.handle) +
                      ", whose bytes on disk were damaged and are lost; "
                      "free it: assign new tensors, as "
                      "load_state_dict(assign=True) does");
    }
  }
  if (wanted.empty()) return {};
  FinishLeavingLocked(state, wanted);
  state.refusal.clear();
  const auto refuse = [&](const std::string& why) {
    return Fail(ErrorCode::kOutOfMemory,
                "CUDA out of memory. " + std::string(name) + " needs " +
                    FormatBytes(BytesOf(device, handles)) + " on GPU " +
                    std::to_string(static_cast<int>(device.device().index())) +
                    " at once, in whole pages, " + why + ".");
  };
  // Evicting everything for what fits nowhere helps nobody.
  if (device.CannotFit(BytesOf(device, handles))) {
    *lack = Admission::Lack::kMemory;
    return refuse("which does not fit beside what cannot leave it");
  }
  const std::uint64_t before = state.counters.restored_handles;
  Status status = RestoreBatchLocked(state, wanted, Room::kEvict, {},
                                     /*planned=*/false);
  state.counters.restored_before_use +=
      state.counters.restored_handles - before;
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  return refuse("but " + status.error().message +
                (state.refusal.empty()
                     ? ""
                     : ". stratalloc could not evict more: " + state.refusal));
}

Result<bool> Engine::AcceptAll(StreamId stream,
                               std::span<const GuardedHandle> handles) {
  bool complete = true;
  for (const TieredDevice* state : movers_) {
    STRATALLOC_ASSIGN_OR_RETURN(const bool here,
                                Accept(*state->allocator, stream, handles));
    complete &= here;
  }
  return complete;
}

Status Engine::CheckFits(const char* name,
                         std::span<const GuardedHandle> handles) {
  for (const TieredDevice* state : movers_) {
    DeviceAllocator& device = *state->allocator;
    const Bytes bytes = BytesOf(device, handles);
    if (device.CouldHold(bytes)) continue;
    return Fail(
        ErrorCode::kOutOfMemory,
        "CUDA out of memory. " + std::string(name) + " needs " +
            FormatBytes(bytes) + " on GPU " +
            std::to_string(static_cast<int>(device.device().index())) +
            " at once, in whole pages, which is more than the limit of " +
            FormatBytes(device.most()) + ".");
  }
  return {};
}

Status Engine::WaitForRoom(StreamId stream, const char* name,
                           std::span<const GuardedHandle> handles) {
  OperatorThread& thread = OperatorThread::ThisThread();
  const Device& first = DeviceOf(handles.front().handle.address())->device();
  // The answer to who is not let try at all.
  Status status = Fail(ErrorCode::kOutOfMemory,
                       "CUDA out of memory. " + std::string(name) +
                           " came after others that wait for room.");
  // Between tries nothing is pinned: neither what the operators around this one
  // use (Waiting's part) nor what this one wants. For a try that need not wait
  // its pins stay, and cancel what has only been chosen.
  std::uint64_t wanting = 0;
  for (const GuardedHandle& guarded : handles) {
    const Device& device = DeviceOf(guarded.handle.address())->device();
    wanting |= std::uint64_t{1} << static_cast<unsigned>(device.index());
  }
  Waiting waiting(*this, wanting, /*fresh=*/thread.depth() == 1);
  bool pinned = true;
  const auto pin = [&] {
    if (std::exchange(pinned, true)) return;
    for (const GuardedHandle& guarded : handles) {
      thread.Pin(guarded.handle.use());
    }
  };
  const auto unpin = [&] {
    if (std::exchange(pinned, false)) thread.DropPins(handles.size());
  };
  const auto next = [&] {
    if (waiting.MayTry()) return true;
    unpin();
    return !thread.hurried && waiting.Await();
  };
  while (next()) {
    auto lack = Admission::Lack::kPins;
    status = waiting.Resume();
    pin();
    for (TieredDevice* state : movers_) {
      if (!status) break;
      MutexLock arbiter(state->arbiter);
      status = RestoreForLocked(*state, name, handles, &lack);
    }
    if (status || status.error().code != ErrorCode::kOutOfMemory) {
      return status;
    }
    unpin();
    waiting.Refused(lack);
    // Under a capture nothing leaves, whoever gets on.
    if (thread.hurried || first.IsCapturing(stream)) break;
  }
  if (Status resumed = waiting.Stop(); !resumed) status = resumed;
  pin();  // the caller takes them back
  return status;
}

Status Engine::Admit(StreamId stream, const char* name,
                     std::span<const GuardedHandle> all) {
  const std::vector<GuardedHandle> handles(all.begin(), all.end());
  DeviceAllocator& device = *DeviceOf(handles.front().handle.address());
  const DeviceIndex first = device.device().index();
  const ScopeId scope = CurrentScope().scope;
  Bytes bytes = 0;
  for (const GuardedHandle& one : handles) bytes += one.handle.bytes();
  const MoveEvents asked(first, device.moves());
  // Everything is on the device, some of it still arriving?
  if (!Queues(OperatorThread::ThisThread())) {
    STRATALLOC_ASSIGN_OR_RETURN(const bool complete,
                                AcceptAll(stream, handles));
    if (complete) {
      asked.Late(scope, bytes);
      return {};
    }
  }
  // Whatever others do, nobody need wait for that.
  STRATALLOC_RETURN_IF_ERROR(CheckFits(name, handles));

  const MoveEvents waits(first, device.moves());
  const Status status = WaitForRoom(stream, name, handles);
  Ledger::Get().OnStall(first, scope, waits.Stalled(scope, bytes));
  if (!status) return status;
  for (const TieredDevice* state : movers_) {
    DeviceAllocator& mover = *state->allocator;
    if (mover.device().IsCapturing(stream)) {
      STRATALLOC_RETURN_IF_ERROR(mover.DrainArrivals());
    }
  }
  STRATALLOC_ASSIGN_OR_RETURN(const bool complete, AcceptAll(stream, handles));
  STRATALLOC_CHECK(complete, "pinned and restored, and away again");
  return {};
}

}  // namespace stratalloc
