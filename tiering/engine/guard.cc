// SPDX-License-Identifier: Apache-2.0
// Engine: the op guard. The fast path pins and looks; everything else, from
// waiting for a copy in flight to bringing bytes back from disk, is Admit.
#include <algorithm>
#include <string>

#include "accounting/ledger.h"
#include "allocator/base/check.h"
#include "allocator/base/clock.h"
#include "allocator/base/planted.h"
#include "allocator/operator_thread.h"
#include "tiering/engine/engine.h"
#include "tiering/engine/use_log.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

// A refused operator waits for others and tries again; each round at least
// one of them has finished, so this bounds a pathological crowd only.
constexpr int kAdmitAttempts = 256;
constexpr std::int64_t kWaitForOthersNs = 1'000'000'000;

thread_local std::vector<GuardedHandle> guard_handles;

// The thread's outermost operator that was found to be captured. An operator on
// several devices enters on each with a stream of its own, and the stream of an
// operand may join the capture only inside it.
struct CapturedOperator {
  std::uint64_t epoch = 0;
  DeviceAllocator* device = nullptr;  // whose pool keeps what it uses
  StreamId stream = kDefaultStream;
};
thread_local CapturedOperator captured_operator;

}  // namespace

void Engine::NoteUse(HandleRef handle, std::uint64_t stream_bit, bool written,
                     std::uint32_t now) {
  HandleEntry& entry = handle.entry();
  // Load before read-modify-write: in the common case nothing changes and no
  // cache line is dirtied.
  if ((entry.fence.load(std::memory_order_relaxed) & stream_bit) == 0) {
    entry.fence.fetch_or(stream_bit, std::memory_order_relaxed);
  }
  if (STRATALLOC_PLANTED(kLostDirty)) written = false;
  if (written && !entry.dirty.load(std::memory_order_relaxed)) {
    entry.dirty.store(true, std::memory_order_relaxed);
  }
  const std::uint32_t last = entry.last_use.load(std::memory_order_relaxed);
  // `last` is ahead where another thread took its ticks later.
  if (static_cast<std::int32_t>(now - last) >
      static_cast<std::int32_t>(kBurstOperators)) {
    entry.previous_use.store(last, std::memory_order_relaxed);
    if (learning_.load(std::memory_order_relaxed)) {
      UseLog::ThisThread().Note(handle.address());
    }
  }
  entry.last_use.store(now, std::memory_order_relaxed);
}

Status Engine::EnterOperator(StreamId stream, const char* name,
                             std::span<const Access> accesses) {
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  if (accesses.empty() || off()) return {};
  std::vector<GuardedHandle>& handles = guard_handles;
  handles.clear();
  bool all_resident = true;
  const int devices = device_count_.load(std::memory_order_acquire);
  // Of the access before this one: most operators stay on one device, and
  // tensors of one layer share handles.
  DeviceAllocator* device = nullptr;
  std::uint64_t bit = 0;
  std::uint32_t now = 0;
  HandleRef pinned;
  bool resident = false;
  for (std::size_t n = 0; n < accesses.size(); ++n) {
    const Access& access = accesses[n];
    if (access.bytes == 0) continue;
    if (device == nullptr || !device->Contains(access.address)) {
      device = nullptr;
      for (int i = 0; i < devices && device == nullptr; ++i) {
        if (devices_[i].allocator->Contains(access.address)) {
          device = devices_[i].allocator;
        }
      }
      if (device == nullptr) continue;
      bit = std::uint64_t{1} << device->streams().BitOf(stream);
      // A tick per access. Two threads may take the same ones: ages are for
      // comparing, and an exchange per operator costs 6 ns.
      now = device->use_clock().load(std::memory_order_relaxed);
      device->use_clock().store(
          now + static_cast<std::uint32_t>(accesses.size() - n),
          std::memory_order_relaxed);
    }
    ++now;
    if (access.address >= device->table().evictable_end()) continue;
    // Divisions are what this would cost, and neighbours lie together.
    HandleRegion* region = pinned.region;
    std::uint64_t i = pinned.index;
    if (region == nullptr || !region->Contains(access.address)) {
      region = device->table().RegionOf(access.address);
      i = region->IndexOf(access.address);
    } else if (access.address - pinned.address() >= region->handle_bytes) {
      i = region->IndexOf(access.address);
    }
    Address end = access.address + access.bytes;
    if (end > region->base + region->bytes - region->handle_bytes) {
      end = std::min(end, region->AddressOf(region->count()));
    }
    for (; region->AddressOf(i) < end; ++i) {
      const HandleRef handle{region, i};
      if (handle == pinned) {
        // Once is enough: it cannot leave before this operator does.
        handles.back().written |= access.written;
      } else {
        pinned = handle;
        thread.Pin(handle.entry());
        handles.push_back({handle, access.written});
        resident = handle.entry().state.load(std::memory_order_seq_cst) ==
                   HandleState::kResident;
        if (!resident) all_resident = false;
      }
      if (resident) NoteUse(handle, bit, access.written, now);
    }
  }
  if (!all_resident) {
    if (Status status = Admit(stream, name, handles); !status) {
      thread.Leave();
      return status;
    }
  }
  for (int i = 0; i < devices; ++i) {
    if (!devices_[i].allocator->MayCapture()) continue;
    KeepForGraph(*devices_[i].allocator, stream, thread);
  }
  return {};
}

