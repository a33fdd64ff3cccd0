// SPDX-License-Identifier: Apache-2.0
//
// driver_log.h: the driver's log. What cuLogsRegisterCallback installs is told
// every refused call and every kernel without a twin (PyTorch 2.14 adds what it
// hears to its error messages).
//
// Thread-safety: a lock of its own; callbacks run without it, on the thread
// that made the refused call. Lifetime: the process's.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_LOG_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace cudasim {

class DriverLog {
 public:
  // CUlogsCallback with its level as a number: 0 is an error.
  using Callback = void (*)(void* data, int level, char* text, size_t length);

  static DriverLog& Get();

  // A token, never 0.
  uint64_t Register(Callback callback, void* data);
  // False if there is no such token.
  bool Unregister(uint64_t token);

  // REQUIRES: no lock of the simulator is held.
  void Error(const std::string& text);

 private:
  struct Listener {
    Callback callback;
    void* data;
  };

  std::mutex mu_;
  std::map<uint64_t, Listener> listeners_;
  uint64_t last_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_DRIVER_LOG_H_
