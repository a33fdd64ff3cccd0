// SPDX-License-Identifier: Apache-2.0
// Streams that somebody else made and may destroy (torch.cuda.ExternalStream).
//
// A destroyed stream must not be asked anything: a driver may crash. Nobody
// says when one is destroyed, so an external stream is asked only by whoever
// was just given it. It has no bit in a StreamTable (handle_table.h): what it
// used is fenced with the whole device. Streams of PyTorch's own live as long
// as the process.
//
// A value stays external until PyTorch is seen to use it as one of its own: a
// stream that was only given as a value (raw_alloc_with_stream) may be
// anybody's, and the driver gives the values of destroyed streams again. From
// then on it is PyTorch's for ever. More than kMost values: all streams but the
// default one count as external.
//
// Thread-safety: lock-free. Lifetime: the process's.
#ifndef STRATALLOC_ALLOCATOR_MEMORY_EXTERNAL_STREAMS_H_
#define STRATALLOC_ALLOCATOR_MEMORY_EXTERNAL_STREAMS_H_

#include <atomic>
#include <cstdint>

#include "allocator/base/ids.h"

namespace stratalloc {

class ExternalStreams {
 public:
  static constexpr int kMost = 1024;

  // Somebody else's, or nobody knows whose.
  static void Add(StreamId stream);
  // One of PyTorch's own. Remembered if it was added before.
  static void NoteLasting(StreamId stream);
  // Every thread has a stream of the value 2 (cudaStreamPerThread), so that no
  // thread can ask for another's: external, too.
  static bool Has(StreamId stream) {
    if (!any_.load(std::memory_order_acquire)) return IsPerThread(stream);
    return Find(stream);
  }

 private:
  static constexpr std::uint64_t kLasting = std::uint64_t{1} << 63;

  static bool IsPerThread(StreamId stream) { return StreamValue(stream) == 2; }
  static bool Find(StreamId stream);
  // Where the value is, lasting or not; nullptr if nowhere.
  static std::atomic<std::uint64_t>* PlaceOf(std::uint64_t value);

  static std::atomic<bool> any_;
  static std::atomic<bool> full_;
  // Open addressing; 0: free. Values are never taken out; kLasting is set in
  // those of PyTorch's.
  static std::atomic<std::uint64_t> values_[2 * kMost];
  static std::atomic<int> count_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MEMORY_EXTERNAL_STREAMS_H_
