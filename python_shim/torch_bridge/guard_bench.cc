// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <vector>

#include "python_shim/torch_bridge/entry_point.h"
#include "python_shim/torch_bridge/late_operators.h"
#include "python_shim/torch_bridge/op_guard.h"

namespace stratalloc {
namespace {

// Kernels that do nothing: what remains is the dispatcher's price and ours.
at::Tensor Two(const at::Tensor& a, const at::Tensor&) { return a; }
void List(at::TensorList) {}

using TwoOp = c10::TypedOperatorHandle<decltype(Two)>;
using ListOp = c10::TypedOperatorHandle<decltype(List)>;

constexpr char kNamespace[] = "stratalloc_bench";

// Defined as if before the guard's installation: the next scan guards them at
// their CUDA key, as it does torch's own.
torch::Library& Operators() {
  static auto* const library = [] {
    const LateOperators::Pause pause;
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, kNamespace, std::nullopt,
                           __FILE__, static_cast<uint32_t>(__LINE__));
    made->def("two(Tensor a, Tensor b) -> Tensor");
    made->def("list(Tensor[] a) -> ()");
    made->impl("two", c10::DispatchKey::CUDA, &Two);
    made->impl("list", c10::DispatchKey::CUDA, &List);
    return made;
  }();
  return *library;
}

// The granule of device memory: no handle is smaller, small ones are no larger.
constexpr uint64_t kSmallHandle = 2 << 20;

uint64_t HandleOf(const at::Tensor& tensor) {
  return reinterpret_cast<uint64_t>(tensor.const_data_ptr()) / kSmallHandle;
}

// So many tensors of which no two share a handle, as the weights of a model and
// unlike what is made one after the other: each operand is a pin of its own.
std::vector<at::Tensor> Operands(size_t count) {
  // The largest block of the small pool: two fill a handle.
  const auto bytes = at::TensorOptions().device(at::kCUDA).dtype(at::kByte);
  std::vector<at::Tensor> operands, beside;
  std::unordered_set<uint64_t> handles;
  while (operands.size() < count) {
    at::Tensor made = at::empty({1 << 20}, bytes);
    const bool is_new = handles.insert(HandleOf(made)).second;
    (is_new ? operands : beside).push_back(std::move(made));
  }
  return operands;
}

int Handles(const std::vector<at::Tensor>& operands) {
  std::unordered_set<uint64_t> handles;
  for (const at::Tensor& each : operands) handles.insert(HandleOf(each));
  return static_cast<int>(handles.size());
}

template <typename Call>
double Nanoseconds(int calls, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  return taken.count() / calls;
}

}  // namespace
}  // namespace stratalloc

int stratalloc_torch_operator_ns(int list_elements, int calls, int rounds,
                                 double* nanoseconds, int* handles,
                                 char* message, int bytes) {
  using stratalloc::kNamespace;
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    TORCH_CHECK(calls > 0 && rounds > 0 && list_elements >= 0,
                "calls and rounds must be positive");
    stratalloc::Operators();
    if (stratalloc_torch_guarded() > 0) {
      TORCH_CHECK(stratalloc_torch_rescan_guard(message, bytes) == 0, "rescan");
    }
    auto& dispatcher = c10::Dispatcher::singleton();
    const std::string space = std::string(kNamespace) + "::";
    const stratalloc::TwoOp two =
        dispatcher.findSchemaOrThrow((space + "two").c_str(), "")
            .typed<decltype(stratalloc::Two)>();
    const stratalloc::ListOp list =
        dispatcher.findSchemaOrThrow((space + "list").c_str(), "")
            .typed<decltype(stratalloc::List)>();
    const std::vector<at::Tensor> all = stratalloc::Operands(
        list_elements == 0 ? 2 : static_cast<size_t>(list_elements));
    const at::Tensor& a = all.front();
    const at::Tensor& b = all.back();
    *handles = stratalloc::Handles(all);
    // As below autograd, where torch's own operators arrive at their kernels.
    const at::AutoDispatchBelowADInplaceOrView below;
    double best = 1e18;
    for (int round = 0; round < rounds; ++round) {
      best = std::min(
          best, list_elements == 0
                    ? stratalloc::Nanoseconds(calls, [&] { two.call(a, b); })
                    : stratalloc::Nanoseconds(calls, [&] { list.call(all); }));
    }
    *nanoseconds = best;
  });
}
