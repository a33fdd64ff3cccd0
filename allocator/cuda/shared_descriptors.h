// SPDX-License-Identifier: Apache-2.0
// The descriptors that this process has exported for other processes, of all
// devices. What is not among them is given to none.
//
// Thread-safety: any thread. Locks: kShares, a leaf, for one system call that
// does not wait; a caller may hold kDevice.
// Errors: none.
// Lifetime: the process's. The child of a fork begins with none of its own.
// Invariants: a number that is closed is none of these before it can be given
// to another file.
#ifndef STRATALLOC_ALLOCATOR_CUDA_SHARED_DESCRIPTORS_H_
#define STRATALLOC_ALLOCATOR_CUDA_SHARED_DESCRIPTORS_H_

#include <cstddef>
#include <functional>

namespace stratalloc {

class SharedDescriptors {
 public:
  static void Add(int descriptor);
  // It is shared no more, and closed.
  static void Close(int descriptor);
  static std::size_t Count();
  // Calls `use` if the descriptor is shared, and returns whether it is. It
  // stays open until `use` returns, which must not wait: the lock is held.
  static bool Use(int descriptor, const std::function<void()>& use);
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_SHARED_DESCRIPTORS_H_
