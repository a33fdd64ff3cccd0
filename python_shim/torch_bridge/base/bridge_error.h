// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_ERROR_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_ERROR_H_

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "allocator/base/result.h"

namespace stratalloc {

// Turns the core's error into the exception torch knows: out of memory is
// c10::OutOfMemoryError (torch.OutOfMemoryError in Python, what frameworks
// catch to retry with a smaller batch), everything else c10::Error
// (RuntimeError). The message is the core's, unchanged: frameworks also match
// the text "CUDA out of memory". Thrown here and nowhere deeper: the core
// itself never throws.
//
// kOusted is an OustedError while an operator or a call is under way, which no
// kernel, and no code of a call, takes for memory and goes on without its
// operands.
[[noreturn]] void ThrowError(const Error& error);

class OustedError final : public c10::Error {
  using c10::Error::Error;
};
// For the guard of an operator, in a handler after the operator is left: the
// same error once more inside another operator or a call, else
// c10::OutOfMemoryError.
[[noreturn]] void LeaveOusted(const OustedError& error);
// For the end of a call, after it was left: what the thread was told inside of
// it, if that was kOusted and nothing is under way any more; "" else. Once.
std::string TakeOusted();

// What the core answered, or its error thrown.
inline void OrThrow(const Status& status) {
  if (!status) ThrowError(status.error());
}
template <typename T>
T OrThrow(Result<T> result) {
  if (!result) ThrowError(result.error());
  return *std::move(result);
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_BRIDGE_ERROR_H_