// What is captured runs again whenever the graph is replayed, and then nobody
// asks the guard.
void Engine::KeepForGraph(DeviceAllocator& device, StreamId stream,
                          OperatorThread& thread) {
  const std::uint64_t epoch = thread.epoch.load(std::memory_order_relaxed);
  // All pins of the operator: parts of it that entered before, on other
  // devices, are captured with it.
  if (device.KeepForGraph(stream, thread.pins)) {
    captured_operator = {epoch, &device, stream};
  } else if (captured_operator.epoch == epoch &&
             captured_operator.device == &device) {
    device.KeepForGraph(captured_operator.stream, thread.pins);
  }
}

bool Engine::Captures(const DeviceAllocator& device, StreamId stream) const {
  const int devices = device_count_.load(std::memory_order_acquire);
  for (int i = 0; i < devices; ++i) {
    if (devices_[i].allocator->MayCapture()) {
      return device.device().IsCapturing(stream);
    }
  }
  return false;
}

void Engine::LeaveOperator() { OperatorThread::ThisThread().Leave(); }

Status Engine::Admit(StreamId stream, const char* name,
                     std::span<const GuardedHandle> all) {
  OperatorThread& thread = OperatorThread::ThisThread();
  const std::vector<GuardedHandle> handles(all.begin(), all.end());
  bool last = false;
  for (int attempt = 0;; ++attempt) {
    Status status;
    bool refused = false;
    const int devices = device_count_.load(std::memory_order_acquire);
    for (int i = 0; i < devices && status; ++i) {
      DeviceAllocator& device = *devices_[i].allocator;
      std::vector<GuardedHandle> here;
      for (const GuardedHandle& guarded : handles) {
        if (device.Contains(guarded.handle.address())) here.push_back(guarded);
      }
      if (!here.empty()) {
        status = AdmitOnce(device, stream, name, here, &refused);
      }
    }
    if (status) return {};
    // Rule 4: refused with nothing else pinned, drop the new pins and wait
    // for those who hold the room; with older pins never wait for others.
    const bool holds_older_pins =
        thread.depth() > 1 || thread.pins.size() != handles.size();
    if (!refused || holds_older_pins || attempt >= kAdmitAttempts || last) {
      return status;
    }
    // Whoever held the room may have left since: with nobody in the way, one
    // more try decides.
    last = !OtherOperatorsRunning();
    if (last) continue;
    for (HandleEntry* entry : thread.pins) {
      entry->pins.fetch_sub(1, std::memory_order_release);
    }
    thread.pins.clear();
    {
      OperatorWaiting waiting;
      WaitForOtherOperators(kWaitForOthersNs);
    }
    for (const GuardedHandle& guarded : handles) {
      thread.Pin(guarded.handle.entry());
    }
  }
}

