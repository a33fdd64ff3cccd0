// SPDX-License-Identifier: Apache-2.0
// What would serve a request, as the JSON of c_api.h.
//
// Any thread, no lock held. What fails is {"error"}.
#ifndef STRATALLOC_PYTHON_SHIM_C_API_EXPLANATION_JSON_H_
#define STRATALLOC_PYTHON_SHIM_C_API_EXPLANATION_JSON_H_

#include <nlohmann/json.hpp>

#include "allocator/device_allocator.h"

namespace stratalloc {

nlohmann::json BlockJson(const BlockView& block);
nlohmann::json FragmentationJson(const Fragmentation& found);
// Of a request that `payer` would pay for.
nlohmann::json ExplanationJson(DeviceAllocator& device,
                               const MallocRequest& request, ScopeId payer);
// For C. A name that is no UTF-8 is C's; it must not end the process.
char* ToC(const nlohmann::json& json);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_C_API_EXPLANATION_JSON_H_
