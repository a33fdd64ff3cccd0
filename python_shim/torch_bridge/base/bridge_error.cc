// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/base/bridge_error.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "python_shim/bridge_api/operators.h"

namespace stratalloc {
namespace {

// What this thread was told of kOusted; "" for nothing.
std::string& Ousted() {
  static thread_local std::string ousted;
  return ousted;
}

}  // namespace

void ThrowError(const Error& error) {
  TORCH_CHECK_WITH(OutOfMemoryError, error.code != ErrorCode::kOutOfMemory,
                   error.message);
  if (error.code == ErrorCode::kOusted) {
    Ousted() = error.message;
    throw OustedError({__func__, __FILE__, __LINE__}, error.message);
  }
  TORCH_CHECK(false, error.message);
}

void LeaveOusted(const OustedError& error) {
  if (core::InsideOperator()) throw error;
  Ousted().clear();
  TORCH_CHECK_WITH(OutOfMemoryError, false, error.what_without_backtrace());
}

std::string TakeOusted() {
  if (core::InsideOperator()) return "";
  return std::exchange(Ousted(), {});
}

}  // namespace stratalloc
