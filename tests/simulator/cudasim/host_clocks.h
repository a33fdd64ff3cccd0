// SPDX-License-Identifier: Apache-2.0
//
// host_clocks.h: what the host has seen completed. By default that is one
// clock for the whole process: what one thread has observed counts for all,
// because threads hand work over under locks the simulator cannot see, and a
// correct program must never be accused.
//
// The strict option gives each thread a clock of its own. Then a thread may
// rely on what another observed only after an edge between the two: a token
// released by the one and acquired by the other (control.h), or work of a
// stream or event that the observing thread submitted afterwards. A thread's
// clock starts with what the process had observed when it first called CUDA,
// which stands for the edge of its creation.
//
// Thread-safety: called under the simulator's lock. A thread's clock goes when
// the thread ends.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_CLOCKS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_CLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "tests/simulator/cudasim/clocks.h"

namespace cudasim {

// The calling thread's number, from 1; never used again.
uint64_t ThreadNumber();

class HostClocks {
 public:
  bool per_thread() const { return per_thread_; }
  // All threads start from what the process has observed.
  void set_per_thread(bool per_thread) {
    per_thread_ = per_thread;
    threads_.clear();
    tokens_.clear();
  }

  // The calling thread has seen all of it completed.
  void Observe(const VectorClock& clock) {
    process_.Join(clock);
    if (per_thread_) Mine().Join(clock);
  }
  // Does the calling thread know that the operation is over?
  bool Covers(size_t stream, uint64_t number) {
    return (per_thread_ ? Mine() : process_).Covers(stream, number);
  }
  // Does every thread know it? Then nothing can conflict with it any more.
  bool AllCover(size_t stream, uint64_t number) const {
    if (!process_.Covers(stream, number)) return false;
    for (const auto& [thread, clock] : threads_) {
      if (!clock.Covers(stream, number)) return false;
    }
    return true;
  }
  const VectorClock& process() const { return process_; }
  VectorClock& Mine() {
    return threads_.try_emplace(ThreadNumber(), process_).first->second;
  }

  // What this thread knows is known to whoever acquires the token later.
  void Release(uint64_t token) {
    if (per_thread_) tokens_[token].Join(Mine());
  }
  void Acquire(uint64_t token) {
    if (!per_thread_) return;
    auto found = tokens_.find(token);
    if (found != tokens_.end()) Mine().Join(found->second);
  }
  void EndThread(uint64_t thread) { threads_.erase(thread); }

 private:
  bool per_thread_ = false;
  VectorClock process_;
  std::unordered_map<uint64_t, VectorClock> threads_;
  std::unordered_map<uint64_t, VectorClock> tokens_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_HOST_CLOCKS_H_
