// SPDX-License-Identifier: Apache-2.0
// What a thread waits for that another one has to do: a condition variable for
// Mutex that says on both sides to whoever keeps time (host_time.h) that one
// thread went on because of another.
//
// Thread-safety: Wait and WaitFor with the mutex held, which they let go of
// while they wait; NotifyAll from any thread, under the mutex or not.
#ifndef STRATALLOC_ALLOCATOR_BASE_CONDITION_H_
#define STRATALLOC_ALLOCATOR_BASE_CONDITION_H_

#include <chrono>
#include <condition_variable>

#include "allocator/base/host_time.h"
#include "allocator/base/mutex.h"

namespace stratalloc {

class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  // May return although nobody notified: the caller looks, and waits again.
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    variable_.wait(mutex);
    NoteWentOn(this);
  }
  void WaitFor(Mutex& mutex, std::chrono::nanoseconds most) REQUIRES(mutex) {
    variable_.wait_for(mutex, most);
    NoteWentOn(this);
  }
  void NotifyAll() {
    NoteLetGo(this);
    variable_.notify_all();
  }

 private:
  std::condition_variable_any variable_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_CONDITION_H_
