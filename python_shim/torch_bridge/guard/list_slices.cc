// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/list_slices.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "python_shim/bridge_api/lists.h"
#include "python_shim/torch_bridge/base/conversions.h"
#include "python_shim/torch_bridge/guard/joined_list.h"
#include "python_shim/torch_bridge/guard/operator_pin.h"

namespace stratalloc {
namespace {

// The stream that an operator on `device` runs on now.
StreamId StreamOn(int device) {
  return ToStreamId(
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
}

class SlicedCall {
 public:
  SlicedCall(const GuardedOperator& guarded, uint64_t lo, uint64_t hi,
             c10::ArrayRef<c10::IValue> arguments)
      : guarded_(guarded),
        lo_(lo),
        hi_(hi),
        arguments_(arguments),
        elements_(guarded.list.ElementsOf(arguments)) {}

  bool Possible() const { return elements_ > 0; }

  c10::List<at::Tensor> Run(c10::DispatchKeySet keys) {
    LookAtElements();
    TryDoubtful();
    size_t most = elements_;
    for (size_t first = 0; first < elements_;) {
      const size_t wanted = std::min(most, NextSlice(first));
      const size_t count = RunSlice(first, wanted, keys);
      // Who was refused would be refused again.
      if (count < wanted) most = count;
      first += count;
    }
    return std::move(results_);
  }

 private:
  void LookAtElements() {
    std::vector<const TensorArgument*> lists;
    for (const TensorArgument& argument : guarded_.signature.arguments()) {
      const auto& indices = guarded_.list.tensor_lists();
      if (std::find(indices.begin(), indices.end(), argument.index) !=
          indices.end()) {
        lists.push_back(&argument);
      }
    }
    for (size_t i = 0; i < elements_; ++i) {
      AccessList accesses(lo_, hi_);
      for (const TensorArgument* list : lists) {
        const auto tensors = arguments_[list->index].toListRef();
        if (!tensors.empty()) accesses.AddValue(tensors[i], *list);
      }
      if (device_ < 0) device_ = accesses.device();
      accesses_.insert(accesses_.end(), accesses.data(),
                       accesses.data() + accesses.size());
      ends_.push_back(static_cast<int>(accesses_.size()));
    }
    // Until the first slice has shown better: as large as the first list's.
    expected_.assign(elements_, 0);
    if (!guarded_.list.ReturnsList()) return;
    const auto tensors =
        arguments_[guarded_.list.tensor_lists()[0]].toListRef();
    for (size_t i = 0; i < elements_; ++i) {
      expected_[i] = tensors[i].toTensor().nbytes();
    }
  }

  ListElements Elements() const { return {accesses_, ends_, expected_}; }

  size_t NextSlice(size_t first) const {
    return core::NextSlice(device_, StreamOn(device_), Elements(), first);
  }

  // Throws, with nothing touched, if the element that takes most is refused:
  // half a step of an optimizer is worse than none.
  void TryDoubtful() const {
    const std::optional<size_t> doubtful =
        core::DoubtfulElement(device_, StreamOn(device_), Elements());
    if (!doubtful.has_value()) return;
    const size_t element = *doubtful;
    const torch::jit::Stack stack = guarded_.list.Slice(arguments_, element, 1);
    AccessList accesses(lo_, hi_);
    accesses.AddArguments(guarded_.signature, stack);
    try {
      const OperatorPin pin(guarded_.name.c_str(), accesses);
    } catch (c10::OutOfMemoryError& refused) {
      AddRefusedElement(refused, element);
      throw;
    }
  }

  void AddRefusedElement(c10::OutOfMemoryError& refused, size_t element) const {
    refused.add_context(c10::str(
        "stratalloc runs the lists of ", guarded_.name, " in slices; element ",
        element, " of ", elements_, " is a slice by itself and was refused."));
  }

  // Runs `count` elements from `first` on, or fewer; returns how many.
  size_t RunSlice(size_t first, size_t count, c10::DispatchKeySet keys) {
    for (;; count = (count + 1) / 2) {
      torch::jit::Stack stack = guarded_.list.Slice(arguments_, first, count);
      AccessList accesses(lo_, hi_);
      accesses.AddArguments(guarded_.signature, stack);
      std::optional<OperatorPin> pin;
      try {
        pin.emplace(guarded_.name.c_str(), accesses,
                    OperatorPin::IfRefused::kTriedAgain);
      } catch (c10::OutOfMemoryError& refused) {
        if (count > 1) continue;
        // The cause is found by the message, so before another line is added.
        TellRefused(guarded_.name.c_str(), accesses, &refused);
        AddRefusedElement(refused, first);
        throw;
      }
      try {
        guarded_.previous.callBoxed(guarded_.previous.opHandle(), keys, &stack);
      } catch (c10::OutOfMemoryError&) {
        if (count > 1 && guarded_.list.MayRunAgain()) continue;
        throw;
      }
      if (guarded_.list.ReturnsList()) TakeResults(stack.back(), first, count);
      return count;
    }
  }

  void TakeResults(const c10::IValue& list, size_t first, size_t count) {
    uint64_t bytes = 0;
    for (const c10::IValue& result : list.toListRef()) {
      bytes += result.toTensor().nbytes();
      results_.push_back(result.toTensor());
    }
    const auto begin = expected_.begin() + static_cast<ptrdiff_t>(first);
    const auto end = begin + static_cast<ptrdiff_t>(count);
    const uint64_t expected = std::accumulate(begin, end, uint64_t{0});
    if (bytes == expected || expected == 0) return;
    const double ratio =
        static_cast<double>(bytes) / static_cast<double>(expected);
    for (auto later = end; later != expected_.end(); ++later) {
      *later = static_cast<uint64_t>(static_cast<double>(*later) * ratio);
    }
  }

  const GuardedOperator& guarded_;
  const uint64_t lo_, hi_;
  const c10::ArrayRef<c10::IValue> arguments_;
  const size_t elements_;
  int device_ = -1;
  std::vector<Access> accesses_;  // element by element
  std::vector<int> ends_;         // of each element's in accesses_
  std::vector<Bytes> expected_;   // bytes of each result
  c10::List<at::Tensor> results_;
};

}  // namespace

bool FitsWhole(const ListOperator& list, const AccessList& accesses) {
  // One device's limit says nothing about lists on several, which PyTorch
  // itself takes apart.
  if (accesses.size() < 2 || accesses.SeveralDevices()) return true;
  Bytes results = 0;
  if (list.ReturnsList()) {
    for (const Access& access : accesses.All()) results += access.bytes;
    results /= list.tensor_lists().size();
  }
  return core::ListFits(accesses.device(), StreamOn(accesses.device()),
                        accesses.All(), results);
}

bool SlicesMayHelp(const ListOperator& list, const AccessList& accesses) {
  // No room is enough for so much: true says that slices would not help.
  return list.MayRunAgain() && accesses.size() > 1 &&
         !accesses.SeveralDevices() &&
         !core::ListFits(accesses.device(), StreamOn(accesses.device()),
                         accesses.All(), ~Bytes{0} / 2);
}

bool RunInSlices(const GuardedOperator& guarded, uint64_t lo, uint64_t hi,
                 c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = guarded.signature.argument_count();
  const c10::ArrayRef<c10::IValue> arguments(
      stack->data() + (stack->size() - count), count);
  if (guarded.list.Joins()) {
    std::optional<at::Tensor> joined = JoinOneByOne(
        arguments[0].toTensorVector(), arguments[1].toInt(),
        arguments.size() > 2 ? arguments[2].toTensor() : at::Tensor());
    if (!joined.has_value()) return false;
    torch::jit::drop(*stack, count);
    stack->emplace_back(*std::move(joined));
    return true;
  }
  SlicedCall call(guarded, lo, hi, arguments);
  if (!call.Possible()) return false;
  c10::List<at::Tensor> results = call.Run(keys);
  torch::jit::drop(*stack, count);
  if (guarded.list.ReturnsList()) stack->emplace_back(std::move(results));
  return true;
}

}  // namespace stratalloc
