// SPDX-License-Identifier: Apache-2.0
// Linked into a copy of the core that is compiled with STRATALLOC_PLANT:
// plants the bug that STRATALLOC_PLANT_BUG names before anything runs.
#include <cstdio>
#include <cstdlib>

#include "allocator/base/planted.h"

namespace {

const bool planted = [] {
  const char* bug = std::getenv("STRATALLOC_PLANT_BUG");
  if (bug != nullptr && !stratalloc::PlantBug(bug)) {
    std::fprintf(stderr, "STRATALLOC_PLANT_BUG: no bug called %s\n", bug);
    std::abort();
  }
  return bug != nullptr;
}();

}  // namespace
