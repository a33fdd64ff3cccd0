// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bridge_error.h"

#include <c10/util/Exception.h>

namespace stratalloc {

void ThrowError(const Error& error) {
  TORCH_CHECK_WITH(OutOfMemoryError, error.code != ErrorCode::kOutOfMemory,
                   error.message);
  TORCH_CHECK(false, error.message);
}

}  // namespace stratalloc
