// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bridge_error.h"

#include <c10/util/Exception.h>

#include "python_shim/core_api/operators.h"

namespace stratalloc {

void ThrowError(const Error& error) {
  TORCH_CHECK_WITH(OutOfMemoryError, error.code != ErrorCode::kOutOfMemory,
                   error.message);
  if (error.code == ErrorCode::kOusted) {
    throw OustedError({__func__, __FILE__, __LINE__}, error.message);
  }
  TORCH_CHECK(false, error.message);
}

void LeaveOusted(const OustedError& error) {
  if (core::InsideOperator()) throw error;
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.what_without_backtrace());
}

}  // namespace stratalloc
