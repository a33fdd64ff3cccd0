// SPDX-License-Identifier: Apache-2.0
// What the program asked of PyTorch's allocator (PYTORCH_ALLOC_CONF), read
// where PyTorch keeps it, so that a change at run time counts from the next
// request on. This room knows no PyTorch: the bridge says once where to look.
//
// Which option means what here, on devices with and without virtual memory
// management: the table in python_shim/torch_bridge/OPTIONS.md.
//
// Thread-safety: plain reads from any thread; Use* once, before the first
// block. Lifetime: what they point to lives as long as the process.
#ifndef STRATALLOC_ALLOCATOR_STATE_SETTINGS_H_
#define STRATALLOC_ALLOCATOR_STATE_SETTINGS_H_

#include <atomic>
#include <bit>
#include <cstddef>

#include "allocator/base/bytes.h"
#include "allocator/values/size_rules.h"

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
  void UseMaxNonSplitRounding(std::uint64_t (*get)()) {
    non_split_rounding_.store(get);
  }
  void UseLargeSegmentSize(std::uint64_t (*get)()) {
    large_segment_size_.store(get);
  }
  void UseUnmanagedSegments(bool (*get)()) { unmanaged_segments_.store(get); }
  // 0 unless the program said throw_on_cudamalloc_oom.
  void UseRejectionShare(double (*get)()) { rejection_share_.store(get); }
  // Version of the handles that are sent to other processes (allocator/ipc.h).
  void UseShareVersion(int version) { share_version_.store(version); }
  // Asks whoever can free memory outside the allocator's sight to do so; true
  // if something came free. Called without a lock.
  void UseFreeMemory(int (*run)()) { free_memory_.store(run); }

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
  // A request of at least max_split_size takes a larger block only if that is
  // larger by less than this.
  Bytes max_non_split_rounding() const {
    const auto get = non_split_rounding_.load(std::memory_order_relaxed);
    return get == nullptr ? 20 * kMiB : get();
  }
  // What a request between 1 and 10 MiB asks cudaMalloc for.
  Bytes large_segment_size() const {
    const auto get = large_segment_size_.load(std::memory_order_relaxed);
    return get == nullptr ? 20 * kMiB : get();
  }
  // Does what never leaves the device come from cudaMalloc, though handles
  // could be had? The program said that segments are not to be expandable.
  bool unmanaged_segments() const {
    const auto get = unmanaged_segments_.load(std::memory_order_relaxed);
    return get != nullptr && get();
  }
  // A request that would take the device beyond this share of its memory is
  // rejected rather than out of memory; 0: none is.
  double rejection_share() const {
    const auto get = rejection_share_.load(std::memory_order_relaxed);
    return get == nullptr ? 0.0 : get();
  }
  // What cudaMalloc is asked for on behalf of a block of `size` bytes.
  Bytes SegmentBytes(Bytes size) const {
    if (size <= kSmallSize) return 2 * kMiB;
    return size < 10 * kMiB ? large_segment_size() : RoundUp(size, 2 * kMiB);
  }
  int share_version() const {
    return share_version_.load(std::memory_order_relaxed);
  }
  bool FreeMemory() const {
    const auto run = free_memory_.load(std::memory_order_relaxed);
    return run != nullptr && run() != 0;
  }

  // The next of `divisions` equal steps between two powers of two.
  static Bytes RoundToDivision(Bytes bytes, std::size_t divisions);

 private:
  std::atomic<const std::size_t*> divisions_{nullptr};
  std::atomic<std::uint64_t (*)()> max_split_size_{nullptr};
  std::atomic<double (*)()> threshold_{nullptr};
  std::atomic<std::uint64_t (*)()> non_split_rounding_{nullptr};
  std::atomic<std::uint64_t (*)()> large_segment_size_{nullptr};
  std::atomic<bool (*)()> unmanaged_segments_{nullptr};
  std::atomic<double (*)()> rejection_share_{nullptr};
  std::atomic<int (*)()> free_memory_{nullptr};
  std::atomic<int> share_version_{2};
};

inline Settings& Settings::Get() {
  static constinit Settings settings;
  return settings;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_SETTINGS_H_
