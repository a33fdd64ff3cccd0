// SPDX-License-Identifier: Apache-2.0
//
// faults.h: every simulated CUDA function counts its calls and can be told to
// fail at a chosen one. A planned failure happens before the function does
// anything, as if the driver had refused.
//
// Thread-safety: counting is lock-free; planning takes a lock of its own.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_FAULTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_FAULTS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct Card;

class ApiFunction {
 public:
  // One object per name, made at first use and never destroyed.
  static ApiFunction& Named(const char* name);

  const char* name() const { return name_.c_str(); }
  bool of_runtime() const { return of_runtime_; }
  // Of virtual memory management: a device may lack it (CUDASIM_VMM=off).
  bool of_virtual_memory() const { return of_virtual_memory_; }
  long calls() const { return calls_.load(std::memory_order_relaxed); }

  // What a call costs on a card (call_cost.h), worked out once per card.
  struct Costs {
    const Card* card = nullptr;
    int64_t virtual_ns = 0;
    int64_t burn_ns = 0;
    const Costs* next = nullptr;  // of the same function, on another card
  };
  template <typename WorkOut>
  const Costs& CostsFor(const Card& card, WorkOut work_out) {
    const Costs* const newest = costs_.load(std::memory_order_acquire);
    for (const Costs* known = newest; known != nullptr; known = known->next) {
      if (known->card == &card) return *known;
    }
    auto* const made = new Costs(work_out());  // never destroyed, as its card
    made->next = newest;
    while (!costs_.compare_exchange_weak(made->next, made,
                                         std::memory_order_acq_rel)) {
    }
    return *made;
  }

  // Counts a call; kOk unless a failure was planned for this one.
  Status Count() {
    const long call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (fail_at_.load(std::memory_order_acquire) == 0) return kOk;
    return Planned(call);
  }

 private:
  friend class Faults;
  explicit ApiFunction(const char* name)
      : name_(name),
        of_runtime_(name_.rfind("cuda", 0) == 0 ||
                    name_.rfind("__cuda", 0) == 0),
        of_virtual_memory_(IsOfVirtualMemory(name_)) {}
  static bool IsOfVirtualMemory(const std::string& name);
  Status Planned(long call);

  const std::string name_;
  const bool of_runtime_;
  const bool of_virtual_memory_;
  std::atomic<long> calls_{0};
  std::atomic<long> fail_at_{0};  // the call that fails; 0: none
  std::atomic<int> error_{0};
  std::atomic<long> every_{0};  // and of the later ones each so-manyth; 0: none
  std::atomic<const Costs*> costs_{nullptr};
};

// A real context that has returned one of these is unusable: the error comes
// back from every later call.
bool BreaksDevice(Status status);

class Faults {
 public:
  // True if the simulated device has such a function: a misspelt one would
  // never fail, and its test would prove nothing.
  static bool Knows(const char* function);
  static void Plan(const char* function, long nth, int error, long every);
  static void Clear();
  static long Calls(const char* function);  // nullptr: of all
  static void ResetCounts();
  // "cuMemCreate:3:2;cudaMalloc:1:2:forever;cuMemSetAccess:5:600:every:5". Ends
  // the process with one line if it is not of that form.
  static void PlanFromText(const std::string& text);
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_FAULTS_H_
