// SPDX-License-Identifier: Apache-2.0
// Thread-locals that a malloc reads: how they are found, and how what they
// point to ends with its thread.
//
// STRATALLOC_FAST_THREAD_LOCAL finds a variable at a fixed distance from the
// thread's own register, one load, where a shared object's thread-locals
// otherwise cost a call of 3 ns each. The price is the room that glibc keeps
// for objects opened late, 1.6 KiB for all of a process: the *whole* object
// must fit, so what is large lies on the heap behind a pointer
// (python_shim/testing holds libstratalloc.so to 320 bytes and shows what a
// process without that room is told).
//
// ThreadEnd calls a function when a thread ends: after every C++ destructor
// of its thread-locals, other libraries' too, so that mallocs, frees and scopes
// there still find theirs. What is used again after that call is ended again.
// Not called on the thread that ends the process.
//
// Thread-safety: any thread, no lock. Failure: none that is survived; a
// process has 1024 keys and this uses one for each ThreadEnd.
#ifndef STRATALLOC_ALLOCATOR_BASE_THREAD_LOCAL_H_
#define STRATALLOC_ALLOCATOR_BASE_THREAD_LOCAL_H_

#include <pthread.h>

#include "allocator/base/check.h"

// constinit and trivially destructible, or each access would ask a guard.
#define STRATALLOC_FAST_THREAD_LOCAL \
  constinit thread_local __attribute__((tls_model("initial-exec")))

namespace stratalloc {

// A static of a function: made once, never destroyed.
class ThreadEnd {
 public:
  // end(mine) on the thread that called Await(mine), when it ends.
  explicit ThreadEnd(void (*end)(void* mine)) {
    STRATALLOC_CHECK(pthread_key_create(&key_, end) == 0,
                     "no pthread key is left in this process");
  }
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;

  void Await(void* mine) {
    STRATALLOC_CHECK(pthread_setspecific(key_, mine) == 0,
                     "no memory for a pthread key's value");
  }

 private:
  pthread_key_t key_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_THREAD_LOCAL_H_
