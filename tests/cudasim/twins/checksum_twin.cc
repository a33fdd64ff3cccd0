// SPDX-License-Identifier: Apache-2.0
//
// checksum_twin.cc: the host twin of the kernel stratalloc_checksum
// (tiering/gpu/checksum.cu). The arithmetic is the product's ChecksumOnHost,
// which shares its header with the kernel; what the twin adds is the simulated
// device: addresses are translated, and the read is noted as pending, so that
// an unmap of the range before the kernel's event is a violation.
//
// Registers itself when it is loaded; the simulated device must be there.

#include <cstdint>

#include "tests/cudasim/control.h"
#include "tiering/gpu/checksum_host.h"

namespace cudasim {
namespace {

constexpr char kKernel[] = "stratalloc_checksum";

bool IsDeviceAddress(uint64_t address) {
  return address - cudasim_arena_base() < cudasim_arena_size();
}

template <typename T>
T Argument(void** arguments, int index) {
  return *static_cast<const T*>(arguments[index]);
}

void ChecksumTwin(void** arguments, const unsigned*, const unsigned*) {
  const auto data = Argument<uint64_t>(arguments, 0);
  const auto words = Argument<uint64_t>(arguments, 1);
  const auto result = Argument<uint64_t>(arguments, 2);
  const uint64_t bytes = words * sizeof(uint64_t);

  const cudasim_access accesses[] = {{data, bytes, /*write=*/0},
                                     {result, sizeof(uint64_t), /*write=*/1}};
  // Pinned host memory is outside the check.
  const int count = IsDeviceAddress(result) ? 2 : 1;
  cudasim_note_access(cudasim_current_stream(), kKernel, accesses, count);

  // Noted already as the illegal access that it is.
  if (cudasim_range_is_accessible(data, bytes) == 0) return;
  if (count == 2 &&
      cudasim_range_is_accessible(result, sizeof(uint64_t)) == 0) {
    return;
  }
  const auto* const from = cudasim_host_view(reinterpret_cast<void*>(data));
  auto* const to = static_cast<uint64_t*>(
      cudasim_host_view(reinterpret_cast<void*>(result)));
  *to += stratalloc::ChecksumOnHost(from, bytes);
}

__attribute__((constructor)) void RegisterTwins() {
  cudasim_register_twin(kKernel, ChecksumTwin);
}

}  // namespace
}  // namespace cudasim
