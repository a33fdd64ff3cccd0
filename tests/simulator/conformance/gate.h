// SPDX-License-Identifier: Apache-2.0
//
// gate.h: makes "not finished yet" certain. A host function on a stream waits
// until the gate is opened, so that what is behind it on the stream cannot be
// complete before. One gate at a time: a driver may run all host functions on
// one thread. While it is closed no call may be made that waits for the device
// (allocation and freeing among them).

#ifndef STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_GATE_H_
#define STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_GATE_H_

#include <condition_variable>
#include <mutex>

#include "tests/simulator/conformance/api.h"

namespace conformance {

class Gate {
 public:
  explicit Gate(cudaStream_t stream) : stream_(stream) {
    (void)api.cudaLaunchHostFunc(stream, &Gate::Wait, this);
  }
  ~Gate() {
    Open();
    (void)api.cudaStreamSynchronize(stream_);
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return passed_; });
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void Open() {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  static void Wait(void* self) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock<std::mutex> lock(gate.mu_);
    gate.changed_.wait(lock, [&] { return gate.open_; });
    gate.passed_ = true;
    gate.changed_.notify_all();
  }

  const cudaStream_t stream_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = false;
  bool passed_ = false;
};

}  // namespace conformance

#endif  // STRATALLOC_TESTS_SIMULATOR_CONFORMANCE_GATE_H_
