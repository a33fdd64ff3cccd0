// SPDX-License-Identifier: Apache-2.0
// Driver calls that a program lets fail, once or from then on: each call that
// the product makes, with errors that it really gives.
//
// Never at once: both calls that wait for a stream's work, since a driver that
// answers neither has lost the device. Not here: errors that cost the context
// (700 and its like) or say that the process ends (4), after which no byte can
// be looked at; and calls that give back for good (free an address range,
// destroy an event or a stream, unmap and release what was tried at opening),
// whose failure leaves something behind whatever the product does. Those are
// tests/system/starved/driver_errors.py's.
//
// Thread-safety: all methods, from any thread.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_PLANNED_FAULTS_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_PLANNED_FAULTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "allocator/base/result.h"

namespace stratalloc {

class PlannedFaults {
 public:
  // `struck`: so many plans made at least one call fail.
  struct Figures {
    std::uint64_t planned = 0, struck = 0;
  };
  using ByCall = std::map<std::string, Figures>;

  // `dice` chooses the call and the error. False: the simulated device knows no
  // such call. (Nothing is planned that would lose the device.)
  bool Plan(std::uint64_t dice, long nth, bool forever);
  // The same of the calls that open a device.
  bool PlanOpening(std::uint64_t dice, long nth, bool forever);
  // From here on nothing fails.
  void Clear();

  // Does the error name a call that was told to fail? Out of memory is no
  // fault: everybody may run into it.
  bool Explains(const Error& error) const;
  ByCall figures() const;

 private:
  struct Planned {
    const char* call;
    long at;  // of all its calls
  };
  bool PlanOne(const char* call, int error, long nth, bool forever);

  mutable std::mutex mutex_;
  std::vector<Planned> pending_;
  ByCall figures_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_PLANNED_FAULTS_H_
