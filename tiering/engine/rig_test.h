// SPDX-License-Identifier: Apache-2.0
// What the tests of the engine share: devices of the simulator, an allocator on
// each, a ledger and an engine on them, operators made of plain host code,
// and an end that asks whether anything is left.
//
// Thread-safety: Make and Close from one thread; the rest from any.
// Lifetime: one rig at a time, because the simulator is the process's.
#ifndef STRATALLOC_TIERING_ENGINE_RIG_TEST_H_
#define STRATALLOC_TIERING_ENGINE_RIG_TEST_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "allocator/device_allocator.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"
#include "tiering/engine/engine.h"
#include "tiering/io/disk_faults_test.h"

namespace stratalloc {

class Rig {
 public:
  struct Options {
    Bytes capacity = 64 * kMiB;
    Bytes host_budget = 64 * kMiB;
    Bytes disk_budget = 0;
    std::chrono::nanoseconds disk_deadline = std::chrono::seconds(60);
    std::string disk_dir;
    bool background = false;
    bool under_pressure = false;  // thresholds act from the start
    // How long nothing changes before a thread that waits for room is told
    // that it is hopeless; 0 = the product's.
    std::int64_t quiet_ns = 0;
    std::int64_t running_ns = 0;  // the same while an operator runs elsewhere
    std::int64_t busy_ns = 0;     // the same while kernels keep pages
    std::int64_t calm_ns = 0;     // until pressure ends
    std::function<std::int64_t()> now_ns;  // for them; empty = the product's
    bool async = true;
    std::uint64_t seed = 1;
    double emergency_threshold = 0.95;
    Bytes segment_least = 64 * kMiB;
    int devices = 1;            // the simulator must have as many
    Bytes second_capacity = 0;  // of the second device; 0: as the first
    // Called when the simulator is fresh: plans failures, say.
    std::function<void()> prepare;
    // Devices that the engine refuses are there all the same.
    bool refusals = false;
  };

  static Result<std::unique_ptr<Rig>> Make(const Options& options) {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(options.async ? 1 : 0);
    cudasim_set_seed(options.seed);
    if (options.prepare) options.prepare();
    std::unique_ptr<Rig> rig(new Rig);
    DeviceAllocator::Options allocator;
    allocator.host_budget = options.host_budget;
    allocator.disk_budget = options.disk_budget;
    allocator.emergency_threshold = options.emergency_threshold;
    allocator.segment_least = options.segment_least;
    for (int i = 0; i < options.devices; ++i) {
      cudasim_set_capacity(i, i == 1 && options.second_capacity != 0
                                  ? options.second_capacity
                                  : options.capacity);
      STRATALLOC_ASSIGN_OR_RETURN(Device device,
                                  Device::Open(static_cast<DeviceIndex>(i)));
      STRATALLOC_ASSIGN_OR_RETURN(std::unique_ptr<DeviceAllocator> made,
                                  DeviceAllocator::Create(device, allocator));
      made->SetAccounts(&rig->ledger_);
      rig->devices_.push_back(std::move(made));
    }
    Engine::Options engine;
    engine.lower.host_budget = options.host_budget;
    engine.lower.disk_budget = options.disk_budget;
    engine.lower.disk_dir = options.disk_dir;
    engine.lower.wrap_io = rig->disk_faults_.Wrap();
    engine.lower.disk_deadline = options.disk_deadline;
    engine.background = options.background;
    engine.under_pressure = options.under_pressure;
    engine.quiet_ns = options.quiet_ns;
    engine.running_ns = options.running_ns;
    engine.busy_ns = options.busy_ns;
    engine.calm_ns = options.calm_ns;
    if (options.now_ns) engine.now_ns = options.now_ns;
    rig->engine_ = std::make_unique<Engine>(engine);
    Bytes largest = 0;
    for (const auto& device : rig->devices_) {
      largest = std::max(
          largest, device->table().region(true, PoolKind::kLarge).handle_bytes);
    }
    for (const auto& device : rig->devices_) {
      Status added = rig->engine_->AddDevice(*device, largest);
      if (!added && !options.refusals) return tl::unexpected(added.error());
    }
    return rig;
  }

  // What is wrong at the end, "" if nothing: everything must be freed.
  std::string Close() {
    // A restore in flight holds memory that is mapped nowhere yet.
    engine_->StopBackground();
    std::string wrong = Check();
    cudasim_clear_faults();
    engine_.reset();
    while (!devices_.empty()) {
      devices_.pop_back();  // ends what was pending
      if (ledger_.Totals(static_cast<DeviceIndex>(devices_.size())).live != 0) {
        wrong += "the ledger still counts live bytes\n";
      }
    }
    // After the allocators, as torch's own streams, which live for ever.
    for (StreamId stream : streams_) cudaStreamDestroy(ToCuda(stream));
    streams_.clear();
    const long violations = cudasim_violation_count();
    for (long i = 0; i < violations && i < 4; ++i) {
      char text[1024] = "";
      cudasim_violation(i, text, sizeof(text));
      wrong += std::string("violation: ") + text + "\n";
    }
    char text[2048] = "";
    cudasim_leak_report(text, sizeof(text));
    if (std::strcmp(text, "no leaks\n") != 0) {
      wrong += std::string("leaked: ") + text;
    }
    return wrong;
  }
  ~Rig() {
    engine_.reset();
    devices_.clear();
  }

