// SPDX-License-Identifier: Apache-2.0
#include "tiering/host/host_tier.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "tiering/host/memory_limit.h"
#include "tiering/host/slab.h"

namespace stratalloc {
namespace {

constexpr Bytes kPage = 4096;
// Not pinned away from a machine or container that is almost out of memory:
// the kernel would kill something instead of saying no.
constexpr Bytes kLeftToOthers = 64 * kMiB;

// Small enough that a small budget is not spent on one size, large enough that
// a terabyte is a thousand slabs.
Bytes SlabStep(Bytes budget) {
  return std::clamp(budget / 256, 64 * kMiB, kGiB);
}

// One writer at a time, under the lock.
void RaiseTo(Bytes value, std::atomic<Bytes>* peak) {
  if (value > peak->load(std::memory_order_relaxed)) {
    peak->store(value, std::memory_order_relaxed);
  }
}

}  // namespace

struct HostTier::State {
  explicit State(const Options& given)
      : budget(given.budget),
        device(given.device),
        is_given(given.is_given),
        root(given.root) {}

  const Bytes budget;
  const Device device;
  const bool is_given;
  const std::string root;

  mutable Mutex mutex{LockRank::kTier};
  std::vector<std::unique_ptr<Slab>> slabs GUARDED_BY(mutex);  // by address

  // Written under the lock, read by anyone; each alone is exact.
  std::atomic<Bytes> used{0};
  std::atomic<Bytes> peak{0};  // of used
  std::atomic<Bytes> reserved{0};
  std::atomic<Bytes> reserved_peak{0};

  void* TakeFromSlabs(Bytes bytes) REQUIRES(mutex);
  Status AddSlab(Bytes bytes) REQUIRES(mutex);
  Bytes TrimSlabs(Bytes enough) REQUIRES(mutex);
  tl::unexpected<Error> Exhausted(Bytes bytes) const;
};

// The fullest slab that fits: the emptier ones get a chance to become empty
// and be trimmed.
void* HostTier::State::TakeFromSlabs(Bytes bytes) {
  Slab* best = nullptr;
  for (const auto& slab : slabs) {
    if (slab->largest_free() < bytes) continue;
    if (best == nullptr || slab->free_bytes() < best->free_bytes()) {
      best = slab.get();
    }
  }
  return best == nullptr ? nullptr : best->Take(bytes);
}

// Adds a slab with room for `bytes`, never beyond the budget.
Status HostTier::State::AddSlab(Bytes bytes) {
  const Bytes left = budget - reserved.load(std::memory_order_relaxed);
  const Bytes step = SlabStep(budget);
  // Whole buffers only: what is left over stays free for other sizes.
  Bytes wanted = std::max(bytes, RoundDown(std::min(step, left), bytes));
  const Bytes available =
      is_given ? MemoryGroupsLeft(root) : AvailableHostMemory(root);
  if (wanted + kLeftToOthers > available) wanted = bytes;
  if (wanted + kLeftToOthers > available) {
    return Fail(ErrorCode::kHostOutOfMemory,
                std::string(is_given ? "the memory cgroup of this process has"
                                     : "the machine or its container has") +
                    " only " + FormatBytes(available) +
                    " of memory left, too little for " + FormatBytes(bytes) +
                    " of pinned memory; a higher limit of the container, or "
                    "memory that others give back, helps");
  }
  auto slab = Slab::Create(device, wanted, bytes);
  if (!slab && wanted > bytes) {
    // The host is short: the one buffer asked for may still fit.
    slab = Slab::Create(device, bytes, bytes);
  }
  if (!slab) return tl::unexpected(std::move(slab).error());
  const Bytes total =
      reserved.load(std::memory_order_relaxed) + (*slab)->bytes();
  reserved.store(total, std::memory_order_relaxed);
  RaiseTo(total, &reserved_peak);
  const auto at = std::lower_bound(
      slabs.begin(), slabs.end(), (*slab)->data(),
      [](const auto& each, char* data) { return each->data() < data; });
  slabs.insert(at, std::move(*slab));
  return {};
}

// Gives empty slabs back until `enough` bytes are back.
Bytes HostTier::State::TrimSlabs(Bytes enough) {
  Bytes freed = 0;
  std::erase_if(slabs, [&](const std::unique_ptr<Slab>& slab) {
    if (freed >= enough || !slab->empty() || !slab->Unpin()) return false;
    freed += slab->bytes();
    return true;
  });
  reserved.fetch_sub(freed, std::memory_order_relaxed);
  return freed;
}

tl::unexpected<Error> HostTier::State::Exhausted(Bytes bytes) const {
  const Bytes live = used.load(std::memory_order_relaxed);
  std::string message = "the host budget of " + FormatBytes(budget) +
                        " has no room for " + FormatBytes(bytes) + ": " +
                        FormatBytes(live) + " hold evicted memory";
  if (budget - live >= bytes) {
    message += " and the rest is not free in one piece of that size";
  }
  return Fail(
      ErrorCode::kHostOutOfMemory,
      message + ". A larger host_budget, or more disk_budget, makes room");
}

HostTier::HostTier(Options options)
    : options_(options), state_(std::make_unique<State>(options)) {}

HostTier::~HostTier() = default;

Result<HostBuffer> HostTier::Allocate(Bytes bytes) {
  if (bytes == 0 || bytes % kPage != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "host buffers are whole pages of 4096 bytes, not " +
                    std::to_string(bytes));
  }
  State& state = *state_;
  MutexLock lock(state.mutex);
  void* data = state.TakeFromSlabs(bytes);
  if (data == nullptr) {
    Bytes left = state.budget - state.reserved.load(std::memory_order_relaxed);
    // Slabs that other sizes have left empty make room.
    if (left < bytes) left += state.TrimSlabs(bytes - left);
    if (left < bytes) {
      return state.Exhausted(bytes);
    }
    STRATALLOC_RETURN_IF_ERROR(state.AddSlab(bytes));
    data = state.TakeFromSlabs(bytes);
    STRATALLOC_CHECK(data != nullptr, "a new slab has no room");
  }
  const Bytes live =
      state.used.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  RaiseTo(live, &state.peak);
  return HostBuffer{data, bytes};
}

