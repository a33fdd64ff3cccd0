// SPDX-License-Identifier: Apache-2.0
// What this thread used since its last scope event; the planner takes it at
// the next one. Bounded: a step that uses more than kMax handles is learned
// by its first kMax.
//
// Thread-safety: each thread has its own.
#ifndef STRATALLOC_TIERING_ENGINE_USE_LOG_H_
#define STRATALLOC_TIERING_ENGINE_USE_LOG_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "tiering/policy/scope_trace.h"

namespace stratalloc {

class UseLog {
 public:
  static constexpr std::size_t kMax = 4096;

  static UseLog& ThisThread() {
    static thread_local UseLog log;
    return log;
  }
  void Note(Address handle) {
    if (used_.size() < kMax) used_.push_back(handle);
  }
  // Ends the current step; returns it and what it used.
  std::pair<ScopeTrace::Step, std::vector<Address>> Begin(
      ScopeTrace::Step next) {
    return {std::exchange(step_, next), std::exchange(used_, {})};
  }

 private:
  ScopeTrace::Step step_ = ScopeTrace::kNoStep;
  std::vector<Address> used_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_USE_LOG_H_
