// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core/core.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "accounting/node_scopes.h"
#include "accounting/scope_stack.h"
#include "accounting/scope_times.h"
#include "allocator/base/check.h"
#include "allocator/state/frame_accounts.h"
#include "allocator/values/size_rules.h"
#include "python_shim/core/evictable_range.h"

uint64_t stratalloc_evictable_lo = 0;
uint64_t stratalloc_evictable_hi = 0;

namespace stratalloc {

namespace {

// The guard reads these without a lock: a lower `lo` first, so that no
// published `hi` ever stands with a `lo` that hides a device.
void WidenEvictable(Address lo, Address hi) {
  const Address old_lo =
      __atomic_load_n(&stratalloc_evictable_lo, __ATOMIC_RELAXED);
  const Address old_hi =
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_RELAXED);
  __atomic_store_n(&stratalloc_evictable_lo, std::min(old_lo, lo),
                   __ATOMIC_RELEASE);
  __atomic_store_n(&stratalloc_evictable_hi, std::max(old_hi, hi),
                   __ATOMIC_RELEASE);
}

// What the frame has left is temporary no more.
void EndFrame(FrameId account) {
  if (Core::Get().abandoned()) return;
  FrameAccounts& accounts = FrameAccounts::Get();
  while (account != 0) {
    const FrameAccount& frame = accounts.at(account);
    const FrameId next = frame.next;
    if (frame.HasNoBlocks()) {
      accounts.Recycle(account);  // by this thread alone: no block is left
    } else if (DeviceAllocator* device = Allocator::Get().Find(frame.device)) {
      device->EndFrame(account);
    }
    account = next;
  }
}

// On, and nothing is evictable yet: operators are guarded from the first one
// on, which may be the one that opens a device.
void BeginEvictable() {
  __atomic_store_n(&stratalloc_evictable_lo, ~Address{0}, __ATOMIC_RELEASE);
  __atomic_store_n(&stratalloc_evictable_hi, 1, __ATOMIC_RELEASE);
}

void EndEvictable() {
  __atomic_store_n(&stratalloc_evictable_hi, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&stratalloc_evictable_lo, 0, __ATOMIC_RELEASE);
}

// What devices [0, count) are, opened or not. One that does not tell is taken
// for an ordinary one: whoever opens it is told why.
std::vector<Card> Cards(int count) {
  std::vector<Card> cards;
  for (int i = 0; i < count; ++i) {
    Result<Card> card = Device::Look(static_cast<DeviceIndex>(i));
    cards.push_back(card ? *card : Card{0, true});
  }
  return cards;
}

}  // namespace

Core& Core::Get() {
  static Core* core = new Core;
  return *core;
}

Status Core::Configure(Config config) {
  MutexLock lock(mutex_);
  if (initialized_.load()) {
    return Fail(ErrorCode::kInvalidArgument,
                "CUDA is initialised already: configure stratalloc before the "
                "first CUDA call");
  }
  config_ = std::move(config);
  UseTelemetry(config_.telemetry);
  return {};
}

void Core::SetTelemetry(TelemetryLevel level) {
  MutexLock lock(mutex_);
  UseTelemetry(level);
}

void Core::UseTelemetry(TelemetryLevel level) {
  if (abandoned()) return;
  telemetry_.store(level, std::memory_order_relaxed);
  ScopeTimes::Count(CountsTime(level));
  Allocator::Get().RecordSites(RecordsSites(level));
}

Status Core::Init(int device_count) {
  bool tiering = false;
  {
    MutexLock lock(mutex_);
    if (initialized_.load()) return {};
    // As enable() has said.
    const bool nowhere =
        config_.device.host_budget == 0 && config_.device.disk_budget == 0;
    tiering = config_.tiering && !nowhere;
    why_no_engine_.store(
        !config_.tiering ? "tiering is off"
        : nowhere        ? "there is neither host memory nor a disk to evict to"
                         : "",
        std::memory_order_release);
    if (tiering && engine_.load() == nullptr) {
      engine_.store(new Engine(config_.engine), std::memory_order_release);
    }
  }
  DeviceAllocator::Options options = config_.device;
  options.tiering = tiering;
  STRATALLOC_RETURN_IF_ERROR(Allocator::Get().Init(
      device_count, options,
      {[this](DeviceAllocator& device) { return Plug(device); },
       [](DeviceAllocator&) { StopAtExit(); }}));
  static std::atomic<bool> once{false};
  if (!once.exchange(true)) {
    const std::vector<Card> cards = Cards(device_count);
    if (engine_.load() != nullptr &&
        std::any_of(cards.begin(), cards.end(),
                    [](const Card& card) { return card.virtual_memory; })) {
      BeginEvictable();
    }
    pthread_atfork(nullptr, nullptr, [] {
      Core& core = Core::Get();
      core.abandoned_.store(true, std::memory_order_relaxed);
      opened_devices.Forget();
      NodeScopes::Use(nullptr);
      ScopeTimes::Abandon();
      FrameAccounts::AbandonAfterFork();
      EndEvictable();
      if (Engine* e = core.engine()) e->AbandonAfterFork();
    });
  }
  initialized_.store(true, std::memory_order_release);
  return {};
}

