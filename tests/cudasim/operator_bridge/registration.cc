// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/operator_bridge/registration.h"

#include <ATen/Context.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tests/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/cudasim/operator_bridge/copy_kernel.h"
#include "tests/cudasim/operator_bridge/meta_kernel.h"
#include "tests/cudasim/operator_bridge/simulated_device.h"
#include "tests/cudasim/operator_bridge/substitutes.h"

namespace cudasim::bridge {
namespace {

constexpr auto kCuda = c10::DispatchKey::CUDA;

constexpr std::array<std::string_view, 3> kNamespaces = {"aten", "quantized",
                                                         "quantization"};

// Their CUDA code allocates, describes or synchronises, and launches nothing.
constexpr std::array<std::string_view, 11> kKept = {
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

// Its CUDA code looks at the card's properties only.
constexpr std::string_view kChoosesAttention = "aten::_fused_sdp_choice";

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

// One torch::Library per namespace. Never destroyed: kernels must stay until
// the last thread has run its last operator, which nobody can know at exit.
class Libraries {
 public:
  torch::Library& Of(const std::string& name_space) {
    std::unique_ptr<torch::Library>& library = libraries_[name_space];
    if (library == nullptr) {
      library = std::make_unique<torch::Library>(
          torch::Library::IMPL, name_space, kCuda, __FILE__, __LINE__);
    }
    return *library;
  }

  template <typename Kernel>
  void Put(const c10::OperatorHandle& op, std::unique_ptr<Kernel> kernel) {
    const c10::OperatorName& name = op.operator_name();
    Of(std::string(*name.getNamespace()))
        .impl(c10::toString(name).c_str(),
              torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  }

 private:
  std::map<std::string, std::unique_ptr<torch::Library>> libraries_;
};

// False: only CUDA has a kernel for it.
bool Bridge(Libraries& libraries, const c10::OperatorHandle& op) {
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
  static Libraries& libraries = *new Libraries;
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
    if (Contains(kKept, full_name) ||
        (!numbers && full_name == kChoosesAttention) ||
        ReturnsView(op->schema()) || op->isKernelFallthroughKernel(kCuda)) {
      ++registered.kept;
    } else if (Bridge(libraries, *op)) {
      ++registered.bridged;
    } else {
      libraries.Put(*op, std::make_unique<RefusingKernel>());
      ++registered.refused;
    }
  }
  for (std::string_view name : kCompositesToBridge) {
    const auto op = dispatcher.findOp({std::string(name), ""});
    if (op.has_value() && !op->hasKernelForDispatchKey(kCuda) &&
        Bridge(libraries, *op)) {
      ++registered.bridged;
    }
  }
  libraries.Of("aten").impl("copy_", TORCH_FN(CopyKernel));
  ++registered.bridged;

  at::globalContext().setUserEnabledCuDNN(false);
  // Without numbers the fused forms of attention have shapes like any other
  // operator, and the card's own choice decides what memory is taken.
  if (!numbers) return registered;
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  return registered;
}

}  // namespace cudasim::bridge
