// SPDX-License-Identifier: Apache-2.0
//
// holds.h: ranges a host thread is computing on at this very moment: a bridged
// operator or a host twin. On a real device the kernel would be running then.
// Whoever maps them away or writes into them meanwhile races with it, whatever
// the mode, and is a violation.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_CUDASIM_HOLDS_H_
#define STRATALLOC_TESTS_CUDASIM_HOLDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cudasim/control.h"

namespace cudasim {

class Holds {
 public:
  // Returns a token for Release.
  long Add(std::string name, const cudasim_access* accesses, int count) {
    const long token = ++last_token_;
    holds_[token] = Hold{std::move(name),
                         {accesses, accesses + count},
                         std::this_thread::get_id()};
    return token;
  }
  void Release(long token) { holds_.erase(token); }
  void Clear() { holds_.clear(); }

  // The name of a computation the access conflicts with, or nullptr: both
  // touch a byte and one of the two writes. Those of this thread count only if
  // `own`: an operator may copy within its own operands, nobody may unmap them.
  const std::string* Conflict(uint64_t address, uint64_t bytes, bool write,
                              bool own) const {
    for (const auto& [token, hold] : holds_) {
      if (!own && hold.thread == std::this_thread::get_id()) continue;
      for (const cudasim_access& each : hold.accesses) {
        if ((write || each.write != 0) && address < each.address + each.bytes &&
            each.address < address + bytes) {
          return &hold.name;
        }
      }
    }
    return nullptr;
  }

 private:
  struct Hold {
    std::string name;
    std::vector<cudasim_access> accesses;
    std::thread::id thread;
  };
  std::map<long, Hold> holds_;  // a few: one per thread that computes
  long last_token_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_HOLDS_H_
