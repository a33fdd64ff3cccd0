// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/operator_bridge/registration.h"

#include <ATen/Context.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "tests/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/cudasim/operator_bridge/copy_kernel.h"
#include "tests/cudasim/operator_bridge/meta_kernel.h"
#include "tests/cudasim/operator_bridge/recurrent_networks.h"
#include "tests/cudasim/operator_bridge/simulated_device.h"
#include "tests/cudasim/operator_bridge/substitutes.h"

namespace cudasim::bridge {
namespace {

constexpr auto kCuda = c10::DispatchKey::CUDA;

constexpr std::array<std::string_view, 3> kNamespaces = {"aten", "quantized",
                                                         "quantization"};

// Their CUDA code allocates, describes or synchronises, and launches nothing.
constexpr std::array<std::string_view, 12> kKept = {
    "aten::_fused_sdp_choice",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::_efficientzerotensor",
    "aten::resize_",
    "aten::set_",
    "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
    "aten::is_set_to",
    "aten::record_stream",
    "aten::_local_scalar_dense"};

// Composite operators without a CUDA kernel of their own that would choose a
// vendor library for CUDA tensors.
constexpr std::array<std::string_view, 2> kCompositesToBridge = {
    "aten::convolution", "aten::_convolution"};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// PyTorch warns about every kernel that replaces another; here that is the
// point.
class QuietWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// One torch::Library per namespace and key. Never destroyed: kernels must stay
// until the last thread has run its last operator, which nobody can know at
// exit. Late operators arrive from any thread.
class Libraries {
 public:
  static Libraries& Get() {
    static Libraries& libraries = *new Libraries;
    return libraries;
  }

  template <typename Kernel>
  void Put(const c10::OperatorHandle& op, std::unique_ptr<Kernel> kernel,
           c10::DispatchKey key = kCuda) {
    const c10::OperatorName& name = op.operator_name();
    Put(std::string(*name.getNamespace()), c10::toString(name),
        torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)), key);
  }

  void Put(const std::string& name_space, const std::string& name,
           torch::CppFunction function, c10::DispatchKey key = kCuda) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<torch::Library>& library = libraries_[{name_space, key}];
    if (library == nullptr) {
      library = std::make_unique<torch::Library>(
          torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
    }
    library->impl(name.c_str(), std::move(function));
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, c10::DispatchKey>,
           std::unique_ptr<torch::Library>>
      libraries_;
};

// False: only CUDA has a kernel for it.
bool Bridge(const c10::OperatorHandle& op) {
  Libraries& libraries = Libraries::Get();
  const CpuComputation substitute =
      SubstituteFor(c10::toString(op.operator_name()));
  if (!SimulatedDevice::Get().numbers()) {
    const ShapeRoute route = ShapeRouteOf(op, substitute);
    if (route == ShapeRoute::kNone) return false;
    libraries.Put(op, std::make_unique<MetaKernel>(op, route, substitute));
    return true;
  }
  if (substitute == nullptr &&
      !op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return false;
  }
  libraries.Put(op, std::make_unique<BridgedKernel>(
                        op, substitute ? substitute : &RunCpuKernel));
  return true;
}

}  // namespace

Registered RegisterOperators() {
  QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  Libraries& libraries = Libraries::Get();
  auto& dispatcher = c10::Dispatcher::singleton();
  Registered registered;
  const bool numbers = SimulatedDevice::Get().numbers();
  if (!numbers) ImportMetaKernels();

  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(kCuda)) {
    const auto op = dispatcher.findOp(name);
    const auto name_space = name.getNamespace();
    if (!op.has_value() || !op->hasSchema() || !name_space.has_value() ||
        !Contains(kNamespaces, *name_space)) {
      continue;
    }
    const std::string full_name = c10::toString(name);
    if (full_name == "aten::copy_") continue;
    if (Contains(kKept, full_name) || ReturnsView(op->schema()) ||
        op->isKernelFallthroughKernel(kCuda)) {
      ++registered.kept;
    } else if (const auto compute =
                   numbers ? DeviceSubstituteFor(full_name) : nullptr) {
      libraries.Put(*op, std::make_unique<DeviceKernel>(compute));
      ++registered.bridged;
    } else if (Bridge(*op)) {
      ++registered.bridged;
    } else {
      libraries.Put(*op, std::make_unique<RefusingKernel>());
      ++registered.refused;
    }
  }
  for (std::string_view name : kCompositesToBridge) {
    const auto op = dispatcher.findOp({std::string(name), ""});
    if (op.has_value() && !op->hasKernelForDispatchKey(kCuda) &&
        Bridge(*op)) {
      ++registered.bridged;
    }
  }
  for (const OverloadName& name : kRecurrentNetworks) {
    const auto op = dispatcher.findSchema({name.name, name.overload});
    if (!op.has_value()) continue;
    for (const c10::DispatchKey key : {kCuda, c10::DispatchKey::AutogradCUDA}) {
      libraries.Put(*op, std::make_unique<RecurrentKernel>(), key);
    }
    ++registered.bridged;
  }
  libraries.Put("aten", "copy_", torch::CppFunction(TORCH_FN(CopyKernel)));
  ++registered.bridged;
  // Without numbers nothing computes what cuDNN's networks compute, and the
  // native forms have shapes like any other operator.
  if (!numbers) at::globalContext().setUserEnabledCuDNN(false);
  return registered;
}

bool BridgeLate(const c10::OperatorHandle& op) {
  if (ReturnsView(op.schema()) || op.isKernelFallthroughKernel(kCuda) ||
      !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return false;
  }
  QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  return Bridge(op);
}

}  // namespace cudasim::bridge
