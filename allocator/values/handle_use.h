// SPDX-License-Identifier: Apache-2.0
// What operators do with one handle: who uses it now, who has, whether they
// wrote, and when. The guard and malloc note it; an eviction asks and takes it.
// All that tiering knows of a handle beside its state: what is mapped there,
// and what lives there, is HandleEntry's, which holds this (handle_table.h).
//
// Thread-safety: the atomics are read and written without a lock by whoever
// holds a pin. An evictor, under the device lock, reads the pins first, which
// are released (operator_thread.h): what was noted is there before its pin
// goes.
#ifndef STRATALLOC_ALLOCATOR_VALUES_HANDLE_USE_H_
#define STRATALLOC_ALLOCATOR_VALUES_HANDLE_USE_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace stratalloc {

struct HandleUse {
  static constexpr int kIntervals = 4;
  // The clock moves by this for each access, so that a use is noted at an even
  // tick. An eviction makes the tick odd (Claim): while it is odd, nothing has
  // used the handle since.
  static constexpr std::uint32_t kTick = 2;

  // Nothing leaves while this is not 0. "Who wins" is in handle_table.h.
  std::atomic<std::uint32_t> pins{0};
  // The clock of uses at the last use, and the last four times between uses,
  // the newest first; 0 = not known. Uses that lie close together are one.
  std::atomic<std::uint32_t> last_use{0};
  std::atomic<std::uint32_t> intervals[kIntervals]{};
  // Bit i: stream i of the device's StreamTable used this handle since its
  // bytes last began to leave. Set while pinned, read by a choice, taken by the
  // batch.
  std::atomic<std::uint64_t> used_streams{0};
  // Written since the lower copy was made; set while pinned, cleared by the
  // evictor while pins are zero.
  std::atomic<bool> dirty{false};

  // New bytes lie here: what is known is of what lay here before.
  void Begin() {
    used_streams.store(0);
    dirty.store(true);
    ForgetIntervals();
  }
  void ForgetIntervals() {
    for (auto& interval : intervals) interval.store(0);
  }

  // An eviction has chosen it. Under the device lock; the caller looks at the
  // pins afterwards.
  void Claim() { last_use.fetch_or(1); }
  bool is_claimed() const { return (last_use.load() & 1) != 0; }
  // Streams use it by another way than an operator, or may.
  void NoteUnseen(std::uint64_t stream_bits) {
    used_streams.fetch_or(stream_bits);
    last_use.fetch_and(~1u);
  }

  // Another stream uses it. Load before read-modify-write, here and below: in
  // the common case nothing changes and no cache line is dirtied.
  void NoteStream(std::uint64_t stream_bit) {
    if ((used_streams.load(std::memory_order_relaxed) & stream_bit) == 0) {
      used_streams.fetch_or(stream_bit, std::memory_order_relaxed);
    }
  }
  void NoteWrite() {
    if (!dirty.load(std::memory_order_relaxed)) {
      dirty.store(true, std::memory_order_relaxed);
    }
  }
  // A block in it is handed out, to be written on that stream.
  void NoteHandedOut(std::uint64_t stream_bit, std::uint32_t now) {
    NoteWrite();
    NoteStream(stream_bit);
    last_use.store(now, std::memory_order_relaxed);
  }
  // An operator uses it. A use more than `burst` ticks after the one before is
  // a use of its own and ends an interval.
  void NoteOperator(std::uint64_t stream_bit, bool written, std::uint32_t now,
                    std::uint32_t burst) {
    NoteStream(stream_bit);
    if (written) NoteWrite();
    const std::uint32_t last = last_use.load(std::memory_order_relaxed);
    // `last` is ahead where another thread took its ticks later.
    if (static_cast<std::int32_t>(now - last) >
        static_cast<std::int32_t>(burst)) {
      MoveIntervals(now - last);
    }
    last_use.store(now, std::memory_order_relaxed);
  }

  std::array<std::uint32_t, kIntervals> Intervals() const {
    std::array<std::uint32_t, kIntervals> now;
    for (int i = 0; i < kIntervals; ++i) {
      now[i] = intervals[i].load(std::memory_order_relaxed);
    }
    return now;
  }

 private:
  void MoveIntervals(std::uint32_t newest) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    for (int i = kIntervals - 1; i > 0; --i) {
      intervals[i].store(intervals[i - 1].load(kRelaxed), kRelaxed);
    }
    intervals[0].store(newest, kRelaxed);
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_VALUES_HANDLE_USE_H_
