// SPDX-License-Identifier: Apache-2.0
// Values that cross the C face (c_api.h).
//
// Thread-safety: any thread, no lock. Errors: none.
#ifndef STRATALLOC_PYTHON_SHIM_C_API_TO_C_H_
#define STRATALLOC_PYTHON_SHIM_C_API_TO_C_H_

#include <string>

#include "allocator/base/result.h"
#include "python_shim/c_api/c_api.h"

namespace stratalloc {

// Copies an error; returns its code.
int ToC(const Error& error, stratalloc_error* out);
// 0 for success.
inline int ToC(const Status& status, stratalloc_error* out) {
  return status ? 0 : ToC(status.error(), out);
}
// A string for stratalloc_string_free.
char* ToC(const std::string& text);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_C_API_TO_C_H_
