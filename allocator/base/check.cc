// SPDX-License-Identifier: Apache-2.0
#include "allocator/base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace stratalloc {
namespace {
std::atomic<LogSink> log_sink{nullptr};
}  // namespace

void CheckFailed(const char* file, int line, const char* condition,
                 const std::string& message) {
  std::fprintf(stderr, "stratalloc: CHECK failed at %s:%d: %s: %s\n", file,
               line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

void Log(LogLevel level, const std::string& message) {
  // acquire: the sink's own state was written before it was installed.
  if (LogSink sink = log_sink.load(std::memory_order_acquire)) {
    sink(static_cast<int>(level), message.c_str());
    return;
  }
  std::fprintf(stderr, "stratalloc: %s\n", message.c_str());
}

void SetLogSink(LogSink sink) {
  log_sink.store(sink, std::memory_order_release);
}

}  // namespace stratalloc
