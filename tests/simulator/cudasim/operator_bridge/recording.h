// SPDX-License-Identifier: Apache-2.0
//
// What a captured operator was called with, without its tensors, and how to
// call its CPU kernel again: aliases are built from addresses, sizes and
// strides, once over ShadowBytes at the capture and over the device's own bytes
// at every replay.
//
// Thread-safety: a recording is complete when it is handed to the device; after
// that it only changes in nothing. Replays of one graph do not overlap.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDING_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDING_H_

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/alias_parts.h"
#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/operator_plan.h"
#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {

// A CPU kernel runs below all of these. Python's too: whoever launches a graph
// may have a mode of its own.
inline const c10::DispatchKeySet kAboveKernels =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset |
    c10::DispatchKeySet(
        {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

struct StorageSlot {
  uint64_t address = 0;
  size_t bytes = 0;
  bool write = false;
};

struct TensorSlot {
  TensorSlot(const at::Tensor& tensor, int storage_slot, bool written);
  // First to last byte.
  size_t SpanBytes() const;

  int storage = 0;  // in Recording::storages
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  c10::DispatchKeySet value_keys;
  bool wrapped_number = false;
  bool write = false;
};

at::Tensor MakeAlias(c10::Storage storage, c10::DispatchKeySet keys,
                     const TensorSlot& slot);
class AliasedTensors;

struct Recording {
  Recording(const c10::OperatorHandle& handle, const OperatorPlan& plan,
            CpuComputation computation, c10::DeviceIndex on);

  // Takes the arguments in; *originals: the tensor of each slot.
  void Describe(const OperatorPlan& plan, const torch::jit::Stack& stack,
                size_t first, std::vector<at::Tensor>* originals);
  int StorageOf(const at::Tensor& tensor);
  const TensorSlot& AddResult(const at::Tensor& fresh, int index, int element);
  // The arguments with aliases in the places of tensors, without a generator.
  torch::jit::Stack Arguments(const AliasedTensors& aliases) const;
  std::vector<cudasim_access> Accesses() const;
  // False, and a line on stderr, if the kernel threw.
  bool Replay() const noexcept;

  // Where aliases go: an argument, or the elements of one. A slot of -1 is
  // nothing; one below that is host tensor number -2 - slot.
  struct Place {
    enum Kind { kTensor, kList, kOptionalList };
    int argument = 0;
    Kind kind = kTensor;
    std::vector<int> slots;
  };
  struct Result {
    TensorSlot slot;
    int index = 0;     // among the returns
    int element = -1;  // of a list
  };

  const c10::OperatorHandle op;
  const CpuComputation compute;
  const c10::DeviceIndex device;
  const std::string name;
  const int returns;
  const int generator;  // its argument, or -1
  const int threads = at::get_num_threads();  // that a sum is split over
  std::vector<c10::IValue> arguments;
  std::vector<Place> places;
  std::vector<at::Tensor> host_tensors;
  std::vector<StorageSlot> storages;
  std::vector<TensorSlot> tensors;
  std::vector<Result> results;
  std::vector<Draw> draws;

 private:
  int SlotOf(const at::Tensor& tensor, bool write,
             std::vector<at::Tensor>* originals);
};

// One CPU tensor per slot, one storage per storage slot.
class AliasedTensors {
 public:
  using Source = std::function<char*(const StorageSlot&)>;
  AliasedTensors(const Recording& recording, const Source& source);

  const at::Tensor& tensor(size_t slot) const { return tensors_[slot]; }
  // The slot of a tensor; of some tensor on the same storage; -1.
  int Find(const at::Tensor& tensor) const;
  int FindStorage(const at::Tensor& tensor) const;
  c10::Storage storage(int slot) const { return storages_[slot]; }

 private:
  std::vector<c10::Storage> storages_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_RECORDING_H_
