// SPDX-License-Identifier: Apache-2.0
//
// checksum_twin.cc: the host twin of the kernel stratalloc_checksum
// (tiering/gpu/checksum.cu). The arithmetic is the product's ChecksumOnHost,
// which shares its header with the kernel; what the twin adds is the simulated
// device: addresses are translated, and the read is noted as pending, so that
// an unmap of the range before the kernel's event is a violation. Phantom
// memory (which has no bytes) has the checksum of zeros, which is what the host
// finds in memory it was copied to.
//
// Registers itself when it is loaded; the simulated device must be there.
#include "tests/simulator/cudasim/twins/checksum_twin.h"

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/simulator/cudasim/control.h"
#include "tiering/gpu/checksum_host.h"

namespace cudasim {
namespace {

constexpr char kResults[] = "stratalloc_checksum_results";

bool IsDeviceAddress(uint64_t address) {
  return address - cudasim_arena_base() < cudasim_arena_size();
}

uint64_t ChecksumOfZeros(uint64_t bytes) {
  static std::mutex& mu = *new std::mutex;
  static auto& known = *new std::map<uint64_t, uint64_t>;  // a few sizes
  std::lock_guard<std::mutex> lock(mu);
  auto found = known.find(bytes);
  if (found == known.end()) {
    void* const zeros = std::calloc(bytes, 1);
    if (zeros == nullptr) return 0;
    const uint64_t sum = stratalloc::ChecksumOnHost(zeros, bytes);
    std::free(zeros);
    found = known.emplace(bytes, sum).first;
  }
  return found->second;
}

template <typename T>
T Argument(void** arguments, int index) {
  return *static_cast<const T*>(arguments[index]);
}

}  // namespace

void ChecksumTwin(void** arguments, const unsigned*, const unsigned*) {
  const auto data = Argument<uint64_t>(arguments, 0);
  const auto words = Argument<uint64_t>(arguments, 1);
  const auto result = Argument<uint64_t>(arguments, 2);
  const uint64_t bytes = words * sizeof(uint64_t);

  // Either may be pinned host memory, which no device checks but those whose
  // kernels cannot use it. What may not be used becomes a violation here.
  const cudasim_access accesses[] = {{data, bytes, /*write=*/0},
                                     {result, sizeof(uint64_t), /*write=*/1}};
  cudasim_note_access(cudasim_current_stream(), kChecksumKernel, accesses, 2);
  for (const cudasim_access& access : accesses) {
    if (IsDeviceAddress(access.address) &&
        cudasim_range_is_accessible(access.address, access.bytes) == 0) {
      return;
    }
  }
  if (cudasim_broken() != 0) return;
  cudasim_kernel_cost(cudasim_current_stream(), /*flops=*/0,
                      static_cast<double>(bytes), CUDASIM_INT8);

  // The result has bytes: it is a variable of the module.
  auto* const to = static_cast<uint64_t*>(
      cudasim_host_view(reinterpret_cast<void*>(result)));
  *to += cudasim_is_phantom() != 0 && IsDeviceAddress(data)
             ? ChecksumOfZeros(bytes)
             : stratalloc::ChecksumOnHost(
                   cudasim_host_view(reinterpret_cast<void*>(data)), bytes);
}

namespace {

__attribute__((constructor)) void RegisterTwins() {
  cudasim_register_twin(kChecksumKernel, ChecksumTwin);
  cudasim_set_module_variable(kResults, 66 * sizeof(uint64_t));
}

}  // namespace
}  // namespace cudasim
