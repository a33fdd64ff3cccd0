// SPDX-License-Identifier: Apache-2.0
// The background thread of one device: it moves pages ahead of use, and
// relieves the device when a threshold was crossed. While there is work it
// looks again after microseconds, since streams announce nothing; else it
// sleeps until it is woken.
//
// Thread-safety: AskRelief and Wake from any thread, with or without the GIL
// and under a device lock; they never wait for the work. Stop by one caller.
// Lifetime: the destructor waits for the work in hand. Errors: none.
#ifndef STRATALLOC_TIERING_ENGINE_MOVER_THREAD_H_
#define STRATALLOC_TIERING_ENGINE_MOVER_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

namespace stratalloc {

class MoverThread {
 public:
  // Both run on the thread. `step` returns whether there may be more to do
  // soon.
  MoverThread(std::function<void()> relieve, std::function<bool()> step);
  ~MoverThread();

  // Finishes the work in hand and ends the thread; what is asked afterwards is
  // ignored. For the end of the process: the thread must not call CUDA while
  // its libraries are being torn down. Idempotent.
  void Stop();

  void AskRelief();
  // There may be something to do.
  void Wake() {
    if (sleeps_.load(std::memory_order_seq_cst)) Rouse();
  }

 private:
  void Run();
  void Rouse();
  void Relieve();

  const std::function<void()> relieve_;
  const std::function<bool()> step_;
  std::atomic<bool> relief_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> sleeps_{false};
  // Wakes the thread; an atomic wait needs no lock.
  std::atomic<std::uint32_t> asked_{0};
  std::thread thread_;  // last: starts when everything else is ready
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_MOVER_THREAD_H_
