// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/shadow_bytes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {
namespace {

std::mutex captures_mutex;
auto& captures =
    *new std::map<unsigned long long, std::shared_ptr<ShadowBytes>>;

// Under a mutex of its own: the device calls with its lock held.
std::mutex ended_mutex;
auto& ended = *new std::vector<unsigned long long>;

void NoteEnd(unsigned long long capture) {
  std::lock_guard<std::mutex> lock(ended_mutex);
  ended.push_back(capture);
}

std::vector<unsigned long long> TakeEnded() {
  std::lock_guard<std::mutex> lock(ended_mutex);
  return std::exchange(ended, {});
}

}  // namespace

void ShadowBytes::Connect() { SimulatedDevice::Get().OnCaptureEnd(&NoteEnd); }

std::shared_ptr<ShadowBytes> ShadowBytes::Of(unsigned long long capture) {
  std::lock_guard<std::mutex> lock(captures_mutex);
  for (unsigned long long each : TakeEnded()) captures.erase(each);
  std::shared_ptr<ShadowBytes>& found = captures[capture];
  if (found == nullptr) found = std::make_shared<ShadowBytes>();
  return found;
}

std::map<uint64_t, ShadowBytes::Range>::iterator ShadowBytes::FirstAfter(
    uint64_t address) {
  auto first = ranges_.upper_bound(address);
  if (first != ranges_.begin() && std::prev(first)->second.end > address) {
    --first;
  }
  return first;
}

bool ShadowBytes::Holds(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto first = FirstAfter(address);
  return first != ranges_.end() && first->first < address + bytes;
}

char* ShadowBytes::At(uint64_t address, size_t bytes, bool write) {
  const SimulatedDevice& device = SimulatedDevice::Get();
  const void* const original = reinterpret_cast<const void*>(address);
  char* const own = static_cast<char*>(device.HostView(original));
  if (bytes == 0) return own;
  std::lock_guard<std::mutex> lock(mu_);
  uint64_t low = address;
  uint64_t high = address + bytes;
  const auto first = FirstAfter(address);
  auto last = first;
  while (last != ranges_.end() && last->first < address + bytes) {
    low = std::min(low, last->first);
    high = std::max(high, last->second.end);
    ++last;
  }
  if (first == last && !write) return own;
  if (first != last && std::next(first) == last && first->first == low &&
      first->second.end == high) {
    return first->second.bytes.data() + (address - low);
  }
  Range merged{high, std::vector<char>(high - low)};
  // What a merged copy covers may be unmapped by now.
  if (device.Accessible(original, bytes)) {
    std::memcpy(merged.bytes.data() + (address - low), own, bytes);
  }
  for (auto each = first; each != last; ++each) {
    std::memcpy(merged.bytes.data() + (each->first - low),
                each->second.bytes.data(), each->second.bytes.size());
    merged_.push_back(std::move(each->second.bytes));
  }
  ranges_.erase(first, last);
  Range& made = ranges_[low] = std::move(merged);
  return made.bytes.data() + (address - low);
}

}  // namespace cudasim::bridge
