// SPDX-License-Identifier: Apache-2.0
#include "tiering/host/slab.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/base/host_time.h"

namespace stratalloc {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;
constexpr Bytes kSmallHandle = 2 * kMiB;
// The driver holds its lock while it pins; 1 GiB takes about 0.1 s.
constexpr Bytes kRegisterStep = kGiB;
// Below this one thread zeroes the pages as fast as several can start.
constexpr Bytes kTouchPerThread = 32 * kMiB;
constexpr unsigned kMostTouchThreads = 8;

Bytes PageSize() {
  static const Bytes size = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  return size;
}

// A mapping aligned to huge pages: the surplus at both ends is given back.
char* MapAligned(Bytes bytes) {
  const Bytes asked = bytes + kHugePage;
  void* const raw = mmap(nullptr, asked, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = RoundUp(start, kHugePage);
  if (aligned > start) munmap(raw, aligned - start);
  const std::uintptr_t end = aligned + bytes;
  if (start + asked > end) {
    munmap(reinterpret_cast<void*>(end), start + asked - end);
  }
  return reinterpret_cast<char*>(aligned);
}

void TouchRange(char* data, Bytes bytes) {
  const Bytes page = PageSize();
  for (Bytes at = 0; at < bytes; at += page) {
    *static_cast<volatile char*>(data + at) = 0;
  }
}

// Pages must exist before they are pinned; the kernel zeroes each on its first
// touch, at a few GB/s per thread.
void Touch(char* data, Bytes bytes) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const Bytes threads = std::clamp<Bytes>(bytes / kTouchPerThread, 1,
                                          std::min(cores, kMostTouchThreads));
  const Bytes share = RoundUp(bytes / threads, kHugePage);
  std::vector<std::thread> helpers;
  Bytes at = share;
  // The last shares are ours when a thread cannot be started.
  try {
    for (; at < bytes; at += share) {
      const Bytes count = std::min(share, bytes - at);
      helpers.emplace_back(TouchRange, data + at, count);
    }
  } catch (const std::system_error&) {
    TouchRange(data + at, bytes - at);
  }
  TouchRange(data, std::min(share, bytes));
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

Result<std::unique_ptr<Slab>> Slab::Create(const Device& device, Bytes bytes,
                                           Bytes expected_buffer) {
  char* const data = MapAligned(bytes);
  if (data == nullptr) {
    return Fail(
        ErrorCode::kHostOutOfMemory,
        "the host has no " + FormatBytes(bytes) +
            " of memory for evicted handles (mmap: " + std::strerror(errno) +
            "); a higher limit of the process (ulimit -v) helps");
  }
  // Refused where the kernel has no transparent huge pages: only slower.
  madvise(data, bytes, MADV_HUGEPAGE);
  // A forked child must not copy pinned pages, nor keep them alive; its engine
  // is off.
  madvise(data, bytes, MADV_DONTFORK);
  if (!PinnedMemoryIsPhantom()) Touch(data, bytes);
  std::unique_ptr<Slab> slab(new Slab(device, data, bytes));
  STRATALLOC_RETURN_IF_ERROR(slab->Register());
  const Bytes buffers = bytes / std::max<Bytes>(1, expected_buffer);
  slab->free_.Reserve(std::max<Bytes>(64, buffers / 2 + 2));
  slab->free_.Add(0, bytes);
  slab->largest_free_ = bytes;
  return slab;
}

Status Slab::Register() {
  while (registered_ < bytes_) {
    const Bytes step = std::min(kRegisterStep, bytes_ - registered_);
    if (Status status = device_.RegisterHost(data_ + registered_, step);
        !status) {
      return Fail(ErrorCode::kHostOutOfMemory,
                  "cannot pin " + FormatBytes(step) +
                      " of host memory: " + status.error().message +
                      "; a higher limit on locked memory (ulimit -l) or of "
                      "the container's memory helps");
    }
    registered_ += step;
  }
  return {};
}

bool Slab::Unpin() {
  while (registered_ > 0) {
    const Bytes at = RoundDown(registered_ - 1, kRegisterStep);
    if (!device_.UnregisterHost(data_ + at)) {
      (void)Register();  // it stays as it was
      return false;
    }
    registered_ = at;
  }
  return true;
}

Slab::~Slab() {
  for (Bytes at = 0; at < registered_; at += kRegisterStep) {
    if (Status status = device_.UnregisterHost(data_ + at); !status) {
      // At exit the driver may be gone already; the memory goes either way.
      Log(LogLevel::kWarning,
          "a pinned slab could not be unregistered: " + status.error().message);
    }
  }
  munmap(data_, bytes_);
}

void* Slab::Take(Bytes bytes) {
  if (largest_free_ < bytes) return nullptr;
  const bool small = bytes <= kSmallHandle;
  const auto offset = small ? free_.TakeLow(bytes) : free_.TakeHigh(bytes);
  STRATALLOC_CHECK(offset.has_value(), "largest_free_ is stale");
  largest_free_ = free_.largest();
  return data_ + *offset;
}

void Slab::Free(void* data, Bytes bytes) {
  free_.Add(static_cast<Bytes>(static_cast<char*>(data) - data_), bytes);
  largest_free_ = free_.largest();
}

}  // namespace stratalloc
