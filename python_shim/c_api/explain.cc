// SPDX-License-Identifier: Apache-2.0
// C API: fragmentation, and what would serve a request.
#include <nlohmann/json.hpp>

#include "accounting/scope_stack.h"
#include "python_shim/c_api/explanation_json.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

using namespace stratalloc;  // the C face of this namespace

extern "C" {

char* stratalloc_fragmentation_json(int device) {
  const Result<DeviceAllocator*> opened = Core::Get().Opened(device);
  if (!opened) return ToC(nlohmann::json{{"error", opened.error().message}});
  if (*opened == nullptr) return ToC(nlohmann::json::object());
  return ToC(FragmentationJson((*opened)->Fragments()));
}

char* stratalloc_explain_json(int device, uint64_t size, uint64_t stream) {
  const Result<DeviceAllocator*> opened = Core::Get().Device(device);
  if (!opened) return ToC(nlohmann::json{{"error", opened.error().message}});
  MallocRequest request;
  request.size = size;
  request.stream = StreamId{stream};
  request.lifetime = CurrentScope().lifetime;
  return ToC(ExplanationJson(**opened, request, CurrentScope().payer));
}

}  // extern "C"
