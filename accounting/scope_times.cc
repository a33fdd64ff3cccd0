// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_times.h"

#include <algorithm>
#include <utility>

#include "allocator/base/mutex.h"

namespace stratalloc {

constinit std::atomic<bool> ScopeTimes::on_{true};
constinit std::atomic<bool> ScopeTimes::abandoned_{false};

class ScopeTimes::Sheets {
 public:
  static Sheets& Get() {
    static Sheets* const sheets = new Sheets();
    return *sheets;
  }

  ScopeTimes* Take() {
    MutexLock lock(mutex_);
    if (idle_.empty()) {
      all_.push_back(new ScopeTimes);
      return all_.back();
    }
    ScopeTimes* const sheet = idle_.back();
    idle_.pop_back();
    sheet->since_ = 0;
    return sheet;
  }
  void GiveBack(ScopeTimes* sheet) {
    MutexLock lock(mutex_);
    idle_.push_back(sheet);
  }
  // Sheets are never destroyed.
  std::vector<const ScopeTimes*> All() {
    MutexLock lock(mutex_);
    return {all_.begin(), all_.end()};
  }

 private:
  Mutex mutex_{LockRank::kFrames};
  std::vector<ScopeTimes*> all_ GUARDED_BY(mutex_), idle_ GUARDED_BY(mutex_);
};

ScopeTimes* ScopeTimes::Take() {
  if (abandoned_.load(std::memory_order_relaxed)) return new ScopeTimes;
  return Sheets::Get().Take();
}

ScopeTimes::~ScopeTimes() {
  for (const auto& chunk : chunks_) delete chunk.load();
}

void ScopeTimes::GiveBack(ScopeTimes* sheet) {
  if (abandoned_.load(std::memory_order_relaxed)) {
    delete sheet;  // nobody adds it up
    return;
  }
  Sheets::Get().GiveBack(sheet);
}

[[gnu::noinline]] ScopeTimes::Chunk* ScopeTimes::Make(std::size_t index) {
  auto* const chunk = new Chunk;
  // Release: who adds sheets up sees zeros, not what was there before.
  chunks_[index].store(chunk, std::memory_order_release);
  return chunk;
}

std::vector<ScopeTime> ScopeTimes::All() {
  if (abandoned_.load(std::memory_order_relaxed)) return {};
  const std::vector<const ScopeTimes*> sheets = Sheets::Get().All();
  const double ns = NsPerTick();
  std::vector<ScopeTime> found;
  for (std::size_t i = 0; i < kChunks; ++i) {
    std::array<ScopeTime, kChunk> sums;
    for (const ScopeTimes* sheet : sheets) {
      const Chunk* const chunk =
          sheet->chunks_[i].load(std::memory_order_acquire);
      if (chunk == nullptr) continue;
      for (std::size_t j = 0; j < kChunk; ++j) {
        const auto& [forward, backward] = (*chunk)[j].of;
        sums[j].entered += forward.entered.load(std::memory_order_relaxed);
        sums[j].ns += forward.ticks.load(std::memory_order_relaxed);
        sums[j].backward_nodes +=
            backward.entered.load(std::memory_order_relaxed);
        sums[j].backward_ns += backward.ticks.load(std::memory_order_relaxed);
      }
    }
    for (std::size_t j = 0; j < kChunk; ++j) {
      ScopeTime& sum = sums[j];
      if (sum.entered == 0 && sum.backward_nodes == 0) continue;
      sum.scope = ScopeId{static_cast<std::uint32_t>(i * kChunk + j)};
      const auto in_ns = [ns](std::uint64_t ticks) {
        return static_cast<std::uint64_t>(static_cast<double>(ticks) * ns);
      };
      sum.ns = in_ns(sum.ns);
      sum.backward_ns = in_ns(sum.backward_ns);
      found.push_back(sum);
    }
  }
  return found;
}

}  // namespace stratalloc
