// SPDX-License-Identifier: Apache-2.0
//
// refusals.h: calls that the simulated device answers with an error because it
// does not have what they ask for. Each is named on stderr the first time,
// counted, and told to the program's driver log callbacks (cuLogsRegister-
// Callback), so that no run ends without saying what it asked for in vain.
//
// The answer is cudaErrorNotSupported, except where a real device without the
// feature answers something else (AnswerOf says what).
//
// Thread-safety: a lock of its own; callbacks run without it. Lifetime: the
// process's.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_REFUSALS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_REFUSALS_H_

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

class Refusals {
 public:
  static Refusals& Get();

  // `function` exists only to refuse.
  void Declare(const std::string& function);
  bool IsDeclared(const std::string& function);

  // The error a device without this feature gives.
  static Status AnswerOf(const std::string& function);

  // Counts a call and returns its answer. The runtime keeps it as the thread's
  // last error; the driver has none.
  Status Refuse(const char* function);

  long count();
  // "cuLinkCreate 2, cuStreamWriteValue32 1"; empty if there was none.
  std::string Names();
  void ResetCounts();

 private:
  std::mutex mu_;
  std::set<std::string> declared_;
  std::map<std::string, long> calls_;
  long count_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_REFUSALS_H_
