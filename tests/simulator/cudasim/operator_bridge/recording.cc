// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/recording.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"

namespace cudasim::bridge {
namespace {

// Writes running statistics that its schema does not admit to.
bool WritesSecretly(const std::string& name) {
  return name.find("batch_norm") != std::string::npos &&
         name.find("backward") == std::string::npos;
}

// The thread that waits for the stream runs the operator, and may split sums
// over another number of threads: their last bits would depend on it.
class SameThreads {
 public:
  explicit SameThreads(int threads) : before_(at::get_num_threads()) {
    if (threads != before_) at::set_num_threads(threads);
  }
  ~SameThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  SameThreads(const SameThreads&) = delete;
  SameThreads& operator=(const SameThreads&) = delete;

 private:
  const int before_;
};

}  // namespace

TensorSlot::TensorSlot(const at::Tensor& tensor, int storage_slot, bool written)
    : storage(storage_slot),
      dtype(tensor.dtype()),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      offset(tensor.storage_offset()),
      value_keys(tensor.key_set() & kValueKeys),
      wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number()),
      write(written) {}

size_t TensorSlot::SpanBytes() const {
  return at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
}

at::Tensor MakeAlias(c10::Storage storage, c10::DispatchKeySet keys,
                     const TensorSlot& slot) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         keys, slot.dtype);
  at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(slot.sizes, slot.strides, slot.offset);
  if (slot.wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

Recording::Recording(const c10::OperatorHandle& handle,
                     const OperatorPlan& plan, CpuComputation computation,
                     c10::DeviceIndex on)
    : op(handle),
      compute(computation),
      device(on),
      name(plan.name),
      returns(plan.returns),
      generator(plan.generator) {}

int Recording::StorageOf(const at::Tensor& tensor) {
  const StorageSlot slot{reinterpret_cast<uint64_t>(tensor.storage().data()),
                         tensor.storage().nbytes(), false};
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i].address == slot.address &&
        storages[i].bytes == slot.bytes && slot.bytes != 0) {
      return static_cast<int>(i);
    }
  }
  storages.push_back(slot);
  return static_cast<int>(storages.size()) - 1;
}

int Recording::SlotOf(const at::Tensor& tensor, bool write,
                      std::vector<at::Tensor>* originals) {
  if (!tensor.defined()) return -1;
  if (!tensor.is_cuda()) {
    at::Tensor copy = tensor.detach().clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    host_tensors.push_back(std::move(copy));
    return -1 - static_cast<int>(host_tensors.size());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided && tensor.has_storage() &&
          !tensor.is_quantized() && !tensor._is_zerotensor(),
      "the simulated device computes on dense strided tensors only; this one "
      "is ",
      tensor.toString(), " of layout ", tensor.layout());
  for (size_t i = 0; i < originals->size(); ++i) {
    if ((*originals)[i].is_same(tensor)) {
      tensors[i].write |= write;
      storages[tensors[i].storage].write |= write;
      return static_cast<int>(i);
    }
  }
  // mutable_data() also gives a lazily copied storage its own bytes.
  if (write) (void)tensor.storage().mutable_data();
  SeeStorage(tensor.storage().data(), tensor.storage().nbytes());
  tensors.emplace_back(tensor, StorageOf(tensor), write);
  storages[tensors.back().storage].write |= write;
  originals->push_back(tensor);
  return static_cast<int>(tensors.size()) - 1;
}

void Recording::Describe(const OperatorPlan& plan,
                         const torch::jit::Stack& stack, size_t first,
                         std::vector<at::Tensor>* originals) {
  arguments.assign(stack.begin() + static_cast<int64_t>(first), stack.end());
  const bool secretly = WritesSecretly(name);
  for (const OperatorPlan::TensorArgument& argument : plan.tensors) {
    c10::IValue& value = arguments[argument.index];
    const bool write = argument.write || secretly;
    Place place{argument.index, Place::kTensor, {}};
    if (value.isTensor()) {
      place.slots = {SlotOf(value.toTensor(), write, originals)};
    } else if (value.isTensorList()) {
      place.kind = Place::kList;
      for (const at::Tensor& each : value.toTensorVector()) {
        place.slots.push_back(SlotOf(each, write, originals));
      }
    } else if (value.isList()) {
      place.kind = Place::kOptionalList;
      for (const c10::IValue& each : value.toListRef()) {
        place.slots.push_back(
            each.isTensor() ? SlotOf(each.toTensor(), write, originals) : -1);
      }
    } else {
      continue;
    }
    value = c10::IValue();  // nothing here keeps a tensor alive
    places.push_back(std::move(place));
  }
  if (generator >= 0) arguments[generator] = c10::IValue();
  // Results are made on the CPU, wherever the operator was asked to put them.
  if (plan.device >= 0) arguments[plan.device] = c10::Device(c10::kCPU);
}