void HostTier::Free(HostBuffer buffer) {
  if (!buffer) return;
  State& state = *state_;
  MutexLock lock(state.mutex);
  char* const data = static_cast<char*>(buffer.data);
  auto next = std::upper_bound(
      state.slabs.begin(), state.slabs.end(), data,
      [](const char* at, const auto& slab) { return at < slab->data(); });
  STRATALLOC_CHECK(next != state.slabs.begin() && (*(next - 1))->Contains(data),
                   "a host buffer that is not of this tier was freed");
  (*(next - 1))->Free(data, buffer.bytes);
  state.used.fetch_sub(buffer.bytes, std::memory_order_relaxed);
}

Bytes HostTier::Trim() {
  MutexLock lock(state_->mutex);
  return state_->TrimSlabs(~Bytes{0});
}

Bytes HostTier::used() const {
  return state_->used.load(std::memory_order_relaxed);
}
Bytes HostTier::peak() const {
  return state_->peak.load(std::memory_order_relaxed);
}
Bytes HostTier::reserved() const {
  return state_->reserved.load(std::memory_order_relaxed);
}
Bytes HostTier::reserved_peak() const {
  return state_->reserved_peak.load(std::memory_order_relaxed);
}

Status HostTier::CheckInvariants() const {
  MutexLock lock(state_->mutex);
  Bytes total = 0, live = 0;
  for (const auto& slab : state_->slabs) {
    total += slab->bytes();
    live += slab->bytes() - slab->free_bytes();
  }
  const Bytes used_bytes = used(), reserved_bytes = reserved();
  if (total == reserved_bytes && live == used_bytes &&
      used_bytes <= reserved_bytes && reserved_bytes <= budget() &&
      used_bytes <= peak() && peak() <= reserved_peak() &&
      reserved_bytes <= reserved_peak() && reserved_peak() <= budget()) {
    return {};
  }
  return Fail(ErrorCode::kInvalidArgument,
              "host tier: used " + std::to_string(used_bytes) +
                  " (slabs: " + std::to_string(live) + "), reserved " +
                  std::to_string(reserved_bytes) + " (slabs: " +
                  std::to_string(total) + "), peak " + std::to_string(peak()) +
                  ", reserved peak " + std::to_string(reserved_peak()) +
                  ", budget " + std::to_string(budget()));
}

}  // namespace stratalloc
