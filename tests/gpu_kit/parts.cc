// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu_kit/parts.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/host_time.h"
#include "allocator/cuda/device.h"
#include "allocator/cuda/handle_probe.h"
#include "tiering/gpu/checksum.h"
#include "tiering/host/slab.h"
#include "tiering/io/chunk.h"

namespace stratalloc {
namespace {

std::int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Parts {
  std::optional<Device> device;  // makes the product's handles
  std::optional<Device> plain;
  std::optional<DeviceChecksum> checksum;
  std::uint64_t* words = nullptr;  // registered, for the checksums
  Address held_at = 0;
  PhysicalHandle held = kNoHandle;
  std::string exit_path;
};

// Never destroyed: parts_try_at_exit needs it last of all.
Parts& Get() {
  static auto& parts = *new Parts;
  return parts;
}

std::int64_t (*now)() = SteadyNow;
void (*before)(int) = nullptr;

void Before(int call) {
  if (before != nullptr) before(call);
}

// Adds the time of a call to `*total` and gives its result.
template <typename Function>
auto Timed(double* total, Function&& function) {
  const std::int64_t began = now();
  auto result = function();
  *total += static_cast<double>(now() - began);
  return result;
}

void Copy(const std::string& text, char* to) {
  if (to == nullptr) return;
  std::snprintf(to, PARTS_ERROR_BYTES, "%s", text.c_str());
}

int Answer(const Status& status, char* error) {
  if (status) return 0;
  Copy(status.error().message, error);
  return 1;
}

// As long as the driver says "not ready" it is asked again, and that counted.
constexpr int kTries = 1000;

Status Grant(const Device& device, Address address, Bytes bytes,
             std::int64_t* not_ready) {
  Status status;
  for (int i = 0; i < kTries; ++i) {
    status = device.GrantAccess(address, bytes, {});
    if (status || status.error().code != ErrorCode::kNotReady) break;
    ++*not_ready;
  }
  return status;
}

// One cycle; its destructor takes back what a failure left.
class Cycle {
 public:
  Cycle(const Device& device, Bytes bytes, int mappings, int flags,
        parts_times* times)
      : device_(device),
        bytes_(bytes),
        mappings_(mappings),
        flags_(flags),
        times_(*times) {
    handles_.reserve(mappings);
  }
  ~Cycle() {
    if (mapped_ > 0) (void)device_.Unmap(address_, bytes_ * mapped_);
    for (const PhysicalHandle handle : handles_) {
      (void)device_.ReleaseHandle(handle);
    }
    if (address_ != 0) (void)device_.FreeAddress(address_, Size());
  }

  Status Run() {
    STRATALLOC_ASSIGN_OR_RETURN(address_, Timed(&times_.reserve, [&] {
                                  return device_.ReserveAddress(Size());
                                }));
    double unseen = 0;
    double* const create = (flags_ & PARTS_KEEP) ? &unseen : &times_.create;
    Before(PARTS_CREATE);
    for (int i = 0; i < mappings_; ++i) {
      STRATALLOC_ASSIGN_OR_RETURN(
          const PhysicalHandle handle,
          Timed(create, [&] { return device_.CreateHandle(bytes_); }));
      handles_.push_back(handle);
    }
    const Bytes had = parts_free_bytes();
    Before(PARTS_MAP);
    for (int i = 0; i < mappings_; ++i) {
      STRATALLOC_RETURN_IF_ERROR(Timed(&times_.map, [&] {
        return device_.Map(address_ + i * bytes_, bytes_, handles_[i]);
      }));
      ++mapped_;
    }
    Before(PARTS_ACCESS);
    STRATALLOC_RETURN_IF_ERROR(
        ByRanges(&times_.access, [&](Address address, Bytes bytes) {
          return Grant(device_, address, bytes, &times_.not_ready);
        }));
    const Bytes has = parts_free_bytes();
    times_.used_by_access = had > has ? had - has : 0;
    Before(PARTS_UNMAP);
    STRATALLOC_RETURN_IF_ERROR(
        ByRanges(&times_.unmap, [&](Address address, Bytes bytes) {
          return device_.Unmap(address, bytes);
        }));
    mapped_ = 0;
    double* const release = (flags_ & PARTS_KEEP) ? &unseen : &times_.release;
    Before(PARTS_RELEASE);
    while (!handles_.empty()) {
      STRATALLOC_RETURN_IF_ERROR(Timed(
          release, [&] { return device_.ReleaseHandle(handles_.back()); }));
      handles_.pop_back();
    }
    const Address address = std::exchange(address_, 0);
    return Timed(&times_.free,
                 [&] { return device_.FreeAddress(address, Size()); });
  }

