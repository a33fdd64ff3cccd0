// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/captured_draw.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace cudasim::bridge {

Draw NextCapturedDraw(const at::Generator& generator, uint64_t numbers) {
  auto* const cuda = at::check_generator<at::CUDAGeneratorImpl>(generator);
  std::lock_guard<std::mutex> lock(cuda->mutex_);
  const at::PhiloxCudaState state = cuda->philox_cuda_state(numbers);
  TORCH_INTERNAL_ASSERT(state.captured_);
  return {state.seed_.ptr, state.offset_.ptr, state.offset_intragraph_};
}

}  // namespace cudasim::bridge
