// SPDX-License-Identifier: Apache-2.0
// A thread between the disk tier and what moves its bytes, so that a disk that
// does not answer stops its caller for so long and not for ever.
//
// After a Finish that came too late (ETIMEDOUT) the requests and their memory
// belong to this thread until stuck() is false again: the kernel may still read
// and write there. Until then nothing may be started.
// Thread-safety: stuck() from any thread, the rest by one caller at a time.
// Locks: kIo. Allocates: nothing after construction.
// Errors: as the BlockIo inside, and ETIMEDOUT.
// Lifetime: the destructor waits for what is in flight, however long that
// takes.
#ifndef STRATALLOC_TIERING_IO_DEADLINE_IO_H_
#define STRATALLOC_TIERING_IO_DEADLINE_IO_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "allocator/base/condition.h"
#include "allocator/base/mutex.h"
#include "tiering/io/block_io.h"

namespace stratalloc {

class DeadlineIo final : public BlockIo {
 public:
  DeadlineIo(std::unique_ptr<BlockIo> moves, std::chrono::nanoseconds most);
  ~DeadlineIo() override;

  void Start(IoRequest* request) override EXCLUDES(mutex_);
  void Flush() override EXCLUDES(mutex_);
  int Finish() override EXCLUDES(mutex_);
  bool broken() const override { return !stuck() && moves_->broken(); }
  void AbandonAfterFork() override;

  // A Finish came too late, and what it waited for has not ended.
  bool stuck() const { return stuck_.load(std::memory_order_acquire); }

 private:
  void Run() EXCLUDES(mutex_);

  const std::unique_ptr<BlockIo> moves_;  // the thread's, while it is asked
  const std::chrono::nanoseconds most_;
  std::atomic<bool> stuck_{false};  // written under the lock

  Mutex mutex_{LockRank::kIo};
  Condition asked_, ended_;
  IoRequest* first_ GUARDED_BY(mutex_) = nullptr;  // not handed over yet
  IoRequest** last_ GUARDED_BY(mutex_) = &first_;
  enum class Asked { kNothing, kFlush, kFinish, kStop };
  Asked what_ GUARDED_BY(mutex_) = Asked::kNothing;
  int error_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: starts when everything else is ready
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_DEADLINE_IO_H_
