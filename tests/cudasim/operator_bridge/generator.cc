// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/operator_bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

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

// Kernels advance the offset in steps of 4: one Philox round gives 4 numbers.
constexpr uint64_t kOffsetStep = 4;

}  // namespace

at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device) {
  at::Generator generator = given.has_value() && given->defined()
                                ? *given
                                : at::globalContext().defaultGenerator(
                                      c10::Device(c10::kCUDA, device));
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  uint64_t seed, offset;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    seed = generator.current_seed();
    offset = generator.get_offset();
    generator.set_offset(offset + kOffsetStep);
  }
  return at::detail::createCPUGenerator(Mix(seed ^ Mix(offset)));
}

}  // namespace cudasim::bridge
