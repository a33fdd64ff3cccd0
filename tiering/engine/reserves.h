// SPDX-License-Identifier: Apache-2.0
// The parts of the budgets that evictions leave, so that a restore can swap:
// for each device one large handle of the host's or, where that holds fewer
// than four, one chunk of the disk's. Devices beyond the fourth part of a
// budget get none.
//
// Thread-safety: every method. Locks: its own (kLower); nothing is called under
// it. Errors: none. Lifetime: LowerCopies'.
#ifndef STRATALLOC_TIERING_ENGINE_RESERVES_H_
#define STRATALLOC_TIERING_ENGINE_RESERVES_H_

#include <algorithm>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"

namespace stratalloc {

class Reserves {
 public:
  // `chunk_header`: what a chunk takes on disk beside its bytes.
  Reserves(Bytes host_budget, Bytes disk_budget, Bytes chunk_header)
      : host_budget_(host_budget),
        disk_budget_(disk_budget),
        chunk_header_(chunk_header) {}

  // A device with such large handles; `first`: that has none yet.
  void Join(Bytes chunk_bytes, bool first) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    chunk_bytes_ = std::max(chunk_bytes_, chunk_bytes);
    devices_ += first;
    host_ = Of(host_budget_, chunk_bytes_);
    disk_ = host_ == 0 ? Of(disk_budget_, chunk_bytes_ + chunk_header_) : 0;
  }
  // A device may use its own from now on, or may not any more.
  void Open(bool open) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_ = open ? open_ + 1 : open_ - 1;
  }

  // Of the largest device.
  Bytes chunk_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return chunk_bytes_;
  }
  // What a device may not use; `open`: one that may use its own.
  Bytes OfHost(bool open = false) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return Kept(host_, chunk_bytes_, open);
  }
  Bytes OfDisk(bool open = false) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return Kept(disk_, chunk_bytes_ + chunk_header_, open);
  }

 private:
  Bytes Of(Bytes budget, Bytes chunk) const REQUIRES(mutex_) {
    return chunk * std::min(devices_, budget / (4 * chunk));
  }
  Bytes Kept(Bytes all, Bytes chunk, bool open) const REQUIRES(mutex_) {
    return open ? all - std::min(all, open_ * chunk) : all;
  }

  const Bytes host_budget_, disk_budget_, chunk_header_;
  mutable Mutex mutex_{LockRank::kLower};
  Bytes chunk_bytes_ GUARDED_BY(mutex_) = 0;
  Bytes devices_ GUARDED_BY(mutex_) = 0;
  Bytes open_ GUARDED_BY(mutex_) = 0;  // devices
  Bytes host_ GUARDED_BY(mutex_) = 0, disk_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_RESERVES_H_