const TensorSlot& Recording::AddResult(const at::Tensor& fresh, int index,
                                       int element) {
  results.push_back(
      {TensorSlot(fresh, StorageOf(fresh), true), index, element});
  return results.back().slot;
}

torch::jit::Stack Recording::Arguments(const AliasedTensors& aliases) const {
  torch::jit::Stack stack = arguments;
  const auto tensor = [&](int slot) {
    return slot >= 0    ? aliases.tensor(slot)
           : slot == -1 ? at::Tensor()
                        : host_tensors[-2 - slot];
  };
  for (const Place& place : places) {
    switch (place.kind) {
      case Place::kTensor:
        stack[place.argument] = tensor(place.slots[0]);
        break;
      case Place::kList: {
        c10::List<at::Tensor> list;
        for (int slot : place.slots) list.push_back(tensor(slot));
        stack[place.argument] = std::move(list);
        break;
      }
      case Place::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int slot : place.slots) {
          if (slot == -1) {
            list.push_back(std::nullopt);
          } else {
            list.push_back(tensor(slot));
          }
        }
        stack[place.argument] = std::move(list);
        break;
      }
    }
  }
  return stack;
}

std::vector<cudasim_access> Recording::Accesses() const {
  std::vector<cudasim_access> accesses;
  const auto add = [&](const TensorSlot& slot) {
    const size_t bytes = slot.SpanBytes();
    if (bytes == 0) return;
    accesses.push_back(
        {storages[slot.storage].address + slot.offset * slot.dtype.itemsize(),
         bytes, slot.write ? 1 : 0});
  };
  for (const TensorSlot& slot : tensors) add(slot);
  for (const Result& result : results) add(result.slot);
  for (const Draw& draw : draws) {
    for (const int64_t* pointer : {draw.seed, draw.offset}) {
      accesses.push_back(
          {reinterpret_cast<uint64_t>(pointer), sizeof(int64_t), 0});
    }
  }
  return accesses;
}

bool Recording::Replay() const noexcept {
  try {
    const SameThreads same(threads);
    const SimulatedDevice& simulated = SimulatedDevice::Get();
    const AliasedTensors aliases(*this, [&](const StorageSlot& storage) {
      return static_cast<char*>(
          simulated.HostView(reinterpret_cast<const void*>(storage.address)));
    });
    c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    const ReplayingDraws replayed(&draws);
    torch::jit::Stack stack = Arguments(aliases);
    if (generator >= 0) {
      stack[generator] =
          CpuGeneratorFor(std::nullopt, device, ElementsDrawn(stack[0]));
    }
    compute(op, &stack, device);
    for (const Result& result : results) {
      const c10::IValue& value = stack[stack.size() - returns + result.index];
      const at::Tensor from = result.element < 0
                                  ? value.toTensor()
                                  : value.toTensorVector()[result.element];
      at::Tensor to = MakeAlias(aliases.storage(result.slot.storage),
                                kCpuKeys | result.slot.value_keys, result.slot);
      at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                  to, from, false);
    }
    CountBridgedCall();
    return true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cudasim: %s in a graph failed: %s\n", name.c_str(),
                 e.what());
    return false;
  }
}

AliasedTensors::AliasedTensors(const Recording& recording,
                               const Source& source) {
  for (const StorageSlot& slot : recording.storages) {
    storages_.push_back(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(slot.bytes),
        c10::DataPtr(source(slot), c10::Device(c10::kCPU)),
        c10::GetCPUAllocator(), /*resizable=*/true));
  }
  for (const TensorSlot& slot : recording.tensors) {
    tensors_.push_back(
        MakeAlias(storages_[slot.storage], kCpuKeys | slot.value_keys, slot));
  }
}

int AliasedTensors::Find(const at::Tensor& tensor) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].is_same(tensor)) return static_cast<int>(i);
  }
  return -1;
}

int AliasedTensors::FindStorage(const at::Tensor& tensor) const {
  const c10::StorageImpl* wanted = tensor.storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].storage().unsafeGetStorageImpl() == wanted) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace cudasim::bridge
