// SPDX-License-Identifier: Apache-2.0
// The charge of a malloc: which scope pays, for which category, and in which
// lifetime class the block is placed. The answer is the scope on top of the
// thread's stack, corrected by the caller's hint.
//
// Thread-safety: any thread; the stack is the calling thread's own.
// Locks: ChargeOf may take FrameAccounts'.
// Errors: without an account for its frame a block is an activation at once.
// Lifetime: nothing is kept but the frame's account (scope_stack.h).
//
// The functions are in line: they are a tenth of a malloc's instructions.
#ifndef STRATALLOC_ACCOUNTING_ATTRIBUTION_H_
#define STRATALLOC_ACCOUNTING_ATTRIBUTION_H_

#include "accounting/malloc_hint.h"
#include "accounting/scope_stack.h"
#include "allocator/base/ids.h"
#include "allocator/state/frame_accounts.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

namespace internal {
// Begins an account of the frame on top, on this device. 0: there is none.
FrameId BeginFrameAccount(DeviceIndex device, ScopeId payer);

inline FrameId FrameAccountOn(DeviceIndex device, ScopeId payer) {
  FrameAccounts& accounts = FrameAccounts::Get();
  FrameId id = CurrentScope().account;
  while (id != 0 && accounts.at(id).device != device) id = accounts.at(id).next;
  if (__builtin_expect(id != 0, 1)) return id;
  return BeginFrameAccount(device, payer);
}
}  // namespace internal

// Frame that pays for a malloc with `hint` while `frame` is on top.
[[gnu::always_inline]] inline ScopeFrame PayingFrame(ScopeFrame frame,
                                                     MallocHint hint) {
  if (__builtin_expect(hint == MallocHint::kNone, 1)) return frame;
  if (hint == MallocHint::kUnseen || hint == MallocHint::kScratch) {
    frame.lifetime = LifetimeClass::kTransient;
    frame.category = Category::kWorkspace;
    return frame;
  }
  if (hint == MallocHint::kCopy) {
    // How long it will live is not known.
    if (frame.lifetime == LifetimeClass::kTransient) {
      frame.lifetime = LifetimeClass::kUnknown;
    }
    return frame;
  }
  // A forward inside of a node recomputes what it needs (checkpoints).
  if (frame.in_backward && !frame.backward) return frame;
  constexpr unsigned kFixed = 1u << Raw(LifetimeClass::kPersistent) |
                              1u << Raw(LifetimeClass::kOptimizer) |
                              1u << Raw(LifetimeClass::kStaying);
  const bool fixed = (kFixed >> Raw(frame.lifetime) & 1) != 0;
  if (hint == MallocHint::kGradient && !fixed) {
    frame.lifetime = LifetimeClass::kGradient;
    frame.category = Category::kGradient;
  } else if (hint == MallocHint::kBesideGradient && !fixed) {
    frame.lifetime = LifetimeClass::kGradient;
    frame.category = Category::kActivation;
  } else if (hint == MallocHint::kBackward && !fixed) {
    frame.lifetime = LifetimeClass::kTransient;
    if (frame.category == Category::kUnknown) {
      frame.category = Category::kActivation;
    }
  }
  return frame;
}

// Charge of a block for a PayingFrame of this thread. What a frame of
// activations allocates is temporary until the frame ends.
[[gnu::always_inline]] inline Charge ChargeOf(const ScopeFrame& frame,
                                              DeviceIndex device) {
  Charge charge{frame.payer, frame.category};
  if (frame.category == Category::kActivation &&
      frame.lifetime == LifetimeClass::kTransient && ScopeDepth() > 0) {
    charge.frame = internal::FrameAccountOn(device, frame.payer);
    if (charge.frame != 0) charge.category = Category::kTemporary;
  }
  return charge;
}

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_ATTRIBUTION_H_
