// SPDX-License-Identifier: Apache-2.0
// What a scope's frame has allocated and not freed. While the frame is open
// nobody knows whether that outlives it, so it is charged as temporary; what is
// still live when the frame ends becomes an activation, all at once and
// whatever it is made of (DeviceAllocator::EndFrame). So there is one account
// for each frame that has allocated on a device, with a number that its blocks
// carry (Charge::frame), until the last of them is freed.
//
// Thread-safety: Begin and Recycle by anybody; of an account, `blocks` and
// `bytes` are written under its device's lock, `next` by the thread of the
// frame alone, and the rest before anybody knows of it.
// Lifetime: the process's. A number is given again once its account ended.
// Errors: Begin returns 0 when 16 million frames have live blocks, and in the
// child of a fork.
#ifndef STRATALLOC_ALLOCATOR_STATE_FRAME_ACCOUNTS_H_
#define STRATALLOC_ALLOCATOR_STATE_FRAME_ACCOUNTS_H_

#include <atomic>
#include <cstdint>

#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "allocator/values/charge_account.h"

namespace stratalloc {

struct FrameAccount {
  DeviceIndex device{0};
  ScopeId scope = kRootScope;
  bool ended = false;  // what is live is an activation; device lock
  FrameId next = 0;    // the frame's account on another device; or free ones
  Amount bytes{0}, blocks{0};  // live

  // Asked by the frame's own thread, the one that adds some: then it stays so.
  bool HasNoBlocks() const {
    return blocks.load(std::memory_order_acquire) == 0;
  }
  // The blocks that are left.
  Bytes DropBlock() {
    const Bytes left = blocks.load(std::memory_order_relaxed) - 1;
    blocks.store(left, std::memory_order_release);
    return left;
  }
};

class FrameAccounts {
 public:
  static FrameAccounts& Get();

  FrameId Begin(DeviceIndex device, ScopeId scope);
  // REQUIRES: no block carries the number, and its frame has ended.
  void Recycle(FrameId id);
  // In the child of a fork: another thread of the parent may have had the lock.
  static void AbandonAfterFork() {
    abandoned_.store(true, std::memory_order_relaxed);
  }

  // REQUIRES: a number of Begin's that was not given back.
  FrameAccount& at(FrameId id) {
    return chunks_[id / kChunk].load(std::memory_order_relaxed)[id % kChunk];
  }
  // The charge's frame while it is open; 0: none. REQUIRES: as Resolved.
  FrameId OpenFrame(Charge charge) {
    return charge.frame != 0 && !at(charge.frame).ended ? charge.frame : 0;
  }
  // What the charge says now, without a frame. The caller holds the device
  // lock, and a block carries the charge.
  Charge Resolved(Charge charge) {
    if (charge.frame != 0 && at(charge.frame).ended) {
      charge.category = Category::kActivation;
    }
    charge.frame = 0;
    return charge;
  }

 private:
  static constexpr FrameId kChunk = 4096;
  static constexpr FrameId kMost = 1 << 24;

  static inline constinit std::atomic<bool> abandoned_{false};
  Mutex mutex_{LockRank::kFrames};
  FrameId free_ GUARDED_BY(mutex_) = 0;
  FrameId made_ GUARDED_BY(mutex_) = 1;  // 0 is none
  std::atomic<FrameAccount*> chunks_[kMost / kChunk] = {};
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_FRAME_ACCOUNTS_H_
