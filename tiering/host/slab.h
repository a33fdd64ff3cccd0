// SPDX-License-Identifier: Apache-2.0
// One piece of pinned host memory: mmap, huge pages where the kernel gives
// them, every page touched (unless the device's memory is phantom:
// host_time.h), registered with CUDA. Buffers of any page-aligned size are cut
// from it.
//
// Why not cudaHostAlloc: it rounds up to powers of two inside torch's cache,
// cannot be given huge pages, and registers under the driver's lock in one go;
// steps of 1 GiB let other driver calls through in between.
//
// Thread-safety: none; the host tier's lock guards every slab.
// Fails: Create with kHostOutOfMemory, naming mmap or cudaHostRegister.
// Lifetime: the destructor unregisters and unmaps; no buffer may be live.
// Invariants: free_bytes() + bytes of live buffers = bytes().
#ifndef STRATALLOC_TIERING_HOST_SLAB_H_
#define STRATALLOC_TIERING_HOST_SLAB_H_

#include <memory>

#include "allocator/base/bytes.h"
#include "allocator/base/extents.h"
#include "allocator/base/result.h"
#include "allocator/cuda/device.h"

namespace stratalloc {

class Slab {
 public:
  // `bytes` is a multiple of the page size. `expected_buffer` is the size of
  // most buffers to come: it bounds the free list, so that Take and Free do
  // not call malloc.
  static Result<std::unique_ptr<Slab>> Create(const Device& device, Bytes bytes,
                                              Bytes expected_buffer);
  ~Slab();
  // Before it ends, so that a driver that refuses loses nothing: false, and it
  // is pinned still. REQUIRES: empty.
  bool Unpin();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // nullptr if no free range is large enough. Buffers of small handles
  // (2 MiB) come from the low end, larger ones from the high end, so that both
  // kinds leave room for each other.
  void* Take(Bytes bytes);
  // REQUIRES: [data, data + bytes) came from Take and was not freed since.
  void Free(void* data, Bytes bytes);

  char* data() const { return data_; }
  Bytes bytes() const { return bytes_; }
  Bytes free_bytes() const { return free_.total(); }
  Bytes largest_free() const { return largest_free_; }
  bool empty() const { return free_.total() == bytes_; }
  bool Contains(const void* pointer) const {
    return pointer >= data_ && pointer < data_ + bytes_;
  }

 private:
  Slab(const Device& device, char* data, Bytes bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  Status Register();

  const Device device_;
  char* const data_;
  const Bytes bytes_;
  Bytes registered_ = 0;    // prefix that CUDA knows
  Bytes largest_free_ = 0;  // cached: one comparison decides on a slab
  Extents free_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_HOST_SLAB_H_
