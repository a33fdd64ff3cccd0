// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_ENTRY_POINT_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_ENTRY_POINT_H_

#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

namespace stratalloc {

// Runs `body` for a C function that ctypes calls: an exception becomes the
// result 1, or 2 if it says that memory ran out (torch.OutOfMemoryError), with
// its text in `message` (cut to `bytes`, may be null) instead of ending the
// process.
template <typename Body>
int RunEntryPoint(char* message, int bytes, Body&& body) noexcept {
  const auto report = [&](const char* text) {
    if (message != nullptr && bytes > 0) {
      std::snprintf(message, static_cast<size_t>(bytes), "%s", text);
    }
  };
  try {
    body();
    report("");
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    report(error.what_without_backtrace());
    return 2;
  } catch (const c10::Error& error) {
    report(error.what_without_backtrace());
  } catch (const std::exception& error) {
    report(error.what());
  }
  return 1;
}

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_ENTRY_POINT_H_
