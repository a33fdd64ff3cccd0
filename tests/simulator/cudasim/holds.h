// SPDX-License-Identifier: Apache-2.0
//
// holds.h: ranges a host thread is computing on at this very moment: a bridged
// operator or a host twin. On a real device the kernel would be running then.
// Whoever maps them away or writes into them meanwhile races with it, whatever
// the mode, and is a violation.
//
// Every bridged operator takes a hold, so it must cost next to nothing: each
// thread writes into a slot of its own, under a lock that only an unmap or a
// copy of another thread ever contends for.
//
// Thread-safety: all functions may be called from any thread, with or without
// the simulator's lock. A hold is released by the thread that took it.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOLDS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOLDS_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"

namespace cudasim {

class Holds {
 public:
  // Returns a token for Release.
  static long Add(const char* name, const cudasim_access* accesses, int count);
  static void Release(long token);
  static void Clear();

  // True, with its name, if a computation conflicts with the access: both
  // touch a byte and one of the two writes. Those of this thread count only if
  // `own`: an operator may copy within its own operands, nobody may unmap them.
  static bool Conflict(uint64_t address, uint64_t bytes, bool write, bool own,
                       std::string* name);
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOLDS_H_