  // Invariants of every room; at quiescent points.
  std::string Check() {
    std::string wrong;
    for (const auto& device : devices_) {
      if (Status s = device->CheckInvariants(); !s) {
        wrong += s.error().message + "\n";
      }
      if (Status s = engine_->CheckInvariants(*device); !s) {
        wrong += s.error().message + "\n";
      }
    }
    if (Status s = ledger_.CheckInvariants(); !s) {
      wrong += s.error().message + "\n";
    }
    return wrong;
  }

  DeviceAllocator& device(std::size_t i = 0) { return *devices_[i]; }
  Engine& engine() { return *engine_; }
  Ledger& ledger() { return ledger_; }
  DiskFaults& disk_faults() { return disk_faults_; }

  StreamId NewStream() {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    streams_.push_back(StreamId{reinterpret_cast<std::uint64_t>(stream)});
    return streams_.back();
  }
  static cudaStream_t ToCuda(StreamId stream) {
    return reinterpret_cast<cudaStream_t>(Raw(stream));
  }

  Result<Address> Malloc(Bytes bytes, StreamId stream = kDefaultStream,
                         LifetimeClass lifetime = LifetimeClass::kPersistent,
                         Charge charge = {ScopeId{1}, Category::kParameter}) {
    Result<AllocatedBlock> block =
        device().Malloc({bytes, stream, lifetime, charge});
    if (!block) return tl::unexpected(block.error());
    return block->address;
  }

  // An operator: guard, stream, host code over the bytes, pending accesses.
  Status Operate(StreamId stream, std::vector<Access> accesses,
                 const std::function<void()>& compute,
                 const char* name = "test::op") {
    STRATALLOC_RETURN_IF_ERROR(engine_->EnterOperator(stream, name, accesses));
    std::vector<cudasim_access> noted;
    for (const Access& a : accesses) {
      noted.push_back({a.address, a.bytes, a.written ? 1 : 0});
    }
    cudasim_begin_operator(ToCuda(stream), name);
    const long held =
        cudasim_hold_ranges(name, noted.data(), static_cast<int>(noted.size()));
    compute();
    cudasim_release_ranges(held);
    cudasim_note_access(ToCuda(stream), name, noted.data(),
                        static_cast<int>(noted.size()));
    engine_->LeaveOperator();
    return {};
  }
  static char* View(Address address) {
    return static_cast<char*>(
        cudasim_host_view(reinterpret_cast<const void*>(address)));
  }
  // Words of a pattern that names its seed and its place.
  static void Fill(Address address, Bytes bytes, std::uint64_t seed) {
    char* to = View(address);
    for (Bytes at = 0; at + 8 <= bytes; at += 8) {
      const std::uint64_t word = seed * 0x9e3779b97f4a7c15 + at;
      std::memcpy(to + at, &word, 8);
    }
  }
  static bool Holds(Address address, Bytes bytes, std::uint64_t seed) {
    const char* from = View(address);
    for (Bytes at = 0; at + 8 <= bytes; at += 8) {
      const std::uint64_t word = seed * 0x9e3779b97f4a7c15 + at;
      if (std::memcmp(from + at, &word, 8) != 0) return false;
    }
    return true;
  }
  Status Write(Address address, Bytes bytes, std::uint64_t seed,
               StreamId stream = kDefaultStream) {
    return Operate(stream, {{address, bytes, true}},
                   [&] { Fill(address, bytes, seed); });
  }
  // Whether the bytes are what Write left; errors are returned.
  Result<bool> Reads(Address address, Bytes bytes, std::uint64_t seed,
                     StreamId stream = kDefaultStream) {
    bool holds = false;
    STRATALLOC_RETURN_IF_ERROR(Operate(stream, {{address, bytes, false}}, [&] {
      holds = Holds(address, bytes, seed);
    }));
    return holds;
  }

  // Of whatever device.
  HandleRegion* RegionOf(Address address) {
    for (const auto& device : devices_) {
      HandleRegion* const region = device->table().RegionOf(address);
      if (region != nullptr) return region;
    }
    return nullptr;
  }
  HandleRef RefOf(Address address) {
    HandleRegion* const region = RegionOf(address);
    return {region, region->IndexOf(address)};
  }
  HandleUse& UseOf(Address address) { return RefOf(address).use(); }
  HandleState StateOf(Address address) { return RefOf(address).state(); }
  // Is any of these bytes?
  bool IsAway(Address address, Bytes bytes) {
    HandleRegion* region = RegionOf(address);
    if (region == nullptr) return false;  // unmanaged memory
    for (std::uint64_t i = region->IndexOf(address);
         i < region->count() && region->AddressOf(i) < address + bytes; ++i) {
      if (stratalloc::IsAway(HandleRef{region, i}.state())) return true;
    }
    return false;
  }

 private:
  Rig() = default;

  Ledger ledger_;
  DiskFaults disk_faults_;
  std::vector<std::unique_ptr<DeviceAllocator>> devices_;
  std::unique_ptr<Engine> engine_;
  std::vector<StreamId> streams_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_RIG_TEST_H_
