// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/alias.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/hints.h"
#include "tests/simulator/cudasim/operator_bridge/late_operators.h"
#include "tests/simulator/cudasim/operator_bridge/recorded_operator.h"

namespace cudasim::bridge {
namespace {

// Replaces tensors on the stack by aliases and checks that they are together on
// one device, as the device's kernels check.
class ArgumentReplacer {
 public:
  ArgumentReplacer(const OperatorPlan& plan, AliasSet& aliases)
      : plan_(plan), aliases_(aliases) {}

  void Replace(c10::IValue& value, bool write) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (NeedsAlias(tensor, write)) value = aliases_.Alias(tensor, write);
    } else if (value.isTensorList()) {
      ReplaceList(value, write);
    } else if (value.isList()) {  // Tensor?[]
      ReplaceOptionalList(value, write);
    }
  }

  void CheckDevices() const {
    if (plan_.mixes_devices || cuda_ < 0) return;
    const c10::Device cuda(c10::kCUDA, cuda_);
    TORCH_CHECK(host_ == nullptr,
                "Expected all tensors to be on the same device, but found at "
                "least two devices, ",
                cuda, " and ", host_->device(), "! (operator ", plan_.name,
                ")");
    TORCH_CHECK(other_cuda_ < 0,
                "Expected all tensors to be on the same device, but found at "
                "least two devices, ",
                cuda, " and ", c10::Device(c10::kCUDA, other_cuda_),
                "! (operator ", plan_.name, ")");
  }

 private:
  bool NeedsAlias(const at::Tensor& tensor, bool write) {
    if (!tensor.defined()) return false;
    if (tensor.is_cuda()) {
      const c10::DeviceIndex index = tensor.device().index();
      if (cuda_ < 0) {
        cuda_ = index;
      } else if (cuda_ != index) {
        other_cuda_ = index;
      }
      return true;
    }
    // A scalar on the host may join any operator, but not as its result.
    if (host_ == nullptr && (write || tensor.dim() > 0)) {
      host_ = tensor.unsafeGetTensorImpl();
    }
    return false;
  }

  void ReplaceList(c10::IValue& value, bool write) {
    const auto originals = value.toTensorVector();
    c10::List<at::Tensor> replaced;
    replaced.reserve(originals.size());
    for (const at::Tensor& tensor : originals) {
      replaced.push_back(
          NeedsAlias(tensor, write) ? aliases_.Alias(tensor, write) : tensor);
    }
    value = std::move(replaced);
  }

  void ReplaceOptionalList(c10::IValue& value, bool write) {
    c10::List<std::optional<at::Tensor>> replaced;
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) {
        replaced.push_back(std::nullopt);
        continue;
      }
      const at::Tensor& tensor = element.toTensor();
      replaced.push_back(
          NeedsAlias(tensor, write) ? aliases_.Alias(tensor, write) : tensor);
    }
    value = std::move(replaced);
  }

  const OperatorPlan& plan_;
  AliasSet& aliases_;
  c10::DeviceIndex cuda_ = -1;
  c10::DeviceIndex other_cuda_ = -1;
  const at::TensorImpl* host_ = nullptr;  // first host tensor that matters
};

c10::IValue GiveBack(AliasSet& aliases, c10::IValue value) {
  if (value.isTensor()) return aliases.GiveBack(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> results;
  for (const at::Tensor& result : value.toTensorVector()) {
    results.push_back(aliases.GiveBack(result));
  }
  return results;
}

// A broken device computes nothing more: the call fails with the error that
// broke it.
void CheckHealthy(c10::DeviceIndex device) {
  const int error = SimulatedDevice::Get().StickyError(device);
  if (error != 0) C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

}  // namespace

void RunCpuKernel(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                  c10::DeviceIndex /*device*/) {
  op.redispatchBoxed(kCpu, stack);
}

void BridgedKernel::operator()(const c10::OperatorHandle& op,
                               c10::DispatchKeySet /*keys*/,
                               torch::jit::Stack* stack) {
  BridgeLateOperators();
  if (SimulatedDevice::Get().captures() &&
      RecordIfCapturing(op, plan_, compute_, workspace_, stack)) {
    return;
  }
  const size_t first = stack->size() - plan_.arguments;
  AccessLog log(plan_.name.c_str());
  OperatorMeter meter(cost_, *stack, first);
  const WorkspacePlan::Need workspace = workspace_.NeedOf(*stack, first);
  AliasSet aliases(log);
  ArgumentReplacer replacer(plan_, aliases);
  // Originals of written arguments: they are results. (AliasSet keeps all
  // aliased tensors alive.)
  c10::SmallVector<std::pair<int, c10::IValue>, 2> written;
  for (const OperatorPlan::TensorArgument& argument : plan_.tensors) {
    c10::IValue& value = (*stack)[first + argument.index];
    if (argument.write) written.emplace_back(argument.index, value);
    replacer.Replace(value, argument.write);
  }
  replacer.CheckDevices();

  if (aliases.device() < 0) {
    // Only a device argument can have led here.
    c10::Device device(c10::kCUDA, c10::cuda::current_device());
    if (plan_.device >= 0) {
      c10::IValue& value = (*stack)[first + plan_.device];
      if (value.isDevice() && value.toDevice().has_index()) {
        device = value.toDevice();
      }
      value = c10::Device(c10::kCPU);
    }
    aliases.SetDevice(device.index());
  }
  CheckHealthy(aliases.device());
  if (plan_.generator >= 0) {
    c10::IValue& value = (*stack)[first + plan_.generator];
    value = CpuGeneratorFor(value.toOptional<at::Generator>(), aliases.device(),
                            ElementsDrawn((*stack)[first]));
  }

  log.Begin(aliases.device());
  {
    c10::impl::ExcludeDispatchKeyGuard below(kAboveBackends);
    compute_(op, stack, aliases.device());
  }
  log.Computed();
  if (plan_.writes) aliases.TakeOver();

  const size_t result = stack->size() - plan_.returns;
  for (int i = 0; i < plan_.returns; ++i) {
    c10::IValue& value = (*stack)[result + i];
    const int argument = plan_.return_argument[i];
    if (argument < 0) {
      if (plan_.stays_on_host(i)) continue;
      value = GiveBack(aliases, std::move(value));
      continue;
    }
    for (auto& [index, original] : written) {
      if (index == argument) value = original;
    }
  }
  log.End();
  TakeWorkspace(workspace, aliases.device());
  meter.Charge(*stack, result, plan_.returns, aliases.device());
  CountBridgedCall();
}

void DeviceKernel::operator()(const c10::OperatorHandle& op,
                              c10::DispatchKeySet /*keys*/,
                              torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard below(kAboveBackends);
  compute_(op, stack);
}

void RefusingKernel::operator()(const c10::OperatorHandle& op,
                                c10::DispatchKeySet /*keys*/,
                                torch::jit::Stack* /*stack*/) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "the simulated device cannot run '", name,
      "': PyTorch has only a CUDA kernel for it, and no kernel runs on the "
      "simulated device. ",
      HintFor(name));
}

}  // namespace cudasim::bridge
