// SPDX-License-Identifier: Apache-2.0
//
// CPU aliases of CUDA tensors for the length of one operator call.
//
// The bytes of a simulated CUDA tensor are host memory (at address + delta), so
// a CPU tensor over the same bytes, with the same sizes, strides, offset, dtype
// and storage size, lets the CPU kernel do the device's work in place.
//
// Identity is kept: one alias per tensor and one alias storage per storage, so
// that kernels which ask "is this the same tensor" or "do these overlap" get
// the device's answer.
//
// Resizing: an alias storage is resizable. A kernel that grows an `out=`
// argument reallocates the alias's storage in ordinary host memory; TakeOver()
// notices, resizes the original through its allocator and copies the bytes. A
// storage of zero bytes is the same case.
//
// Thread-safety: one set per operator call, on one thread. Lifetime: no alias
// outlives the set, so nothing points at device bytes between operators, where
// an allocator under test may unmap them.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <optional>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"

namespace cudasim::bridge {

class AliasSet {
 public:
  explicit AliasSet(AccessLog& log) : log_(log) {}

  // The CPU alias of a defined CUDA tensor, made on first sight. `write`: the
  // operator may write it. A sparse tensor's alias consists of the aliases of
  // its parts. Throws for a tensor of another kind (nested, quantized), or
  // whose bytes are not mapped on the simulated device.
  at::Tensor Alias(const at::Tensor& original, bool write);

  // The device that fresh results belong to: the first aliased tensor's, or
  // what SetDevice() said. -1: no CUDA tensor was seen.
  c10::DeviceIndex device() const { return device_; }
  void SetDevice(c10::DeviceIndex device) { device_ = device; }

  // After the kernel: brings sizes and storage of written originals up to their
  // aliases. May allocate.
  void TakeOver();

  // What the caller gets for a kernel's result: the original for an alias, a
  // view of the original's storage for a view of an alias, a new CUDA tensor
  // with the same bytes, sizes and strides for anything fresh. May allocate
  // through the current CUDA allocator, and throw what that throws.
  at::Tensor GiveBack(const at::Tensor& result);

 private:
  struct Entry {
    at::Tensor original;
    at::Tensor alias;
    void* bytes;  // where the alias storage started
    bool write;
  };

  // Beyond this many tensors (lists of _foreach_ operators) a hash map beats
  // a scan.
  static constexpr size_t kScan = 24;

  struct SparseEntry {
    at::Tensor original;
    at::Tensor alias;
    bool write;
  };

  at::Tensor AliasSparse(const at::Tensor& original, bool write);

  Entry* Find(const at::TensorImpl* original);
  Entry* FindByAlias(const at::TensorImpl* alias);
  Entry* FindByOriginalStorage(const c10::StorageImpl* storage);
  Entry* FindByAliasStorage(const c10::StorageImpl* storage);
  Entry* FindIndexed(const void* key);
  void Index(size_t entry);
  void Grow(Entry& entry);

  AccessLog& log_;
  c10::DeviceIndex device_ = -1;
  c10::SmallVector<Entry, 6> entries_;
  std::vector<SparseEntry> sparse_;
  // Filled once there are more than kScan entries; keys are the four kinds of
  // pointers above, which cannot collide because they are distinct objects.
  // Optional because even an empty map allocates.
  std::optional<ska::flat_hash_map<const void*, size_t>> index_;
};

// A new CUDA tensor on `device` with the sizes, strides, dtype and bytes of a
// CPU tensor. Logs the write.
at::Tensor CopyToDevice(const at::Tensor& cpu, c10::DeviceIndex device,
                        AccessLog& log);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ALIAS_H_
