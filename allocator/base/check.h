// SPDX-License-Identifier: Apache-2.0
// CHECK: a broken promise of our own, always compiled in, ends the process
// before wrong bytes can spread. Operating errors (no memory, bad disk, bad
// input) are never CHECKed; they are Results.
#ifndef STRATALLOC_ALLOCATOR_BASE_CHECK_H_
#define STRATALLOC_ALLOCATOR_BASE_CHECK_H_

#include <string>

namespace stratalloc {

// Prints file, line, condition and message to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

// A line for people, on stderr, prefixed "stratalloc: ". Rare events only; may
// be called while the arbiter is held.
enum class LogLevel : int { kInfo = 20, kWarning = 30, kError = 40 };
void Log(LogLevel level, const std::string& message);
// Where the lines go instead; nullptr: to stderr again.
using LogSink = void (*)(int level, const char* message);
void SetLogSink(LogSink sink);

}  // namespace stratalloc

#define STRATALLOC_CHECK(condition, message)                              \
  do {                                                                    \
    if (__builtin_expect(!(condition), 0))                                \
      ::stratalloc::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)

#ifdef STRATALLOC_DEBUG
#define STRATALLOC_DCHECK(condition, message) \
  STRATALLOC_CHECK(condition, message)
#else
#define STRATALLOC_DCHECK(condition, message) \
  do {                                        \
  } while (false)
#endif

#endif  // STRATALLOC_ALLOCATOR_BASE_CHECK_H_
