// SPDX-License-Identifier: Apache-2.0
#include "allocator/external_streams.h"

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

void ExternalStreams::Add(StreamId stream) {
  const std::uint64_t value = ValueOf(stream);
  if (value == 0 || Find(stream)) return;
  if (count_.fetch_add(1) >= kMost) {
    full_.store(true, std::memory_order_release);
    any_.store(true, std::memory_order_release);
    return;
  }
  for (std::uint64_t at = Mixed(value);; ++at) {
    std::uint64_t seen = 0;
    if (values_[at % (2 * kMost)].compare_exchange_strong(
            seen, value, std::memory_order_acq_rel) ||
        seen == value) {
      break;
    }
  }
  any_.store(true, std::memory_order_release);
}

bool ExternalStreams::Find(StreamId stream) {
  const std::uint64_t value = ValueOf(stream);
  if (value == 0) return false;
  if (full_.load(std::memory_order_acquire) || IsPerThread(stream)) return true;
  for (std::uint64_t at = Mixed(value);; ++at) {
    const std::uint64_t seen =
        values_[at % (2 * kMost)].load(std::memory_order_acquire);
    if (seen == value) return true;
    if (seen == 0) return false;
  }
}

}  // namespace stratalloc
