// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/registration.h"

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

#include "tests/simulator/cudasim/operator_bridge/boxed_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/copy_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/half_precision.h"
#include "tests/simulator/cudasim/operator_bridge/meta_kernel.h"
#include "tests/simulator/cudasim/operator_bridge/recurrent_networks.h"
#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"
#include "tests/simulator/cudasim/operator_bridge/substitutes.h"

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

// Sparse operators that make, describe or copy sparse tensors by way of their
// parts.
constexpr std::array<std::string_view, 19> kSparseKept = {
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::_sparse_coo_tensor_with_dims",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::sparse_dim",
    "aten::dense_dim",
    "aten::_dimI",
    "aten::_dimV",
    "aten::_nnz",
    "aten::is_coalesced",
    "aten::_coalesced_",
    "aten::resize_",
    "aten::sparse_resize_",
    "aten::sparse_resize_and_clear_",
    "aten::resize_as_sparse_",
    "aten::copy_",
    "aten::copy_sparse_to_sparse_",
    "aten::clone",
    "aten::_pin_memory"};

// The operators' own kernels for sparse tensors on the CPU.
void RunSparseKernel(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                     c10::DeviceIndex /*device*/) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), stack);
}
void RunCompressedKernel(const c10::OperatorHandle& op,
                         torch::jit::Stack* stack,
                         c10::DeviceIndex /*device*/) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU),
                     stack);
}

struct SparseBackend {
  c10::DispatchKey cuda;
  c10::DispatchKey cpu;
  CpuComputation compute;
};
constexpr std::array<SparseBackend, 2> kSparseBackends = {{
    {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCPU,
     &RunSparseKernel},
    {c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::SparseCsrCPU,
     &RunCompressedKernel},
}};

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
  const std::string name = c10::toString(op.operator_name());
  const CpuComputation substitute = SubstituteFor(name);
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
                        op, substitute ? substitute : CpuComputationFor(name)));
  return true;
}

void RegisterSparse(const SparseBackend& backend, Registered& registered) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(backend.cuda)) {
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() ||
        !Contains(kNamespaces, name.getNamespace().value_or(""))) {
      continue;
    }
    if (Contains(kSparseKept, c10::toString(name)) ||
        ReturnsView(op->schema()) ||
        op->isKernelFallthroughKernel(backend.cuda)) {
      ++registered.kept;
    } else if (op->hasKernelForDispatchKey(backend.cpu)) {
      Libraries::Get().Put(
          *op, std::make_unique<BridgedKernel>(*op, backend.compute),
          backend.cuda);
      ++registered.bridged;
    } else {
      Libraries::Get().Put(*op, std::make_unique<RefusingKernel>(),
                           backend.cuda);
      ++registered.refused;
    }
  }
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
    if (op.has_value() && !op->hasKernelForDispatchKey(kCuda) && Bridge(*op)) {
      ++registered.bridged;
    }
  }
  if (numbers) {
    for (const SparseBackend& backend : kSparseBackends) {
      RegisterSparse(backend, registered);
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
