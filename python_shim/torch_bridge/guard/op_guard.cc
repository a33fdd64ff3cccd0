// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/guard/op_guard.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/base/evictable_copy.h"
#include "python_shim/torch_bridge/guard/copy_guard.h"
#include "python_shim/torch_bridge/guard/guard_kernel.h"
#include "python_shim/torch_bridge/guard/late_operators.h"
#include "python_shim/torch_bridge/guard/typed_guard.h"

namespace stratalloc {
namespace {

constexpr std::array<c10::DispatchKey, 5> kGuardedKeys = {
    c10::DispatchKey::CUDA, c10::DispatchKey::SparseCUDA,
    c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::QuantizedCUDA,
    c10::DispatchKey::NestedTensorCUDA};

// Only make a new tensor over the same storage: no byte is touched. Everything
// else that has tensor arguments is guarded, also where that may be too much.
constexpr std::array<std::string_view, 6> kOnlyViews = {
    "aten::view",         "aten::as_strided",      "aten::_reshape_alias",
    "aten::view_as_real", "aten::view_as_complex", "aten::unfold"};

// No tensor goes in, a kernel fills the tensor that comes out: what they
// allocate must stay until the kernel is launched.
constexpr std::array<std::string_view, 3> kFillingFactories = {
    "aten::tril_indices", "aten::triu_indices",
    "aten::_cudnn_init_dropout_state"};

bool IsFillingFactory(const c10::OperatorName& name) {
  return std::find(kFillingFactories.begin(), kFillingFactories.end(),
                   name.name) != kFillingFactories.end();
}

bool HasPlainStorage(c10::DispatchKey key) {
  return key == c10::DispatchKey::CUDA ||
         key == c10::DispatchKey::QuantizedCUDA;
}

bool IsOnlyView(const c10::OperatorName& name, c10::DispatchKey key) {
  if (!HasPlainStorage(key) || !name.overload_name.empty()) return false;
  for (std::string_view view : kOnlyViews) {
    if (name.name == view) return true;
  }
  return false;
}

// Torch warns when a kernel is registered over another; here that is the
// purpose.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

class Guard {
 public:
  // Never destroyed: operators run during exit.
  static Guard& Get() {
    static auto* const guard = new Guard;
    return *guard;
  }

  void Install() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!libraries_.empty()) return;
    GuardAll();
    LateOperators::Listen();
  }

