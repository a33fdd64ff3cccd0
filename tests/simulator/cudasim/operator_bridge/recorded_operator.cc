// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/recorded_operator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/alias_parts.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"
#include "tests/simulator/cudasim/operator_bridge/recording.h"
#include "tests/simulator/cudasim/operator_bridge/shadow_bytes.h"
#include "tests/simulator/cudasim/operator_bridge/shape_run.h"
#include "tests/simulator/cudasim/operator_bridge/synchronising.h"

namespace cudasim::bridge {
namespace {

void* StreamOf(c10::DeviceIndex device) {
  return c10::cuda::getCurrentCUDAStream(device).stream();
}

unsigned long long CaptureOn(c10::DeviceIndex device) {
  unsigned long long id = 0;
  (void)SimulatedDevice::Get().StreamCapture(StreamOf(device), &id);
  return id;
}

// The device the operator works on, or -1.
c10::DeviceIndex DeviceOf(const OperatorPlan& plan,
                          const torch::jit::Stack& stack, size_t first) {
  const auto of = [](const c10::IValue& value) -> c10::DeviceIndex {
    if (!value.isTensor()) return -1;
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.is_cuda() ? tensor.device().index() : -1;
  };
  for (const OperatorPlan::TensorArgument& argument : plan.tensors) {
    const c10::IValue& value = stack[first + argument.index];
    if (const auto device = of(value); device >= 0) return device;
    if (!value.isList()) continue;
    for (const c10::IValue& each : value.toListRef()) {
      if (const auto device = of(each); device >= 0) return device;
    }
  }
  if (plan.device >= 0) {
    const c10::IValue& value = stack[first + plan.device];
    if (value.isDevice() && value.toDevice().has_index()) {
      return value.toDevice().index();
    }
  }
  return c10::cuda::current_device();
}

// Gives results back: originals, views of originals, new CUDA tensors.
class Results {
 public:
  Results(Recording& recording, const std::vector<at::Tensor>& originals,
          const AliasedTensors& aliases, ShadowBytes& shadow)
      : recording_(recording),
        originals_(originals),
        aliases_(aliases),
        shadow_(shadow) {}

  c10::IValue GiveBack(c10::IValue value, int index) {
    if (value.isTensor()) return GiveBack(value.toTensor(), index, -1);
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> results;
    int element = 0;
    for (const at::Tensor& each : value.toTensorVector()) {
      results.push_back(GiveBack(each, index, element++));
    }
    return results;
  }

 private:
  at::Tensor GiveBack(const at::Tensor& result, int index, int element) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    if (const int known = aliases_.Find(result); known >= 0) {
      return originals_[known];
    }
    const int sibling = aliases_.FindStorage(result);
    if (sibling >= 0) {
      const at::Tensor& original = originals_[sibling];
      return MakeAlias(
          original.storage(),
          (original.key_set() - kValueKeys) | (result.key_set() & kValueKeys),
          TensorSlot(result, 0, false));
    }
    at::Tensor fresh = at::_ops::empty_strided::redispatch(
        kCudaOnly, result.sym_sizes(), result.sym_strides(),
        result.scalar_type(), c10::kStrided,
        c10::Device(c10::kCUDA, recording_.device), std::nullopt);
    if (result.numel() != 0) {
      SeeStorage(fresh.storage().data(), fresh.storage().nbytes());
      const TensorSlot& slot = recording_.AddResult(fresh, index, element);
      std::memcpy(shadow_.At(recording_.storages[slot.storage].address,
                             recording_.storages[slot.storage].bytes, true),
                  result.const_data_ptr(), slot.SpanBytes());
    }
    if (result.is_conj()) fresh._set_conj(true);
    if (result.is_neg()) fresh._set_neg(true);
    return fresh;
  }

  Recording& recording_;
  const std::vector<at::Tensor>& originals_;
  const AliasedTensors& aliases_;
  ShadowBytes& shadow_;
};

// Results of the kernel that its `out=` arguments had to grow for.
void TakeOver(Recording& recording, const std::vector<at::Tensor>& originals,
              const AliasedTensors& aliases, ShadowBytes& shadow) {
  for (size_t i = 0; i < originals.size(); ++i) {
    TensorSlot& slot = recording.tensors[i];
    const at::Tensor& alias = aliases.tensor(i);
    if (!slot.write || (alias.sizes() == at::IntArrayRef(slot.sizes) &&
                        alias.strides() == at::IntArrayRef(slot.strides))) {
      continue;
    }
    at::TensorImpl* original = originals[i].unsafeGetTensorImpl();
    const size_t bytes = alias.storage().nbytes();
    if (bytes > originals[i].storage().nbytes()) {
      GrowStorage(originals[i], bytes);
    }
    original->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                    alias.storage_offset());
    slot = TensorSlot(originals[i], recording.StorageOf(originals[i]), true);
    const StorageSlot& storage = recording.storages[slot.storage];
    std::memcpy(shadow.At(storage.address, storage.bytes, true),
                alias.storage().data(), bytes);
  }
}

