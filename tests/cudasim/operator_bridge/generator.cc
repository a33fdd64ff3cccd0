// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/operator_bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>

#include <algorithm>

namespace cudasim::bridge {
namespace {

// splitmix64's finaliser: neighbouring (seed, offset) pairs give unrelated
// seeds. The CPU generator uses the low 32 bits only, so they must depend on
// all 128.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// One Philox round gives 4 numbers; offsets are multiples of it.
constexpr int64_t kRound = 4;
// Threads of a block of PyTorch's kernels that draw; each thread draws rounds
// until the grid, which is no larger than fits the card at once, has covered
// all elements.
constexpr int64_t kBlock = 256;

}  // namespace

PhiloxState TakePhilox(const std::optional<at::Generator>& given,
                       c10::DeviceIndex device, uint64_t increment) {
  at::Generator generator = given.has_value() && given->defined()
                                ? *given
                                : at::globalContext().defaultGenerator(
                                      c10::Device(c10::kCUDA, device));
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  std::lock_guard<std::mutex> lock(generator.mutex());
  const PhiloxState state{generator.current_seed(), generator.get_offset()};
  generator.set_offset(state.offset +
                       (increment + kRound - 1) / kRound * kRound);
  return state;
}

at::Generator CpuGenerator(const PhiloxState& state) {
  return at::detail::createCPUGenerator(Mix(state.seed ^ Mix(state.offset)));
}

uint64_t PhiloxIncrement(int64_t elements, c10::DeviceIndex device) {
  if (elements <= 0) return kRound;
  const cudaDeviceProp* card = at::cuda::getDeviceProperties(device);
  const int64_t resident =
      card->multiProcessorCount * (card->maxThreadsPerMultiProcessor / kBlock);
  const int64_t blocks = std::min(resident, (elements + kBlock - 1) / kBlock);
  return ((elements - 1) / (kBlock * blocks * kRound) + 1) * kRound;
}

at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device, int64_t elements) {
  return CpuGenerator(
      TakePhilox(given, device, PhiloxIncrement(elements, device)));
}

}  // namespace cudasim::bridge
