// SPDX-License-Identifier: Apache-2.0
//
// Tables of functions that the driver exports to NVIDIA's own tools.
//
// Their entries are documented nowhere and do not exist here: every table is
// refused by name. The exception is the table of CUPTI, which is there without
// entries. CUPTI 13.2 looks up in it which version of its own functions to
// call. An error on the way has a text, which one of these functions finds: a
// driver that refuses the table makes CUPTI call itself without end.

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/simulator.h"

namespace {

constexpr unsigned char kTableOfCupti[] = {0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4,
                                           0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6,
                                           0x6e, 0x6a, 0xed, 0x7f};
static_assert(sizeof(kTableOfCupti) == sizeof(CUuuid));

int RefuseEntry() {
  return cudasim::Unsupported("cuGetExportTable (an entry of a table)");
}

// A table starts with its size in bytes, and an entry beyond it is missing.
// CUPTI calls some entries without a look at the size: these refuse by name.
struct EmptyTable {
  EmptyTable() { beyond.fill(&RefuseEntry); }

  uint64_t bytes = sizeof(bytes);
  std::array<int (*)(), 511> beyond;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" CUresult CUDAAPI cuGetExportTable(const void** table,
                                             const CUuuid* id) {
  CUDASIM_ENTER("cuGetExportTable", cudasim::Entry::kBeforeInit);
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(id, kTableOfCupti, sizeof(kTableOfCupti)) != 0) {
    return static_cast<CUresult>(cudasim::Unsupported("cuGetExportTable"));
  }
  static const EmptyTable empty;
  *table = &empty;
  return CUDA_SUCCESS;
}
#pragma GCC visibility pop
