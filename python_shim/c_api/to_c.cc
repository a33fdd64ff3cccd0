// SPDX-License-Identifier: Apache-2.0
#include "python_shim/c_api/to_c.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace stratalloc {

int ToC(const Error& error, stratalloc_error* out) {
  if (out != nullptr) {
    out->code = static_cast<int>(error.code);
    const std::size_t n =
        std::min(error.message.size(), sizeof(out->message) - 1);
    std::memcpy(out->message, error.message.data(), n);
    out->message[n] = '\0';
  }
  return static_cast<int>(error.code);
}

char* ToC(const std::string& text) { return strdup(text.c_str()); }

}  // namespace stratalloc
