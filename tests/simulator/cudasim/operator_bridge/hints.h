// SPDX-License-Identifier: Apache-2.0
//
// What to do about an operator that the simulated device cannot run: one
// sentence, particular to the operator, for the text of the refusal.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HINTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HINTS_H_

#include <string_view>

namespace cudasim::bridge {

// `name` as "aten::_scaled_mm_v2". Never empty.
std::string_view HintFor(std::string_view name);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_HINTS_H_
