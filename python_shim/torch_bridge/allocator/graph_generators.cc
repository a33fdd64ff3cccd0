// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/graph_generators.h"

#if TORCH_MINOR == 11
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

#include "python_shim/core/evictable_range.h"
#endif

namespace stratalloc {

#if TORCH_MINOR == 11
namespace {

// The members are not ours to name; their pointers are taken through explicit
// instantiations, where the language does not check access (late_operators.cc).
template <typename Tag, auto kMember>
struct Grant {
  friend auto Reveal(Tag) { return kMember; }
};
struct StateOfGenerator {
  friend auto Reveal(StateOfGenerator);
};
template struct Grant<StateOfGenerator, &at::CUDAGeneratorImpl::state_>;
struct PoolOfGraph {
  friend auto Reveal(PoolOfGraph);
};
struct StatesOfGraph {
  friend auto Reveal(StatesOfGraph);
};
template struct Grant<PoolOfGraph, &at::cuda::CUDAGraph::mempool_id_>;
template struct Grant<StatesOfGraph,
                      &at::cuda::CUDAGraph::captured_generator_states_>;

void AddTensor(const at::TensorBase& tensor, c10::DeviceIndex device,
               std::vector<Access>* to) {
  // A graph runs on one device, and so do the generators it can use.
  if (!tensor.defined() || tensor.device().index() != device) return;
  // Past the accessors of the tensor, which would copy on write.
  to->push_back({reinterpret_cast<uint64_t>(tensor.storage().data()),
                 tensor.storage().nbytes(), /*written=*/true});
}

}  // namespace

std::vector<Access> GeneratorTensors(c10::DeviceIndex device,
                                     const c10::MempoolId_t& pool) {
  std::vector<Access> tensors;
  if (stratalloc_evictable_hi == 0) return tensors;
  const at::Generator& generator =
      at::cuda::detail::getDefaultCUDAGenerator(device);
  auto& default_generator =
      *at::check_generator<at::CUDAGeneratorImpl>(generator);
  const auto& state = default_generator.*Reveal(StateOfGenerator{});
  for (at::cuda::CUDAGraph* graph : state->registered_graphs_) {
    if (graph->*Reveal(PoolOfGraph{}) != pool) continue;
    for (const auto& [registered, increment] :
         graph->*Reveal(StatesOfGraph{})) {
      AddTensor(registered->seed_extragraph_, device, &tensors);
      AddTensor(registered->offset_extragraph_, device, &tensors);
    }
  }
  return tensors;
}
#else
std::vector<Access> GeneratorTensors(c10::DeviceIndex,
                                     const c10::MempoolId_t&) {
  return {};
}
#endif

}  // namespace stratalloc
