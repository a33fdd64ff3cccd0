// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusals.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "accounting/scope_text.h"

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
  // A path is in it, which has 4096 bytes at most.
  std::array<char, 8192> line;
  const int room = static_cast<int>(line.size());
  const int bytes = std::clamp(listener(&told, line.data(), room), 0, room);
  // Of what is no text Python would make another exception than this one.
  return Utf8(std::string_view(line.data(), static_cast<std::size_t>(bytes)));
}

}  // namespace stratalloc
