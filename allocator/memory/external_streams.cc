// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/external_streams.h"

namespace stratalloc {

std::atomic<bool> ExternalStreams::any_{false};
std::atomic<bool> ExternalStreams::full_{false};
std::atomic<std::uint64_t> ExternalStreams::values_[2 * kMost]{};
std::atomic<int> ExternalStreams::count_{0};

namespace {

// Streams are addresses, or small numbers on some drivers: all bits count.
std::uint64_t Mixed(std::uint64_t value) {
  value *= 0x9E3779B97F4A7C15u;
  return value >> 32;
}

}  // namespace

std::atomic<std::uint64_t>* ExternalStreams::PlaceOf(std::uint64_t value) {
  for (std::uint64_t at = Mixed(value);; ++at) {
    auto& place = values_[at % (2 * kMost)];
    const std::uint64_t seen = place.load(std::memory_order_acquire);
    if ((seen & ~kLasting) == value) return &place;
    if (seen == 0) return nullptr;
  }
}

void ExternalStreams::Add(StreamId stream) {
  const std::uint64_t value = StreamValue(stream);
  if (value == 0 || IsPerThread(stream) || PlaceOf(value) != nullptr) return;
  if (count_.fetch_add(1) >= kMost) {
    full_.store(true, std::memory_order_release);
    any_.store(true, std::memory_order_release);
    return;
  }
  for (std::uint64_t at = Mixed(value);; ++at) {
    std::uint64_t seen = 0;
    if (values_[at % (2 * kMost)].compare_exchange_strong(
            seen, value, std::memory_order_acq_rel) ||
        (seen & ~kLasting) == value) {
      break;
    }
  }
  any_.store(true, std::memory_order_release);
}

void ExternalStreams::NoteLasting(StreamId stream) {
  const std::uint64_t value = StreamValue(stream);
  if (value == 0) return;
  if (auto* place = PlaceOf(value)) {
    place->store(value | kLasting, std::memory_order_release);
  }
}

bool ExternalStreams::Find(StreamId stream) {
  const std::uint64_t value = StreamValue(stream);
  if (value == 0) return false;
  if (full_.load(std::memory_order_acquire) || IsPerThread(stream)) return true;
  const auto* place = PlaceOf(value);
  return place != nullptr && place->load(std::memory_order_acquire) == value;
}

}  // namespace stratalloc
