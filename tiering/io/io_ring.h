// SPDX-License-Identifier: Apache-2.0
// One io_uring: many requests in flight at once, into registered buffers where
// the kernel let us register them (no page pinning per request then).
//
// Lifetime: Finish() leaves nothing in flight, so the ring may go at any time
// between operations. The registered memory must outlive it.
// Fails: Create with kUnsupported where the kernel or a seccomp filter refuses
// io_uring; Register with kUnsupported (ENOMEM: the limit on locked memory).
// After fork: AbandonAfterFork() closes the descriptor and touches nothing of
// what the kernel shares with the parent.
// Invariants: queued_ + submitted_ + completed = started.
#ifndef STRATALLOC_TIERING_IO_IO_RING_H_
#define STRATALLOC_TIERING_IO_IO_RING_H_

#include <sys/uio.h>

#include <memory>

#include "allocator/base/result.h"
#include "tiering/io/block_io.h"

namespace stratalloc {

class IoRing : public BlockIo {
 public:
  // `entries`: most requests in flight; further ones wait in a list.
  static Result<std::unique_ptr<IoRing>> Create(unsigned entries);
  ~IoRing() override;

  Status Register(const iovec* buffers, unsigned count);

  void Start(IoRequest* request) override;
  void Flush() override;
  int Finish() override;
  bool broken() const override { return broken_; }
  void AbandonAfterFork() override;

 private:
  struct Uring;  // keeps liburing.h out of this header
  explicit IoRing(std::unique_ptr<Uring> uring);

  void Enqueue(IoRequest* request);
  void FillSubmissionQueue();
  // Hands the filled entries over and waits for `wait` completions. False if
  // the ring cannot be used any more.
  bool Submit(unsigned wait);
  void Reap();
  void Break(int error);

  std::unique_ptr<Uring> uring_;
  IoRequest* first_ = nullptr;  // not yet in the submission queue
  IoRequest** last_ = &first_;
  unsigned filled_ = 0;     // in the submission queue, not handed over
  unsigned in_flight_ = 0;  // the kernel's
  int error_ = 0;           // first failure since the last Finish
  bool broken_ = false;
  bool abandoned_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_IO_IO_RING_H_
