// SPDX-License-Identifier: Apache-2.0
// Knowledge that the caller of a malloc has of the block's use.
#ifndef STRATALLOC_ACCOUNTING_MALLOC_HINT_H_
#define STRATALLOC_ACCOUNTING_MALLOC_HINT_H_

namespace stratalloc {

enum class MallocHint : int {
  kNone = 0,
  kBackward = 1,  // inside a backward node of autograd
  kGradient = 2,  // ... whose result this is, and feeds an AccumulateGrad
  // a raw pointer that no operator will name: must never be evicted
  kUnseen = 3,
  // a copy of memory that may leave: may leave too, whatever the scope
  kCopy = 4,
  // a library's own memory, no tensor's: apart from what may leave
  kScratch = 5,
  // inside a node that feeds an AccumulateGrad, and of another size: lives
  // where the gradients are, because its lifetime is not known for sure
  kBesideGradient = 6,
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_MALLOC_HINT_H_
