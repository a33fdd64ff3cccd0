// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/collectives/coalescing.h"

#include <ATen/core/stack.h>
#include <torch/library.h>

#include <memory>

#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"

namespace stratalloc {
namespace {

void Begins(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  if (const Holder group = Unboxed(torch::jit::pop(*stack))) {
    CollectivesUnderWay::Get().BeginCoalescing(group);
  }
}

void Ends(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const Holder work = Unboxed(torch::jit::pop(*stack));
  if (const Holder group = Unboxed(torch::jit::pop(*stack))) {
    CollectivesUnderWay::Get().EndCoalescing(group, work);
  }
}

std::unique_ptr<torch::Library> Define() {
  auto library = std::make_unique<torch::Library>(
      torch::Library::FRAGMENT, "stratalloc", std::nullopt, __FILE__, __LINE__);
  library->def(
      "coalescing_begins(__torch__.torch.classes.c10d.ProcessGroup group) "
      "-> ()",
      torch::CppFunction::makeFromBoxedFunction<&Begins>());
  library->def(
      "coalescing_ends(__torch__.torch.classes.c10d.ProcessGroup group, "
      "__torch__.torch.classes.c10d.Work? work) -> ()",
      torch::CppFunction::makeFromBoxedFunction<&Ends>());
  return library;
}

}  // namespace
}  // namespace stratalloc

int stratalloc_torch_follow_coalescing(char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [] {
    // Never destroyed, as the guard.
    static auto* const library = stratalloc::Define().release();
    (void)library;
  });
}