 private:
  Bytes Size() const { return bytes_ * mappings_; }

  // The whole run in one call, as the product does, or mapping by mapping.
  template <typename Function>
  Status ByRanges(double* total, Function&& function) {
    const int calls = (flags_ & PARTS_EACH) ? mappings_ : 1;
    const Bytes step = Size() / calls;
    for (int i = 0; i < calls; ++i) {
      STRATALLOC_RETURN_IF_ERROR(
          Timed(total, [&] { return function(address_ + i * step, step); }));
    }
    return {};
  }

  const Device& device_;
  const Bytes bytes_;
  const int mappings_;
  const int flags_;
  parts_times& times_;
  Address address_ = 0;
  int mapped_ = 0;
  std::vector<PhysicalHandle> handles_;
};

Status Open(parts_device* out) {
  double open = 0, probe = 0;
  STRATALLOC_ASSIGN_OR_RETURN(const Device opened, Timed(&open, [] {
                                return Device::Open(DeviceIndex{0});
                              }));
  const Device probed = Timed(&probe, [&] { return ProbeHandles(opened); });
  Get().device = probed;
  Get().plain = probed.WithHandles({}, "");
  *out = {};
  out->virtual_memory = probed.has_virtual_memory();
  out->exportable = probed.handles().exportable;
  out->rdma = probed.handles().rdma;
  out->granularity = probed.granularity();
  out->open_ns = open;
  out->probe_ns = probe;
  if (!probed.has_virtual_memory()) {
    Copy(probed.why_no_virtual_memory(), out->why);
  }
  return {};
}

Status Hold() {
  Parts& parts = Get();
  const Device& device = *parts.device;
  const Bytes bytes = device.granularity();
  std::int64_t not_ready = 0;
  STRATALLOC_ASSIGN_OR_RETURN(parts.held_at, device.ReserveAddress(bytes));
  STRATALLOC_ASSIGN_OR_RETURN(parts.held, device.CreateHandle(bytes));
  STRATALLOC_RETURN_IF_ERROR(device.Map(parts.held_at, bytes, parts.held));
  return Grant(device, parts.held_at, bytes, &not_ready);
}

std::string Try() {
  Parts& parts = Get();
  const Device& device = *parts.device;
  const Bytes bytes = device.granularity();
  std::string text;
  const auto line = [&](const char* call, const Status& status) {
    text += std::string(call) + ": " +
            (status ? "ok" : status.error().message) + "\n";
  };
  const Result<PhysicalHandle> made = device.CreateHandle(bytes);
  line("cuMemCreate", made ? Status() : tl::unexpected(made.error()));
  line("cuMemSetAccess", device.GrantAccess(parts.held_at, bytes, {}));
  line("cudaDeviceSynchronize", device.SynchronizeDevice());
  line("cuMemUnmap", device.Unmap(parts.held_at, bytes));
  line("cuMemRelease", device.ReleaseHandle(parts.held));
  line("cuMemAddressFree", device.FreeAddress(parts.held_at, bytes));
  return text;
}

void TryAtExit() {
  if (!Get().device || Get().held == kNoHandle) return;
  const std::string text = Try();
  if (FILE* file = std::fopen(Get().exit_path.c_str(), "w")) {
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }
}

constexpr Bytes kPage = 4096;

Status LoadChecksum(double* ns) {
  Parts& parts = Get();
  const Device& device = *parts.device;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return Fail(ErrorCode::kHostOutOfMemory, "no page for checksums");
  }
  STRATALLOC_RETURN_IF_ERROR(device.RegisterHost(page, kPage));
  parts.words = static_cast<std::uint64_t*>(page);
  STRATALLOC_ASSIGN_OR_RETURN(const StreamId stream, device.CreateStream());
  Result<DeviceChecksum> loaded = Timed(
      ns, [&] { return DeviceChecksum::Load(device, stream, parts.words); });
  device.DestroyStream(stream);
  if (!loaded) return tl::unexpected(loaded.error());
  parts.checksum = *loaded;
  return {};
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // of this file's C functions

extern "C" {

void parts_use_clock(int64_t (*now_ns)(void)) { now = now_ns; }

void parts_before(void (*function)(int call)) { before = function; }

int parts_open(parts_device* out, char* error) {
  return Answer(Open(out), error);
}

int parts_cycle(uint64_t bytes, int mappings, int flags, parts_times* out,
                char* error) {
  *out = {};
  const Parts& parts = Get();
  const Device& device = (flags & PARTS_PLAIN) ? *parts.plain : *parts.device;
  return Answer(Cycle(device, bytes, mappings, flags, out).Run(), error);
}

uint64_t parts_free_bytes(void) {
  const Result<MemoryInfo> info = Get().device->GetMemoryInfo();
  return info ? info->free : 0;
}

int parts_hold(uint64_t* address, char* error) {
  const Status held = Hold();
  *address = Get().held_at;
  return Answer(held, error);
}

int parts_try(char* text, int size) {
  const std::string said = Try();
  std::snprintf(text, size, "%s", said.c_str());
  return static_cast<int>(said.size());
}

int parts_try_at_exit(const char* path) {
  Get().exit_path = path;
  return std::atexit(TryAtExit);
}

int parts_load_checksum(double* ns, uint64_t* used, char* error) {
  *ns = 0;
  const Bytes before = parts_free_bytes();
  const Status loaded = LoadChecksum(ns);
  const Bytes after = parts_free_bytes();
  *used = before > after ? before - after : 0;
  return Answer(loaded, error);
}

int parts_checksums(const uint64_t* addresses, uint64_t bytes, int count,
                    uint64_t stream, const uint64_t** results, char* error) {
  std::vector<DeviceChecksum::Range> ranges(count);
  for (int i = 0; i < count; ++i) ranges[i] = {addresses[i], bytes};
  *results = Get().words;
  return Answer(Get().checksum->Launch(ranges, Get().words, StreamId{stream}),
                error);
}

uint64_t parts_checksum_on_host(const void* data, uint64_t bytes) {
  return ChecksumOnHost(data, bytes);
}

void parts_use_host_clock(void (*checksummed)(uint64_t bytes)) {
  const auto nobody = [](std::uint64_t) {};
  // Never freed: threads of a slab may be telling of their waits.
  host_time_listener.store(new HostTimeListener{checksummed, nobody, nobody});
}

uint64_t parts_payload_checksum(const void* data, uint64_t bytes) {
  return PayloadChecksum(data, bytes);
}

int parts_slab(uint64_t bytes, double* made_ns, double* ended_ns, char* error) {
  *made_ns = *ended_ns = 0;
  Result<std::unique_ptr<Slab>> slab = Timed(made_ns, [&] {
    return Slab::Create(*Get().device, bytes,
                        std::min<Bytes>(bytes, 32 * kMiB));
  });
  if (!slab) return Answer(tl::unexpected(slab.error()), error);
  Timed(ended_ns, [&] {
    slab->reset();
    return 0;
  });
  return 0;
}

int parts_register(void* data, uint64_t bytes, double* made_ns,
                   double* ended_ns, char* error) {
  *made_ns = *ended_ns = 0;
  const Device& device = *Get().device;
  const Status registered =
      Timed(made_ns, [&] { return device.RegisterHost(data, bytes); });
  if (!registered) return Answer(registered, error);
  return Answer(Timed(ended_ns, [&] { return device.UnregisterHost(data); }),
                error);
}

}  // extern "C"
