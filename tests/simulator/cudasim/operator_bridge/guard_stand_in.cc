// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for an allocator's operator guard, for test_behind_a_guard.py: a
// boxed kernel in front of every operator with a CUDA kernel, which counts and
// calls the previous kernel boxed. Loaded after the bridge, so the previous
// kernels are the bridge's.

#include <torch/library.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

namespace {

std::atomic<long> guarded_calls{0};

class Guard final : public c10::OperatorKernel {
 public:
  explicit Guard(c10::SafeKernelFunction previous)
      : previous_(std::move(previous)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    guarded_calls.fetch_add(1, std::memory_order_relaxed);
    previous_.callBoxed(op, keys, stack);
  }

 private:
  const c10::SafeKernelFunction previous_;
};

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int guard_stand_in_install() {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard warnings(&quiet);
  static auto& libraries =
      *new std::map<std::string, std::unique_ptr<torch::Library>>;
  auto library = [](const std::string& name_space) -> torch::Library& {
    auto& entry = libraries[name_space];
    if (entry == nullptr) {
      entry = std::make_unique<torch::Library>(torch::Library::IMPL, name_space,
                                               c10::DispatchKey::CUDA, __FILE__,
                                               __LINE__);
    }
    return *entry;
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  int guarded = 0;
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    const auto op = dispatcher.findOp(name);
    const std::string full_name = c10::toString(name);
    if (!op.has_value() || !op->hasSchema() ||
        op->isKernelFallthroughKernel(c10::DispatchKey::CUDA)) {
      continue;
    }
    library(std::string(*name.getNamespace()))
        .impl(
            full_name.c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Guard>(
                op->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA))));
    ++guarded;
  }
  return guarded;
}

extern "C" __attribute__((visibility("default"))) long guard_stand_in_calls() {
  return guarded_calls.load();
}
