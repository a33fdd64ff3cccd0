// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bridge_error.h"

#include <c10/util/Exception.h>

namespace stratalloc {

void ThrowError(const stratalloc_error& error) {
  TORCH_CHECK_WITH(OutOfMemoryError, error.code != STRATALLOC_OUT_OF_MEMORY,
                   error.message);
  TORCH_CHECK(false, error.message);
}

}  // namespace stratalloc
