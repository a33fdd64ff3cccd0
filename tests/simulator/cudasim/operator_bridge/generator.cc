// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "tests/simulator/cudasim/operator_bridge/captured_draw.h"
#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

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

thread_local std::vector<Draw>* recorded = nullptr;
thread_local size_t next_recorded = 0;
thread_local const std::vector<Draw>* replayed = nullptr;
thread_local size_t next_replayed = 0;

uint64_t ReadDevice(const int64_t* address) {
  int64_t value = 0;
  std::memcpy(&value, SimulatedDevice::Get().HostView(address), sizeof(value));
  return static_cast<uint64_t>(value);
}

}  // namespace

RecordingDraws::RecordingDraws(std::vector<Draw>* draws) {
  recorded = draws;
  next_recorded = 0;
}
RecordingDraws::~RecordingDraws() { recorded = nullptr; }

ReplayingDraws::ReplayingDraws(const std::vector<Draw>* draws) {
  replayed = draws;
  next_replayed = 0;
}
ReplayingDraws::~ReplayingDraws() { replayed = nullptr; }

PhiloxState TakePhilox(const std::optional<at::Generator>& given,
                       c10::DeviceIndex device, uint64_t increment) {
  if (replayed != nullptr) {
    const Draw& draw = replayed->at(next_replayed++);
    return {ReadDevice(draw.seed), ReadDevice(draw.offset) + draw.more};
  }
  at::Generator generator = given.has_value() && given->defined()
                                ? *given
                                : at::globalContext().defaultGenerator(
                                      c10::Device(c10::kCUDA, device));
  TORCH_CHECK(generator.device().is_cuda(),
              "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  const uint64_t step = (increment + kRound - 1) / kRound * kRound;
  if (recorded != nullptr) {
    if (next_recorded == recorded->size()) {
      recorded->push_back(NextCapturedDraw(generator, step));
    }
    return {0, (*recorded)[next_recorded++].more};
  }
  std::lock_guard<std::mutex> lock(generator.mutex());
  const PhiloxState state{generator.current_seed(), generator.get_offset()};
  generator.set_offset(state.offset + step);
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

int64_t ElementsDrawn(const c10::IValue& first) {
  if (first.isTensor()) return first.toTensor().numel();
  if (first.isIntList()) {
    int64_t elements = 1;
    for (int64_t size : first.toIntList()) elements *= size;
    return elements;
  }
  return first.isInt() ? first.toInt() : 1;
}

at::Generator CpuGeneratorFor(const std::optional<at::Generator>& given,
                              c10::DeviceIndex device, int64_t elements) {
  return CpuGenerator(
      TakePhilox(given, device, PhiloxIncrement(elements, device)));
}

}  // namespace cudasim::bridge