Status Core::Plug(DeviceAllocator& device) {
  device.SetAccounts(&Ledger::Get());
  SetFrameEnd(&EndFrame);
  Engine* engine = engine_.load();
  if (engine == nullptr) return {};
  // Staging buffers are made once: as large as the largest card will want.
  Bytes memory = 0;
  for (const Card& card : Cards(Allocator::Get().device_count())) {
    memory = std::max(memory, card.memory);
  }
  const DeviceAllocator::Options& wanted = config_.device;
  if (wanted.gpu_limit != 0) memory = std::min(memory, wanted.gpu_limit);
  const Bytes granularity = device.device().granularity();
  const Bytes largest = granularity == 0
                            ? 0
                            : LargeHandleBytes(memory, wanted.host_budget,
                                               wanted.disk_budget, granularity);
  if (Status added = engine->AddDevice(device, largest); !added) {
    Log(LogLevel::kWarning,
        "nothing can be evicted from device " +
            std::to_string(static_cast<int>(device.device().index())) + ": " +
            added.error().message +
            " (tiering is off there; tiering:off says so beforehand)");
    return {};
  }
  WidenEvictable(device.table().base(), device.table().evictable_end());
  // Looked at afterwards, since SwitchTieringOff ends the range once it is off.
  if (engine->off()) EndEvictable();
  return {};
}

Result<Bytes> Core::SwitchTieringOff() {
  STRATALLOC_RETURN_IF_ERROR(NotInAFork());
  Engine* const engine = engine_.load();
  if (engine == nullptr) return Bytes{0};
  Result<Bytes> back = engine->SwitchOff();
  if (!back && back.error().code == ErrorCode::kOutOfMemory) {
    // What is cached may be all that is missing.
    for (int i = 0; i < Allocator::Get().device_count(); ++i) {
      STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * opened, Opened(i));
      if (opened != nullptr) STRATALLOC_RETURN_IF_ERROR(opened->EmptyCache());
    }
    back = engine->SwitchOff();
  }
  if (!back) return back;
  EndEvictable();
  return back;
}

void Core::StopAtExit() {
  // By now CUDA has registered what it does at the end, and ours comes before.
  static std::atomic<bool> once{false};
  if (once.exchange(true)) return;
  std::atexit([] {
    if (Engine* e = Core::Get().engine()) e->StopBackground();
  });
}

Status Core::NotInAFork() const {
  if (!abandoned()) return {};
  return Fail(ErrorCode::kShutdown,
              "CUDA memory cannot be used in a forked process; use the 'spawn' "
              "start method");
}

Result<DeviceAllocator*> Core::Opened(int index) const {
  STRATALLOC_RETURN_IF_ERROR(NotInAFork());
  const int count = Allocator::Get().device_count();
  if (index < 0 || index >= count) {
    return Fail(ErrorCode::kInvalidArgument,
                "no device " + std::to_string(index) + ": " +
                    std::to_string(count) + " initialised");
  }
  return Allocator::Get().Find(static_cast<DeviceIndex>(index));
}

Result<DeviceAllocator*> Core::Device(int index) const {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * opened, Opened(index));
  if (opened != nullptr) return opened;
  return Allocator::Get().Open(static_cast<DeviceIndex>(index));
}

Result<stratalloc::Device> Core::Cuda(int index) const {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * opened, Opened(index));
  if (opened != nullptr) return opened->device();
  return stratalloc::Device::Open(static_cast<DeviceIndex>(index));
}

}  // namespace stratalloc
