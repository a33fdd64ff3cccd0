// SPDX-License-Identifier: Apache-2.0
//
// Stand-ins for CUDA tensors that have their sizes, strides and type but not
// their bytes, for the length of one operator call with numbers off.
//
// On the Meta device (no bytes at all) an operator's Meta kernel says which
// sizes its results have. On the CPU (zeros, which the system gives no page
// before they are written) its CPU kernel says so where results depend on
// values: with numbers off every number reads as zero.
//
// Identity is kept as in alias.h: one stand-in per tensor, one storage per
// storage, so kernels that ask whether two tensors are the same or overlap get
// the device's answer.
//
// Thread-safety: one set per operator call, on one thread. Lifetime: no
// stand-in outlives its set.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_ALIAS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_ALIAS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <vector>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"

namespace cudasim::bridge {

class ShapeAliasSet {
 public:
  // `place`: c10::kMeta or c10::kCPU.
  ShapeAliasSet(c10::DeviceType place, AccessLog& log)
      : place_(place), log_(log) {}

  // The stand-in of a defined CUDA tensor. Throws for one that is not dense and
  // strided or not mapped, and, on the CPU, when all of them together are
  // larger than kMostZeros.
  at::Tensor Alias(const at::Tensor& original, bool write);

  // As in AliasSet.
  c10::DeviceIndex device() const { return device_; }
  void SetDevice(c10::DeviceIndex device) { device_ = device; }

  // Brings sizes and storage of written originals up to their stand-ins. May
  // allocate.
  void TakeOver();

  // The original for a stand-in, a view of the original's storage for a view,
  // a new CUDA tensor whose bytes nobody wrote for anything else.
  at::Tensor GiveBack(const at::Tensor& result);

 private:
  static constexpr size_t kMostZeros = size_t{256} << 20;

  struct Entry {
    at::Tensor original;
    at::Tensor alias;
    bool write;
  };

  Entry* Find(const void* key);
  c10::Storage MakeStorage(size_t bytes);

  const c10::DeviceType place_;
  AccessLog& log_;
  c10::DeviceIndex device_ = -1;
  size_t zeros_ = 0;
  std::vector<Entry> entries_;
  // From tensors and storages, original and stand-in, to the entry: distinct
  // objects, so their addresses are.
  ska::flat_hash_map<const void*, size_t> index_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHAPE_ALIAS_H_
