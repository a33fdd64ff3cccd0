// SPDX-License-Identifier: Apache-2.0
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_EVICTABLE_COPY_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_EVICTABLE_COPY_H_

#include <torch/library.h>

#include "allocator/base/thread_local.h"

namespace stratalloc {

// True while this thread copies a tensor whose memory may leave the device: its
// mallocs are announced as MallocHint::kCopy, and the copy may leave as
// well.
//
// Memory that a module's call allocates is taken for an activation, which never
// leaves. A copy of a parameter is none: autocast keeps one of each weight
// until its context ends, which together are half the model again, and a
// program may keep what it cloned, converted or made contiguous for as long as
// it likes. Where the bytes come from tells: an activation's copy is an
// activation, and a copy of what is none would live as long as its original, as
// far as anybody knows. One that dies at once was merely put into other memory.
//
// Such copies are made by two operators that exist in composite form only, so
// kernels of ours at the CUDA key pass on to torch's with the flag set, and by
// broadcasts past the dispatcher (foreign_call.h). A program whose memory
// starts on several devices may see the flag set for an activation between
// their ranges: placement only.
//
// This thread's own; no lock. An exception of the copy resets it.
extern STRATALLOC_FAST_THREAD_LOCAL bool copying_evictable;

// Sets it while it lives, if what is copied may leave. Nested copies keep the
// outer answer: they are parts of the outer one.
class CopyingEvictable {
 public:
  explicit CopyingEvictable(bool may_leave) : outer_(copying_evictable) {
    if (may_leave) copying_evictable = true;
  }
  ~CopyingEvictable() { copying_evictable = outer_; }
  CopyingEvictable(const CopyingEvictable&) = delete;
  CopyingEvictable& operator=(const CopyingEvictable&) = delete;

 private:
  const bool outer_;
};

// The operators that copy.
inline constexpr const char* kEvictableCopies[] = {"aten::_to_copy",
                                                   "aten::clone"};

// Adds the kernel of `name`, one of them, which passes on to torch's own.
// REQUIRES: the operator has no kernel at the CUDA key, and no other thread
// runs operators, as for the rest of the guard.
void AddEvictableCopy(torch::Library& aten, const c10::OperatorName& name);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_BASE_EVICTABLE_COPY_H_
