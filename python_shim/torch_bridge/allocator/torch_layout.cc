// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/torch_layout.h"

#include <c10/util/Exception.h>
#include <link.h>

#include "python_shim/torch_bridge/base/torch_minor.h"

// Of libtorch_cpu, in all minors: 0x020f000000000000 for 2.15.0
// (torch/csrc/inductor/aoti_torch/c/shim.h, which is not for C++).
extern "C" std::uint64_t aoti_torch_abi_version();

namespace stratalloc {
namespace {

struct Question {
  std::uintptr_t address;
  bool code;
};

int Look(dl_phdr_info* info, std::size_t, void* data) {
  auto* const question = static_cast<Question*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 &&
        question->address >= begin &&
        question->address < begin + part.p_memsz) {
      question->code = true;
      return 1;
    }
  }
  return 0;
}

bool IsCode(const void* pointer) {
  Question question{reinterpret_cast<std::uintptr_t>(pointer), false};
  dl_iterate_phdr(&Look, &question);
  return question.code;
}

// How many entries from `table` on point at code, up to `most`.
int CodePointers(const void* const* table, int most) {
  int count = 0;
  while (count < most && IsCode(table[count])) ++count;
  return count;
}

}  // namespace

std::uint64_t TorchVersion() { return aoti_torch_abi_version(); }

void CheckTorch(std::uint64_t version, const void* native) {
  const auto major = static_cast<int>(version >> 56);
  const auto minor = static_cast<int>(version >> 48 & 0xff);
  TORCH_CHECK(major == 2 && minor == TORCH_MINOR, "this bridge is for torch 2.",
              TORCH_MINOR, ", and libtorch_cpu says that it is ", major, ".",
              minor);
  if (native == nullptr) return;
  const auto* const table = *static_cast<const void* const* const*>(native);
  // One more than there should be, to see that it is none.
  const int slots = CodePointers(table, kSizes.slots + 1);
  TORCH_CHECK(slots == kSizes.slots, "torch's allocator has ",
              slots > kSizes.slots ? "more than " : "",
              slots > kSizes.slots ? kSizes.slots : slots,
              " virtual functions where torch 2.", TORCH_MINOR, " has ",
              kSizes.slots, ": this build of torch is not one of PyTorch's");
}

}  // namespace stratalloc
