// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/guard.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/bench/thread_time.h"

namespace stratalloc {
namespace {

// Kernels that do nothing: what remains is the dispatcher's price and ours.
at::Tensor Two(const at::Tensor& a, const at::Tensor&) { return a; }
void List(at::TensorList) {}

// Defined before the guard is installed, which then guards them at their CUDA
// key, as it does torch's own.
TORCH_LIBRARY(stratalloc_bench, library) {
  library.def("two(Tensor a, Tensor b) -> Tensor");
  library.def("list(Tensor[] a) -> ()");
}
TORCH_LIBRARY_IMPL(stratalloc_bench, CUDA, library) {
  library.impl("two", &Two);
  library.impl("list", &List);
}

// The operator, by the type of its kernel.
template <typename Kernel>
c10::TypedOperatorHandle<Kernel> Operator(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  TORCH_CHECK(!found.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect),
              name,
              " was defined behind the op guard, which guards such "
              "operators by another kernel: load the bench's library before "
              "stratalloc.enable()");
  return found.typed<Kernel>();
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
  const double before = ThreadCpuNanoseconds();
  for (int i = 0; i < calls; ++i) call();
  return (ThreadCpuNanoseconds() - before) / calls;
}

}  // namespace
}  // namespace stratalloc

int stratalloc_bench_operator_ns(int list_elements, int calls, int rounds,
                                 double* nanoseconds, int* handles,
                                 char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    TORCH_CHECK(calls > 0 && rounds > 0 && list_elements >= 0,
                "calls and rounds must be positive");
    const auto two = stratalloc::Operator<decltype(stratalloc::Two)>(
        "stratalloc_bench::two");
    const auto list = stratalloc::Operator<decltype(stratalloc::List)>(
        "stratalloc_bench::list");
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
