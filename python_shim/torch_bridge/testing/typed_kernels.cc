// SPDX-License-Identifier: Apache-2.0
// CUDA operators whose kernels have C++ types and need no device: what stands
// behind the guard that does not box. torch's own cannot run here, and the
// simulated device's are boxed.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <vector>

namespace stratalloc {
namespace {

using at::Tensor;

Tensor First(const Tensor& a, const Tensor&) { return a; }
Tensor& Itself(Tensor& a, const Tensor&) { return a; }
std::vector<Tensor> Reversed(at::TensorList all) {
  return {all.rbegin(), all.rend()};
}
Tensor Throws(const Tensor&) { TORCH_CHECK(false, "the kernel throws"); }

TORCH_LIBRARY(typed_kernels, library) {
  library.def("first(Tensor a, Tensor b) -> Tensor");
  library.def("itself(Tensor(a!) a, Tensor b) -> Tensor(a!)");
  library.def("reversed(Tensor[] all) -> Tensor[]");
  library.def("throws(Tensor a) -> Tensor");
}

// Stand for torch's kernels of these names, which have the same types.
std::vector<Tensor> Negative(at::TensorList all) { return all.vec(); }
void Multiply(at::TensorList all, at::ArrayRef<at::Scalar> numbers) {
  TORCH_CHECK(all.size() == numbers.size(), "one number per tensor");
  for (size_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i].numel() == numbers[i].toLong(), "another's number");
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_foreach_neg", &Negative);
  library.impl("_foreach_mul_.ScalarList", &Multiply);
}

TORCH_LIBRARY_IMPL(typed_kernels, CUDA, library) {
  library.impl("first", &First);
  library.impl("itself", &Itself);
  library.impl("reversed", &Reversed);
  library.impl("throws", &Throws);
}

}  // namespace
}  // namespace stratalloc
