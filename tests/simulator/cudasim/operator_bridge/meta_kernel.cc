// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/meta_kernel.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>

#include <utility>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"
#include "tests/simulator/cudasim/operator_bridge/generator.h"
#include "tests/simulator/cudasim/operator_bridge/shape_alias.h"

namespace cudasim::bridge {
namespace {

// PyTorch's fallback for operators without a Meta kernel counts as a computed
// kernel, so the slots are asked one by one.
bool HasMetaKernel(const c10::OperatorHandle& op) {
  for (const auto key :
       {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
        c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool OnlyWrites(const OperatorPlan& plan) {
  for (const int argument : plan.return_argument) {
    if (argument < 0) return false;
  }
  return plan.writes;
}

// Python's modes (torch.device("cuda") as a context, for one) are the
// program's; a Meta kernel written in Python must not fall under them.
class WithoutPythonModes {
 public:
  WithoutPythonModes()
      : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(
        at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~WithoutPythonModes() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(before_);
  }
  WithoutPythonModes(const WithoutPythonModes&) = delete;
  WithoutPythonModes& operator=(const WithoutPythonModes&) = delete;

 private:
  const at::impl::TorchFunctionDisabledState before_;
};

// Replaces tensors on the stack by stand-ins and notes which devices they are
// on.
class Replacer {
 public:
  explicit Replacer(ShapeAliasSet& aliases) : aliases_(aliases) {}

  void Replace(c10::IValue& value, bool write) {
    if (value.isTensor()) {
      value = Replaced(value.toTensor(), write);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> replaced;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        replaced.push_back(Replaced(tensor, write));
      }
      value = std::move(replaced);
    } else if (value.isList()) {  // Tensor?[]
      c10::List<std::optional<at::Tensor>> replaced;
      for (const c10::IValue& element : value.toListRef()) {
        replaced.push_back(
            element.isTensor()
                ? std::optional<at::Tensor>(Replaced(element.toTensor(), write))
                : std::nullopt);
      }
      value = std::move(replaced);
    }
  }

  void CheckDevices(const OperatorPlan& plan) const {
    if (plan.mixes_devices || cuda_ < 0) return;
    TORCH_CHECK(!other_.has_value(),
                "Expected all tensors to be on the same device, but found at "
                "least two devices, ",
                c10::Device(c10::kCUDA, cuda_), " and ", *other_,
                "! (operator ", plan.name, ")");
  }

 private:
  at::Tensor Replaced(const at::Tensor& tensor, bool write) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      // A scalar on the host may join any operator, but not as its result.
      if (write || tensor.dim() > 0) other_ = tensor.device();
      return tensor;
    }
    const c10::DeviceIndex index = tensor.device().index();
    if (cuda_ < 0) {
      cuda_ = index;
    } else if (cuda_ != index) {
      other_ = tensor.device();
    }
    return aliases_.Alias(tensor, write);
  }

  ShapeAliasSet& aliases_;
  c10::DeviceIndex cuda_ = -1;
  std::optional<c10::Device> other_;
};

c10::IValue GiveBack(ShapeAliasSet& aliases, c10::IValue value) {
  if (value.isTensor()) return aliases.GiveBack(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> results;
  for (const at::Tensor& result : value.toTensorVector()) {
    results.push_back(aliases.GiveBack(result));
  }
  return results;
}

}  // namespace

ShapeRoute ShapeRouteOf(const c10::OperatorHandle& op,
                        CpuComputation substitute) {
  const bool has_cpu =
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  const bool by_value = op.hasTag(at::Tag::data_dependent_output) ||
                        op.hasTag(at::Tag::dynamic_output_shape);
  if (by_value && has_cpu) return ShapeRoute::kZeros;
  if (HasMetaKernel(op)) return ShapeRoute::kMeta;
  if (substitute != nullptr) return ShapeRoute::kSubstitute;
  if (OnlyWrites(OperatorPlan(op)) &&
      op.operator_name().overload_name != "out") {
    return ShapeRoute::kNothing;
  }
  return has_cpu ? ShapeRoute::kZeros : ShapeRoute::kNone;
}

void ImportMetaKernels() {
  // Looked up, not linked: a program without Python has no such kernels.
  const auto ensure =
      reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  const auto release = reinterpret_cast<void (*)(int)>(
      dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  const auto run = reinterpret_cast<int (*)(const char*)>(
      dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  if (ensure == nullptr || release == nullptr || run == nullptr) return;
  const int state = ensure();
  run("import torch._meta_registrations");
  release(state);
}

MetaKernel::MetaKernel(const c10::OperatorHandle& op, ShapeRoute route,
                       CpuComputation substitute)
    : plan_(op),
      cost_(op),
      workspace_(op),
      route_(route),
      substitute_(substitute),
      random_(plan_.generator >= 0 ||
              op.hasTag(at::Tag::nondeterministic_seeded)) {}

void MetaKernel::operator()(const c10::OperatorHandle& op,
                            c10::DispatchKeySet /*keys*/,
                            torch::jit::Stack* stack) {
  const size_t first = stack->size() - plan_.arguments;
  const c10::DeviceType place =
      route_ == ShapeRoute::kZeros ? c10::kCPU : c10::kMeta;
  AccessLog log(plan_.name.c_str());
  OperatorMeter meter(cost_, *stack, first);
  const WorkspacePlan::Need workspace = workspace_.NeedOf(*stack, first);
  ShapeAliasSet aliases(place, log);
  Replacer replacer(aliases);
  c10::SmallVector<std::pair<int, c10::IValue>, 2> written;
  for (const OperatorPlan::TensorArgument& argument : plan_.tensors) {
    c10::IValue& value = (*stack)[first + argument.index];
    if (argument.write) written.emplace_back(argument.index, value);
    replacer.Replace(value, argument.write);
  }
  replacer.CheckDevices(plan_);

  if (aliases.device() < 0) {
    // Only a device argument can have led here.
    c10::Device device(c10::kCUDA, c10::cuda::current_device());
    if (plan_.device >= 0) {
      c10::IValue& value = (*stack)[first + plan_.device];
      if (value.isDevice() && value.toDevice().has_index()) {
        device = value.toDevice();
      }
      value = c10::Device(place);
    }
    aliases.SetDevice(device.index());
  }
  if (random_) {
    std::optional<at::Generator> given;
    c10::IValue* value = nullptr;
    if (plan_.generator >= 0) {
      value = &(*stack)[first + plan_.generator];
      given = value->toOptional<at::Generator>();
    }
    at::Generator generator = CpuGeneratorFor(given, aliases.device(),
                                              ElementsDrawn((*stack)[first]));
    if (value != nullptr) {
      *value = place == c10::kCPU ? c10::IValue(generator) : c10::IValue();
    }
  }

  log.Begin(aliases.device());
  if (route_ == ShapeRoute::kNothing) {
    torch::jit::drop(*stack, plan_.arguments);
    for (int i = 0; i < plan_.returns; ++i) stack->emplace_back();
  } else {
    c10::impl::ExcludeDispatchKeyGuard below(kAboveBackends);
    const WithoutPythonModes without;
    if (route_ == ShapeRoute::kSubstitute) {
      substitute_(op, stack, aliases.device());
    } else {
      op.redispatchBoxed(place == c10::kMeta ? kMeta : kCpu, stack);
    }
  }
  log.Computed();
  if (plan_.writes) aliases.TakeOver();

  const size_t result = stack->size() - plan_.returns;
  for (int i = 0; i < plan_.returns; ++i) {
    c10::IValue& value = (*stack)[result + i];
    const int argument = plan_.return_argument[i];
    if (argument < 0) {
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

}  // namespace cudasim::bridge
