// SPDX-License-Identifier: Apache-2.0
// How failure travels inside the product: as a value. No exception crosses a
// room; the torch bridge turns an Error into the exception its caller expects.
#ifndef STRATALLOC_ALLOCATOR_BASE_RESULT_H_
#define STRATALLOC_ALLOCATOR_BASE_RESULT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "tl/expected.hpp"

namespace stratalloc {

enum class ErrorCode : std::uint8_t {
  kOutOfMemory = 1,  // the device (or the limit) has no room
  kInvalidArgument,  // the caller's mistake
  kNotFound,         // unknown pointer, unknown name
  kUnsupported,      // this driver, kernel or machine cannot
  kDevice,           // a CUDA call failed for another reason
  kIo,               // the disk tier failed
  kCorrupt,          // a checksum did not match: the bytes are lost
  kHostOutOfMemory,  // the host budget is spent or the host cannot pin
  kShutdown,         // the engine is off (after fork, at exit)
  kNotReady,         // CUDA answered that work of the device is in the way: ask
                     // again once it is over (DeviceAllocator::WhenReady)
  kOusted,    // for want of memory what an operator under way uses cannot
              // come back: kOutOfMemory to whoever runs it, but not to
              // its kernel, which may go on after that another way
  kRejected,  // kOutOfMemory to the caller: the request was refused and would
              // exceed the program's share (throw_on_cudamalloc_oom)
  kLimited,   // a scope may not own so much: kOutOfMemory to whoever asked, and
              // nothing that the device does would change it
};

// `message` says what happened, why, and what to do next, in one or two
// sentences with bytes, device and tier.
struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

inline tl::unexpected<Error> Fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace stratalloc

// Returns the error of `expression` (a Status or Result) from this function.
#define STRATALLOC_RETURN_IF_ERROR(expression)                     \
  do {                                                             \
    if (auto stratalloc_status = (expression); !stratalloc_status) \
      return tl::unexpected(std::move(stratalloc_status).error()); \
  } while (false)

#define STRATALLOC_CONCAT_(a, b) a##b
#define STRATALLOC_CONCAT(a, b) STRATALLOC_CONCAT_(a, b)
// Declares or assigns `target` from a Result, or returns its error.
#define STRATALLOC_ASSIGN_OR_RETURN(target, expression)                      \
  auto STRATALLOC_CONCAT(stratalloc_result_, __LINE__) = (expression);       \
  if (!STRATALLOC_CONCAT(stratalloc_result_, __LINE__))                      \
    return tl::unexpected(                                                   \
        std::move(STRATALLOC_CONCAT(stratalloc_result_, __LINE__)).error()); \
  target = *std::move(STRATALLOC_CONCAT(stratalloc_result_, __LINE__))

#endif  // STRATALLOC_ALLOCATOR_BASE_RESULT_H_