Status Engine::AdmitOnce(DeviceAllocator& device, StreamId stream,
                         const char* name,
                         std::span<const GuardedHandle> handles,
                         bool* refused) {
  const std::uint64_t bit = std::uint64_t{1} << device.streams().BitOf(stream);
  // Everything is on the device, some of it still arriving: order the stream
  // behind the copies. kLeaving and kCopyingOut need the arbiter: its holder
  // decides when it sees our pin. A capture cannot wait for an event from
  // outside: the host waits for its copies, below.
  const bool capturing = Captures(device, stream);
  const auto accept = [&](bool* complete) -> Status {
    MutexLock lock(device.mutex());
    device.SettleArrivalsLocked();
    *complete = true;
    const std::uint32_t now = device.use_clock().load();
    for (const auto& [handle, written] : handles) {
      const HandleState s = handle.entry().state.load();
      if (s == HandleState::kCopyingIn && !capturing) {
        STRATALLOC_ASSIGN_OR_RETURN(const bool enqueued,
                                    device.AwaitArrivalLocked(handle, stream));
        if (!enqueued) {
          *complete = false;
          continue;
        }
      } else if (s != HandleState::kResident && s != HandleState::kUnmapped &&
                 s != HandleState::kReleasing) {
        *complete = false;  // the arbiter's part
        continue;
      }
      // Again for what was resident at first: it may have left and returned
      // while this operator was refused.
      NoteUse(handle, bit, written, now);
    }
    return {};
  };
  bool complete = false;
  STRATALLOC_RETURN_IF_ERROR(accept(&complete));
  if (complete) return {};

  const std::int64_t started = NowNs();
  DeviceState& state = *StateOf(device);
  std::vector<HandleRef> wanted;
  for (const GuardedHandle& guarded : handles) {
    wanted.push_back(guarded.handle);
  }
  Status status;
  {
    OperatorWaiting waiting;
    MutexLock arbiter(arbiter_);
    lower_.CollectDropped(device);
    for (HandleRef handle : wanted) {
      if (handle.entry().state.load() == HandleState::kPoisoned) {
        return Fail(ErrorCode::kCorrupt,
                    std::string(name) + " needs " + OwnersOf(device, handle) +
                        ", whose bytes on disk were damaged and are lost; "
                        "free it: assign new tensors, as "
                        "load_state_dict(assign=True) does");
      }
    }
    const std::uint64_t before = counters_.restored_handles;
    status = RestoreBatchLocked(state, wanted, Room::kEvict, {},
                                /*planned=*/false);
    counters_.restored_before_use += counters_.restored_handles - before;
    if (!status && status.error().code == ErrorCode::kOutOfMemory) {
      *refused = true;
      Bytes bytes = 0;
      std::sort(wanted.begin(), wanted.end(), [](HandleRef a, HandleRef b) {
        return a.address() < b.address();
      });
      wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
      for (HandleRef handle : wanted) bytes += handle.bytes();
      status = Fail(
          ErrorCode::kOutOfMemory,
          "CUDA out of memory. " + std::string(name) + " needs " +
              FormatBytes(bytes) + " of handles on GPU " +
              std::to_string(static_cast<int>(device.device().index())) +
              " at once; the limit is " + FormatBytes(device.limit()) + ". " +
              status.error().message +
              (state.refusal.empty()
                   ? ""
                   : ". stratalloc could not evict more: " + state.refusal));
    }
  }
  const std::uint64_t waited = static_cast<std::uint64_t>(NowNs() - started);
  stalls_.fetch_add(1, std::memory_order_relaxed);
  stall_ns_.fetch_add(waited, std::memory_order_relaxed);
  Ledger::Get().OnStall(device.device().index(), CurrentScope().scope, waited);
  if (!status) return status;
  if (capturing) STRATALLOC_RETURN_IF_ERROR(device.DrainArrivals());
  STRATALLOC_RETURN_IF_ERROR(accept(&complete));
  STRATALLOC_CHECK(complete, "pinned and restored, and away again");
  return {};
}

}  // namespace stratalloc