int Run(void* state) {
  return static_cast<Recording*>(state)->Replay() ? 0 : cudaErrorLaunchFailure;
}

void Destroy(void* state) { delete static_cast<Recording*>(state); }

void Submit(std::unique_ptr<Recording> recording) {
  void* const stream = StreamOf(recording->device);
  const std::vector<cudasim_access> accesses = recording->Accesses();
  Recording* const state = recording.release();
  const int error = SimulatedDevice::Get().CaptureOperator(
      stream, state->name.c_str(), accesses.data(),
      static_cast<int>(accesses.size()), &Run, &Destroy, state);
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

void CopyOnCpu(const c10::OperatorHandle&, torch::jit::Stack* stack,
               c10::DeviceIndex) {
  const at::Tensor from = torch::jit::pop(*stack).toTensor();
  at::Tensor to = torch::jit::pop(*stack).toTensor();
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), to,
                              from, false);
  torch::jit::push(*stack, to);
}

}  // namespace

bool IsCapturing(c10::DeviceIndex device) {
  const SimulatedDevice& simulated = SimulatedDevice::Get();
  if (!simulated.captures()) return false;
  const int status = simulated.StreamCapture(StreamOf(device), nullptr);
  if (status == 2) C10_CUDA_CHECK(cudaErrorStreamCaptureInvalidated);
  return status != 0;
}

bool RecordIfCapturing(const c10::OperatorHandle& op, const OperatorPlan& plan,
                       CpuComputation compute, const WorkspacePlan& workspace,
                       torch::jit::Stack* stack) {
  const size_t first = stack->size() - plan.arguments;
  const c10::DeviceIndex device = DeviceOf(plan, *stack, first);
  if (!IsCapturing(device)) return false;
  MakeHandle(workspace.NeedOf(*stack, first), device);
  if (Synchronises(plan.name, *stack, first)) {
    // It fails with the device's own words, and spoils the capture.
    C10_CUDA_CHECK(cudaStreamSynchronize(
        c10::cuda::getCurrentCUDAStream(device).stream()));
  }
  const auto shadow = ShadowBytes::Of(CaptureOn(device));
  auto recording = std::make_unique<Recording>(op, plan, compute, device);
  std::vector<at::Tensor> originals;
  c10::SmallVector<std::pair<int, c10::IValue>, 2> written;
  for (const OperatorPlan::TensorArgument& argument : plan.tensors) {
    if (argument.write) {
      written.emplace_back(argument.index, (*stack)[first + argument.index]);
    }
  }
  std::optional<at::Generator> given;
  if (plan.generator >= 0) {
    given = (*stack)[first + plan.generator].toOptional<at::Generator>();
  }
  recording->Describe(plan, *stack, first, &originals);
  stack->resize(first);

  ShapeRun run = RunForShapes(*recording, *shadow, given);
  const AliasedTensors& aliases = *run.aliases;
  if (plan.writes) TakeOver(*recording, originals, aliases, *shadow);
  Results results(*recording, originals, aliases, *shadow);
  for (int i = 0; i < plan.returns; ++i) {
    c10::IValue value =
        std::move(run.stack[run.stack.size() - plan.returns + i]);
    const int argument = plan.return_argument[i];
    if (argument < 0) {
      value = results.GiveBack(std::move(value), i);
    } else {
      for (auto& [index, original] : written) {
        if (index == argument) value = original;
      }
    }
    stack->push_back(std::move(value));
  }
  Submit(std::move(recording));
  return true;
}

void RecordCopy(const at::Tensor& self, const at::Tensor& src) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static const OperatorPlan& plan = *new OperatorPlan(op);
  const c10::DeviceIndex device = self.device().index();
  const auto shadow = ShadowBytes::Of(CaptureOn(device));
  auto recording = std::make_unique<Recording>(op, plan, &CopyOnCpu, device);
  std::vector<at::Tensor> originals;
  recording->Describe(plan, {self, src, false}, 0, &originals);
  recording->arguments.resize(2);
  (void)RunForShapes(*recording, *shadow, std::nullopt);
  Submit(std::move(recording));
}

void ShadowCopy(const at::Tensor& self, const at::Tensor& src) {
  if (!self.is_cuda()) return;  // host memory is not written in a capture
  const auto shadow = ShadowBytes::Of(CaptureOn(self.device().index()));
  const auto start = [&](const at::Tensor& tensor, bool write) -> char* {
    const auto address = reinterpret_cast<uint64_t>(tensor.storage().data());
    char* const bytes =
        tensor.is_cuda() ? shadow->At(address, tensor.storage().nbytes(), write)
                         : reinterpret_cast<char*>(address);
    return bytes + tensor.storage_offset() * tensor.itemsize();
  };
  char* to = start(self, true);
  const char* from = start(src, false);
  to = start(self, true);  // src may lie in the same copy
  std::memmove(to, from, self.nbytes());
}

}  // namespace cudasim::bridge