  void Rescan() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TORCH_CHECK(!libraries_.empty(), "the op guard is not installed");
    GuardAll();
  }

  void Remove() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    libraries_.clear();
    guarded_ = 0;
    typed_ = 0;
  }

  int Count() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return guarded_;
  }

  int CountTyped() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return typed_;
  }

 private:
  void GuardAll() REQUIRES(mutex_) {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::DispatchKey key : kGuardedKeys) {
      for (const c10::OperatorName& name :
           dispatcher.getRegistrationsForDispatchKey(key)) {
        const auto op = dispatcher.findSchema(name);
        if (!op.has_value() || IsOnlyView(name, key)) continue;
        GuardOne(*op, key);
      }
    }
    GuardCopy(dispatcher.findSchemaOrThrow(kCopyName, ""));
    AddCopiesOfEvictable(dispatcher);
  }

  void GuardOne(const c10::OperatorHandle& op, c10::DispatchKey key)
      REQUIRES(mutex_) {
    const c10::OperatorName& name = op.operator_name();
    if (op.isKernelFallthroughKernel(key) || IsGuardedLate(op)) return;
    c10::SafeKernelFunction previous = op.getComputedKernelForDispatchKey(key);
    if (IsOurs(previous)) return;
    OperatorSignature signature(op.schema());
    if (!signature.HasTensors() && !IsFillingFactory(name)) return;
    GuardedOperator guarded{c10::toString(name), std::move(signature),
                            std::move(previous), ListOperator(op.schema()),
                            CollectiveOperator(op.schema())};
    std::optional<torch::CppFunction> kernel = MakeTypedGuard(guarded);
    if (kernel.has_value()) {
      ++typed_;
    } else {
      kernel = torch::CppFunction::makeFromBoxedFunctor(
          std::make_unique<GuardKernel>(std::move(guarded)));
    }
    LibraryFor(name, key).impl(Unqualified(name).c_str(), *std::move(kernel));
    ++guarded_;
  }

  // torch's own, which lies at an alias key, so that the loop does not meet it.
  // Whoever registered one for CUDA has had it guarded above.
  void GuardCopy(const c10::OperatorHandle& op) REQUIRES(mutex_) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) return;
    LibraryFor(op.operator_name(), c10::DispatchKey::CUDA)
        .impl("copy_", &GuardedCopy);
    ++guarded_;
  }

  // Unless someone has kernels of these for CUDA: those were guarded above.
  void AddCopiesOfEvictable(c10::Dispatcher& dispatcher) REQUIRES(mutex_) {
    for (const char* name : kEvictableCopies) {
      const auto op = dispatcher.findSchemaOrThrow(name, "");
      if (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
      AddEvictableCopy(LibraryFor(op.operator_name(), c10::DispatchKey::CUDA),
                       op.operator_name());
      ++guarded_;
    }
  }

  static bool IsOurs(const c10::SafeKernelFunction& kernel) {
    return kernel.debug().find(kGuardMark) != std::string::npos;
  }

  static bool IsGuardedLate(const c10::OperatorHandle& op) {
    constexpr auto kKey = c10::DispatchKey::BackendSelect;
    return op.hasKernelForDispatchKey(kKey) &&
           IsOurs(op.getComputedKernelForDispatchKey(kKey));
  }

  // One Library per namespace and key; dropping it restores what was before.
  torch::Library& LibraryFor(const c10::OperatorName& name,
                             c10::DispatchKey key) REQUIRES(mutex_) {
    const std::string space(name.getNamespace().value_or("aten"));
    auto& library = libraries_[{space, key}];
    if (library == nullptr) {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, space,
                                                 key, kGuardMark, 0);
    }
    return *library;
  }

  static std::string Unqualified(const c10::OperatorName& name) {
    std::string text = c10::toString(name);
    return text.substr(text.find("::") + 2);
  }

  Mutex mutex_{LockRank::kRegistry};
  std::map<std::pair<std::string, c10::DispatchKey>,
           std::unique_ptr<torch::Library>>
      libraries_ GUARDED_BY(mutex_);
  int guarded_ GUARDED_BY(mutex_) = 0;
  int typed_ GUARDED_BY(mutex_) = 0;  // of them
};

}  // namespace
}  // namespace stratalloc

using stratalloc::Guard;
using stratalloc::RunEntryPoint;

int stratalloc_torch_install_guard(char* message, int bytes) {
  return RunEntryPoint(message, bytes, [] { Guard::Get().Install(); });
}

int stratalloc_torch_rescan_guard(char* message, int bytes) {
  return RunEntryPoint(message, bytes, [] { Guard::Get().Rescan(); });
}

void stratalloc_torch_remove_guard(void) {
  RunEntryPoint(nullptr, 0, [] { Guard::Get().Remove(); });
}

int stratalloc_torch_guarded(void) { return Guard::Get().Count(); }

int stratalloc_torch_guarded_typed(void) { return Guard::Get().CountTyped(); }

int stratalloc_torch_guarded_late(void) {
  return stratalloc::LateOperators::Guarded();
}

int stratalloc_torch_is_guarded(const char* name) {
  int guarded = 0;
  RunEntryPoint(nullptr, 0, [&] {
    const std::string text(name);
    const size_t dot = text.find('.', text.find("::"));
    const c10::OperatorName full(
        text.substr(0, dot),
        dot == std::string::npos ? "" : text.substr(dot + 1));
    const auto op = c10::Dispatcher::singleton().findSchema(full);
    if (!op.has_value()) return;
    for (const c10::DispatchKey key :
         {c10::DispatchKey::CUDA, c10::DispatchKey::BackendSelect}) {
      if (op->hasKernelForDispatchKey(key) &&
          op->getComputedKernelForDispatchKey(key).debug().find(
              stratalloc::kGuardMark) != std::string::npos) {
        guarded = 1;
      }
    }
  });
  return guarded;
}
