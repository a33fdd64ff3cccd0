// SPDX-License-Identifier: Apache-2.0
#include "tiering/io/io_ring.h"

#include <liburing.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace stratalloc {

struct IoRing::Uring {
  io_uring ring;
};

namespace {

// The kernel is short of requests for a moment; more than this is not a
// moment.
constexpr int kMostBusyRetries = 1000;

bool IsTransient(int error) {
  return error == EINTR || error == EAGAIN || error == EBUSY;
}

void Prepare(io_uring_sqe* sqe, IoRequest* request) {
  char* const data = request->data + request->done;
  const auto bytes = static_cast<unsigned>(request->bytes - request->done);
  const std::uint64_t offset = request->offset + request->done;
  const int buffer = request->registered_buffer;
  if (request->write && buffer >= 0) {
    io_uring_prep_write_fixed(sqe, request->fd, data, bytes, offset, buffer);
  } else if (request->write) {
    io_uring_prep_write(sqe, request->fd, data, bytes, offset);
  } else if (buffer >= 0) {
    io_uring_prep_read_fixed(sqe, request->fd, data, bytes, offset, buffer);
  } else {
    io_uring_prep_read(sqe, request->fd, data, bytes, offset);
  }
  io_uring_sqe_set_data(sqe, request);
}

}  // namespace

IoRing::IoRing(std::unique_ptr<Uring> uring) : uring_(std::move(uring)) {}

Result<std::unique_ptr<IoRing>> IoRing::Create(unsigned entries) {
  // Before there is a descriptor, which nobody would close if this threw.
  std::unique_ptr<IoRing> made(new IoRing(std::make_unique<Uring>()));
  made->abandoned_ = true;  // it has none yet
  io_uring* const ring = &made->uring_->ring;
  if (const int e = io_uring_queue_init(entries, ring, 0); e < 0) {
    return Fail(ErrorCode::kUnsupported,
                std::string("io_uring_setup: ") + std::strerror(-e));
  }
  made->abandoned_ = false;
  return made;
}

IoRing::~IoRing() {
  if (!abandoned_) io_uring_queue_exit(&uring_->ring);
}

Status IoRing::Register(const iovec* buffers, unsigned count) {
  const int e = io_uring_register_buffers(&uring_->ring, buffers, count);
  if (e == 0) return {};
  return Fail(ErrorCode::kUnsupported,
              std::string("io_uring_register_buffers: ") + std::strerror(-e));
}

void IoRing::Enqueue(IoRequest* request) {
  request->next = nullptr;
  *last_ = request;
  last_ = &request->next;
}

void IoRing::Start(IoRequest* request) {
  request->done = 0;
  request->error = 0;
  Enqueue(request);
}

// One system call for all of them, so that the kernel merges neighbours.
void IoRing::Flush() {
  FillSubmissionQueue();
  Submit(/*wait=*/0);
}

void IoRing::FillSubmissionQueue() {
  // After a failure nothing new is begun; what is in flight is waited for.
  // In flight never exceeds the ring's size, so completions cannot overflow.
  while (first_ != nullptr && error_ == 0 && !broken_ &&
         filled_ + in_flight_ < uring_->ring.sq.ring_entries) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&uring_->ring);
    if (sqe == nullptr) return;
    IoRequest* const request = first_;
    first_ = request->next;
    if (first_ == nullptr) last_ = &first_;
    Prepare(sqe, request);
    ++filled_;
  }
}

bool IoRing::Submit(unsigned wait) {
  for (int retry = 0; retry < kMostBusyRetries && !broken_; ++retry) {
    if (filled_ == 0 && wait == 0) return true;
    const int taken = io_uring_submit_and_wait(&uring_->ring, wait);
    if (taken >= 0) {
      filled_ -= static_cast<unsigned>(taken);
      in_flight_ += static_cast<unsigned>(taken);
      return true;
    }
    if (!IsTransient(-taken)) {
      Break(-taken);
      return false;
    }
    // Interrupted, or the kernel is short of requests and completions free
    // some: the caller comes back.
    if (in_flight_ > 0) return true;
    sched_yield();
  }
  if (!broken_) Break(EBUSY);
  return false;
}

// Takes every completion that is there; the rest of a short transfer and a
// request that was interrupted are queued again.
void IoRing::Reap() {
  io_uring_cqe* cqe = nullptr;
  while (in_flight_ > 0 && io_uring_peek_cqe(&uring_->ring, &cqe) == 0) {
    auto* const request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
    const int result = cqe->res;
    io_uring_cqe_seen(&uring_->ring, cqe);
    --in_flight_;
    if (result > 0) {
      request->done += static_cast<Bytes>(result);
      if (request->done < request->bytes) Enqueue(request);
    } else if (result < 0 && IsTransient(-result)) {
      Enqueue(request);
    } else {
      request->error = result < 0 ? -result : ENODATA;
      if (error_ == 0) error_ = request->error;
    }
  }
}

int IoRing::Finish() {
  for (;;) {
    Reap();
    FillSubmissionQueue();
    if (filled_ == 0 && in_flight_ == 0) break;
    if (!Submit(/*wait=*/1)) break;
  }
  first_ = nullptr;
  last_ = &first_;
  return std::exchange(error_, 0);
}

// The kernel refuses submissions. Entries it has not taken would be submitted
// by a later call with memory that is no longer theirs, so the ring is not
// used again; what it has taken is waited for.
void IoRing::Break(int error) {
  broken_ = true;
  if (error_ == 0) error_ = error;
  filled_ = 0;
  while (in_flight_ > 0) {
    io_uring_cqe* cqe = nullptr;
    // A descriptor that is gone cannot be waited on. What the kernel has taken
    // goes on, and its completions come through the memory we share with it.
    if (io_uring_wait_cqe(&uring_->ring, &cqe) != 0) sched_yield();
    Reap();
  }
}

void IoRing::AbandonAfterFork() {
  if (abandoned_) return;
  abandoned_ = true;
  broken_ = true;
  // Not io_uring_queue_exit: the queues are shared with the parent's process.
  close(uring_->ring.ring_fd);
}

}  // namespace stratalloc
