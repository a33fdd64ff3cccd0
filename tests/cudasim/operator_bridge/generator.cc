// SPDX-License-Identifier: Apache-2.0

#include "tests/cudasim/operator_bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstring>

#include "tests/cudasim/operator_bridge/captured_draw.h"
#include "tests/cudasim/operator_bridge/simulated_device.h"

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

thread_local std::vector<Draw>* recorded = nullptr;
thread_local const std::vector<Draw>* replayed = nullptr;
thread_local size_t next_replayed = 0;

at::Generator CpuGenerator(uint64_t seed, uint64_t offset) {
  return at::detail::createCPUGenerator(Mix(seed ^ Mix(offset)));
}

uint64_t ReadDevice(const int64_t* address) {
  int64_t value = 0;
  std::memcpy(&value, SimulatedDevice::Get().HostView(address), sizeof(value));
  return static_cast<uint64_t>(value);
}

}  // namespace

RecordingDraws::RecordingDraws(std::vector<Draw>* draws) { recorded = draws; }
RecordingDraws::~RecordingDraws() { recorded = nullptr; }

ReplayingDraws::ReplayingDraws(const std::vector<Draw>* draws) {
  replayed = draws;
  next_replayed = 0;
}
ReplayingDraws::~ReplayingDraws() { replayed = nullptr; }

at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device) {
  if (replayed != nullptr) {
    const Draw& draw = replayed->at(next_replayed++);
    return CpuGenerator(ReadDevice(draw.seed),
                        ReadDevice(draw.offset) + draw.more);
  }
  at::Generator generator = given.has_value() && given->defined()
                                ? *given
                                : at::globalContext().defaultGenerator(
                                      c10::Device(c10::kCUDA, device));
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  if (recorded != nullptr) {
    recorded->push_back(NextCapturedDraw(generator, kOffsetStep));
    return CpuGenerator(0, recorded->back().more);
  }
  uint64_t seed, offset;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    seed = generator.current_seed();
    offset = generator.get_offset();
    generator.set_offset(offset + kOffsetStep);
  }
  return CpuGenerator(seed, offset);
}

}  // namespace cudasim::bridge
