// SPDX-License-Identifier: Apache-2.0
// What the program asked of PyTorch's allocator (PYTORCH_ALLOC_CONF), read
// where PyTorch keeps it, so that a change at run time counts from the next
// request on. This room knows no PyTorch: the bridge says once where to look.
//
// Honoured: roundup_power2_divisions (sizes, exactly as native rounds them),
// garbage_collection_threshold (cached memory goes back before the device is
// fuller than that, while a fraction is set), max_split_size_mb (oversize
// statistics; blocks are split all the same, since any whole handle of what is
// left can be given back or mapped elsewhere). Reported and of no effect:
// expandable_segments, large_segment_size_mb, max_non_split_rounding_mb,
// release_lock_on_cudamalloc: segments always grow by handles.
//
// Thread-safety: plain reads from any thread; Use* once, before the first
// block. Lifetime: what they point to lives as long as the process.
#ifndef STRATALLOC_ALLOCATOR_SETTINGS_H_
#define STRATALLOC_ALLOCATOR_SETTINGS_H_

#include <atomic>
#include <bit>
#include <cstddef>

#include "allocator/base/bytes.h"
#include "allocator/size_rules.h"

namespace stratalloc {

class Settings {
 public:
  // Divisions of a power of two for sizes around 1 MiB, 2 MiB, ... 32 GiB and
  // above: 16 numbers, 0 for none.
  static constexpr int kIntervals = 16;

  static Settings& Get();

  void UseDivisions(const std::size_t* divisions) {
    divisions_.store(divisions, std::memory_order_release);
  }
  void UseMaxSplitSize(std::uint64_t (*get)()) { max_split_size_.store(get); }
  void UseCollectionThreshold(double (*get)()) { threshold_.store(get); }

  // The size of the block for a request.
  Bytes Round(Bytes requested) const {
    const std::size_t* divisions = divisions_.load(std::memory_order_acquire);
    if (divisions == nullptr || requested <= kMinBlockSize) {
      return RoundSize(requested);
    }
    constexpr int kFirst = 20;  // 1 MiB
    int interval = std::bit_width(requested) - 1 - kFirst;
    interval = interval < 0 ? 0 : interval;
    interval = interval >= kIntervals ? kIntervals - 1 : interval;
    const std::size_t count = divisions[interval];
    if (__builtin_expect(count > 1 && requested > kMinBlockSize * count, 0)) {
      return RoundToDivision(requested, count);
    }
    return RoundSize(requested);
  }
  // Blocks from here on count as oversize.
  Bytes max_split_size() const {
    const auto get = max_split_size_.load(std::memory_order_relaxed);
    return get == nullptr ? ~Bytes{0} : get();
  }
  // 0: no collection.
  double collection_threshold() const {
    const auto get = threshold_.load(std::memory_order_relaxed);
    return get == nullptr ? 0.0 : get();
  }

  // The next of `divisions` equal steps between two powers of two.
  static Bytes RoundToDivision(Bytes bytes, std::size_t divisions);

 private:
  std::atomic<const std::size_t*> divisions_{nullptr};
  std::atomic<std::uint64_t (*)()> max_split_size_{nullptr};
  std::atomic<double (*)()> threshold_{nullptr};
};

inline Settings& Settings::Get() {
  static constinit Settings settings;
  return settings;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_SETTINGS_H_
