// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusals.h"

#include <algorithm>
#include <cstddef>

namespace stratalloc {

std::atomic<stratalloc_refusal_listener> Refusals::listener_{nullptr};

std::string Refusals::Tell(int device, const RefusedRequest& refused,
                           const char* name, const std::string& message) {
  const stratalloc_refusal_listener listener =
      listener_.load(std::memory_order_acquire);
  if (listener == nullptr) return "";
  const MallocRequest& request = refused.request;
  const stratalloc_refused handle{refused};
  const stratalloc_refusal told{
      .device = device,
      .is_operator = refused.is_operator ? 1 : 0,
      .bytes = request.size,
      .stream = Raw(request.stream),
      .lifetime = static_cast<int>(request.lifetime),
      .scope = Raw(request.charge.scope),
      .category = static_cast<int>(request.charge.category),
      .name = name,
      .message = message.c_str(),
      .refused = &handle};
  char line[1024];
  const int bytes = listener(&told, line, static_cast<int>(sizeof(line)));
  return std::string(line, static_cast<std::size_t>(std::clamp(
                               bytes, 0, static_cast<int>(sizeof(line)))));
}

}  // namespace stratalloc
