// SPDX-License-Identifier: Apache-2.0
//
// Part of :cudasim_static only: says so before main().

#include "tests/simulator/cudasim/contexts.h"

namespace cudasim {
namespace {

[[maybe_unused]] const bool told = [] {
  BeLinkedIn();
  return true;
}();

}  // namespace
}  // namespace cudasim
