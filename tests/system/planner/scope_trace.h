// SPDX-License-Identifier: Apache-2.0
// The learned order: what was used between one scope event and the next, and
// which event came next. From it the planner knows what the coming events
// will need.
//
// A step is the time from one event (a scope entered, or left) to the next on
// one thread; it is named by its event. A step remembers what it used *last
// time*, not what its module owns: tied weights and modules that read their
// children's parameters directly come out right.
//
// Thread-safety: none; the caller's lock.
#ifndef STRATALLOC_TESTS_SYSTEM_PLANNER_SCOPE_TRACE_H_
#define STRATALLOC_TESTS_SYSTEM_PLANNER_SCOPE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace stratalloc {

class ScopeTrace {
 public:
  using Step = std::uint64_t;
  static constexpr Step kNoStep = ~Step{0};
  static Step Entered(ScopeId scope) { return Step{Raw(scope)} * 4; }
  static Step Left(ScopeId scope) { return Step{Raw(scope)} * 4 + 1; }
  // Its backward began. Apart from its forward: another order.
  static Step Backward(ScopeId scope) { return Step{Raw(scope)} * 4 + 2; }

  // `step` ended: it used the handles at `used` and was followed by `next`.
  void Learn(Step step, std::vector<Address> used, Step next);

  // What `step` and the steps expected after it used, in order of first use,
  // without repeats: at most `max_handles` handles or `max_steps` steps.
  std::vector<Address> Expect(Step step, std::size_t max_handles,
                              std::size_t max_steps) const;

 private:
  struct Learned {
    std::vector<Address> used;
    Step next = kNoStep;
  };
  std::unordered_map<Step, Learned> steps_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_PLANNER_SCOPE_TRACE_H_
